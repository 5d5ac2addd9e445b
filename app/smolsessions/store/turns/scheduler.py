"""Who plays what: claiming conversations at all partitions, keeping their leases, taking back what expired."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from smolsessions.core.errors import SealBrokenError, StoreUnavailableError
from smolsessions.core.records import MAX_CRASHES, Queue, Queues
from smolsessions.store.scripts.loader import reply_of
from smolsessions.store.turns.claim import ClaimReply, open_claim
from smolsessions.store.turns.lease import HeldLease
from smolsessions.store.turns.partition_order import FIRST, PartitionOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from smolsessions.core.store_ports import Lease
    from smolsessions.core.records import AgentName
    from smolsessions.store.connection.commands import Reply
    from smolsessions.store.partition import Partition, Partitions
    from smolsessions.store.scripts.loader import Argument


log = logging.getLogger(__name__)

MOST_UNHEARD = 1000
_STOP = re.compile(rb"([^\n]+)\n(\d+)(?:\n([^\n]+))?")  # conversation, turn, and why (older releases said nothing)
LONGEST_ALONE_S = 60.0  # how long a turn whose process died waits for a worker of its own
LATE_S = 0.5  # how long a partition may hold up the others
QUEUES_S = 1.0  # how long one may take to say how long its queues are


class Scheduler:
    """Claims conversations for this process's worker and keeps its leases."""

    def __init__(
        self, partitions: Partitions, *, worker: str, lease_s: float, patience_s: float = 0.0, affinity_s: float = 0.0
    ) -> None:
        """`patience_s` is how long a turn that another kind of agent began is left to those that have it.

        `affinity_s` is how long a conversation is left to the worker that played it last.
        """
        self._partitions = partitions
        self._worker = worker
        self._work = asyncio.Event()
        self._waiting = False
        self._rounds = PartitionOrder(partitions)
        self._late: dict[Partition, Reply] = {}  # claims that are not answered yet
        self._pause_s = math.inf  # after which something that was due can be asked for again
        self._room = 0  # how many more leases the worker could play
        self._stopped = False
        self._taken: list[HeldLease] = []
        self._given_back: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[str, Partition], asyncio.Task[int]] = {}
        self._held: WeakValueDictionary[tuple[str, int], HeldLease] = WeakValueDictionary()
        self._unheard: dict[tuple[str, int], bytes] = {}
        self.lease_s = lease_s
        self._patience_s = patience_s
        self._affinity_s = affinity_s

    @property
    def waiting(self) -> bool:
        """This process's own worker has nothing to do, so a nudge is enough and no other worker need be woken."""
        return self._waiting

    def nudge(self, partition: Partition | None = None, owner: str = "") -> None:
        """A conversation of `owner` has become ready at this partition, or may be at any."""
        if partition:
            self._rounds.woken(partition, owner)
        else:
            self._rounds.all_due()
        self._work.set()

    def look(self, partition: Partition) -> None:
        """Nobody knows what is ready at this partition: messages of it may have been lost."""
        self._rounds.due(partition)
        self._work.set()

    async def wait_for_work(self, timeout_s: float) -> None:
        self._waiting = not self._work.is_set()
        try:
            async with asyncio.timeout(min(timeout_s, self._pause_s)):
                await self._work.wait()
        except TimeoutError:
            if self._pause_s >= timeout_s:
                self._rounds.all_due()
        finally:
            self._waiting = False
        self._pause_s = math.inf
        self._work.clear()

    async def claim(self, agents: Mapping[AgentName, str], most: int, *, idle: bool = True) -> list[HeldLease]:
        """Visit the partitions that are due until there is no more room."""
        self._room = 0 if self._stopped else most - len(self._taken)
        for partition in self._rounds.next():
            if self._room <= 0:
                break
            if partition in self._late or (len(self._partitions) > 1 and not partition.scripts.is_up):
                self._pause_s = min(self._pause_s, LATE_S)  # it stays due
                continue
            self._rounds.asked(partition)
            try:
                await self._claim_at(partition, agents, idle=idle and not self._taken)
            except StoreUnavailableError:
                self._rounds.due(partition)
                self._pause_s = min(self._pause_s, LATE_S)
        self._unheard.clear()
        leases, self._taken = self._taken, []
        return leases

    async def _claim_at(self, partition: Partition, agents: Mapping[AgentName, str], *, idle: bool) -> None:
        """Claim what there is room for."""
        at = time.monotonic()
        answer = partition.scripts.send(
            "claim",
            *(part for agent in agents.items() for part in agent),
            worker=self._worker,
            lease_us=self._lease_us,
            most=self._room,
            idle=int(idle),
            patience_us=int(self._patience_s * 1_000_000),
            longest_us=int(LONGEST_ALONE_S * 1_000_000),
            most_counted=MAX_CRASHES,
            affinity_us=int(self._affinity_s * 1_000_000),
        )
        if len(self._partitions) > 1:  # the others must not wait for this one
            await asyncio.wait((answer,), timeout=LATE_S)
            if not answer.done():
                self._late[partition] = answer
                answer.add_done_callback(lambda answer: self._claimed_late(partition, answer, at))
                return
        self._claimed(partition, await reply_of("claim", answer), at)

    def _claimed(self, partition: Partition, answer: Any, at: float) -> None:
        is_enough, left_since, is_soon, found, left_owner, aside = answer
        _say_thrown(aside)
        if is_soon:
            self._rounds.due(partition)
            self._pause_s = self._affinity_s
        if left_since:
            self._rounds.due(partition, int(left_since) / 1_000_000, left_owner.decode(errors="replace"))
        opened = [self._opened(partition, fields, at) for fields in found]
        leases = [lease for lease in opened if lease]
        for lease in leases:
            self._rounds.served(lease.turn.ref.owner)
        self._take(leases)
        if is_enough:  # nothing beside a suspect, anywhere; and it comes first when there is room for it
            self._rounds.due(partition, FIRST)
            self._room = 0

    def _claimed_late(self, partition: Partition, answer: Reply, at: float) -> None:
        del self._late[partition]
        if not answer.exception():
            self._claimed(partition, answer.result(), at)
        self.nudge(partition)

    def _take(self, leases: list[HeldLease]) -> None:
        """Keep what there is room for, and give the rest back: while one partition was asked, another may have come."""
        room = max(0, self._room)
        self._taken += leases[:room]
        self._room -= len(leases[:room])
        self._give_back(leases[room:])

    def _give_back(self, leases: list[HeldLease]) -> None:
        for lease in leases:
            self._begin_giving_back(self.hand_back(lease))

    def _begin_giving_back(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(_without_outage(call))
        self._given_back.add(task)
        task.add_done_callback(self._given_back.discard)

    def stop_claiming(self) -> None:
        self._stopped, self._room = True, 0
        self._give_back(self._taken)
        self._taken = []

    async def all_given_back(self) -> None:
        while waiting := {*self._late.values(), *self._given_back}:
            await asyncio.wait(waiting)

    def _opened(self, partition: Partition, fields: Sequence[Any], at: float) -> HeldLease | None:
        try:
            claim = open_claim(partition, ClaimReply(*fields))
        except SealBrokenError:
            _say_thrown(fields[:1])
            self._begin_giving_back(_release(partition, *fields[:3], is_aside=True))
            return None
        lease = HeldLease(partition, claim)
        lease.confirm(at)
        name = (lease.scope, lease.turn.number)
        self._held[name] = lease
        if name in self._unheard:
            lease.cancel(self._unheard[name])
        return lease

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
        at_partition: defaultdict[Partition, list[Lease]] = defaultdict(list)
        for lease in leases:
            at_partition[self._partitions.of(lease.turn.ref)].append(lease)
        await self._everywhere(
            "renew", at_partition, lambda partition: self._renew_at(partition, at_partition[partition])
        )

    async def _renew_at(self, partition: Partition, leases: Sequence[Lease]) -> int:
        held: list[Argument] = []
        for lease in leases:
            held += [str(lease.turn.ref), lease.fence, lease.turn.number]
        at = time.monotonic()
        lost, stopped = await partition.scripts.call("renew", *held, lease_us=self._lease_us)
        for lease in leases:
            lease.confirm(at)
        for place in lost:
            leases[place].lose()
        for place, why in stopped:
            leases[place].cancel(why)
        return len(leases)

    async def sweep(self, *, all_are_over: bool = False) -> int:
        """Also give up all leases, where no other process can hold one."""
        return await self._everywhere(
            "sweep", self._partitions, lambda partition: self._sweep_at(partition, all_are_over)
        )

    async def _sweep_at(self, partition: Partition, all_are_over: bool) -> int:
        taken, thrown = await partition.scripts.call(
            "sweep",
            lease_us=self._lease_us,
            all=int(all_are_over),
            wake=partition.wake,
            tombstone_s=partition.id_reuse_s,
        )
        _say_thrown(thrown)
        return len(taken)

    async def hand_back(self, lease: Lease) -> None:
        turn = lease.turn
        await _release(self._partitions.of(turn.ref), str(turn.ref), turn.number, lease.fence)

    async def queues(self, agents: Iterable[AgentName]) -> Queues:
        """Ask all partitions; one that is away or late is left out, and counted."""
        names = list(agents)
        found = await asyncio.gather(*(_queue_at(partition, names) for partition in self._partitions))
        told = [queue for queue in found if queue is not None]
        queues = {
            name: Queue(sum(length for length, _ in here), max(age for _, age in here) / 1_000_000)
            for name, *here in zip(names, *told, strict=False)
            if here
        }
        return Queues(queues, silent=len(found) - len(told))

    async def _everywhere(
        self, what: str, partitions: Iterable[Partition], job: Callable[[Partition], Coroutine[None, None, int]]
    ) -> int:
        """Do something at each partition, and wait for those that are not late; where it still runs it is not begun."""
        if len(self._partitions) == 1:
            return sum([await job(partition) for partition in partitions])
        for partition in partitions:
            name = (what, partition)
            if name not in self._running:
                task = self._running[name] = asyncio.create_task(job(partition))
                task.add_done_callback(partial(self._forget, name))
        running = [task for (which, _), task in self._running.items() if which == what]
        if not running:
            return 0
        done, _ = await asyncio.wait(running, timeout=LATE_S)
        return sum(task.result() for task in done if not task.exception())

    def _forget(self, name: tuple[str, Partition], task: asyncio.Task[int]) -> None:
        del self._running[name]
        error = None if task.cancelled() else task.exception()
        if error and not isinstance(error, StoreUnavailableError):  # an outage is over some time: the next round comes
            log.error("a %s of leases met a defect", name[0], exc_info=error, extra={"action": "lease.defect"})

    @property
    def _lease_us(self) -> int:
        return int(self.lease_s * 1_000_000)


async def _release(
    partition: Partition, ref: Argument, turn: Argument, fence: Argument, *, is_aside: bool = False
) -> None:
    await partition.scripts.call(
        "hand_back", ref=ref, turn=turn, fence=fence, wake=partition.wake, is_aside=int(is_aside)
    )


async def _without_outage(call: Coroutine[None, None, None]) -> None:
    with suppress(StoreUnavailableError, SealBrokenError):  # the lease expires, and the conversation is claimed again
        await call


def _say_thrown(names: Iterable[bytes]) -> None:
    for name in names:
        log.error("%r is damaged, and no worker looks at it any more", name, extra={"action": "store.damaged"})


async def _queue_at(partition: Partition, agents: Sequence[AgentName]) -> Any:
    """Give length and age of each agent's queue; nothing where the partition is away or late."""
    with suppress(StoreUnavailableError, TimeoutError):
        async with asyncio.timeout(QUEUES_S):
            return await partition.scripts.call("queue", *agents)
    return None
