"""Clients of A2A's own library, and tasks as such a client joins them from a stream."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.types import a2a_pb2 as types

from tests.support.service import PATIENCE_S, Service

T = TypeVar("T")
INPUT_REQUIRED, COMPLETED = "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"


def with_client(
    service: Service, agent: str, work: Callable[[Client], Awaitable[T]], key: str | None = None, **config: Any
) -> T:
    """Run `work` with a client that has read the card of an agent."""

    async def run() -> T:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as http:
            url = f"{service.url}/a2a/{agent}"
            return await work(await create_client(url, ClientConfig(httpx_client=http, **config)))

    return asyncio.run(run())


def message(own_id: str, *script: Any, parts: Any = (), words: str = "", **names: Any) -> types.SendMessageRequest:
    """Return a message with a script, or with the words of a person."""
    text = types.Part(text=words or json.dumps(script))
    sent = types.Message(message_id=own_id, role=types.ROLE_USER, parts=[text, *parts], **names)
    return types.SendMessageRequest(message=sent)


class Joined:
    """A task as a client has it after some events of one or several streams."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.task = types.Task()
        self.said: list[str] = []

    def add(self, event: types.StreamResponse) -> None:
        self.events.append(event)
        if event.HasField("task"):
            self.task.CopyFrom(event.task)
        elif event.HasField("status_update"):
            self.task.status.CopyFrom(event.status_update.status)
            if event.status_update.status.HasField("message"):
                self.said.append(event.status_update.status.message.parts[0].text)
        else:
            update = event.artifact_update
            if not update.append:
                del self.task.artifacts[:]
                self.task.artifacts.append(update.artifact)
            else:
                assert self.task.artifacts[0].artifact_id == update.artifact.artifact_id
                self.task.artifacts[0].parts.extend(update.artifact.parts)

    @property
    def state(self) -> str:
        return str(types.TaskState.Name(self.task.status.state))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if part.HasField("text"))

    @property
    def parts(self) -> list[types.Part]:
        return list(self.task.artifacts[0].parts) if self.task.artifacts else []

    @property
    def data(self) -> list[Any]:
        return [part.data.struct_value for part in self.parts if part.HasField("data")]

    def read(self, service: Service, agent: str, request: Any, most: int | None = None, **options: Any) -> "Joined":
        """Read the stream of a message, or of a task by its id, and leave it after `most` events."""

        async def work(client: Client) -> None:
            subscribe = types.SubscribeToTaskRequest
            stream = (
                client.subscribe(subscribe(id=request)) if isinstance(request, str) else client.send_message(request)
            )
            count = 0
            async for event in stream:
                self.add(event)
                count += 1
                if count == most:
                    return

        with_client(service, agent, work, **options)
        return self


def send(service: Service, agent: str, request: types.SendMessageRequest, **options: Any) -> Joined:
    return Joined().read(service, agent, request, **options)


def get(service: Service, agent: str, task_id: str, **options: Any) -> Joined:
    """Return a task as the service has it."""
    found = Joined()
    found.task = with_client(
        service, agent, lambda client: client.get_task(types.GetTaskRequest(id=task_id)), **options
    )
    return found
