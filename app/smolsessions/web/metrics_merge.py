"""Prometheus metrics of a set of processes.

A scrape reaches one process. It asks the others, each on a socket in their private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from smolsessions.web.metrics import Metrics

TIMEOUT_S = 2.0  # of another process
END = b"# EOF\n"


@contextlib.asynccontextmanager
async def share_metrics(metrics: Metrics, number: int, sockets: Sequence[Path]) -> AsyncIterator[MergedMetrics]:
    """Serve the metrics of process `number` to the other processes, and yield those of all."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await metrics.text() + END)
            await writer.drain()
        writer.close()

    sockets[number].unlink(missing_ok=True)  # left by an earlier life of this process
    async with await asyncio.start_unix_server(answer, sockets[number]):
        yield MergedMetrics(metrics, number, sockets)


class MergedMetrics:
    """Samples of all processes, each labelled with the number of its process."""

    def __init__(self, metrics: Metrics, number: int, sockets: Sequence[Path]) -> None:
        self._metrics = metrics
        self._number = number
        self._sockets = sockets

    async def text(self) -> bytes:
        texts = await asyncio.gather(*map(self._text_of, range(len(self._sockets))))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Merged(texts))
        return await asyncio.to_thread(
            generate_latest, registry
        )  # it would block the event loop if the processes are many

    async def _text_of(self, number: int) -> str | None:
        """Return a process's metrics, or None if it does not answer in time."""
        if number == self._number:
            return (await self._metrics.text()).decode()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._sockets[number])
                try:
                    text = await reader.read()
                    return text.decode() if text.endswith(END) else None
                finally:
                    writer.close()
        return None


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
        yield GaugeMetricFamily(
            "smolsessions_processes_silent", "Processes of this set that returned no metrics.", value=silent
        )
