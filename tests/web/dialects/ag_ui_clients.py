"""Clients of AG-UI in a process of Node, and checks of events against the models of the protocol's library."""

import json
from collections.abc import Iterator
from typing import Any

from ag_ui.core import Event
from pydantic import BaseModel, TypeAdapter

from tests.support.service import Service
from tests.web.dialects.clients import NodeClient

_EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


def check_event(event: dict[str, Any]) -> None:
    """Check an event by the models that are generated from the protocol's JSON Schema. None may have other members."""
    read = _EVENTS.validate_python(event)
    assert read.model_dump(by_alias=True, mode="json") == event
    assert not any(extras_of(read)), event


def extras_of(model: Any) -> Iterator[Any]:
    if isinstance(model, BaseModel):
        yield model.model_extra
        for name in type(model).model_fields:
            yield from extras_of(getattr(model, name))
    elif isinstance(model, list):
        for each in model:
            yield from extras_of(each)


class Client(NodeClient):
    """Client of one thread after another. Each method returns this, with all that the client has by then."""

    messages: list[dict[str, Any]]
    state: Any
    events: list[dict[str, Any]]
    """Events of the last run, each of them checked."""
    outcome: str | None
    result: Any
    interrupts: list[dict[str, Any]]
    pending: list[str]
    failed: dict[str, Any]
    error: str | None
    status: int | None

    def __init__(self, service: Service, version: str = "@ag-ui/client") -> None:
        """Start a version of the package: `@ag-ui/client` or `ag-ui-0`, which CopilotKit still has."""
        super().__init__(service, "ag_ui_client.mjs", "/ag-ui", version)

    def __call__(self, call: str, **given: Any) -> "Client":
        found = self.answer(call, **given)
        vars(self).update(dict.fromkeys(("outcome", "result", "error", "status")), failed={}, interrupts=[], pending=[])
        vars(self).update({"events": [], **found})
        for event in self.events:
            check_event(event)
        return self

    def open(self, name: str, thread: str, **given: Any) -> "Client":
        return self("open", name=name, thread=thread, **given)

    def send(self, *script: Any, **given: Any) -> "Client":
        return self("send", text=json.dumps(script), **given)

    def role(self, role: str) -> list[Any]:
        """Contents of the messages with a role that have one."""
        return [message["content"] for message in self.messages if message["role"] == role and "content" in message]

    @property
    def calls(self) -> dict[str, str]:
        """Names of the calls by id."""
        calls = [call for message in self.messages for call in message.get("toolCalls", [])]
        return {call["id"]: call["function"]["name"] for call in calls}

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]
