"""HTTP connection to a service: attempts, errors, pages and streams of events."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx2
from pydantic import BaseModel

from smolsessions.client.errors import ApiError, Page, UnreachableError, error_of, foreign_answer, parsed, parsed_item
from smolsessions.client.requests import Patience, may_repeat
from smolsessions.wire.events import TurnEnded, event_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from smolsessions.wire.events import TurnEvent

M = TypeVar("M", bound=BaseModel)
SILENCE_S = 60.0
"""Longest silence of a connection. A stream has a comment every 15 seconds."""
SAFE = frozenset({"GET", "HEAD"})
REDIRECT_STATUS, ERROR_STATUS = 300, 400
NO_CONTENT = 204
PAGE_ITEMS = 100


class AsyncConnection:
    """Connection to one service. It repeats requests that were not answered, if a repetition changes nothing."""

    def __init__(self, http: httpx2.AsyncClient, patience_s: float) -> None:
        self._http = http
        self._patience_s = patience_s

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = SILENCE_S,
    ) -> httpx2.Response:
        """Send a request and return its response. Raises `ApiError` and `UnreachableError`."""
        headers = headers or {}
        request = self._http.build_request(method, path, json=json, params=params, headers=headers, timeout=silence_s)
        is_safe, patience = method in SAFE or "Idempotency-Key" in headers, Patience(self._patience_s)
        while True:
            try:
                response = await self._http.send(request)
                if response.status_code < REDIRECT_STATUS:
                    return response
                if response.status_code < ERROR_STATUS:
                    raise foreign_answer(response)
                error = error_of(response)
                if not may_repeat(error, is_safe=is_safe):
                    raise error
                wait_s = patience.next_wait_s(error, error.retry_after_s)
            except httpx2.TransportError as lost:
                if not is_safe and not isinstance(lost, httpx2.ConnectError):
                    raise _unreachable(lost, request) from lost
                wait_s = patience.next_wait_s(_unreachable(lost, request))
            await anyio.sleep(wait_s)

    async def get(self, model: type[M], path: str, **params: Any) -> M:
        """Return the answer to a GET request."""
        return parsed(model, await self.send("GET", path, params=params))

    async def items(self, model: type[M], path: str, params: Mapping[str, Any]) -> AsyncIterator[M]:
        """Yield the items of a list, page by page."""
        cursor: dict[str, str] = {}
        while True:
            response = await self.send("GET", path, params={"limit": PAGE_ITEMS, **params, **cursor})
            page = parsed(Page, response)
            for item in page.items:
                yield parsed_item(model, item, response)
            if page.next_cursor is None:
                return
            cursor = {"cursor": page.next_cursor}

    async def events(self, begin: httpx2.Request | None, path: str, after: int = 0) -> AsyncIterator[TurnEvent]:
        """Yield each event of a turn once, until its final one.

        The request `begin` submits the turn, and is sent until the first event arrives. Later connections read the
        turn's log at `path`, or at the first event's, from the last event on.
        """
        patience, seq = Patience(self._patience_s), after
        while True:
            cause: Exception | None = None
            wait_s = None
            request = begin or self._http.build_request("GET", path, headers={"Last-Event-ID": str(seq)})
            try:
                async with self._streaming(request) as response:
                    if response.status_code == NO_CONTENT:
                        return
                    async for frame in httpx2.EventSource(response, max_event_size=None):
                        event = event_of(frame.data)
                        begin, path = None, f"/conversations/{event.conversation_id}/turns/{event.turn}/events"
                        if event.seq > seq:
                            seq = event.seq
                            patience.restart()
                            yield event
                        if isinstance(event, TurnEnded):
                            return
            except httpx2.TransportError as lost:
                cause = _unreachable(lost, request)
            except ApiError as error:
                if not may_repeat(error, is_safe=True):
                    raise
                cause, wait_s = error, error.retry_after_s
            await anyio.sleep(patience.next_wait_s(cause, wait_s))

    def turn_request(self, path: str, json: Any, headers: Mapping[str, str]) -> httpx2.Request:
        """Return the request that submits a turn and streams its events."""
        return self._http.build_request("POST", path, json=json, headers={**headers, "Accept": "text/event-stream"})

    @asynccontextmanager
    async def _streaming(self, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code >= ERROR_STATUS:
                await response.aread()
                raise error_of(response)
            kind = response.headers.get("Content-Type", "")
            if response.status_code != NO_CONTENT and not kind.startswith("text/event-stream"):
                raise foreign_answer(response)
            yield response
        finally:
            await response.aclose()


def _unreachable(lost: httpx2.TransportError, request: httpx2.Request) -> UnreachableError:
    cause = str(lost) or type(lost).__name__
    address = f"{request.url.scheme}://{request.url.netloc.decode()}"
    return UnreachableError(f"{address} does not answer: {cause}; is the service running?")
