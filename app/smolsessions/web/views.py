"""Records as JSON data of answers, and events as that of streams, with their schemas."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Any, get_args
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

from smolsessions.core import events, records
from smolsessions.core.agent_ports import AgentInfo
from smolsessions.core.effects import EffectEntry
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import ExportedMemory, PrunePreview
from smolsessions.core.requests import InputRequest
from smolsessions.core.times import time_text
from smolsessions.web.cursors import cursor_at
from smolsessions.web.links import link
from smolsessions.wire import conversations, turns
from smolsessions.wire.events import MODELS_OF_TYPES, InputAnswer, KnownEvent, TurnEvent
from smolsessions.wire.words import Time

_CODE = "python_interpreter"
_REF = "#/components/schemas/{model}"
KINDS_OF_VARIABLES = {"code": "variable", "state": "state", "tools": "tool"}
CODES_OF_EFFECTS = {"model": "model_error", "tool": "tool_error", "code": "execution_error", "check": "agent_error"}
MAX_PREVIEW_CHARS = 500
NO_OUTCOME = records.Outcome("finished")
"""Values of a turn that is not over."""


def view_of(model: type[BaseModel], *records: Any, **own: Any) -> dict[str, Any]:
    """Return the members of an answer in their order: `own`, and those that a record and the model share.

    The last record that has a member wins. No model is made: a validated one costs three times as much, for each event
    and turn.
    """
    found: dict[str, Any] = dict.fromkeys(_order(model))
    for record in records:
        names, values_of, times = _shared(model, record.__class__)
        found.update(zip(names, values_of(record), strict=False))
        for name in times:
            if found[name] is not None:
                found[name] = time_text(found[name], "milliseconds")
    found |= own
    return found


@cache
def _order(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(model.model_fields)  # a property that takes long


@cache
def _shared(model: type[BaseModel], record: Any) -> tuple[list[str], Callable[[Any], tuple[Any, ...]], list[str]]:
    """Return the names that a model and a record share, a function that reads their values, and the names of times."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    names = [name for name in record.__match_args__ if name in kinds]
    times = [name for name in names if kinds[name] is datetime or Time in get_args(kinds[name])]
    return names, attrgetter(*names, "__class__", "__class__"), times  # two more, so that it always returns a tuple


def turn_view(turn: records.Turn, *, internal: bool) -> dict[str, Any]:
    """Return a turn as an answer. `internal` includes internal tools."""
    outcome, timing, place = turn.outcome or NO_OUTCOME, turn.timing, turn.ref.id
    calls = [call for call in outcome.tool_calls if internal or not call.internal]
    started_at = timing.started_at or timing.finished_at  # a turn that never started was queued until its end
    return view_of(
        turns.Turn,
        outcome,
        turn,
        conversation_id=place,
        turn=turn.number,
        status=turn.status,
        outcome=outcome.state,
        step_count=outcome.steps,
        images=media_views(place, turn.images),
        files=media_views(place, turn.files),
        output_images=media_views(place, outcome.images),
        output_files=media_views(place, outcome.files),
        tool_call_names=[call.name for call in calls if not is_refused(call)],
        tool_calls=[
            view_of(turns.ToolCall, call, approval=view_of(turns.Approval, call.approval)) if call.approval else call
            for call in calls
        ],
        requests=[] if turn.outcome else request_views(place, turn.requests),
        timing=view_of(
            turns.Timing,
            timing,
            queued_ms=_ms_between(timing.submitted_at, started_at),
            duration_ms=_ms_between(started_at, timing.finished_at and timing.finished_at - timing.waited_s),
            waited_ms=_ms_between(0, timing.waited_s),
        ),
        rolled_back=turn.rolled_back or (outcome.error is not None and outcome.error.code == "rolled_back"),
    )


def is_refused(call: records.ToolCall) -> bool:
    """Return whether a call was not made: a person rejected it, or its request expired."""
    return call.approval is not None and call.approval.decision in {"rejected", "expired"}


def request_views(conversation_id: str, requests: Iterable[InputRequest]) -> list[dict[str, Any]]:
    """Return requests for a person's decision, with the images and files among their arguments."""
    views = []
    for request in requests:
        media: dict[str, list[dict[str, Any]]] = {"images": [], "files": []}
        for shown in request.media:
            view = media_view(conversation_id, shown.part)
            kind = "images" if isinstance(shown.part, StepImage) else "files"
            media[kind].append({"pointer": shown.pointer, "sha256": shown.sha256, **view})
        views.append(view_of(turns.InputRequest, request, **media))
    return views


def _ms_between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start) * 1_000_000) / 1000


def media_view(conversation_id: str, part: StepImage | StepFile) -> dict[str, Any]:
    """Return an image or a file of a step with its address."""
    at = f"/conversations/{conversation_id}"
    if isinstance(part, StepImage):
        return {"width": part.width, "height": part.height, "url": link(f"{at}/images/{part.name}")}
    same = {"media_type": part.media_type, "size_bytes": part.size_bytes}
    return {"name": part.file_name, **same, "url": link(f"{at}/files/{part.name}")}


def media_views(conversation_id: str, parts: Iterable[StepImage | StepFile]) -> list[dict[str, Any]]:
    return [media_view(conversation_id, part) for part in parts]


def agent_view(info: AgentInfo, confinement: str | None, *, default: bool) -> dict[str, Any]:
    return view_of(conversations.Agent, info, info.version, code_confinement=confinement, default=default)


def conversation_view(conversation: records.Conversation, *, listed: bool = False) -> dict[str, Any]:
    origin = conversation.forked_from
    return view_of(
        conversations.ListedConversation if listed else conversations.Conversation,
        conversation,
        id=conversation.ref.id,
        status=conversation.status,
        step_counts={kind: conversation.step_counts.get(kind, 0) for kind in get_args(records.StepType)},
        forked_from=origin and {"conversation_id": origin[0], "turn": origin[1]},
    )


def prune_view(
    weighed: PrunePreview, count: int, conversation: records.Conversation | None, *, destroyed: bool
) -> dict[str, Any]:
    before, after = (
        view_of(conversations.PromptSize, size, tokens_are="estimated" if size.is_estimate else "reported")
        for size in (weighed.before, weighed.after)
    )
    return {
        "dry_run": conversation is None,
        "before": before,
        "after": after,
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
    """Return variables with a preview: of those without a JSON form, a sentence."""
    views: list[dict[str, Any]] = [
        {**other, "preview": f"Kept, but not as JSON: it {other['reason']}.", "size_bytes": None}
        for other in exported.not_exported
    ]
    for agent, members in exported.variables.items():
        found = []
        for member, kind in KINDS_OF_VARIABLES.items():
            for name, value in members[member].items():
                data = to_json(value)
                found.append((kind, name, data.decode()[:MAX_PREVIEW_CHARS], len(data)))
        for name, content in members["files"].items():
            file = exported.files[content]
            found.append(("file", name, file["name"], len(b64decode(file["data"]))))
        for kind, name, preview, size_bytes in found:
            same = {"agent": agent, "kind": kind, "name": name}
            views.append({**same, "preview": preview, "size_bytes": size_bytes, "reason": None})
    return sorted(views, key=lambda view: (view["agent"], view["kind"], view["name"]))


def message_view(conversation_id: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the prompt, with its images as links."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "image", **media_view(conversation_id, part["image"])} if part["type"] == "image" else part
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
        "error": records.Failure(CODES_OF_EFFECTS[key.kind], f"The call raised {outcome.error}.")
        if outcome and outcome.error
        else None,
        "duration_ms": outcome.duration_ms if outcome else None,
        "size_bytes": entry.size_bytes,
    }


def step_view(conversation_id: str, step: dict[str, Any]) -> dict[str, Any]:
    """Return a step with its images and files as links."""
    if "images" not in step:
        return step
    images = media_views(conversation_id, step["images"])
    files = media_views(conversation_id, step["files"])
    return {**step, "images": images, "files": files}


def page_view(page: records.Page[Any], view: Callable[[Any], Any], *of: str) -> dict[str, Any]:
    return {"items": [view(item) for item in page.items], "next_cursor": cursor_at(page.next_cursor, *of)}


def event_schemas() -> dict[str, Any]:
    """Return the schemas of events for the OpenAPI document. `Event` is the `data` of an SSE frame."""
    known = TypeAdapter[Any](KnownEvent).json_schema(ref_template=_REF)
    schemas: dict[str, Any] = known.pop("$defs")
    other = TurnEvent.model_json_schema(ref_template=_REF)
    other["properties"]["type"] |= {"not": {"enum": list(events.EVENT_TYPES)}, "examples": ["tool.progress"]}
    return {
        "Event": {
            "description": "One event of a turn (docs/events.md). A later release may add types: pass them over.",
            "anyOf": [{"$ref": _REF.format(model=name)} for name in ("KnownEvent", "OtherEvent")],
        },
        "KnownEvent": {"description": "An event of a type that this release has.", **known},
        "OtherEvent": {**other, "description": "An event of a type that a later release adds."},
        **schemas,
    }


def event_view(ref: records.Ref, turn: int, logged: events.Logged, *, internal: bool) -> dict[str, Any]:
    """Return an event as JSON data. `internal` includes internal tools in the final event's turn."""
    event = logged.event
    own: dict[str, Any] = {"type": event.type, "seq": logged.seq, "conversation_id": ref.id, "turn": turn}
    if isinstance(event, events.TurnQueued):
        own["attempt"] = 0
    elif isinstance(event, events.TurnEnded):
        own |= {"attempt": event.result.attempts, "result": turn_view(event.result, internal=internal)}
    elif isinstance(event, events.TurnWaiting):
        own["requests"] = request_views(ref.id, event.requests)
    elif isinstance(event, events.InputAnswered):
        own["answers"] = [view_of(InputAnswer, answer) for answer in event.answers]
    elif isinstance(event, events.MessageSteered):
        own["images"] = media_views(ref.id, event.images)
    elif isinstance(event, events.ToolReturned):
        code = "execution_error" if event.name == _CODE else "tool_error"
        own["error"] = None if event.error is None else records.Failure(code, event.error)
    elif isinstance(event, events.StepFinished):
        own |= {
            "error": event.error and event.error.failure,
            "images": media_views(ref.id, event.images),
            "files": media_views(ref.id, event.files),
        }
    where = (event.where,) if hasattr(event, "where") else ()
    view = view_of(MODELS_OF_TYPES[event.type], *where, event, **own)
    if isinstance(event, events.MessageDelta) and event.index is None:  # only pieces of a call's arguments have them
        del view["index"], view["name"]
    return view
