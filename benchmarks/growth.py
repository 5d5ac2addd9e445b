"""Table B: cost of one long conversation by turn, in stored bytes, resident bytes, CPU and time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks.client import Talk
from benchmarks.contenders import server, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contenders import Server

MARKS = (1, 2, 50, 100, 200)
WINDOW = 5  # a mark's time is the mean of so many turns up to it; at turns 1 and 2, of that turn alone


@dataclass(frozen=True)
class Stored:
    """Bytes of a store: as its server counts them with all overhead, and of names and values alone."""

    used: int = 0
    used_lasting: int = 0
    payload: int = 0
    payload_lasting: int = 0
    """Lasting: without the keys that expire."""
    dataset: int = 0
    """The server's own figure, `used_memory_dataset`."""

    def per(self, conversations: int, since: Stored) -> Stored:
        return Stored(*(round((a - b) / conversations) for a, b in zip(*map(_figures, (self, since)), strict=True)))


@dataclass(frozen=True)
class Mark:
    """One contender after one turn of its conversations. All figures are of one conversation."""

    contender: str
    turn: int
    stored: Stored
    resident_bytes: int
    """Growth since before the first turn."""
    cpu_ms_per_turn: float
    ms_per_turn: float


def measure_growth(
    contender: str, conversations: int, marks: tuple[int, ...], progress: Callable[[str], None]
) -> list[Mark]:
    """Play so many conversations in lockstep, one turn at a time, up to the last mark."""
    with store() as socket_path, server(contender, socket_path) as running:
        redis = Redis(unix_socket_path=str(socket_path))
        _warm_up(running)
        stored, resident = read_stored(redis), running.resident_bytes()
        talks = [Talk(running.port) for _ in range(conversations)]
        found, rounds = [], []
        for turn in range(1, marks[-1] + 1):
            rounds.append(_round(running, talks))
            if turn % 10 == 0:
                progress(f"growth: {contender}, turn {turn} of {marks[-1]} in {conversations} conversations")
            if turn in marks:
                last = rounds[-1:] if turn < WINDOW else rounds[-WINDOW:]
                cpu, wall = (sum(figures) / len(last) / conversations for figures in zip(*last, strict=True))
                growth = round((running.resident_bytes() - resident) / conversations)
                found.append(Mark(contender, turn, read_stored(redis).per(conversations, stored), growth, cpu, wall))
        for talk in talks:
            talk.close()
        redis.close()
    return found


def _warm_up(running: Server) -> None:
    talk = Talk(running.port)
    for _ in range(10):
        talk.turn()
    talk.close()


def _round(running: Server, talks: list[Talk]) -> tuple[float, float]:
    """Play a turn in each talk. Return the milliseconds of the server's CPU and of the clock."""
    cpu, clock = running.cpu_ms(), time.perf_counter()
    for talk in talks:
        talk.turn()
    return running.cpu_ms() - cpu, (time.perf_counter() - clock) * 1000


def read_stored(redis: Redis) -> Stored:
    """Count the bytes that a store holds."""
    used = used_lasting = payload = payload_lasting = 0
    for key in redis.scan_iter(count=1000):
        lasting = redis.pttl(key) == -1
        usage = redis.memory_usage(key, samples=0) or 0
        size = len(key) + _size(_value(redis, key))
        used += usage
        payload += size
        used_lasting += usage * lasting
        payload_lasting += size * lasting
    info: Any = redis.info("memory")
    return Stored(used, used_lasting, payload, payload_lasting, info["used_memory_dataset"])


def _value(redis: Redis, key: bytes) -> Any:
    kind: Any = redis.type(key)
    if kind == b"zset":
        return redis.zrange(key, 0, -1, withscores=True)
    read = {b"string": "GET", b"list": "LRANGE", b"hash": "HGETALL", b"set": "SMEMBERS", b"stream": "XRANGE"}[kind]
    bounds = {"LRANGE": (0, -1), "XRANGE": ("-", "+")}.get(read, ())
    return redis.execute_command(read, key, *bounds)


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.items()))
    if isinstance(value, list | tuple | set):
        return sum(map(_size, value))
    return len(value) if isinstance(value, bytes) else 8


def _figures(stored: Stored) -> tuple[int, ...]:
    return (stored.used, stored.used_lasting, stored.payload, stored.payload_lasting, stored.dataset)
