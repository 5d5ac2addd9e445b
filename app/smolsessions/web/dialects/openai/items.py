"""Items of OpenAI's Responses: ids that name turn and segment, and the data of each kind of item.

A turn that waits for answers is several responses, its segments. The id of each has the number of the event before it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic_core import to_json

from smolsessions.core.errors import NotFoundError
from smolsessions.core.media import StepFile
from smolsessions.core.records import Turn, Usage
from smolsessions.web.dialects.openai.content import SERVER
from smolsessions.web.dialects.places import CONVERSATION_ID, Place

_ID = re.compile(rf"[a-z]+_({CONVERSATION_ID.pattern})\.([1-9][0-9]{{0,8}})\.([0-9]{{1,12}})(?:\.[0-9]+)?")

Item = dict[str, Any]


class Segment(NamedTuple):
    """Part of a turn between two waits for answers: it follows event number `after`."""

    place: Place
    after: int

    @property
    def response_id(self) -> str:
        return self.item_id("resp")

    def item_id(self, kind: str, number: int | None = None) -> str:
        last = "" if number is None else f".{number}"
        return f"{kind}_{self.place.conversation_id}.{self.place.turn}.{self.after}{last}"


def parsed_segment(own_id: str) -> Segment | None:
    """Return the segment that an id of a response or of an item names, or None for an id of another service."""
    found = _ID.fullmatch(own_id)
    return found and Segment(Place(found[1], int(found[2])), int(found[3]))


def segment_of(response_id: str) -> Segment:
    """Return the segment that is a response. Raises `NotFoundError`."""
    segment = parsed_segment(response_id)
    if segment is None or segment.response_id != response_id:
        raise NotFoundError(f"No response has the id {response_id[:80]!r}.")
    return segment


# Items as they begin. The fold replaces their members.
MESSAGE: Item = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
TEXT: Item = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
REASONING: Item = {"type": "reasoning", "summary": [], "status": "in_progress"}
CODE: Item = {"type": "code_interpreter_call", "status": "in_progress"}
CALL: Item = {"type": "mcp_call", "status": "in_progress", "server_label": SERVER}
NO_RESULT: Item = {"arguments": "", "output": None, "error": None, "approval_request_id": None}


def citation(turn: Turn, file: StepFile) -> Item:
    """Return how the answer's text names a file of it. Its content is at `/containers`."""
    about = {"type": "container_file_citation", "container_id": turn.ref.id, "file_id": file.name}
    length = len((turn.outcome and turn.outcome.reply) or "")
    return {**about, "filename": file.file_name, "start_index": 0, "end_index": length}


def json_text(value: Any) -> str:
    return to_json(value).decode()


def response_of(turn: Turn, segment: Segment, metadata: dict[str, str]) -> Item:
    """Return a response that runs. Members about the sampling of a model have their defaults."""
    options = turn.options
    schema = options.output_schema
    about = {"type": "function", "strict": False}
    return {
        "id": segment.response_id,
        "object": "response",
        "created_at": int(turn.timing.submitted_at),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": turn.agent.name,
        "conversation": {"id": segment.place.conversation_id},
        "previous_response_id": None,
        "output": [],
        "usage": None,
        "metadata": metadata,
        "tools": [
            {**about, "name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in options.client_tools
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "text": {
            "format": {"type": "json_schema", "name": "output", "schema": schema, "strict": True, "description": None}
            if schema
            else {"type": "text"}
        },
        "reasoning": {"effort": None, "summary": "auto"},
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "truncation": "disabled",
        "service_tier": "default",
        "store": True,
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def usage_of(now: Usage, before: Usage) -> Item:
    """Return the tokens of a segment: those of the turn by now, without those of the segments before."""
    read, written = now.input_tokens - before.input_tokens, now.output_tokens - before.output_tokens
    cached, made, thought = (
        max((getattr(now, name) or 0) - (getattr(before, name) or 0), 0)
        for name in ("cached_input_tokens", "cache_write_tokens", "reasoning_tokens")
    )
    return {
        "input_tokens": max(read, 0),
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": made},
        "output_tokens": max(written, 0),
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": max(read, 0) + max(written, 0),
    }
