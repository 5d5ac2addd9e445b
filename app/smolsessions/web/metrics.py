"""Prometheus metrics of a process, or of a set: the scraped one asks the others on sockets in their folder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from smolsessions.core.agent_ports import ToolServer
from smolsessions.core.records import Turn, Usage
from smolsessions.core.store_ports import Queues

M = TypeVar("M")
MetricsText = Callable[[], Awaitable[bytes]]
"""Function that returns metrics in the Prometheus text format."""

TIMEOUT_S = 2.0  # of another process
END = b"# EOF\n"
_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)


class ThreadCounts(Protocol):
    @property
    def free(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def stuck(self) -> int: ...


class Metrics:
    def __init__(self, threads: ThreadCounts, sessions: Callable[[], int]) -> None:
        self.queues: Callable[[], Awaitable[Queues]] | None = None
        self.tool_servers: Callable[[], list[ToolServer]] = list
        self._registry = CollectorRegistry()
        durations = functools.partial(Histogram, buckets=_SECONDS)
        self._turns = self._add(Counter, "turns", "Turns that ended here.", "agent", "status", "code")
        self._duration = self._add(durations, "turn_seconds", "Duration of a turn, without its waits.", "agent")
        tokens = self._add(Counter, "tokens", "Tokens of turns that ended, by part of `usage`.", "agent", "part")
        self._tokens = functools.cache(tokens.labels)  # for each agent and part, at the end of each turn
        self._queued = self._add(durations, "turn_queued_seconds", "From submit to start.")
        self._taken_over = self._add(Counter, "turns_taken_over", "Attempts that continued a turn of an ended process.")
        self._add(Gauge, "threads_free", "Threads without a turn.").set_function(lambda: threads.free)
        self._add(Gauge, "threads_busy", "Threads with a turn.").set_function(lambda: threads.busy)
        stuck = self._add(Gauge, "threads_stuck", "Abandoned threads, whose code ignores the stop.")
        stuck.set_function(lambda: threads.stuck)
        self._add(Gauge, "sessions_warm", "Agents kept in memory between turns.").set_function(sessions)
        self.streams_open = self._add(Gauge, "streams_open", "Open event streams of this process.")
        # These are of the whole store, and the same in every process.
        self._lengths = self._add(Gauge, "queue_length", "Conversations that wait for a thread.", "agent")
        self._ages = self._add(Gauge, "queue_oldest_seconds", "Waiting time of the oldest of them.", "agent")
        self._waiting = self._add(Gauge, "turns_waiting", "Turns that wait for a person.")
        text = "Waiting time of one of the first of them to expire."
        self._waiting_age = self._add(Gauge, "turns_waiting_oldest_seconds", text)
        text = "Partitions of the store that do not answer. The queue metrics lack their conversations."
        self._silent = self._add(Gauge, "partitions_silent", text)
        self._registry.register(_ToolServers(self))
        self._store_errors = self._add(Counter, "store_errors", "Lost connections and refused operations.", "cause")
        for cause in ("lost", "refused", "full"):
            self._store_errors.labels(cause)

    def store_lost(self, cause: str) -> None:
        """Count a lost connection to the store, a refused operation, or a write that found the store full."""
        self._store_errors.labels(cause).inc()

    def turn_ended(self, turn: Turn) -> None:
        outcome, timing = turn.outcome, turn.timing
        assert outcome, "a turn that ended has an outcome"
        code = outcome.error.code if outcome.error else ""
        self._turns.labels(turn.agent.name, outcome.status, code).inc()
        for part in Usage.__match_args__:
            if (tokens := getattr(outcome.usage, part) or 0) > 0:  # an earlier release took any count of a model
                self._tokens(turn.agent.name, part.removesuffix("_tokens")).inc(tokens)
        if turn.attempts > 1 + timing.waits:
            self._taken_over.inc(turn.attempts - 1 - timing.waits)
        if timing.started_at is None or timing.finished_at is None:
            return
        ran_s = timing.finished_at - timing.started_at - timing.waited_s
        self._duration.labels(turn.agent.name).observe(max(0.0, ran_s))
        self._queued.observe(max(0.0, timing.started_at - timing.submitted_at))

    async def text(self) -> bytes:
        if self.queues:
            found = await self.queues()
            self._lengths.clear()  # a partition that does not answer has no value, instead of an old one
            self._ages.clear()
            for agent, queue in found.of.items():
                self._lengths.labels(agent).set(queue.length)
                self._ages.labels(agent).set(queue.oldest_s)
            self._waiting.set(found.waiting.length)
            self._waiting_age.set(found.waiting.oldest_s)
            self._silent.set(found.silent)
        return generate_latest(self._registry)

    def _add(self, kind: Callable[..., M], name: str, text: str, *labels: str) -> M:
        return kind(f"smolsessions_{name}", text, labels, registry=self._registry)


class _ToolServers(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield the health of the MCP servers of this process, if its agents use any."""
        servers = self._metrics.tool_servers()
        if not servers:
            return
        up = GaugeMetricFamily("smolsessions_mcp_up", "1 if the MCP server answers.", labels=["server"])
        text = "Attempts to connect to an MCP server again."
        restarts = CounterMetricFamily("smolsessions_mcp_restarts", text, labels=["server"])
        text = "Changes of its list of tools, which a restart adopts."
        changes = CounterMetricFamily("smolsessions_mcp_list_changes", text, labels=["server"])
        text = "Calls of its tools: ok, error (of the tool), failed, timeout, stopped."
        calls = CounterMetricFamily("smolsessions_mcp_calls", text, labels=["server", "outcome"])
        for server in servers:
            up.add_metric([server.name], server.is_up)
            restarts.add_metric([server.name], server.restarts)
            changes.add_metric([server.name], server.list_changes)
            for outcome, count in server.calls.items():
                calls.add_metric([server.name, outcome], count)
        yield from (up, restarts, changes, calls)


@contextlib.asynccontextmanager
async def share_metrics(metrics: Metrics, number: int, sockets: Sequence[Path]) -> AsyncIterator[MetricsText]:
    """Serve the metrics of process `number` to the others, and yield the function that returns those of all."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await metrics.text() + END)
            await writer.drain()
        writer.close()

    async def text_of(process: int) -> str | None:
        """Return the metrics of a process, or None if it does not answer in time."""
        if process == number:
            return (await metrics.text()).decode()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(sockets[process])
                try:
                    text = await reader.read()
                    return text.decode() if text.endswith(END) else None
                finally:
                    writer.close()
        return None

    async def merged() -> bytes:
        texts = await asyncio.gather(*map(text_of, range(len(sockets))))
        # In a thread, because many processes would block the event loop.
        return await asyncio.to_thread(generate_latest, _Merged(texts))

    sockets[number].unlink(missing_ok=True)  # left by an earlier life of this process
    async with await asyncio.start_unix_server(answer, sockets[number]):
        yield merged


class _Merged(Collector):
    def __init__(self, texts: Iterable[str | None]) -> None:
        self._texts = list(texts)

    def collect(self) -> Iterable[Metric]:
        """Yield each family once, with the samples of all processes."""
        families: dict[str, Metric] = {}
        for number, text in enumerate(self._texts):
            for found in text_string_to_metric_families(text or ""):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {"process": str(number), **sample.labels}, sample.value)
        yield from families.values()
        silent = sum(text is None for text in self._texts)
        text = "Processes of this set that returned no metrics."
        yield GaugeMetricFamily("smolsessions_processes_silent", text, value=silent)
