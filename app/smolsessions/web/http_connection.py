"""HTTP/1.1 connections with limits on the size, duration and number of requests."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from secrets import token_hex
from typing import Any

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp, Receive
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from smolsessions.core.errors import (
    HeadTooLargeError,
    MalformedError,
    RequestTimeoutError,
    ServiceError,
    TooManyConnectionsError,
)
from smolsessions.core.request_id import request_id
from smolsessions.web.problems import response_to

MAX_HEAD_BYTES = 32 * 1024
MAX_FIELDS = 100
MAX_PIPELINED = 16
MIN_BYTES_PER_S = 1024
MAX_BODY_S = 300.0  # 20 MiB at 70 KB/s; a body that takes longer holds memory for too long
SPARE_CONNECTIONS = 64  # beyond the bound, for probes
SPARE_S = 2.0
BREAK_OFF = "smolsessions.break_off"
"""Name in a request's scope of the function that closes its connection in the middle of the answer."""
PROBES = frozenset({"/livez", "/readyz"})


async def call_on_disconnect(receive: Receive, call: Callable[[], object]) -> None:
    """Call a function once the client has left, whose request was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call()


def limited_connections(receive_timeout_s: float, max_connections: int) -> Callable[..., asyncio.Protocol]:
    """Return uvicorn's `http` option. It leaves half of the open files to the store and to code processes."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max_connections if files == resource.RLIM_INFINITY else min(max_connections, files // 2)
    return partial(Connection, receive_timeout_s=receive_timeout_s, max_connections=most)


class _Phase(IntEnum):
    IDLE = 0
    HEAD = 1
    BODY = 2


class _ClockedFlow(FlowControl):
    """Flow control with a clock that stands still while reading is paused, as it is behind a pipelined request."""

    def __init__(self, transport: asyncio.Transport, time: Callable[[], float]) -> None:
        super().__init__(transport)
        self._time = time
        self._paused_at = self._paused_s = 0.0

    def clock(self) -> float:
        return (self._paused_at if self.read_paused else self._time()) - self._paused_s

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._time()
        super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self._paused_s += self._time() - self._paused_at
        super().resume_reading()


class Connection(HttpToolsProtocol):
    """Connection of one client. A timer starts only if a piece leaves a head or a body unfinished."""

    flow: _ClockedFlow

    def __init__(self, *arguments: Any, receive_timeout_s: float, max_connections: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._receive_timeout_s = self._head_s = receive_timeout_s
        self._max_connections = max_connections
        self._only_probes = False
        self._phase = _Phase.IDLE
        self._unreported = 0  # bytes since the parser last reported a head, a chunk or a piece of a body
        self._body_bytes = 0
        self._body_began = self._window_began = 0.0
        self._window_bytes = 0  # of the body, before the window
        self._timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _ClockedFlow(transport, self.loop.time)
        count = len(self.connections)
        if count > self._max_connections + SPARE_CONNECTIONS:
            self._refuse(TooManyConnectionsError())
            return
        if count > self._max_connections:
            self._only_probes = True
            self._head_s = min(SPARE_S, self._head_s)
            self.timeout_keep_alive = 0
        self._arm(self._head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        if self._phase is not _Phase.IDLE:
            self._refuse(MalformedError("The request ended before it was complete."))

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unreported += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the service knows no other protocol, and answers the request as HTTP
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, ServiceError) else MalformedError("The request is not HTTP/1.1."))
            return
        if self._unreported > MAX_HEAD_BYTES:
            self._refuse(HeadTooLargeError())
        elif self._timer is None and (self._phase or (self.cycle is not None and self.cycle.response_complete)):
            self._arm(self._receive_timeout_s if self._phase is _Phase.BODY else self._head_s)

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > MAX_FIELDS or head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLargeError
        if len(self.pipeline) >= MAX_PIPELINED:
            raise MalformedError("Too many requests are sent ahead of their answers.")
        # The parser would take a body for the other protocol, or for a next request.
        if self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        ):
            raise MalformedError("The request asks for another protocol; send it without `Upgrade`.")
        super().on_headers_complete()
        self._unreported = self._body_bytes = self._window_bytes = 0
        self.headers = []  # uvicorn would add trailers to the checked headers
        self._phase = _Phase.BODY
        self._disarm()
        self._body_began = self._window_began = self.flow.clock()

    def on_chunk_header(self) -> None:
        self._unreported = 0

    def on_body(self, body: bytes) -> None:
        self._unreported = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Phase.IDLE
        self._disarm()
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # a large body paused it, and the connection must notice that its client leaves

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is _Phase.BODY and self.cycle.response_complete and not self.transport.is_closing():
            # The client must be able to read the answer, so the rest of a refused body is dropped, for a limited time.
            self._disarm()
            self._arm(self._receive_timeout_s)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running = cycle
        cycle.scope[BREAK_OFF] = self._break_off  # type: ignore[literal-required]  # a key of ours
        if self._only_probes and cycle.scope["path"] not in PROBES:
            app = response = _numbered(TooManyConnectionsError())
            response.headers["Connection"] = "close"
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _arm(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """Close the connection, unless a body may go on: each window of time must bring enough bytes."""
        self._timer = None
        if self.transport.is_closing():
            return
        rest_s = 0.0
        if self._phase is _Phase.BODY and not self.cycle.response_complete:
            now = self.flow.clock()
            passed_s = now - self._window_began
            is_slow = self._body_bytes - self._window_bytes < passed_s * MIN_BYTES_PER_S
            if self.flow.read_paused:
                rest_s = self._receive_timeout_s
            elif passed_s < self._receive_timeout_s:
                rest_s = min(self._receive_timeout_s - passed_s, self._body_began + MAX_BODY_S - now)
            elif not is_slow:
                self._window_began, self._window_bytes = now, self._body_bytes
                rest_s = min(self._receive_timeout_s, self._body_began + MAX_BODY_S - now)
        if rest_s > 0:
            self._arm(rest_s)
        elif self._phase is _Phase.IDLE:
            self.transport.close()
        else:
            self._refuse(RequestTimeoutError())

    def _refuse(self, error: ServiceError) -> None:
        """Close the connection, after an answer, except if an earlier request still waits for its own."""
        if self.transport.is_closing():
            return
        if self._phase is _Phase.BODY and self.cycle is not None:
            may_answer = not self.pipeline and not self.cycle.response_started
        else:
            may_answer = self.cycle is None or self.cycle.response_complete
        if may_answer:
            response = _numbered(error)
            fields = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
            head = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
            self.transport.write(STATUS_LINE[response.status_code] + head + b"\r\n" + response.body)
        self._disarm()
        self._break_off()

    def _break_off(self) -> None:
        """Close the connection in the middle of an answer, so that its client does not take it for whole."""
        self._disconnect()
        self.transport.close()

    def _disconnect(self) -> None:
        """Disconnect the running request. Uvicorn does not if another request was pipelined."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()


def _numbered(error: ServiceError) -> Response:
    """Return the answer to a request that no middleware has seen, with an id of its own."""
    own = token_hex(8)
    request_id.set(own)
    response = response_to(error)
    response.headers["X-Request-Id"] = own
    return response
