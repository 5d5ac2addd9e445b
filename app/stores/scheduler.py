"""Who plays what: claiming conversations, keeping their leases, taking back what expired."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from app.records import MOST_COUNTED
from app.stores.lease import HeldLease, open_lease

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from app.ports import Lease
    from app.records import AgentName
    from app.stores.desk import Desk
    from app.stores.script import Argument


MOST_UNHEARD = 1000
_STOP = re.compile(rb"([^\n]+)\n(\d+)(?:\n([^\n]+))?")  # conversation, turn, and why (older releases said nothing)
LONGEST_ALONE_S = 60.0  # how long a turn whose process died waits for a worker of its own


class Scheduler:
    """Claims conversations for this process's worker and keeps its leases."""

    def __init__(self, desk: Desk, *, worker: str, lease_s: float, patience_s: float) -> None:
        """`patience_s` is how long a turn that another kind of agent began is left to those that have it."""
        self._desk = desk
        self._worker = worker
        self._work = asyncio.Event()
        self._waiting = False
        self._held: WeakValueDictionary[tuple[str, int], HeldLease] = WeakValueDictionary()
        self._unheard: dict[tuple[str, int], bytes] = {}
        self.lease_s = lease_s
        self._patience_s = patience_s

    @property
    def waiting(self) -> bool:
        """This process's own worker has nothing to do, so a nudge is enough and no other worker need be woken."""
        return self._waiting

    def nudge(self) -> None:
        """A conversation may be ready."""
        self._work.set()

    async def wait_for_work(self, timeout_s: float) -> None:
        self._waiting = not self._work.is_set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._work.wait()
        finally:
            self._waiting = False
        self._work.clear()

    async def claim(self, agents: Mapping[AgentName, str], most: int, *, idle: bool = True) -> list[HeldLease]:
        at = time.monotonic()
        found = await self._desk.scripts.call(
            "claim",
            *(part for agent in agents.items() for part in agent),
            worker=self._worker,
            lease_us=self._lease_us,
            most=most,
            idle=int(idle),
            patience_us=int(self._patience_s * 1_000_000),
            longest_us=int(LONGEST_ALONE_S * 1_000_000),
            most_counted=MOST_COUNTED,
        )
        leases = [open_lease(self._desk, *fields) for fields in found]
        for lease in leases:
            lease.confirm(at)
            name = (lease.scope, lease.turn.number)
            self._held[name] = lease
            if name in self._unheard:
                lease.cancel(self._unheard[name])
        self._unheard.clear()
        return leases

    def hear_stop(self, _channel: bytes, payload: bytes) -> None:
        """A turn that this worker plays is to be stopped."""
        match = _STOP.fullmatch(payload)
        if match is None:
            return
        scope, turn, why = match.groups(b"")
        name = (scope.decode(errors="replace"), int(turn))
        if lease := self._held.get(name):
            lease.cancel(why)
        elif len(self._unheard) < MOST_UNHEARD:
            self._unheard[name] = why  # a claim of ours may be on its way back

    async def renew(self, leases: Sequence[Lease]) -> None:
        held: list[Argument] = []
        for lease in leases:
            held += [str(lease.turn.ref), lease.fence, lease.turn.number]
        at = time.monotonic()
        lost, stopped = await self._desk.scripts.call("renew", *held, lease_us=self._lease_us)
        for lease in leases:
            lease.confirm(at)
        for place in lost:
            leases[place].lose()
        for place, why in stopped:
            leases[place].cancel(why)

    async def sweep(self, *, all_are_over: bool = False) -> int:
        """Also give up all leases, where no other process can hold one."""
        wake = self._desk.wake
        taken = await self._desk.scripts.call("sweep", lease_us=self._lease_us, all=int(all_are_over), wake=wake)
        return len(taken)

    async def hand_back(self, lease: Lease) -> None:
        turn = lease.turn
        await self._desk.scripts.call(
            "hand_back", ref=str(turn.ref), turn=turn.number, fence=lease.fence, wake=self._desk.wake
        )

    @property
    def _lease_us(self) -> int:
        return int(self.lease_s * 1_000_000)
