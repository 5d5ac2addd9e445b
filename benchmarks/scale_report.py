"""Tables I to L as text: many processes on one store."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.agents import CALL_MS
from benchmarks.cpu import CORES
from benchmarks.rolling import GUESTS, ORDER, PERIOD_S
from benchmarks.sizes import BUSY_CLIENTS
from benchmarks.throughput import percentiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.moving import Moved
    from benchmarks.rolling import Rolled
    from benchmarks.sizes import Sizes
    from benchmarks.throughput import Run
    from benchmarks.workers import Scaled

KB, MB = 1000, 1_000_000
KEYS_KEPT = 8192  # of Sealer
_KINDS = ("web", "work", "serve", "store", "client")


def workers(found: list[Scaled], moved: list[Moved]) -> Iterator[str]:
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
    yield "   CPU ms of a turn of a long conversation, which no worker has for itself; a model that takes no time"
    yield "   set-up          turn    web   work  store"
    for turn in moved:
        yield (
            f"   web + {turn.workers} work {turn.turn:8} {turn.web_ms:6.2f} {turn.work_ms:6.2f} {turn.store_ms:6.2f}"
        )


def rolling(found: list[Rolled]) -> Iterator[str]:
    """Lay out table J."""
    yield "J. A rolling restart under load: a new process first, then SIGTERM to the old one; clients use both"
    yield "                                            ms of a turn, quiet:           while they roll:"
    yield "   fleet              turns  lost  handed   times   p50   p99   most   times   p50   p99   most  end s"
    for each in found:
        quiet, moved = _turn_times(each.quiet_ms), _turn_times(each.rolling_ms)
        yield (
            f"   {_fleet(each.roles):<17} {each.turns:6} {len(each.lost):5} {each.handed_over:7} {quiet} {moved} "
            f"{each.longest_end_s:5.1f}"
        )
    for each in found:
        again = ", ".join(f"{count} x {why}" for why, count in each.sent_again.items()) or "nothing"
        yield f"   {_fleet(each.roles)}: rolled in {each.took_s:.0f} s; {each.others:.2f} cores were gone to others"
        yield f"   sent again, to another process, with the same key: {again}"
        yield from (f"   LOST: {what}" for what in each.lost[:5])
    yield (
        f"   {GUESTS} clients, a turn each {PERIOD_S:g} s: {ORDER.calls} tool calls of {ORDER.call_ms} ms, the model's "
        f"{ORDER.model_ms} ms before each and at the end\n   handed: played by more than one process; end: the longest "
        "from SIGTERM to the end of a process"
    )


def _fleet(roles: tuple[str, ...]) -> str:
    return ", ".join(f"{len(list(same))} {name}" for name, same in groupby(roles))


def _turn_times(took_ms: list[float]) -> str:
    p50, p99 = percentiles(took_ms)
    return f"{len(took_ms):7} {p50:5.0f} {min(p99, max(took_ms)):5.0f} {max(took_ms):6.0f}"


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


def sizes(found: Sizes) -> Iterator[str]:
    """Lay out table L."""
    yield f"L. Sizes: MB of a process and seconds until it is ready; busy: {BUSY_CLIENTS} clients"
    yield "   role    ready s (each)              at rest   busy"
    for name, same in groupby(found.starts, lambda start: start.role):
        starts = list(same)
        each = ", ".join(f"{start.ready_s:.2f}" for start in starts)
        rest, busy = (median(getattr(start, what) for start in starts) / MB for what in ("rest_bytes", "busy_bytes"))
        yield f"   {name:<7} {each:<26} {rest:8.0f} {busy:6.0f}"
    if found.coders:
        nursery, coder = (size / MB for size in found.coders)
        yield f"   beside a process that plays code: {nursery:.0f} MB, and {coder:.1f} MB for each turn with code"
        yield "   that runs (shared pages counted once)"
    else:
        yield "   what is beside a process that plays code can be looked at by root alone"
    yield f"   KB of a conversation that is kept warm (in `work`), and stored; {found.conversations} conversations"
    yield "   turns   warm session   stored: all   lasting"
    for kept in found.kept:
        stored = kept.stored
        figures = (kept.session_bytes / KB, stored.used / KB, stored.used_lasting / KB)
        yield "   {:5} {:14.0f} {:13.1f} {:9.1f}".format(kept.turns, *figures)
    passed = found.passed
    yield (
        f"   after {passed.conversations} conversations that no session is kept of: `web` {passed.web_bytes / MB:.0f} "
        f"MB, `work` {passed.work_bytes / MB:.0f} MB; they grow up to {KEYS_KEPT},\n   of which the keys are kept"
    )
    yield "   for each open stream see table E (part readers)"
