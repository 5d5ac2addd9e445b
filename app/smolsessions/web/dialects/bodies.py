"""Bodies of dialects' requests: reading them, and making a request or a document of this service of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import invalid_request, json_pointer
from smolsessions.core.records import AgentName
from smolsessions.core.times import time_text
from smolsessions.web.body import in_thread_if_large
from smolsessions.wire.requests import ClientTool, FileIn, TurnRequest

M = TypeVar("M", bound=BaseModel)
_OWN_FIELDS = frozenset({"agent", "conversation_id", "create", "files", "images", "message"})


async def read_body(request: Request, model: type[M]) -> M:
    """Read the body of a request. Raises `InvalidRequestError`."""
    data = await request.body()
    try:
        return await in_thread_if_large(model.model_validate_json, data)
    except ValidationError as error:
        problems = [
            {**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False, include_input=False)
        ]
        raise invalid_request(problems, model.model_fields) from None


def checked(model: type[M], pointer: str, fields: dict[str, Any]) -> M:
    """Return a part of a request. Raises `InvalidRequestError` with its place below `pointer`."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequestError.at(json_pointer(*first["loc"], under=pointer), first["msg"]) from None


def object_at(value: Any, pointer: str) -> dict[str, Any]:
    """Return a JSON object of a request, which is empty for null. Raises `InvalidRequestError`."""
    if not isinstance(value, dict | None):
        raise InvalidRequestError.at(pointer, "is no object")
    return value or {}


def imported_history(messages: Iterable[tuple[str, str]], agent: str) -> dict[str, Any]:
    """Return earlier messages, as role and text, as a document of a conversation (docs/export.md)."""
    at = time_text(time.time())
    version = {"name": agent, "kind": "", "smolagents": ""}
    turns: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for role, text in messages:
        if role == "user":
            turn = {"turn": len(turns) + 1, "message": text, "agent": version, "status": "finished"}
            turns.append({**turn, "timing": {"submitted_at": at, "finished_at": at}, "outcome": "success", "reply": ""})
            steps.append({"type": "task", "turn": len(turns), "task": text})
        elif role == "assistant" and turns and text:
            turns[-1] |= {"reply": text, "output": text, "step_count": 1}
            final = {"is_final_answer": True, "model_output": text, "action_output": text}
            timing = {"start_time": at, "end_time": at}
            steps.append({"type": "action", "turn": len(turns), "step_number": 1, "timing": timing, **final})
    return {"format": "smolsessions/conversation", "version": 1, "agent": agent, "turns": turns, "steps": steps}


def turn_request(
    agent: AgentName,
    text: str,
    media: Iterable[tuple[str, str, str | None, str]],
    fields: Mapping[str, Any],
    at: str = "",
) -> TurnRequest:
    """Return a user's message with members of `POST /turn`, which the client sent at a pointer, as a request.

    `media` are URL, media type, name and pointer of its images and files. Raises `InvalidRequestError`.
    """
    images: list[str] = []
    files: list[FileIn] = []
    for url, kind, name, pointer in media:
        if not url.startswith("data:"):
            raise InvalidRequestError.at(pointer, "is no data: URL; send the content")
        if kind.startswith("image/"):
            images.append(url)
        else:
            name = name or f"file{len(files)}.{kind.rpartition('/')[2]}"  # noqa: PLW2901
            about = {"name": name, "media_type": kind, "data": url}
            files.append(checked(FileIn, pointer.rpartition("/")[0], about))  # that of the part
    own = {name: value for name, value in fields.items() if name in TurnRequest.model_fields.keys() - _OWN_FIELDS}
    sent = checked(TurnRequest, at, {**own, "message": text, "images": images, "agent": agent})
    sent.files = files
    return sent


def client_tool(function: Mapping[str, Any], pointer: str) -> ClientTool:
    """Return a function that the client runs, which needs a name only. Raises `InvalidRequestError`."""
    name = function.get("name")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    about = {"name": name, "description": function.get("description") or name, "parameters": schema}
    return checked(ClientTool, pointer, about)
