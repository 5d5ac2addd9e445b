"""Table E: many readers of running turns on one server: bytes of each, the delay of an event, CPU."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.contenders import SPEAKER, Server, server, store
from benchmarks.cpu import Meter, server_meter
from benchmarks.speaker import Order
from benchmarks.watching import Caller, Watcher

TOPICS = 50
FEW = 10  # readers that connect and leave before the first measurement, so that all code is loaded
AT_ONCE = 50
SETTLE_S = 3.0
_STAMPED = re.compile(rb"id: (\d+)\n[^\n]*@(\d+) ")


@dataclass(frozen=True)
class Crowd:
    """A number of readers. Each reader receives one event a second."""

    readers: int
    bytes_per_reader: float
    p50_ms: float
    p99_ms: float
    events_per_s: float
    server_share: float
    others_share: float
    client_share: float


def measure_readers(counts: tuple[int, ...], seconds: float, progress: Callable[[str], None]) -> list[Crowd]:
    """Measure each number of readers, each time on a new server."""
    _allow_sockets(2 * max(counts) + 1000)
    found = []
    for readers in counts:
        progress(f"readers: {readers}")
        with _talking() as (running, paths):
            found.append(asyncio.run(_crowd(running, paths, readers, seconds)))
    return found


@contextmanager
def _talking() -> Iterator[tuple[Server, list[str]]]:
    """Run a server whose topics send an event each second. Yield it and the paths of the topics."""
    with store() as socket_path, server("service", socket_path, {**SPEAKER, "THREADS": str(TOPICS)}) as running:
        paths = []
        for _ in range(TOPICS):
            with closing(Watcher.of_new(running, Order(100_000, "stamps", every_ms=1000))) as first:
                first.wait_for("turn.started")
                paths.append(first.path)
            time.sleep(1 / TOPICS)
        yield running, [f"{path}/events" for path in paths]
        with closing(Caller(running)) as caller:
            for path in paths:
                caller.ask("POST", f"{path}/cancel", {})


class Ears(asyncio.Protocol):
    """One reader. Its events must come without a gap."""

    def __init__(self, path: str) -> None:
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delays_ns: list[int] = []
        self._path = path
        self._heard = b""
        self._seq = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        whole, end, rest = (self._heard + data).rpartition(b"\n\n")
        self._heard = rest
        for seq, stamp in _STAMPED.findall(whole + end):
            if self._seq and int(seq) != self._seq + 1:
                raise RuntimeError(f"event {seq!r} follows {self._seq}")
            self._seq = int(seq)
            self.delays_ns.append(now - int(stamp))
        if self._seq and not self.began.done():
            self.began.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.began.done():
            self.began.set_exception(error or RuntimeError("a reader was closed"))


async def _crowd(running: Server, paths: list[str], readers: int, seconds: float) -> Crowd:
    for ears in await _listen(running, paths, FEW):
        ears.transport.abort()
    await asyncio.sleep(1)
    before = running.resident_bytes()
    crowd = await _listen(running, paths, readers)
    await asyncio.sleep(SETTLE_S)
    for ears in crowd:
        ears.delays_ns.clear()
    core, client, start = server_meter(running.pid), Meter({"client": [os.getpid()]}), time.monotonic()
    await asyncio.sleep(seconds)
    shares = {**client.shares(), **core.shares()}
    elapsed_s = time.monotonic() - start
    resident = running.resident_bytes() - before
    delays_ms = [delay / 1e6 for ears in crowd for delay in ears.delays_ns]
    for ears in crowd:
        if ears.transport.is_closing():
            raise RuntimeError("a reader was closed")
        ears.transport.abort()
    parts = quantiles(delays_ms, n=100)
    return Crowd(
        readers,
        bytes_per_reader=resident / readers,
        p50_ms=parts[49],
        p99_ms=parts[98],
        events_per_s=len(delays_ms) / elapsed_s,
        **{f"{name}_share": share for name, share in shares.items()},
    )


async def _listen(running: Server, paths: list[str], readers: int) -> list[Ears]:
    """Connect the readers, some at once, and wait until each has received an event."""
    loop = asyncio.get_running_loop()
    crowd: list[Ears] = []
    for first in range(0, readers, AT_ONCE):
        some = range(first, min(first + AT_ONCE, readers))
        made = [
            loop.create_connection(lambda at=at: Ears(paths[at % len(paths)]), "127.0.0.1", running.port)  # type: ignore[misc]
            for at in some
        ]
        crowd += [ears for _, ears in await asyncio.gather(*made)]
    async with asyncio.timeout(120):
        for ears in crowd:
            await ears.began
    return crowd


def _allow_sockets(needed: int) -> None:
    """Raise the limit of open files, which the servers inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))
        except (ValueError, OSError):
            raise SystemExit(f"the readers need {needed} open files: raise the hard limit (ulimit -Hn)") from None
