"""The figures of a set of processes: whichever is asked asks the others, each on a socket in their private folder."""

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

PATIENCE_S = 2.0  # how long another process may take for its figures
END = b"# EOF\n"


@contextlib.asynccontextmanager
async def share_metrics(metrics: Metrics, number: int, sockets: Sequence[Path]) -> AsyncIterator[MergedMetrics]:
    """Give the figures of process `number` to the others of its set, and theirs to who asks it."""

    async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await metrics.text() + END)
            await writer.drain()
        writer.close()

    sockets[number].unlink(missing_ok=True)  # of an earlier life of this process
    async with await asyncio.start_unix_server(tell, sockets[number]):
        yield MergedMetrics(metrics, number, sockets)


class MergedMetrics:
    """All samples of all processes, each with the number of its process."""

    def __init__(self, metrics: Metrics, number: int, sockets: Sequence[Path]) -> None:
        self._metrics = metrics
        self._number = number
        self._sockets = sockets

    async def text(self) -> bytes:
        texts = await asyncio.gather(*map(self._text_of, range(len(self._sockets))))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Merged(texts))
        return await asyncio.to_thread(generate_latest, registry)  # of many processes it is felt on the loop

    async def _text_of(self, number: int) -> str | None:
        """Give what a process tells; nothing where it tells nothing in time."""
        if number == self._number:
            return (await self._metrics.text()).decode()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_unix_connection(self._sockets[number])
                try:
                    told = await reader.read()
                    return told.decode() if told.endswith(END) else None
                finally:
                    writer.close()
        return None


class _Merged(Collector):
    def __init__(self, texts: Iterable[str | None]) -> None:
        self._texts = list(texts)

    def collect(self) -> Iterable[Metric]:
        """Give each family once, with the samples of all."""
        families: dict[str, Metric] = {}
        for number, text in enumerate(self._texts):
            for found in text_string_to_metric_families(text or ""):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {"process": str(number), **sample.labels}, sample.value)
        yield from families.values()
        silent = sum(text is None for text in self._texts)
        yield GaugeMetricFamily(
            "smolsessions_processes_silent", "Processes of this set that gave no figures.", value=silent
        )
