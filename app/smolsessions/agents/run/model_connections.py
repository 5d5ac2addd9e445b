"""Connections of model calls: cut when a turn is stopped, kept for the next call when an answer is complete.

smolagents' models reach providers through httpx or httpx2, and both through a copy of httpcore. A thread that waits
there can only be woken by its socket. So the two classes through which each byte passes are made to look for the model
call of their thread. Requests outside a model call are not affected.
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
from typing import TYPE_CHECKING, Any

from smolsessions.agents.run.cancellation import TurnStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

LIBRARIES = ("httpcore", "httpcore2")
DRAIN_S = 0.05  # what comes after the last event of an answer is the end of its body, and usually there already
_thread = threading.local()
_instrumented: set[str] = set()
_lock = threading.Lock()


class ModelCall:
    """One model call in progress, with the connection that its thread uses."""

    def __init__(self) -> None:
        self.read_timeout_s: float | None = None
        """Longest wait for the next bytes; None leaves it to the client."""
        self._is_cut = False
        self._cut = threading.Event()
        self._socket: Any = None
        self._bodies: list[Any] = []

    def cut(self) -> None:
        """End the connection at once, from any thread. The thread that uses it raises `TurnStopped`."""
        self._is_cut = True
        self._cut.set()
        _shut_down(self._socket)

    @property
    def keeps_connections(self) -> bool:
        """False once the answer is of no use: its connection is closed rather than read to the end."""
        return not self._is_cut

    def transfer(self, connection: Any, act: Callable[[], Any]) -> Any:
        """Read or write on a socket. Raises `TurnStopped` if the call was cut before or meanwhile."""
        self._socket = connection
        try:
            self._check()
            result = act()
        except Exception:
            self._check()
            raise
        finally:
            self._socket = None
        self._check()
        return result

    def wait(self, seconds: float) -> None:
        """Wait before the call is made again. Raises `TurnStopped` if the turn is stopped meanwhile."""
        self._cut.wait(seconds)
        self._check()

    def note_body(self, body: Any) -> None:
        self._bodies.append(body)

    def close(self, *, is_complete: bool) -> None:
        """Release the connections, which clients leave to the garbage collector; close those of half an answer."""
        self._is_cut = self._is_cut or not is_complete
        for body in self._bodies:
            with contextlib.suppress(Exception):
                body.close()

    def _check(self) -> None:
        if self._is_cut:
            raise TurnStopped


@contextlib.contextmanager
def connected(call: ModelCall) -> Iterator[None]:
    """Make a call the one of this thread."""
    _instrument()
    outer = current_call()
    _thread.call = call
    try:
        yield
    except BaseException:
        call.close(is_complete=False)
        raise
    else:
        call.close(is_complete=True)
    finally:
        _thread.call = outer


def current_call() -> ModelCall | None:
    """Return the model call of this thread, if one is in progress."""
    return getattr(_thread, "call", None)


def _instrument() -> None:
    """Instrument the libraries that were imported since the last call."""
    for library in LIBRARIES:
        if library in sys.modules and library not in _instrumented:
            with _lock:
                if library not in _instrumented:
                    _instrument_one(library)
                    _instrumented.add(library)


def _instrument_one(library: str) -> None:
    try:
        stream: Any = importlib.import_module(f"{library}._backends.sync").SyncStream
        body: Any = importlib.import_module(f"{library}._sync.connection_pool").PoolByteStream
        read, write, iterate, close = stream.read, stream.write, body.__iter__, body.close
        start_tls = _within_call(stream.start_tls)
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

    def iterate_within_call(self: Any) -> Iterator[bytes]:
        if (call := current_call()) is None:
            yield from iterate(self)
            return
        call.note_body(self)
        self.chunks = iterate(self)
        try:
            for chunk in self.chunks:  # noqa: UP028 - `yield from` would close the chunks before they are drained
                yield chunk
        finally:
            _drain(self)

    def close_within_call(self: Any) -> None:
        _drain(self)
        close(self)

    stream.read, stream.write, stream.start_tls = read_within_call, write_within_call, start_tls
    body.__iter__, body.close = iterate_within_call, close_within_call


def _within_call(start_tls: Callable[..., Any]) -> Callable[..., Any]:
    """Let a stop end the handshake."""

    def start_tls_within_call(self: Any, *args: Any, **options: Any) -> Any:
        connection = self.get_extra_info("socket")
        if (call := current_call()) is None or isinstance(connection, ssl.SSLSocket):  # TLS within TLS
            return start_tls(self, *args, **options)
        with connection.dup() as same:  # the socket itself is detached before the handshake
            return call.transfer(same, lambda: start_tls(self, *args, **options))

    return start_tls_within_call


def _drain(body: Any) -> None:
    """Read the rest of a body: clients stop at the last event, and its connection could not be used again."""
    call, chunks = current_call(), getattr(body, "chunks", None)
    if call is None or chunks is None or not call.keeps_connections:
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


def _shut_down(connection: Any) -> None:
    """Wake the thread that reads. A TLS socket's own `shutdown` would take its state from under that thread."""
    if connection is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
