"""Table J: a rolling restart under load: what is lost, what is sent again, and how long a turn takes meanwhile."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cpu import Others, on_all_cores
from benchmarks.fleet import role
from benchmarks.guests import Door, Guest, look_back
from benchmarks.outside import outside
from benchmarks.players import PLAYERS, Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contenders import Server
    from benchmarks.outside import Outside

FLEETS = (("serve",) * 4, ("web",) * 2 + ("work",) * 4)
SETTINGS = {**PLAYERS, "THREADS": "8"}
ORDER = Order(3, call_ms=50, model_ms=50)  # 300 ms
GUESTS, PERIOD_S = 32, 0.8
WARM_UP_S = 2.0


@dataclass(frozen=True)
class Rolled:
    """A fleet that was restarted process by process under a steady load."""

    roles: tuple[str, ...]
    turns: int
    lost: list[str]
    """What went wrong with a turn that was sent, in words."""
    quiet_ms: list[float]
    rolling_ms: list[float]
    """Of the turns that were sent from the first process's start to the last one's end."""
    sent_again: dict[str, int]
    handed_over: int
    """Turns that more than one process played."""
    took_s: float
    longest_end_s: float
    """Of a process, from SIGTERM."""
    others: float
    """Cores that were gone to others meanwhile."""


class _Process:
    """One of the fleet, in its role."""

    def __init__(self, name: str, store: Outside, door: Door) -> None:
        """Start it, and let requests come to it, if it takes any."""
        self.name = name
        self._door = door
        self._ends = ExitStack()
        self.server: Server = self._ends.enter_context(role(name, store, SETTINGS))
        if name != "work":
            door.ports.append(self.server.port)

    def end(self) -> float:
        """Send SIGTERM and wait for its end; give the seconds. Requests come until then: there is no preStop."""
        begun = time.monotonic()
        self._ends.close()
        if self.server.port in self._door.ports:
            self._door.ports.remove(self.server.port)
        return time.monotonic() - begun


def measure_rolling(rolls: int, quiet_s: float, progress: Callable[[str], None]) -> list[Rolled]:
    """Roll each fleet so often; processes, store and clients are on all cores."""
    with on_all_cores():
        return [_rolled(roles, rolls, quiet_s, progress) for roles in FLEETS]


def _rolled(roles: tuple[str, ...], rolls: int, quiet_s: float, progress: Callable[[str], None]) -> Rolled:
    with outside() as store, ExitStack() as stack:
        door = Door()
        fleet: list[_Process] = []
        stack.callback(lambda: [process.end() for process in fleet])
        progress(f"rolling: {len(roles)} processes start")
        for name in roles:
            fleet += [_Process(name, store, door)]
        guests = [Guest(door, ORDER, PERIOD_S, PERIOD_S * at / GUESTS) for at in range(GUESTS)]
        for guest in guests:
            guest.start()
        time.sleep(WARM_UP_S)
        quiet_at, beside = time.monotonic(), Others()
        time.sleep(quiet_s)
        rolling_at, ends_s = time.monotonic(), []
        for number in range(rolls):
            for at, old in enumerate(list(fleet)):
                progress(f"rolling, {number + 1} of {rolls}: {old.name} {at + 1} of {len(roles)}")
                fleet[at] = _Process(old.name, store, door)
                ends_s.append(old.end())
        over_at = time.monotonic()
        others = beside.share()
        for guest in guests:
            guest.leave()
        for guest in guests:
            guest.join()
        progress("rolling: what became of the turns")
        seen = [look_back(door, guest, ORDER) for guest in guests]
    took = [each for guest in guests for each in guest.took]
    reasons = sorted({why for guest in guests for why in guest.sent_again})
    return Rolled(
        roles,
        turns=len(took),
        lost=[*(each for guest in guests for each in guest.lost), *(each for wrong, _ in seen for each in wrong)],
        quiet_ms=[ms for at, ms in took if quiet_at <= at < rolling_at],
        rolling_ms=[ms for at, ms in took if rolling_at <= at < over_at],
        sent_again={why: sum(guest.sent_again[why] for guest in guests) for why in reasons},
        handed_over=sum(attempt > 1 for _, attempts in seen for attempt in attempts),
        took_s=over_at - rolling_at,
        longest_end_s=max(ends_s),
        others=others,
    )
