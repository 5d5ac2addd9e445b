"""Table F: costs and savings of code in a process of its own, compared with code in the turn's thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis

from benchmarks.client import Load, Talk
from benchmarks.coders import BURN_AFTER_S, MODES, order
from benchmarks.contenders import server, store
from benchmarks.cpu import CORES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.contenders import Server

TURNS = 20  # of a conversation
AT_ONCE = 16
WAIT_S = 6
PROBES, PROBE_EVERY_S = 300, 0.01
BURNS = ("", "sum", "pattern")
CHANGES = ("none", "one", "all")
KB = 1024


@dataclass
class Costs:
    """All measured times, in milliseconds."""

    mode: str
    first: list[float] = field(default_factory=list)
    """From the model's reply to its next call: the block, with all of its writes and events."""
    further: list[float] = field(default_factory=list)
    call: list[float] = field(default_factory=list)
    """From one call of a tool to the next in a loop."""
    turn: list[float] = field(default_factory=list)
    """Over HTTP: eight blocks, twenty calls."""


@dataclass(frozen=True)
class Memory:
    """Memory of sessions that wait in a tool, in bytes of one session."""

    mode: str
    sessions: int
    whole: float
    """Growth of the proportional size of the service with all its processes."""
    child_own: float
    child_proportional: float
    child_resident: float
    server_proportional: float
    """Of the server that forks the children, while they exist."""


@dataclass(frozen=True)
class Crush:
    """Concurrent conversations, a tool call and an answer a turn. Service and children run on all cores."""

    mode: str
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    load: float


@dataclass(frozen=True)
class Delay:
    """Delay of `/livez`, requested at fixed times every 10 ms while one line of code burns CPU (`` for none)."""

    mode: str
    burn: str
    p50_ms: float
    p99_ms: float
    max_ms: float
    load: float


@dataclass
class Change:
    """Turns of a conversation with 1,000 variables that change none, one or all of them."""

    mode: str
    change: str
    turn_ms: list[float] = field(default_factory=list)
    block_ms: list[float] = field(default_factory=list)
    fields: list[int] = field(default_factory=list)
    field_bytes: list[int] = field(default_factory=list)
    """Of the changed fields of the variables' hash, without the list."""
    list_bytes: list[int] = field(default_factory=list)
    log_bytes: list[int] = field(default_factory=list)
    """Growth of the store's append-only file, which holds everything that the turn wrote."""


@dataclass(frozen=True)
class Code:
    """All of table F."""

    costs: list[Costs]
    memory: list[Memory]
    crushes: list[Crush]
    delays: list[Delay]
    changes: list[Change]
    load: float


def measure_code(turns: int, rounds: int, seconds: float, changes: int, progress: Callable[[str], None]) -> Code:
    """Measure both modes alternately, so that a slow minute of the machine affects both."""
    costs = _costs(turns, progress)
    memory = [_memory(mode, progress) for mode in MODES]
    crushes = [_crush(mode, seconds, progress) for _ in range(rounds) for mode in MODES]
    delays = [_delay(mode, burn, progress) for burn in BURNS for mode in MODES]
    return Code(costs, memory, crushes, delays, _changes(changes, progress), os.getloadavg()[0])


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    parts = quantiles(values, n=100, method="inclusive")
    return parts[49], parts[98]


@contextmanager
def _coding(mode: str) -> Iterator[tuple[Server, Redis]]:
    settings = {"AGENTS": f"{mode}=benchmarks.coders:make_{mode}", "DEFAULT_AGENT": mode, "DEMO_AGENTS": "false"}
    with (
        store() as socket_path,
        server("service", socket_path, settings, CORES) as running,
        Redis(unix_socket_path=str(socket_path)) as redis,
    ):
        Client(running.port).play("costs")  # loads everything that is loaded once
        yield running, redis


class Client:
    """One keep-alive connection with a conversation."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.conversation = ""

    def play(self, kind: str, number: int = 0) -> tuple[float, dict[str, list[float]]]:
        """Play a turn. Return its milliseconds and the model's measurements."""
        body = {"message": order(kind, number)}
        if self.conversation:
            body["conversation_id"] = self.conversation
        start = time.perf_counter()
        self._connection.request("POST", "/turn", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        said = answer.read()
        took_ms = (time.perf_counter() - start) * 1000
        found = json.loads(said)
        if answer.status != 200 or found.get("status") != "finished":
            raise RuntimeError(f"{kind} was answered with {answer.status} {said!r}")
        self.conversation = found["conversation_id"]
        measured: dict[str, list[float]] = json.loads(found["reply"])
        return took_ms, measured


def _costs(turns: int, progress: Callable[[str], None]) -> list[Costs]:
    found = [Costs(mode) for mode in MODES]
    with ExitStack() as stack:
        ports = [stack.enter_context(_coding(mode))[0].port for mode in MODES]
        clients = [Client(port) for port in ports]
        for number in range(turns):
            if number % TURNS == 0:
                progress(f"code: costs, turn {number} of {turns}")
                clients = [Client(port) for port in ports]
            for costs, client in zip(found, clients, strict=True):
                took_ms, measured = client.play("costs")
                first, *further, _calls = measured["blocks"]
                costs.turn.append(took_ms)
                costs.first.append(first)
                costs.further += further
                costs.call += measured["ticks"]
    return found


def _memory(mode: str, progress: Callable[[str], None]) -> Memory:
    progress(f"code: memory, {mode}")
    with _coding(mode) as (running, _):
        clients = [Client(running.port) for _ in range(AT_ONCE)]
        _together(clients, "wait", 1)
        time.sleep(1)
        service = psutil.Process(running.pid)
        before = sum(_sizes(process)["Pss"] for process in (service, *service.children(recursive=True)))
        playing = threading.Thread(target=_together, args=(clients, "wait", WAIT_S))
        playing.start()
        time.sleep(WAIT_S / 2)
        fork_servers = service.children()
        children = [_sizes(child) for fork_server in fork_servers for child in fork_server.children()]
        forking = sum(_sizes(fork_server)["Pss"] for fork_server in fork_servers)
        after = _sizes(service)["Pss"] + forking + sum(sizes["Pss"] for sizes in children)
        playing.join()
    if len(children) != (AT_ONCE if mode == "process" else 0):
        raise RuntimeError(f"{len(children)} processes were there for {AT_ONCE} sessions")
    own = [sizes["Private_Clean"] + sizes["Private_Dirty"] for sizes in children] or [0]
    return Memory(
        mode,
        AT_ONCE,
        whole=(after - before) / AT_ONCE,
        child_own=median(own),
        child_proportional=median([sizes["Pss"] for sizes in children] or [0]),
        child_resident=median([sizes["Rss"] for sizes in children] or [0]),
        server_proportional=forking,
    )


def _together(clients: list[Client], kind: str, number: int) -> None:
    threads = [threading.Thread(target=client.play, args=(kind, number)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _sizes(process: psutil.Process) -> dict[str, int]:
    """Return the sizes of all memory of a process, in bytes."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) * KB for name, _, value in (line.partition(":") for line in lines)}


def _crush(mode: str, seconds: float, progress: Callable[[str], None]) -> Crush:
    progress(f"code: {AT_ONCE} at once, {mode}")
    with _coding(mode) as (running, _):
        load = Load([Talk(running.port, TURNS - i % TURNS, TURNS) for i in range(AT_ONCE)])
        load.run(seconds / 5)
        elapsed_s = load.run(seconds)
        latencies = list(load.latencies_ms)
        load.finish()
    return Crush(mode, len(latencies) / elapsed_s, *percentiles(latencies), os.getloadavg()[0])


def _delay(mode: str, burn: str, progress: Callable[[str], None]) -> Delay:
    progress(f"code: /livez beside {burn or 'nothing'}, {mode}")
    with _coding(mode) as (running, _):
        delays: list[float] = []
        burning = threading.Thread(target=Client(running.port).play, args=(burn,)) if burn else None
        if burning:
            burning.start()
            time.sleep(BURN_AFTER_S * 1.2)
        delays = asyncio.run(_probe(running.port))
        if burning and mode == "process" and not burning.is_alive():
            raise RuntimeError("the code was done before the requests were: give it more to do")
        if burning:
            burning.join()
    return Delay(mode, burn, *percentiles(delays), max(delays), os.getloadavg()[0])


async def _probe(port: int) -> list[float]:
    start = time.perf_counter()
    return await asyncio.gather(*(_ask(port, start + number * PROBE_EVERY_S) for number in range(PROBES)))


async def _ask(port: int, at: float) -> float:
    """Return the milliseconds from the scheduled time of the request to the answer."""
    await asyncio.sleep(at - time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    took_ms = (time.perf_counter() - at) * 1000
    writer.close()
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise RuntimeError(f"/livez was answered with {answer!r}")
    return took_ms


def _changes(turns: int, progress: Callable[[str], None]) -> list[Change]:
    found = [Change(mode, change) for change in CHANGES for mode in MODES]
    with ExitStack() as stack:
        coding = {mode: stack.enter_context(_coding(mode)) for mode in MODES}
        clients = {mode: Client(running.port) for mode, (running, _) in coding.items()}
        for client in clients.values():
            client.play("all")
        for number in range(1, turns + 1):
            progress(f"code: variables, round {number} of {turns}")
            for change in found:
                redis, client = coding[change.mode][1], clients[change.mode]
                before, log_bytes = _variables(redis), _log_bytes(redis)
                took_ms, measured = client.play(change.change, number)
                after = _variables(redis)
                new = {name: value for name, value in after.items() if before.get(name) != value}
                a_list = new.pop(b"", b"")
                change.turn_ms.append(took_ms)
                change.block_ms.append(measured["blocks"][0])
                change.fields.append(len(new))
                change.field_bytes.append(sum(len(name) + len(value) for name, value in new.items()))
                change.list_bytes.append(len(a_list))
                change.log_bytes.append(_log_bytes(redis) - log_bytes)
    return found


def _variables(redis: Redis) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for key in redis.scan_iter(match="*:variables:*", count=1000):
        values: Any = redis.hgetall(key)
        found |= values
    return found


def _log_bytes(redis: Redis) -> int:
    info: Any = redis.info("persistence")
    return int(info["aof_current_size"])
