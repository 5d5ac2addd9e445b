"""Tables C, D and E as text, and their goals' figures."""

from __future__ import annotations

from itertools import groupby
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks.readers import TOPICS
from benchmarks.streams import TURNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.readers import Crowd
    from benchmarks.streams import Streamed


def percentiles(streamed: Streamed, which: int) -> tuple[float, float]:
    """Return p50 and p99 of one of the times."""
    parts = quantiles([times[which] for times in streamed.times], n=100)
    return parts[49], parts[98]


def growth_per_piece(long: list[Streamed], contender: str) -> float:
    """Return the growth factor of a piece's CPU time from the shortest answer to the longest. 1 is linear."""
    shares = []
    for same in _by_kind(long, contender):
        per_piece = [_cpu_ms(each) / each.order.pieces for each in same]
        shares.append(per_piece[-1] / per_piece[0])
    return max(shares)


def beginnings(streams: list[Streamed]) -> Iterator[str]:
    """Lay out table C."""
    yield (
        f"C. The beginning of a stream: ms from POST (bare: from run) on, 1 client, {len(streams[0].times)} answers, "
        f"then a piece every {streams[0].order.every_ms} ms"
    )
    yield "   model's first piece  contender   first event p50     p99   first piece p50     p99   CPU ms"
    for streamed in streams:
        (event, event_99), (piece, piece_99) = percentiles(streamed, 0), percentiles(streamed, 1)
        yield (
            f"   after {streamed.order.first_ms:7} ms     {streamed.contender:<9} {event:17.2f} {event_99:7.2f} "
            f"{piece:17.2f} {piece_99:7.2f} {_cpu_ms(streamed):8.2f}"
        )
    for service, bare in zip(streams[::2], streams[1::2], strict=True):
        event, piece = (percentiles(service, which)[0] - percentiles(bare, which)[0] for which in (0, 1))
        yield f"   after {service.order.first_ms:7} ms     service minus bare {event:+8.2f} {'':7} {piece:+17.2f}"
    yield f"   bare: agent.run(stream=True), stream_outputs on, in process; a new conversation every {TURNS} turns"


def lengths(streams: list[Streamed]) -> Iterator[str]:
    """Lay out table D."""
    yield f"D. One long answer as fast as the model says it, {len(streams[0].times)} answers each"
    yield "   pieces of   pieces   service: CPU ms      ms  us/piece   bare: CPU ms      ms  us/piece   bare : service"
    for service, bare in zip(*(list(_of(streams, name)) for name in ("service", "bare")), strict=True):
        shown = "   ".join(
            f"{_cpu_ms(each):15.1f} {median(times[2] for times in each.times):7.1f} "
            f"{_cpu_ms(each) * 1000 / each.order.pieces:9.1f}"
            for each in (service, bare)
        )
        yield (
            f"   {service.order.kind:<9} {service.order.pieces:8}{shown[2:]} {_cpu_ms(bare) / _cpu_ms(service):12.1f} x"
        )
    for contender in ("service", "bare"):
        for same in _by_kind(streams, contender):
            short, _, long = same
            more = (_cpu_ms(long) - _cpu_ms(short)) * 1000 / (long.order.pieces - short.order.pieces)
            yield (
                f"   {contender}, {short.order.kind}: {long.order.pieces / short.order.pieces:.0f} x the pieces take "
                f"{_cpu_ms(long) / _cpu_ms(short):.1f} x the CPU; {more:.1f} us for each further piece"
            )


def crowds(found: list[Crowd]) -> Iterator[str]:
    """Lay out table E."""
    yield f"E. Readers of {TOPICS} running turns, an event a second each; one server process"
    yield "   readers  server   KB/reader  delay p50 ms     p99   events/s   server's core  us/event  others  client"
    for crowd in found:
        yield (
            f"   {crowd.readers:7}  {crowd.contender:<8} {crowd.bytes_per_reader / 1000:8.1f} {crowd.p50_ms:13.2f} "
            f"{crowd.p99_ms:7.2f} {crowd.events_per_s:10.0f} {crowd.server_share:15.0%} "
            f"{crowd.server_share * 1e6 / crowd.events_per_s:9.0f} {crowd.others_share:7.0%} {crowd.client_share:7.0%}"
        )
    for _, pair in groupby(found, key=lambda crowd: crowd.readers):
        service, plain = pair
        more = (service.bytes_per_reader - plain.bytes_per_reader) / 1000
        later, dearer = service.p50_ms - plain.p50_ms, service.server_share / plain.server_share
        yield f"   {service.readers:7}  service beyond plain: {more:+.1f} KB, p50 {later:+.2f} ms, CPU {dearer:.2f} x"
    yield "   plain: sse-starlette alone with the same frames, no store and no turns; bytes: growth of resident memory"


def _of(streams: list[Streamed], contender: str) -> Iterator[Streamed]:
    return (streamed for streamed in streams if streamed.contender == contender)


def _by_kind(streams: list[Streamed], contender: str) -> list[list[Streamed]]:
    return [list(same) for _, same in groupby(_of(streams, contender), key=lambda streamed: streamed.order.kind)]


def _cpu_ms(streamed: Streamed) -> float:
    return streamed.cpu_ms / len(streamed.times)
