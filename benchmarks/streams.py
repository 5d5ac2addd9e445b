"""Tables C and D: delay of a stream's beginning, cost of a long one and of an open one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from benchmarks.bare_stream import WARM_UP
from benchmarks.client import ANSWER_TIMEOUT_S
from benchmarks.contenders import ROOT, SPEAKER, Server, server, store
from benchmarks.cpu import SERVER_CORE
from benchmarks.speaker import WORD, Order
from benchmarks.throughput import TURNS
from benchmarks.watching import Watcher

STREAM_CONTENDERS = ("service", "bare")
FIRST_ORDERS = (Order(12, every_ms=5), Order(12, first_ms=50, every_ms=5))
LONG_ORDERS = tuple(Order(pieces, kind) for kind in ("arguments", "content") for pieces in (500, 1000, 2000))
OPEN_STREAMS, OPEN_THREADS = 200, 256
SETTLE_S = 3.0
_END = b"\r\n0\r\n\r\n"

Times = tuple[float, float, float]
"""Milliseconds to the first event, to the first piece of text, and to the end."""


@dataclass(frozen=True)
class Streamed:
    """A contender's answers to one order."""

    contender: str
    order: Order
    times: list[Times]
    cpu_ms: float


@dataclass(frozen=True)
class OpenStreams:
    """Streams whose turns run while their models sleep. The bytes include connection, turn, thread and session."""

    streams: int
    threads: int
    resident_bytes_each: float


def measure_streams(
    orders: tuple[Order, ...], rounds: int, times: int, progress: Callable[[str], None]
) -> list[Streamed]:
    """Measure each order `times` times with each contender. They alternate, so that a slow minute affects both."""
    found = []
    with store() as socket_path, server("service", socket_path, SPEAKER) as running:
        _over_http(running, Order(20), WARM_UP)
        for number in range(1, rounds + 1):
            for order in orders:
                for contender in STREAM_CONTENDERS:
                    progress(f"streams, round {number} of {rounds}: {contender}, {order}")
                    if contender == "bare":
                        found.append(_bare(order, times))
                    else:
                        found.append(_over_http(running, order, times))
    return [_together(found, contender, order) for order in orders for contender in STREAM_CONTENDERS]


def measure_open_streams() -> OpenStreams:
    """Open the streams, measure while all models sleep, and read all streams to their ends."""
    settings, asleep = {**SPEAKER, "THREADS": str(OPEN_THREADS)}, Order(20, first_ms=20_000)
    with store() as socket_path, server("service", socket_path, settings) as running, ExitStack() as stack:
        _over_http(running, Order(20), WARM_UP)
        before, start = running.resident_bytes(), time.monotonic()
        opened = [stack.enter_context(closing(Watcher.of_new(running, asleep))) for _ in range(OPEN_STREAMS)]
        for stream in opened:
            stream.wait_for("turn.started")
        time.sleep(SETTLE_S)
        grown = running.resident_bytes() - before
        if time.monotonic() - start > asleep.first_ms / 1000:
            raise RuntimeError("the models slept for less time than the streams took to open")
        for stream in opened:
            stream.wait_for("turn.finished")
    return OpenStreams(OPEN_STREAMS, OPEN_THREADS, grown / OPEN_STREAMS)


def figures_of(streamed: Streamed) -> dict[str, Any]:
    """Return a row of table C or D."""
    figures: dict[str, Any] = {"contender": streamed.contender, **vars(streamed.order), "answers": len(streamed.times)}
    for name, times in zip(("event", "piece", "end"), zip(*streamed.times, strict=True), strict=True):
        parts = quantiles(times, n=100)
        figures |= {f"{name}_p50_ms": parts[49], f"{name}_p99_ms": parts[98]}
    return figures | {"cpu_ms": streamed.cpu_ms / len(streamed.times)}


def _together(found: list[Streamed], contender: str, order: Order) -> Streamed:
    same = [each for each in found if (each.contender, each.order) == (contender, order)]
    times = [each for streamed in same for each in streamed.times]
    return Streamed(contender, order, times, sum(streamed.cpu_ms for streamed in same))


def _bare(order: Order, times: int) -> Streamed:
    command = [sys.executable, "-m", "benchmarks.bare_stream", json.dumps([str(order), times, TURNS])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        os.sched_setaffinity(process.pid, [SERVER_CORE])
        printed, _ = process.communicate(timeout=600)
    return Streamed("bare", order, **json.loads(printed))


def _over_http(running: Server, order: Order, times: int) -> Streamed:
    with socket.create_connection(("127.0.0.1", running.port), timeout=ANSWER_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found, conversation_id = [], ""
        before = running.cpu_ms()
        for number in range(times):
            if number % TURNS == 0:
                conversation_id = ""
            listened, conversation_id = _listen(connection, order, conversation_id)
            found.append(listened)
        return Streamed("service", order, found, running.cpu_ms() - before)


def _listen(connection: socket.socket, order: Order, conversation_id: str) -> tuple[Times, str]:
    """Play one turn and check its text."""
    clock = time.perf_counter
    body = json.dumps({"message": str(order), **({"conversation_id": conversation_id} if conversation_id else {})})
    head = f"POST /turn HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n"
    heard = bytearray()
    first_at = delta_at = 0.0
    start = clock()
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    while not heard.endswith(_END):
        data = connection.recv(1 << 20)
        now = clock()
        if not data:
            raise RuntimeError(f"the connection was closed after {bytes(heard)!r}")
        heard += data
        if not first_at and b"event: " in heard:
            first_at = now
        if not delta_at and b"event: message.delta\n" in heard:
            delta_at = now
    end = clock()
    times = ((first_at - start) * 1000, (delta_at - start) * 1000, (end - start) * 1000)
    return times, _checked(bytes(heard), order)


def _checked(heard: bytes, order: Order) -> str:
    """Return the conversation's id. Raise if the stream differs from the order. The last piece is no text."""
    events = [json.loads(line[6:]) for line in heard.split(b"\n") if line.startswith(b"data: ")]
    channel = "answer" if order.kind == "arguments" else "thought"
    said = "".join(event["text"] for event in events if event.get("channel") == channel)
    in_order = [event["seq"] for event in events] == list(range(1, len(events) + 1))
    if said != WORD * (order.pieces - 1) or events[-1]["type"] != "turn.finished" or not in_order:
        raise RuntimeError(f"the stream of {order} was {heard[:2000]!r}")
    return str(events[0]["conversation_id"])
