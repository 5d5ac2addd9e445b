"""Prometheus metrics of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from smolsessions.core.records import Queues, Turn

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)


class ThreadCounts(Protocol):
    @property
    def free(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def stuck(self) -> int: ...


class MetricsSource(Protocol):
    async def text(self) -> bytes:
        """Return metrics in the Prometheus text format."""
        ...


class Metrics:
    def __init__(self, threads: ThreadCounts, sessions: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._turns = Counter(
            "smolsessions_turns", "Turns that ended here.", ("agent", "status", "code"), registry=self._registry
        )
        self._duration = Histogram(
            "smolsessions_turn_seconds",
            "From start to end of a turn.",
            ("agent",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._queued = Histogram(
            "smolsessions_turn_queued_seconds", "From submit to start.", buckets=_SECONDS, registry=self._registry
        )
        self._taken_over = Counter(
            "smolsessions_turns_taken_over",
            "Attempts that continued a turn of another process, or of an earlier life of this process.",
            registry=self._registry,
        )
        self._gauge("threads_free", "Threads without a turn.", lambda: threads.free)
        self._gauge("threads_busy", "Threads with a turn.", lambda: threads.busy)
        self._gauge("threads_stuck", "Abandoned threads: foreign code in them ignores the stop.", lambda: threads.stuck)
        self._gauge("sessions_warm", "Agents kept in memory between turns.", sessions)
        self.streams: Callable[[], int] | None = None
        self._gauge(
            "streams_open",
            "Open event streams of this process.",
            lambda: self.streams() if self.streams else 0,
        )
        self._lengths, self._ages = (
            Gauge(f"smolsessions_queue_{name}", text, ("agent",), registry=self._registry)
            for name, text in {
                "length": "Conversations that wait for a thread, in the whole store: the same in every process.",
                "oldest_seconds": "Waiting time of the oldest of them: the same in every process.",
            }.items()
        )
        self._silent = Gauge(
            "smolsessions_partitions_silent",
            "Partitions of the store that do not answer: their waiting conversations are missing in the queue metrics.",
            registry=self._registry,
        )
        self.queues: Callable[[], Awaitable[Queues]] | None = None
        self._store_errors = Counter(
            "smolsessions_store_errors",
            "Lost connections and refused operations.",
            registry=self._registry,
        )

    def store_lost(self) -> None:
        """Count a lost connection to the store, or a refused operation."""
        self._store_errors.inc()

    def turn_ended(self, turn: Turn) -> None:
        outcome, timing = turn.outcome, turn.timing
        assert outcome, "a turn that ended has an outcome"
        code = outcome.error.code if outcome.error else ""
        self._turns.labels(turn.agent.name, outcome.status, code).inc()
        self._taken_over.inc(max(0, turn.attempts - 1))
        if timing.started_at is None or timing.finished_at is None:
            return
        self._duration.labels(turn.agent.name).observe(max(0.0, timing.finished_at - timing.started_at))
        self._queued.observe(max(0.0, timing.started_at - timing.submitted_at))

    async def text(self) -> bytes:
        if self.queues:
            found = await self.queues()
            self._lengths.clear()  # a partition that does not answer has no value, instead of an old one
            self._ages.clear()
            for agent, queue in found.of.items():
                self._lengths.labels(agent).set(queue.length)
                self._ages.labels(agent).set(queue.oldest_s)
            self._silent.set(found.silent)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, value: Callable[[], int]) -> None:
        Gauge(f"smolsessions_{name}", text, registry=self._registry).set_function(value)
