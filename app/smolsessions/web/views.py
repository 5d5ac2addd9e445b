"""Records as JSON data of answers."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, get_args
from urllib.parse import quote

from pydantic_core import to_json

from smolsessions.core.effects import EffectEntry
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import ExportedMemory, PrunePreview
from smolsessions.core.records import (
    AgentInfo,
    AgentVersion,
    Conversation,
    Outcome,
    Page,
    PromptSize,
    StepType,
    ToolCall,
    Turn,
)
from smolsessions.core.requests import Answer, Approval, InputRequest
from smolsessions.web.cursors import cursor_at
from smolsessions.web.links import link
from smolsessions.wire.conversations import Conversation as ConversationAnswer

KINDS_OF_VARIABLES = {"code": "variable", "state": "state", "tools": "tool"}
MAX_PREVIEW_CHARS = 500
NO_OUTCOME = Outcome("finished")
"""Values of a turn that is not over."""


def data_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record."""
    data = {}
    for name in record.__slots__:  # faster than a comprehension
        data[name] = getattr(record, name)
    return data


def turn_view(turn: Turn, *, internal: bool = False) -> dict[str, Any]:
    """Return a turn as JSON data. `internal` includes internal tools."""
    outcome = turn.outcome or NO_OUTCOME
    calls = [call for call in outcome.tool_calls if internal or not call.internal]
    options = turn.options
    return {
        "conversation_id": turn.ref.id,
        "turn": turn.number,
        "status": turn.status,
        "agent": agent_version_view(turn.agent),
        "message": turn.message,
        "images": image_views(turn.ref.id, turn.images),
        "files": file_views(turn.ref.id, turn.files) if turn.files else [],
        "additional_args": turn.additional_args,
        "options": {
            "max_steps": options.max_steps,
            "deadline_s": options.deadline_s,
            "reset": options.reset,
            "on_busy": options.on_busy,
            "approve": options.approve,
        },
        "reply": outcome.reply,
        "output": outcome.output,
        "output_images": image_views(turn.ref.id, outcome.images),
        "output_files": file_views(turn.ref.id, outcome.files) if outcome.files else [],
        "tool_call_names": [call.name for call in calls if not is_refused(call)],
        "tool_calls": list(map(_call_view, calls)),
        "requests": requests_view(turn.ref.id, turn.requests) if turn.requests and not turn.outcome else [],
        "state": outcome.state,
        "steps": outcome.steps,
        "usage": {"input_tokens": outcome.usage.input_tokens, "output_tokens": outcome.usage.output_tokens},
        "timing": _timing_view(turn),
        "attempts": turn.attempts,
        "dropped_variables": outcome.dropped_variables,
        "left_out": outcome.left_out and data_of(outcome.left_out),
        "rolled_back": turn.rolled_back or (outcome.error is not None and outcome.error.code == "rolled_back"),
        "error": outcome.error and data_of(outcome.error),
    }


def is_refused(call: ToolCall) -> bool:
    """Return whether a call was not made: a person rejected it, or its request expired."""
    return call.approval is not None and call.approval.decision in {"rejected", "expired"}


def _call_view(call: ToolCall) -> dict[str, Any]:
    data = data_of(call)
    if approval := call.approval:
        data["approval"] = {"decision": approval.decision, **_by_and_at(approval), "reason": approval.reason}
    return data


def requests_view(conversation_id: str, requests: Iterable[InputRequest]) -> list[dict[str, Any]]:
    return [_request_view(conversation_id, request) for request in requests]


def _request_view(conversation_id: str, request: InputRequest) -> dict[str, Any]:
    """Return a request for a person's decision."""
    times = {"asked_at": time_view(request.asked_at), "expires_at": time_view(request.expires_at)}
    data = data_of(request) | times | {"images": [], "files": []}
    for shown in data.pop("media"):
        is_image = isinstance(shown.part, StepImage)
        [part] = (image_views if is_image else file_views)(conversation_id, [shown.part])
        data["images" if is_image else "files"].append({"pointer": shown.pointer, "sha256": shown.sha256} | part)
    return data


def answer_view(answer: Answer) -> dict[str, Any]:
    return data_of(answer) | _by_and_at(answer)


def _by_and_at(decided: Answer | Approval) -> dict[str, Any]:
    return {"by": decided.by and data_of(decided.by), "at": time_view(decided.at)}


def _timing_view(turn: Turn) -> dict[str, Any]:
    timing = turn.timing
    started_at = timing.started_at or timing.finished_at  # a turn that never started was queued until its end
    return {
        "submitted_at": time_view(timing.submitted_at),
        "started_at": time_view(timing.started_at),
        "finished_at": time_view(timing.finished_at),
        "queued_ms": _ms_between(timing.submitted_at, started_at),
        "duration_ms": _ms_between(started_at, timing.finished_at and timing.finished_at - timing.waited_s),
        "waited_ms": round(timing.waited_s * 1_000_000) / 1000,
    }


def time_view(seconds: float | None) -> str | None:
    """Return Unix seconds as ISO 8601 in UTC, to the millisecond."""
    if seconds is None:
        return None
    second, microseconds = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_second_view(second)}.{microseconds // 1000:03d}Z"


@lru_cache(maxsize=256)
def _second_view(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _ms_between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start) * 1_000_000) / 1000


def image_view(conversation_id: str, name: str, width: int, height: int) -> dict[str, Any]:
    """Return a step's image: its size in pixels and its address."""
    return {"width": width, "height": height, "url": link(f"/conversations/{conversation_id}/images/{name}")}


def image_views(conversation_id: str, images: Iterable[StepImage]) -> list[dict[str, Any]]:
    return [image_view(conversation_id, image.name, image.width, image.height) for image in images]


def file_views(conversation_id: str, files: Iterable[StepFile]) -> list[dict[str, Any]]:
    return [_file_view(conversation_id, **data_of(file)) for file in files]


def _file_view(conversation_id: str, name: str, file_name: str, **more: Any) -> dict[str, Any]:
    return {"name": file_name, **more, "url": link(f"/conversations/{conversation_id}/files/{name}")}


def conversation_view(conversation: Conversation) -> dict[str, Any]:
    origin = conversation.forked_from
    same = {name: getattr(conversation, name) for name in ConversationAnswer.model_fields if name != "id"}
    return {
        "id": conversation.ref.id,
        **same,
        "created_at": time_view(conversation.created_at),
        "updated_at": time_view(conversation.updated_at),
        "step_counts": {kind: conversation.step_counts.get(kind, 0) for kind in get_args(StepType)},
        "expires_at": time_view(conversation.expires_at),
        "forked_from": origin and {"conversation_id": origin[0], "turn": origin[1]},
    }


def prune_view(
    weighed: PrunePreview, count: int, conversation: Conversation | None, *, destroyed: bool
) -> dict[str, Any]:
    return {
        "dry_run": conversation is None,
        "before": _weight_view(weighed.before),
        "after": _weight_view(weighed.after),
        "left_out": len(weighed.left_out),
        "shortened": weighed.shortened,
        "archived": 0 if destroyed else count,
        "destroyed": count if destroyed else 0,
        "conversation": conversation and conversation_view(conversation),
    }


def workspace_views(conversation_id: str, files: Mapping[str, tuple[int, float]]) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "size_bytes": size,
            "modified_at": datetime.fromtimestamp(modified_at, UTC),
            "url": link(f"/conversations/{conversation_id}/workspace/files/{quote(path)}"),
        }
        for path, (size, modified_at) in sorted(files.items())
    ]


def variable_views(exported: ExportedMemory) -> list[dict[str, Any]]:
    """Return variables with a preview. Those without a JSON form have the reason instead."""
    views = []
    for agent, members in exported.variables.items():
        for member, kind in KINDS_OF_VARIABLES.items():
            for name, value in members[member].items():
                data = to_json(value)
                views.append(_variable_view(agent, kind, name, data.decode()[:MAX_PREVIEW_CHARS], len(data)))
        for name, file in members["files"].items():
            found = exported.files[file]
            views.append(_variable_view(agent, "file", name, found["name"], len(b64decode(found["data"]))))
    lost = (
        _variable_view(one["agent"], one["kind"], one["name"], reason=one["reason"]) for one in exported.not_exported
    )
    return sorted([*views, *lost], key=lambda view: (view["agent"], view["kind"], view["name"]))


def _variable_view(
    agent: str, kind: str, name: str, preview: str | None = None, size: int | None = None, *, reason: str | None = None
) -> dict[str, Any]:
    return {
        "agent": agent,
        "kind": kind,
        "name": name,
        "preview": preview,
        "size_bytes": size,
        "reason": reason,
    }


def _weight_view(weight: PromptSize) -> dict[str, Any]:
    data = data_of(weight)
    is_estimate = data.pop("is_estimate")
    return {**data, "tokens_are": "estimated" if is_estimate else "reported"}


def message_view(conversation_id: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the prompt, with its images as links."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "image", **image_view(conversation_id, part["name"], part["width"], part["height"])}
            if part["type"] == "image"
            else part
            for part in content
        ]
    return {"role": message["role"], "content": content, "tokens": message["tokens"]}


def effect_view(entry: EffectEntry) -> dict[str, Any]:
    key, outcome = entry.key, entry.outcome
    return {
        "kind": key.kind,
        "call_id": key.call_id,
        "step_id": key.step_id,
        "name": outcome.model if outcome and outcome.model else key.name,
        "state": "begun" if entry.size_bytes is None else "done",
        "attempt": outcome.attempt if outcome else key.begun_by,
        "repeated": outcome.repeated if outcome else key.is_repeated,
        "ok": outcome.error is None if outcome else None,
        "error": outcome.error if outcome else None,
        "duration_ms": outcome.duration_ms if outcome else None,
        "size_bytes": entry.size_bytes,
    }


def agent_version_view(version: AgentVersion) -> dict[str, Any]:
    model = version.model
    return {  # each turn shows it, and `data_of` takes several times as long
        "name": version.name,
        "kind": version.kind,
        "smolagents": version.smolagents,
        "model": {"provider": model.provider, "id": model.id},
        "fingerprint": version.fingerprint,
        "version": version.version,
    }


def agent_view(info: AgentInfo, confinement: str | None, *, default: bool) -> dict[str, Any]:
    names = ("description", "max_steps", "code_runs_in", "policy", "examples", "limitations", "approve", "ask_user")
    same = {name: getattr(info, name) for name in names}
    same["tools"] = [data_of(tool) for tool in info.tools]
    return {**agent_version_view(info.version), **same, "code_confinement": confinement, "default": default}


def step_view(conversation_id: str, step: dict[str, Any]) -> dict[str, Any]:
    """Return a step with its images and files as links."""
    if "images" not in step:
        return step
    images = [image_view(conversation_id, **image) for image in step["images"]]
    return {**step, "images": images, "files": [_file_view(conversation_id, **file) for file in step["files"]]}


def page_view(page: Page[Any], view: Callable[[Any], Any], *of: str) -> dict[str, Any]:
    """Return a page of the list that `of` names."""
    return {"items": [view(item) for item in page.items], "next_cursor": cursor_at(page.next_cursor, *of)}
