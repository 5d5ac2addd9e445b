"""Tables I and K as text: many processes on one store."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from benchmarks.agents import CALL_MS
from benchmarks.cpu import CORES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.throughput import Run
    from benchmarks.workers import Scaled

_KINDS = ("web", "work", "serve", "store", "client")


def workers(found: list[Scaled]) -> Iterator[str]:
    """Lay out table I."""
    yield (
        f"I. A model of {CALL_MS} ms, two calls a turn: so many processes that play, on one store, with "
        f"{len(CORES)} cores for all of them"
    )
    yield "                                                              CPU ms a turn:                     cores busy:"
    yield (
        "   bound by  set-up        clients  turns/s  times  p50 ms  p99 ms"
        "    web   work  serve  store client    ours others"
    )
    for _, same in groupby(found, lambda each: (each.bound, each.role)):
        ladder = list(same)
        for each in ladder:
            what = f"web + {each.count} work" if each.role == "work" else f"serve x {each.count}"
            shown = " ".join(f"{each.cpu_ms(kind):6.2f}" if kind in each.shares else "     -" for kind in _KINDS)
            ours = sum(share for kind, share in each.shares.items() if kind != "others")
            yield (
                f"   {each.bound:<8}  {what:<12} {each.clients:8} {each.turns_per_s:8.0f} "
                f"{each.turns_per_s / ladder[0].turns_per_s:6.2f} {each.p50_ms:7.0f} {each.p99_ms:7.0f} {shown} "
                f"{ours:7.2f} {each.shares['others']:6.2f}"
            )
    fullest = [each for each in found if each.bound == "CPU" and each.role == "work"]
    if fullest:
        best = max(fullest, key=lambda each: each.turns_per_s)
        each_core = ", ".join(f"{kind} {1000 / best.cpu_ms(kind):.0f}" for kind in ("web", "work", "store"))
        whole = len(CORES) * 1000 / sum(best.cpu_ms(kind) for kind in best.shares if kind != "others")
        yield (
            f"   reckoned from the CPU of a turn (web + {best.count} work): a whole core of each kind does {each_core} "
            f"turns/s;\n   these {len(CORES)} cores, shared by all and the client, {whole:.0f}"
        )


def replicated(found: list[Run]) -> Iterator[str]:
    """Lay out table K."""
    yield "K. The store's shape: one `serve` on a core of its own, the store's servers and the client on the other"
    yield "                                         CPU ms a turn:                server's core: other core:"
    yield "   clients  store                        turns/s   serve  store p50 ms  p99 ms  server others  store client"
    for run in found:
        store_ms = run.store_share * 1000 / run.turns_per_s
        yield (
            f"   {run.concurrency:7.0f}  {run.contender:<27} {run.turns_per_s:8.0f} {run.cpu_ms_per_turn:7.2f} "
            f"{store_ms:6.2f} {run.p50_ms:6.1f} {run.p99_ms:7.1f} {run.server_share:7.0%} {run.others_share:6.0%} "
            f"{run.store_share:6.0%} {run.client_share:6.0%}"
        )
    yield "   primary, replicated: SMOLSESSIONS_DURABILITY; store: all its servers together, all on this machine"
