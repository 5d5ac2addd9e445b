"""HTTP connection to a service: attempts, errors, pages and streams of events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import httpx2
from pydantic import BaseModel, ValidationError

from smolsessions.client.errors import ApiError, UnreachableError, error_of, foreign_answer
from smolsessions.client.requests import Patience, Until, may_repeat, named, path_of
from smolsessions.wire.conversations import ConversationPage, StepPage
from smolsessions.wire.events import InputAnswered, TurnEnded, TurnEvent, TurnWaiting, event_of
from smolsessions.wire.turns import EffectPage, TurnPage

M = TypeVar("M", bound=BaseModel)
PING_S = 15
"""Longest silence of a stream. The service then sends a comment."""
SAFE = frozenset({"GET", "HEAD"})
NO_CONTENT = 204
PAGE_ITEMS = 100
MAX_ERROR_BYTES = 64 * 1024
MAX_EVENT_BYTES = 64 * 1024 * 1024


class BlockingHttp:
    """`httpx2.Client` with the coroutines of `httpx2.AsyncClient`. They block instead of waiting."""

    _http: httpx2.Client

    def __init__(self, http: httpx2.Client) -> None:
        vars(self)["_http"] = http

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._http, name, value)

    async def send(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        response = self._http.send(request, stream=stream)
        response.stream = _BlockingBody(response.stream)
        return response

    async def aclose(self) -> None:
        self._http.close()


class _BlockingBody(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        self._stream.close()


class AsyncConnection:
    """Connection to one service. It repeats requests that were not answered, if a repetition changes nothing."""

    def __init__(self, http: httpx2.AsyncClient, patience_s: float) -> None:
        self._http = http
        self._patience_s = patience_s
        self.blocks = isinstance(http, BlockingHttp)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        *path: object,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0,
        is_safe: bool = False,
    ) -> httpx2.Response:
        """Send a request to the path of these parts, and return its answer. Raises `ApiError` and `UnreachableError`.

        `wait_s`: seconds for which the service may wait before it answers. `is_safe`: a repetition changes nothing.
        """
        headers, timeout = headers or {}, self._timeout(wait_s)
        request = self._http.build_request(
            method, path_of(*path), json=json, params=params, headers=headers, timeout=timeout
        )
        is_safe, patience = is_safe or method in SAFE or "Idempotency-Key" in headers, Patience(self._patience_s)
        while True:
            try:
                async with self._answer(request) as response:
                    await response.aread()
                    return response
            except ApiError as error:
                if not may_repeat(error, is_safe=is_safe):
                    raise
                pause_s = patience.next_wait_s(error, error.retry_after_s)
            except httpx2.TransportError as lost:
                if not is_safe and not isinstance(lost, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise _unreachable(lost, request) from lost
                pause_s = patience.next_wait_s(_unreachable(lost, request))
            await self._pause(pause_s)

    async def ask(self, model: type[M], method: str, *path: object, **request: Any) -> M:
        """Send a request and return its answer as a model. Raises as `send`."""
        return read(model, await self.send(method, *path, **request))

    async def items(
        self, page: type[ConversationPage | EffectPage | StepPage | TurnPage], params: Mapping[str, Any], *path: object
    ) -> AsyncGenerator[Any]:
        """Yield the items of a list, page by page."""
        cursor: dict[str, str] = {}
        while True:
            found = await self.ask(page, "GET", *path, params={"limit": PAGE_ITEMS, **params, **cursor})
            for item in found.items:
                yield item
            if found.next_cursor in {None, cursor.get("cursor")}:
                return
            cursor = {"cursor": str(found.next_cursor)}

    async def events(
        self, begin: httpx2.Request | None, path: str, after: int = 0, *, internal: bool, until: Until | None
    ) -> AsyncGenerator[TurnEvent]:
        """Yield each event of a turn once, until its final one.

        The request `begin` submits the turn or answers, and is sent until the first event arrives. Later connections
        read the turn's log at `path`, or at the first event's, from the last event on. `until` `waiting`: it also ends
        at a wait that is not over.
        """
        patience, seq = Patience(self._patience_s), after
        while True:
            cause: Exception | None = None
            event: TurnEvent | None = None
            after_s = None
            request = begin or self.streamed(path, {"Last-Event-ID": str(seq)}, internal=internal, until=until)
            try:
                async with self._answer(request) as response:
                    if response.status_code == NO_CONTENT:
                        return
                    patience.hold()
                    async for frame in httpx2.EventSource(response, MAX_EVENT_BYTES):
                        if not frame.data:
                            continue  # a `retry:` of a process that ends
                        event = event_of(frame.data)
                        begin = None
                        path = path_of("conversations", event.conversation_id, "turns", event.turn, "events")
                        if event.seq > seq:
                            seq = event.seq
                            patience.restart()
                            yield event
                        if isinstance(event, TurnEnded):
                            return
            except ApiError as error:
                if not may_repeat(error, is_safe=True):
                    raise
                cause, after_s = error, error.retry_after_s
            except httpx2.TransportError as lost:
                cause = _unreachable(lost, request)
            # The next answer is 204 if the turn still waits.
            has_waited = cause is None and isinstance(event, TurnWaiting | InputAnswered)
            await self._pause(0 if has_waited else patience.next_wait_s(cause, after_s))

    def streamed(
        self, path: str, headers: Mapping[str, str], json: Any = None, *, internal: bool, until: Until | None
    ) -> httpx2.Request:
        """Return a request whose answer is a stream of events. One with a body submits a turn or answers."""
        method, headers = "POST" if json else "GET", {**headers, "Accept": "text/event-stream"}
        params, timeout = named(include_internal_tools=internal or None, until=until), self._timeout(PING_S)
        return self._http.build_request(method, path, json=json, params=params, headers=headers, timeout=timeout)

    async def _pause(self, seconds: float) -> None:
        if self.blocks:
            time.sleep(seconds)  # noqa: ASYNC251 - no event loop is there
        else:
            await anyio.sleep(seconds)

    def _timeout(self, wait_s: float) -> httpx2.Timeout:
        own = self._http.timeout
        read_s = None if own.read is None else own.read + wait_s
        return httpx2.Timeout(connect=own.connect, read=read_s, write=own.write, pool=own.pool)

    @asynccontextmanager
    async def _answer(self, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield its answer, whose body is not read yet. Raises `ApiError`, `TransportError`."""
        response = await self._http.send(request, stream=True)
        try:
            if not response.is_success:
                raise error_of(response, await anext(response.aiter_bytes(MAX_ERROR_BYTES), b""))
            yield response
        except (httpx2.DecodingError, httpx2.SSEError, ValidationError) as odd:
            raise foreign_answer(response, str(odd)) from odd
        finally:
            await response.aclose()


def read(model: type[M], response: httpx2.Response) -> M:
    """Return an answer as a model. Raises `ApiError` if it is none."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError:
        raise foreign_answer(response, response.text) from None


def _unreachable(lost: httpx2.TransportError, request: httpx2.Request) -> UnreachableError:
    cause = str(lost) or type(lost).__name__
    address = f"{request.url.scheme}://{request.url.netloc.decode()}"
    return UnreachableError(f"{address} does not answer: {cause}; is the service running at this address?")
