"""Connections of model calls: a stop cuts them, a complete answer leaves them to the next call.

smolagents' models reach providers through httpx or httpx2, and both use a copy of httpcore. A thread that waits there
wakes up only through its socket. So the two classes that transfer all bytes look up the model call of their thread.
Requests outside a model call are not affected.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from smolsessions.agents.run.failures import TurnStopped

log = logging.getLogger(__name__)

LIBRARIES = ("httpcore", "httpcore2")
DRAIN_S = 0.05  # the end of the body follows the last event of an answer, and usually has arrived already
_thread = threading.local()
_lock = threading.Lock()
_instrumented: set[str] = set()


class ModelCall:
    """One model call in progress. As a context manager it is the current call of its thread."""

    def __init__(self, waits: set[Callable[[], object]]) -> None:
        """`waits` holds `cut` of this call while it is the current one."""
        self._waits = waits
        self.read_timeout_s: float | None = None
        """Longest wait for the next bytes. None: that of the client."""
        self.is_cut = False
        """True once the answer is of no use: its connection is closed instead of read to the end."""
        self.usage: Any = None
        """Count of tokens in the last answer, as the provider reported it."""
        self._pause: threading.Event | None = None
        self.bodies: list[Any] = []
        self._socket: Any = None
        self._outer: ModelCall | None = None

    def __enter__(self) -> Self:
        for library in LIBRARIES:
            if library in sys.modules and library not in _instrumented:
                with _lock:
                    if library not in _instrumented:
                        _instrument(library)
                        _instrumented.add(library)
        self._outer = current_call()
        _thread.call = self
        self._waits.add(self.cut)
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        """Release the connections, which clients leave to the garbage collector. Close those of half an answer."""
        if kind:
            self.is_cut = True
        try:
            for body in self.bodies:
                with contextlib.suppress(Exception):  # of any HTTP library
                    body.close()
        finally:
            _thread.call = self._outer
            self._waits.discard(self.cut)

    def cut(self) -> None:
        """End the connection at once, from any thread. The thread that uses it raises `TurnStopped`."""
        self.is_cut = True
        if self._pause:
            self._pause.set()
        if (connection := self._socket) is not None:
            with contextlib.suppress(OSError):  # the `shutdown` of a TLS socket would destroy what its thread uses
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def transfer(self, connection: Any, act: Callable[[], Any]) -> Any:
        """Read or write on a socket. Raises `TurnStopped` if the call was cut before or meanwhile."""
        self._socket = connection
        try:
            self.check()
            return act()
        finally:
            self._socket = None
            self.check()

    def wait(self, seconds: float) -> None:
        """Wait before a retry. Raises `TurnStopped` if the call is cut meanwhile."""
        self._pause = threading.Event()
        if not self.is_cut:
            self._pause.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise `TurnStopped` if the call was cut."""
        if self.is_cut:
            raise TurnStopped


def current_call() -> ModelCall | None:
    return getattr(_thread, "call", None)


def _instrument(library: str) -> None:
    """Let the classes of a library that transfer bytes look up the model call of their thread."""
    try:
        stream: Any = importlib.import_module(f"{library}._backends.sync").SyncStream
        body: Any = importlib.import_module(f"{library}._sync.connection_pool").PoolByteStream
        read, write, start_tls = stream.read, stream.write, stream.start_tls
        iterate, close = body.__iter__, body.close
    except (ImportError, AttributeError) as error:
        log.warning(
            "a stop cannot close connections made through this release of %s: its classes are not as expected (%s)",
            library,
            error,
            extra={"action": "model.connections"},
        )
        return

    def read_within_call(self: Any, max_bytes: int, timeout: float | None = None) -> Any:
        if (call := current_call()) is None:
            return read(self, max_bytes, timeout)
        within_s = timeout if call.read_timeout_s is None else call.read_timeout_s
        return call.transfer(self.get_extra_info("socket"), lambda: read(self, max_bytes, within_s))

    def write_within_call(self: Any, buffer: bytes, timeout: float | None = None) -> Any:
        if (call := current_call()) is None:
            return write(self, buffer, timeout)
        return call.transfer(self.get_extra_info("socket"), lambda: write(self, buffer, timeout))

    def start_tls_within_call(self: Any, *args: Any, **options: Any) -> Any:
        connection = self.get_extra_info("socket")
        if (call := current_call()) is None or isinstance(connection, ssl.SSLSocket):  # TLS within TLS
            return start_tls(self, *args, **options)
        with connection.dup() as same:  # the socket itself is detached before the handshake
            return call.transfer(same, lambda: start_tls(self, *args, **options))

    def iterate_within_call(self: Any) -> Iterator[bytes]:
        if (call := current_call()) is None:
            yield from iterate(self)
            return
        call.bodies.append(self)
        self.chunks = iterate(self)
        try:
            for chunk in self.chunks:  # noqa: UP028 - `yield from` would close the chunks before they are drained
                yield chunk
        finally:
            _drain(self)

    def close_within_call(self: Any) -> None:
        _drain(self)
        close(self)

    stream.read, stream.write, stream.start_tls = read_within_call, write_within_call, start_tls_within_call
    body.__iter__, body.close = iterate_within_call, close_within_call


def _drain(body: Any) -> None:
    """Read the rest of a body, so that its connection can be used again: clients stop at the last event."""
    call, chunks = current_call(), getattr(body, "chunks", None)
    if call is None or chunks is None or call.is_cut:
        return
    within_s, call.read_timeout_s = call.read_timeout_s, DRAIN_S
    until = time.monotonic() + DRAIN_S
    try:
        for _ in chunks:
            if time.monotonic() > until:
                return
    except Exception as error:  # noqa: BLE001 - the answer is complete: only its connection is lost
        log.debug("the connection of a model call is not kept: %s", type(error).__name__)
    finally:
        call.read_timeout_s = within_s
