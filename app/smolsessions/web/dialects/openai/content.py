"""Messages of a client, with their texts, images, audio and files, and its functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel

from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.records import AgentName
from smolsessions.web.dialects.bodies import client_tool, object_at, turn_request
from smolsessions.web.dialects.gateway import split_data_url
from smolsessions.wire.requests import TurnRequest

SERVER = "smolsessions"
"""The `server_label` of all tools that this service runs."""


class Part(BaseModel):
    type: str
    text: str = ""
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.type == "text")
        return self.content or ""

    @property
    def parts(self) -> list[Part]:
        return self.content if isinstance(self.content, list) else []


class InputItem(BaseModel):
    """Item of a response's input. Members of other kinds of items are read over."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None
    call_id: str | None = None
    output: str | list[dict[str, Any]] | None = None
    approval_request_id: str | None = None
    approve: bool = False
    reason: str | None = None


def messages_of(items: Iterable[InputItem], at: str, start: int = 0) -> dict[str, Message]:
    """Return the messages among items by their pointers, with their contents as Chat Completions has them.

    `at` is the pointer of the list, and `start` the number of the first item in it.
    """
    found = {}
    for place, item in enumerate(items, start):
        if item.type == "message" and item.role is not None:
            content: Any = item.content
            if isinstance(content, list):
                content = [_part(part, f"{at}/{place}/content/{nth}") for nth, part in enumerate(content)]
            found[f"{at}/{place}"] = Message(role=item.role, content=content)
    return found


def _part(part: dict[str, Any], pointer: str) -> Part:
    kind, url, data = part.get("type"), part.get("image_url"), part.get("file_data")
    if kind in {"input_text", "output_text", "text", "refusal"}:
        return Part(type="text", text=str(part.get("text", "")))
    if kind == "input_image" and isinstance(url, str):
        return Part(type="image_url", image_url={"url": url})
    if kind == "input_file" and isinstance(data, str):
        return Part(type="file", file={"filename": part.get("filename"), "file_data": data})
    if kind in {"input_image", "input_file"}:
        raise InvalidRequestError.at(pointer, "has no content; send it as a data: URL, in image_url or file_data")
    return Part(type=str(kind))


def text_of(messages: Mapping[str, Message]) -> str:
    return "\n".join(message.text for message in messages.values())


def turn_request_of(agent: AgentName, messages: Mapping[str, Message], tools: Iterable[dict[str, Any]]) -> TurnRequest:
    """Return the user's messages by their pointers, and the client's tools, as a request of this service."""
    media: list[tuple[str, str, str | None, str]] = []
    parts = [(at, nth, part) for at, message in messages.items() for nth, part in enumerate(message.parts)]
    for at, nth, part in parts:
        pointer = f"{at}/content/{nth}"
        if part.type == "image_url":
            url = str((part.image_url or {}).get("url"))
            media.append((url, "image/*", None, f"{pointer}/image_url"))
        elif part.type == "input_audio" and part.input_audio:
            kind = str(part.input_audio.get("format"))
            media_type = f"audio/{'mpeg' if kind == 'mp3' else kind}"
            url = f"data:{media_type};base64,{part.input_audio.get('data')}"
            media.append((url, media_type, f"audio{nth}.{kind}", f"{pointer}/input_audio"))
        elif part.type == "file" and part.file:
            url = str(part.file.get("file_data"))
            media.append((url, split_data_url(url)[0], part.file.get("filename"), f"{pointer}/file"))
        elif part.type != "text":
            raise InvalidRequestError.at(pointer, f"is of the type {part.type!r:.50}, which no agent here takes")
    sent = turn_request(agent, text_of(messages), media, {})
    for nth, tool in enumerate(tools):
        pointer = f"/tools/{nth}"
        if tool.get("type") != "function":
            raise InvalidRequestError.at(pointer, "is no function; the agent has its own other tools")
        function = object_at(tool.get("function"), f"{pointer}/function") or tool  # Responses has a flat form
        sent.client_tools.append(client_tool(function, f"{pointer}/function"))
    return sent


def schema_of(form: Any, pointer: str) -> dict[str, Any] | None:
    """Return the schema that a client demands of the answer, or None."""
    if form is None:
        return None
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequestError.at(f"{pointer}/schema", "is missing: send a JSON Schema")
    return schema


def approvals_in(tools: Iterable[dict[str, Any]]) -> list[str]:
    """Return the tools of this service whose calls are to wait for an approval, by `require_approval` of its label."""
    found: list[str] = []
    for nth, tool in enumerate(tools):
        rule = tool.get("require_approval")
        if tool.get("type") != "mcp" or tool.get("server_label") != SERVER:
            continue
        if rule == "always":
            found.append("*")
        elif isinstance(rule, dict) and isinstance(rule.get("always"), dict):
            names = rule["always"].get("tool_names") or []
            if not isinstance(names, list):
                raise InvalidRequestError.at(f"/tools/{nth}/require_approval/always/tool_names", "is no list")
            found += map(str, names)
    return found
