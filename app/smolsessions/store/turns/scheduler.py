"""Scheduler of this process's worker: claims turns in all partitions, and renews and sweeps leases."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from smolsessions.core.errors import SealBrokenError, StoreUnavailableError
from smolsessions.core.records import MAX_CRASHES, AgentName, Owner
from smolsessions.core.store_ports import Intake, Queue, Queues
from smolsessions.store import codec
from smolsessions.store.connection.commands import Reply
from smolsessions.store.partition import Options, Partition, Partitions
from smolsessions.store.scripts.loader import Argument, reply_of
from smolsessions.store.turns.claim import ClaimReply, open_claim
from smolsessions.store.turns.lease import HeldLease
from smolsessions.store.turns.partition_order import FIRST, PartitionOrder
from smolsessions.store.turns.steering import STEER

log = logging.getLogger(__name__)

MOST_EARLY_STOPS = 1000
READER = b"reader"  # in place of a stop flag: the turn's log is being read
_STOP = re.compile(rb"([^\n]+)\n(\d+)\n([^\n]+)")  # conversation, turn, stop flag
LONGEST_ALONE_S = 60.0  # limit for the wait of a suspect turn for an idle worker
LATE_S = 0.5  # limit for the delay that one partition causes to the others
QUEUES_S = 1.0
MOST_EACH = 512  # threads that a process may have


class Reservation(NamedTuple):
    """Free thread of this process's worker that is reserved for a turn that is being submitted."""

    worker: str
    lease_us: int
    fingerprint: str
    agents: list[AgentName]


class Scheduler:
    def __init__(self, partitions: Partitions, worker: str, options: Options) -> None:
        self._partitions = partitions
        self._worker = worker
        self._has_work = asyncio.Event()
        self.waiting = False
        """True if this process's worker is idle: a nudge wakes it, and no other worker is needed."""
        self._order = PartitionOrder(partitions)
        self._late: dict[Partition, Reply] = {}
        self._pause_s = math.inf  # until a postponed partition can be asked again
        self._room = 0
        self._rooms: defaultdict[Owner, int] = defaultdict(int)
        self._stopped = self._is_claiming = False
        self.intake: Intake[HeldLease] | None = None
        """Worker that begins turns as they are submitted. Set by the worker itself."""
        self._claimed: list[HeldLease] = []
        self._releases: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[str, Partition], asyncio.Task[int]] = {}
        self.held: WeakValueDictionary[tuple[str, int], HeldLease] = WeakValueDictionary()
        """Leases of this process, by the conversation's name and the turn's number."""
        self._early_stops: dict[tuple[str, int], bytes] = {}  # stop requests that came before their claim's reply
        self._options = options
        self.lease_s = options.lease_s

    def nudge(self, partition: Partition | None = None, owner: str = "") -> None:
        """Wake the worker: a conversation of `owner` is ready in this partition, or any may be ready."""
        if partition:
            self._order.woken(partition, owner)
        else:
            self._order.all_due()
        self._has_work.set()

    def look(self, partition: Partition) -> None:
        """Wake the worker: wake-ups of this partition may have been lost."""
        self._order.due(partition)
        self._has_work.set()

    async def wait_for_work(self, timeout_s: float) -> None:
        self.waiting = not self._has_work.is_set()
        try:
            async with asyncio.timeout(min(timeout_s, self._pause_s)):
                await self._has_work.wait()
        except TimeoutError:
            if self._pause_s >= timeout_s:
                self._order.all_due()
        finally:
            self.waiting = False
        self._pause_s = math.inf
        self._has_work.clear()

    def reserve_thread(self, partition: Partition, agent: AgentName, owner: Owner) -> Reservation | None:
        """Reserve a free thread for a turn that is about to be submitted, unless other turns may wait for it.

        `submit` then claims the turn, too. Without it a turn costs 7 % more instructions, for a script of its own. The
        caller must call `use_thread` once.
        """
        may_wait = self._stopped or self._is_claiming or self._late or not self._order.is_empty
        if may_wait or not (self.intake and partition.is_up):
            return None
        fingerprints = self.intake.reserve_thread(agent, owner)
        if fingerprints is None:
            return None
        return Reservation(self._worker, self._options.lease_us, fingerprints[agent], list(fingerprints))

    def use_thread(self, lease: HeldLease | None, owner: Owner) -> None:
        """Begin the turn in the reserved thread. None: the turn was not claimed."""
        if lease:
            self._order.served(owner)
        if self.intake:  # otherwise the worker has ended, and the lease expires
            self.intake.use_thread(lease, owner)

    def register(self, lease: HeldLease, at: float) -> HeldLease:
        """Note a lease that was requested `at` (monotonic clock), so that stop requests reach it."""
        lease.confirm(at)
        name = (lease.scope.name, lease.turn.number)
        self.held[name] = lease
        if name in self._early_stops:
            lease.hear(self._early_stops[name])
        return lease

    async def claim(
        self,
        agents: Mapping[AgentName, str],
        most: int,
        *,
        idle: bool = True,
        most_each: int = MOST_EACH,
        rooms: Mapping[Owner, int] | None = None,
    ) -> list[HeldLease]:
        """Ask the due partitions until `most` leases are held. A suspect turn is claimed alone."""
        self._rooms = defaultdict(lambda: most_each, rooms or {})
        self._room = 0 if self._stopped else most - len(self._claimed)
        self._is_claiming = True
        try:
            for partition in self._order.next():
                if self._room <= 0:
                    break
                if partition in self._late or (len(self._partitions) > 1 and not partition.is_up):
                    self._pause_s = min(self._pause_s, LATE_S)  # it stays due
                    continue
                self._order.asked(partition)
                at = time.monotonic()
                reply = partition.send(
                    "claim",
                    *(part for agent in agents.items() for part in agent),
                    worker=self._worker,
                    lease_us=self._options.lease_us,
                    most=self._room,
                    idle=int(idle and not self._claimed),
                    patience_us=int(self._options.patience_s * 1_000_000),
                    longest_us=int(LONGEST_ALONE_S * 1_000_000),
                    most_counted=MAX_CRASHES,
                    affinity_us=int(self._options.affinity_s * 1_000_000),
                    most_each=most_each,
                    rooms="".join(f"{owner}\n{room}\n" for owner, room in self._rooms.items()),
                )
                if len(self._partitions) > 1:  # do not delay the other partitions
                    await asyncio.wait((reply,), timeout=LATE_S)
                    if not reply.done():
                        self._late[partition] = reply
                        reply.add_done_callback(partial(self._on_late_reply, partition, at))
                        continue
                try:
                    self._on_reply(partition, at, await reply_of("claim", reply))
                except StoreUnavailableError:
                    self._order.due(partition)
                    self._pause_s = min(self._pause_s, LATE_S)
        finally:
            self._is_claiming = False
        if not (self.intake and self.intake.reserved_threads):  # no claim is under way: these stops are for others
            self._early_stops.clear()
        leases, self._claimed = self._claimed, []
        return leases

    def _on_reply(self, partition: Partition, at: float, reply: Any) -> None:
        is_enough, left_since, is_soon, claims, left_owner, removed = reply
        _log_removed(removed)
        if is_soon:
            self._order.due(partition)
            self._pause_s = self._options.affinity_s
        if left_since:
            self._order.due(partition, int(left_since) / 1_000_000, left_owner.decode(errors="replace"))
        leases = [lease for fields in claims if (lease := self._opened(partition, fields, at))]
        for lease in leases:
            self._order.served(lease.turn.ref.owner)
            self._rooms[lease.turn.ref.owner] -= 1
        room = max(0, self._room)  # another partition may have filled it meanwhile
        self._claimed += leases[:room]
        self._room -= len(leases[:room])
        self._release_all(leases[room:])
        if is_enough:  # a suspect turn runs alone, and is the next to be claimed once the worker is idle
            self._order.due(partition, FIRST)
            self._room = 0

    def _on_late_reply(self, partition: Partition, at: float, reply: Reply) -> None:
        del self._late[partition]
        if not reply.exception():
            self._on_reply(partition, at, reply.result())
        self.nudge(partition)

    def _opened(self, partition: Partition, fields: Sequence[Any], at: float) -> HeldLease | None:
        reply = ClaimReply(*fields)
        try:
            scope = partition.scope(codec.text(reply.scope))
            lease = HeldLease(scope, open_claim(scope, reply))
        except SealBrokenError:
            _log_removed(fields[:1])
            self._start_release(_release(partition, *fields[:3], is_damaged=True))
            return None
        return self.register(lease, at)

    def _release_all(self, leases: list[HeldLease]) -> None:
        for lease in leases:
            self._start_release(self.hand_back(lease))

    def _start_release(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(call)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def stop_claiming(self) -> None:
        self._stopped, self._room = True, 0
        self._release_all(self._claimed)
        self._claimed = []

    async def all_given_back(self) -> None:
        while waiting := {*self._late.values(), *self._releases}:
            await asyncio.wait(waiting)

    def hear_stop(self, payload: bytes) -> None:
        """Pass a stop request, or the news of a reader, to its lease."""
        match = _STOP.fullmatch(payload)
        if match is None:
            return
        scope, turn, flag = match.groups()
        name = (scope.decode(errors="replace"), int(turn))
        lease = self.held.get(name)
        if flag == READER:
            if lease:
                lease.hear_reader()
        elif lease:
            lease.hear(flag)
        elif len(self._early_stops) < MOST_EARLY_STOPS:
            self._early_stops[name] = self._early_stops.get(name, flag) if flag == STEER else flag

    async def renew(self, leases: Sequence[HeldLease]) -> None:
        by_partition: defaultdict[Partition, list[HeldLease]] = defaultdict(list)
        for lease in leases:
            by_partition[lease.scope.partition].append(lease)

        async def renew_in(partition: Partition) -> int:
            leases = by_partition[partition]
            tokens: list[Argument] = []
            for lease in leases:
                tokens += [lease.scope.name, lease.fence, lease.turn.number]
            at = time.monotonic()
            lost, stopped = await partition.call("renew", *tokens, lease_us=self._options.lease_us)
            for lease in leases:
                lease.confirm(at)
            for place in lost:
                leases[place].lose()
            for place, flag in stopped:
                leases[place].hear(flag)
            return len(leases)

        await self._in_each("renew", by_partition, renew_in)

    async def sweep(self, *, all_are_over: bool = False) -> int:
        """Make conversations with an expired lease ready. `all_are_over`: every lease is of a dead process."""

        async def sweep_in(partition: Partition) -> int:
            ready, removed = await partition.call(
                "sweep",
                lease_us=self._options.lease_us,
                all=int(all_are_over),
                wake=partition.wake,
                tombstone_s=partition.options.id_reuse_s,
            )
            _log_removed(removed)
            return len(ready)

        return await self._in_each("sweep", self._partitions, sweep_in)

    async def hand_back(self, lease: HeldLease) -> None:
        await _release(lease.scope.partition, lease.scope.name, lease.turn.number, lease.fence)

    async def queues(self, agents: Iterable[AgentName]) -> Queues:
        """Return the queues of all partitions. Those without an answer are counted as silent."""
        names = list(agents)

        async def queues_in(partition: Partition) -> Any:
            with suppress(StoreUnavailableError, TimeoutError):
                async with asyncio.timeout(QUEUES_S):
                    return await partition.call("queue", *names)
            return None

        replies = await asyncio.gather(*map(queues_in, self._partitions))
        found = [reply for reply in replies if reply is not None]
        queues = {
            name: Queue(sum(length for length, _ in here), max(age for _, age in here) / 1_000_000)
            for name, *here in zip(names, *found, strict=False)
            if here
        }
        waiting = [reply[-1] for reply in found]
        oldest_s = max((age for _, age in waiting), default=0) / 1_000_000
        return Queues(queues, Queue(sum(count for count, _ in waiting), oldest_s), silent=len(replies) - len(found))

    async def _in_each(
        self, what: str, partitions: Iterable[Partition], job: Callable[[Partition], Coroutine[None, None, int]]
    ) -> int:
        """Run a job in each partition where it does not run yet, and wait for those that are not late."""
        if len(self._partitions) == 1:
            return sum([await job(partition) for partition in partitions])

        def on_done(task: asyncio.Task[int]) -> None:
            self._running = {name: each for name, each in self._running.items() if each is not task}
            error = None if task.cancelled() else task.exception()
            if error and not isinstance(error, StoreUnavailableError):  # after an outage the next round succeeds
                log.error("a %s of leases met a defect", what, exc_info=error, extra={"action": "lease.defect"})

        for partition in partitions:
            if (what, partition) not in self._running:
                task = self._running[what, partition] = asyncio.create_task(job(partition))
                task.add_done_callback(on_done)
        running = [task for (which, _), task in self._running.items() if which == what]
        if not running:
            return 0
        done, _ = await asyncio.wait(running, timeout=LATE_S)
        return sum(task.result() for task in done if not task.exception())


async def _release(
    partition: Partition, ref: Argument, turn: Argument, fence: Argument, *, is_damaged: bool = False
) -> None:
    with suppress(StoreUnavailableError, SealBrokenError):  # the lease expires, and the conversation is claimed again
        place: dict[str, Argument] = {"ref": ref, "turn": turn, "fence": fence}
        await partition.call("release", **place, wake=partition.wake, is_damaged=int(is_damaged))


def _log_removed(names: Iterable[bytes]) -> None:
    for name in names:
        log.error("%r is damaged, and no worker looks at it any more", name, extra={"action": "store.damaged"})
