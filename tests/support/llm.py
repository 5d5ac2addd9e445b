"""Model provider for tests: a real HTTP server that speaks OpenAI's protocol and returns scripted answers in order.

`llmock` makes the answers, the streams and most of the faults. This module adds silence, and records the received keys.
The service, which is another process, receives `llm.base_url`.

PYTEST_DONT_REWRITE: no asserts here, and pytest would complain where a test imports this before another one loads it.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pytest
from llmock.scenarios import Behavior, Fail, Reply, StreamFault, ToolCall, ToolFault
from llmock.testing import LLMockServer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SILENCE = "silence"


@dataclass(frozen=True)
class Request:
    """A chat request as it arrived: the key of its header, and its body."""

    key: str
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The whole prompt as one text."""
        return json.dumps(self.body["messages"])


class LLM:
    """The provider. Each verb scripts the answer to one request. A request beyond the script is answered 418."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._open = 0
        self._changed = threading.Condition()
        self._script: deque[tuple[Behavior | str, ...]] = deque()
        self._server = LLMockServer()
        self._server.app.add_middleware(_Wire, llm=self)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def base_url(self) -> str:
        return self._server.base_url("openai")

    def answer(self, answer: object) -> None:
        """Call `final_answer`."""
        self.call(("final_answer", {"answer": answer}))

    def call(self, *calls: tuple[str, dict[str, Any]], text: str | None = None) -> None:
        """Call tools, all in one step."""
        self.script(Reply(text=text, tool_calls=tuple(ToolCall(name, arguments) for name, arguments in calls)))

    def say(self, text: str) -> None:
        """Answer with text alone, without any tool call."""
        self.script(Reply(text=text))

    def garble(self, name: str, arguments: dict[str, Any]) -> None:
        """Call a tool with arguments that are cut in the middle, and thus are invalid JSON."""
        self.script(Reply(tool_calls=(ToolCall(name, arguments),)), ToolFault("malformed_arguments"))

    def fail(self, status: int, *, code: str | None = None, message: str | None = None) -> None:
        self.script(Fail(status, code=code, message=message))

    def fall_silent(self) -> None:
        """Accept the request and answer nothing until the client disconnects."""
        self.script(_SILENCE)

    def break_stream(self, kind: str = "disconnect", *, after_chunks: int = 2) -> None:
        """Begin a streamed `final_answer`. `kind` selects its fault: `disconnect`, `truncate` or `malformed`."""
        answer = Reply(tool_calls=(ToolCall("final_answer", {"answer": "never read to its end"}),))
        self.script(answer, StreamFault(kind, after_chunks=after_chunks))  # type: ignore[arg-type]

    def script(self, *parts: Behavior | str) -> None:
        """Queue one answer made of llmock's own behaviours."""
        self._script.append(parts)

    def is_idle(self, within_s: float) -> bool:
        """Wait until every request was answered, or abandoned by its client. Return whether this was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout=within_s)

    @contextmanager
    def serving(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._open += change
            self._changed.notify_all()

    def reset(self) -> None:
        self._script.clear()
        self.requests.clear()
        self._server.state.reset()

    def take(self, request: Request) -> str | None:
        """Record a request and arm llmock with its answer. Return the fault if it is one that llmock does not know."""
        self.requests.append(request)
        parts = self._script.popleft() if self._script else (Fail(418, message="the test scripts no further answer"),)
        self._server.state.scenarios.add(*(part for part in parts if not isinstance(part, str)))
        return next((part for part in parts if isinstance(part, str)), None)


class _Wire:
    """ASGI middleware around llmock. Nothing else runs on its loop between `take` and llmock's look at its queue."""

    def __init__(self, app: ASGIApp, llm: LLM) -> None:
        self._app = app
        self._llm = llm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._llm.serving():
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode()
        fault = self._llm.take(Request(authorization.removeprefix("Bearer "), json.loads(body or b"{}")))
        if fault == _SILENCE:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await self._app(scope, _replay(body, receive), send)


async def _body(receive: Receive) -> bytes:
    chunks = []
    more = True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: deque[Message] = deque([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return messages.popleft() if messages else await receive()

    return replay


@pytest.fixture(scope="session")
def _llm_server() -> Iterator[LLM]:
    with LLM() as server:
        yield server


@pytest.fixture
def llm(_llm_server: LLM) -> LLM:
    """Return the provider with an empty script."""
    _llm_server.reset()
    return _llm_server
