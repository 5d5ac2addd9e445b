"""Table B: cost of one long conversation by turn, in stored bytes, resident bytes, CPU and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from redis import Redis

from benchmarks.client import Talk
from benchmarks.contenders import Server, server, store
from benchmarks.goals import at_most
from benchmarks.report import Row
from smolsessions.store.seal import new_key

MARKS = (1, 2, 50, 100, 200)
WINDOW = 5  # a mark's time is the mean of so many turns up to it; at turns 1 and 2, of that turn alone


@dataclass(frozen=True)
class Mark:
    """One contender after one turn of its conversations. All figures are of one conversation."""

    contender: str
    turn: int
    stored_bytes: int
    resident_bytes: int
    """Growth since before the first turn."""
    cpu_ms_per_turn: float
    ms_per_turn: float


@dataclass(frozen=True)
class Growth:
    """Marks of a contender, and of the service the milliseconds of a turn after the last mark."""

    marks: list[Mark]
    cold_ms: list[float]
    """In a process that knows the conversation from the store only."""
    warm_ms: list[float]
    """The next turn of each."""


def measure_growth(
    contender: str, conversations: int, marks: tuple[int, ...], progress: Callable[[str], None]
) -> Growth:
    """Play so many conversations in lockstep, one turn at a time, up to the last mark. Then restart the service."""
    seal = {"SEAL_KEYS": new_key()}
    with store() as socket_path:
        with server(contender, socket_path, seal) as running, Redis(unix_socket_path=str(socket_path)) as redis:
            _warm_up(running)
            talks = [Talk(running.port) for _ in range(conversations)]
            stored, resident = _stored_bytes(redis), running.resident_bytes()
            found = []
            for turn, (cpu, wall) in _turns(running, talks, marks, progress):
                stored_each = round((_stored_bytes(redis) - stored) / conversations)
                resident_each = round((running.resident_bytes() - resident) / conversations)
                found.append(Mark(contender, turn, stored_each, resident_each, cpu, wall))
            for talk in talks:
                talk.close()
        if contender != "service":
            return Growth(found, [], [])
        with server(contender, socket_path, seal) as restarted:
            return Growth(found, *_restarted(restarted, talks))


def goals_of(growth: Growth) -> list[Row]:
    """Check the service's growth. 1 KB is 1,000 bytes."""
    at = {mark.turn: mark for mark in growth.marks}
    longer_ms = at[200].cpu_ms_per_turn - at[2].cpu_ms_per_turn
    rebuild_ms = median(growth.cold_ms) - median(growth.warm_ms)
    return [
        at_most("stored KB after 100 turns", 90, at[100].stored_bytes / 1000),
        at_most("CPU ms of turn 200 over turn 2", 1, longer_ms),
        at_most("resident KB of a warm session of 100 turns", 1000, at[100].resident_bytes / 1000),
        at_most("ms to rebuild a session of 200 turns", 10, rebuild_ms),
    ]


def _turns(
    running: Server, talks: list[Talk], marks: tuple[int, ...], progress: Callable[[str], None]
) -> Iterator[tuple[int, tuple[float, float]]]:
    """Play the talks up to the last mark. Yield each mark with the milliseconds of CPU and clock of one turn."""
    rounds = []
    for turn in range(1, marks[-1] + 1):
        rounds.append(_round(running, talks))
        if turn % 10 == 0:
            progress(f"growth: turn {turn} of {marks[-1]} in {len(talks)} conversations")
        if turn in marks:
            last = rounds[-1:] if turn < WINDOW else rounds[-WINDOW:]
            cpu, wall = (sum(figures) / len(last) / len(talks) for figures in zip(*last, strict=True))
            yield turn, (cpu, wall)


def _restarted(running: Server, talks: list[Talk]) -> tuple[list[float], list[float]]:
    """Play two turns of each talk at a new server. The first talk warms it up and is left out."""
    _warm_up(running)
    for talk in talks:
        talk.connect(running.port)
    cold, warm = zip(*[(_timed(talk), _timed(talk)) for talk in talks], strict=True)
    return list(cold[1:]), list(warm[1:])


def _timed(talk: Talk) -> float:
    start = time.perf_counter()
    talk.turn()
    return (time.perf_counter() - start) * 1000


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


def _stored_bytes(redis: Redis) -> int:
    """Return the memory of all keys as their server counts it, with all overhead."""
    return sum(redis.memory_usage(key, samples=0) or 0 for key in redis.scan_iter(count=1000))
