"""Two replicas driven in any order, compared with a model in plain Python after every operation."""

import re
import sys
import time
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from smolsessions.core.errors import (
    BusyError,
    ConversationExistsError,
    ConversationNotFoundError,
    IdempotencyKeyReusedError,
    LeaseLostError,
    TooManyTurnsError,
    TurnNotFoundError,
)
from smolsessions.core.events import TurnStarted
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import IdempotentRequest, OnBusy, Owner, Turn
from smolsessions.store.scripts.loader import script
from smolsessions.store.seal import Sealer
from smolsessions.store.turns.lease import HeldLease
from tests.support import stores
from tests.support.played import Ended, Played, Ready, Wish, owner_of
from tests.support.stores import Raw
from tests.support.tiers import mostly_deep
from tests.support.waiting import wait_until

AT_REST = {*"conversation log logs longlogs turns steps images variables heads old oldest".split()}


Claim = dict[str, Any]  # replica, most, idle, begins
Writes = dict[str, Any]  # size, effect, again


class Machine(RuleBasedStateMachine):
    """Replicas that submit, play, stop, stall, die and delete in any order. `Played` holds the expected result."""

    def __init__(self, loop: stores.Loop, raw: Raw) -> None:
        super().__init__()
        self.loop, self.raw = loop, raw
        # Each example has its own names of conversations and keys, because replicas remember them.
        self.era = raw.incr("era")
        if self.era % 10 == 5:
            self.lose_the_way()
        self.played: defaultdict[str, Played] = defaultdict(Played)
        self.ready = Ready()
        self.held: list[HeldLease] = []
        self.kept: dict[str, tuple[IdempotentRequest, Played, int]] = {}
        self.count = 0

    def lose_the_way(self) -> None:
        """Break the replicas' connections, and wait until both have reconnected and reported the loss.

        Otherwise chance would decide which news are lost in that moment, and which claims are spared.
        """
        before = self.listeners()
        self.raw.client_kill_filter(_type="pubsub")
        wait_until(lambda: len(self.listeners() - before) == len(self.loop.stores))
        for store in self.loop.stores:
            for _ in range(2):  # the first may be sent with the report, the second follows it
                self.loop.run(store.scheduler.queues([stores.AGENT]))

    def listeners(self) -> set[str]:
        return {client["id"] for client in self.raw.client_list(_type="pubsub")}

    conversations = st.sampled_from(["local/a", "local/b", "other/c", "other/d"])
    replicas = st.integers(0, 1)
    often = st.sampled_from([True, True, False])
    claims = st.fixed_dictionaries({"replica": replicas, "most": st.integers(1, 3), "idle": often, "begins": often})
    woken = st.none() | claims
    writes = st.fixed_dictionaries({"size": st.integers(1, 3), "effect": often, "again": often})
    late = st.sampled_from([False, False, False, False, True])
    statuses = st.sampled_from(["finished", "failed", "cancelled", "cancelled"])
    busy = st.sampled_from(["reject", "enqueue", "enqueue", "interrupt", "rollback"])
    keys = st.sampled_from(["k", "l"])
    requests = st.sampled_from([b"this", b"this", b"that"])

    def name(self, conversation: str) -> str:
        owner, _, letter = conversation.partition("/")
        return f"{owner}/{self.era}{letter}"

    def lease(self, data: st.DataObject) -> int:
        """Choose the number of a claimed lease, with a bias to current and last holders."""
        holders = [should.holder for should in self.played.values() if should.holder is not None]
        enders = [should.committed_by for should in self.played.values() if should.committed_by is not None]
        chosen: int = data.draw(st.sampled_from([*holders, *holders, *enders, *range(len(self.held))]))
        return chosen

    def of(self, number: int) -> Played:
        return self.played[str(self.held[number].turn.ref)]

    def holds(self, number: int) -> bool:
        return self.of(number).holder == number

    def live(self) -> list[str]:
        return [name for name, should in self.played.items() if should.lives]

    @rule(conversation=conversations, replica=replicas, on_busy=busy, woken=woken)
    def submit(self, conversation: str, replica: int, on_busy: OnBusy, woken: Claim | None) -> None:
        name, store = self.name(conversation), self.loop.stores[replica]
        if self.played[name].deleted:
            with pytest.raises(ConversationExistsError):
                self.loop.run(stores.submit(store, name))
            self.see_that_all_is_over(name, self.played.pop(name))
            self.raw.delete(*self.raw.keys(f"*{name}*"))  # as its TTL would do, which frees the id
        self.accept(name, stores.submit(store, name, on_busy=on_busy), on_busy)
        for kept in self.kept:
            self.recall_as(kept, replica)
        self.wake(woken)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), replica=replicas, on_busy=busy, key=keys, request=requests)
    def submit_once(self, data: st.DataObject, replica: int, on_busy: OnBusy, key: str, request: bytes) -> None:
        name = data.draw(st.sampled_from(self.live()))
        once = IdempotentRequest(f"{self.era}{key}", name.encode() + request)
        key = f"{owner_of(name)}/{key}"
        work = stores.submit(self.loop.stores[replica], name, on_busy=on_busy, new=False, once=once)
        known, should, number = self.kept.get(key, (None, self.played[name], 0))
        if known is None:
            if self.accept(name, work, on_busy):
                self.kept[key] = (once, self.played[name], self.played[name].turns)
        elif known != once or should is not self.played[name]:
            with pytest.raises(IdempotencyKeyReusedError if known != once else ConversationNotFoundError):
                self.loop.run(work)
        else:
            assert self.loop.run(work) == number

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), replica=replicas, request=st.sampled_from([None, None, b"other"]))
    def recall(self, data: st.DataObject, replica: int, request: bytes | None) -> None:
        self.recall_as(data.draw(st.sampled_from(sorted(self.kept))), replica, request)

    def recall_as(self, key: str, replica: int, request: bytes | None = None) -> None:
        once, should, number = self.kept[key]
        work = self.loop.stores[replica].turns.recall(
            Owner(owner_of(key)), replace(once, request=request or once.request)
        )
        if request or should.deleted:
            with pytest.raises(IdempotencyKeyReusedError if request else ConversationNotFoundError):
                self.loop.run(work)
            return
        turn = self.loop.run(work)
        assert turn
        assert turn.number == number

    def accept(self, name: str, work: Coroutine[Any, Any, int], on_busy: OnBusy) -> bool:
        should = self.played[name]
        if should.queue and on_busy == "reject":
            with pytest.raises(BusyError) as caught:
                self.loop.run(work)
            assert caught.value.extensions == {"running_turn": should.first.number, "waiting": False}
            return False
        if len(should.queue) > stores.MOST_BEHIND:
            with pytest.raises(TooManyTurnsError):
                self.loop.run(work)
            return False
        should.submit(on_busy)
        assert self.loop.run(work) == should.turns
        if len(should.queue) == 1:
            self.ready.add(name)
        return True

    def wake(self, woken: Claim | None) -> None:
        """Let a worker claim at once if `woken` names one: ready work wakes workers."""
        if woken:
            self.claim_as(**woken)

    @precondition(lambda self: self.live())
    @rule(given=claims)
    def claim(self, given: Claim) -> None:
        self.claim_as(**given)

    def claim_as(self, replica: int, most: int, *, idle: bool, begins: bool) -> None:
        leases = self.loop.run(self.loop.stores[replica].scheduler.claim({stores.AGENT: stores.KIND}, most, idle=idle))
        should = self.ready.claim(replica, most, idle=idle, first=lambda name: self.played[name].first)
        assert [str(lease.turn.ref) for lease in leases] == should
        if self.ready.alone is not None:
            self.raw.persist(stores.ALONE)  # the machine controls time
        for number, lease in enumerate(leases, len(self.held)):
            self.held.append(lease)
            self.take(number, lease)
            if begins:
                self.write(number, f"started:{lease.attempt}")

    @precondition(lambda self: any(self.played[name].first.suspect for name in self.ready.names))
    @rule(replica=replicas, most=st.integers(1, 3))
    def claim_while_busy(self, replica: int, most: int) -> None:
        """Let two busy workers claim: one reserves the suspect turn, the other passes it over."""
        for worker in (replica, 1 - replica):
            self.claim_as(worker, most, idle=False, begins=True)

    def take(self, number: int, lease: HeldLease) -> None:
        """Check that the claimed turn is the first of its queue, in the state that earlier attempts left."""
        should = self.of(number)
        turn = should.first
        should.holder = number
        turn.claim()
        assert (lease.turn.number, lease.attempt, lease.crashes) == (turn.number, turn.attempts, turn.counted)
        reason = lease.stop_reason.result() if lease.stop_reason.done() else None
        assert reason == (turn.wish.reason if turn.wish else None)
        assert self.loop.run(lease.variables()) == should.variables
        if turn.journal:
            past = self.loop.run(lease.load_replay_state())
            assert list(past.steps) == [text.encode() for text in turn.tail]
            assert dict.fromkeys(past.effects, True) | dict.fromkeys(past.begun, False) == turn.journal

    def write(self, number: int, name: str, *, effect: bool = False, step: PackedStep | None = None) -> None:
        lease, events = self.held[number], [TurnStarted(1, 0.0)] if step else []

        async def written() -> None:
            lease.emit(name, result=b"done" if effect else b"", step=step, events=events)
            await lease.flush()

        with suppress(LeaseLostError):
            self.loop.run(written())
        assert lease.lost is not self.holds(number)
        if not self.holds(number):
            return
        self.of(number).expired = False  # a writer is alive
        turn = self.of(number).first
        turn.write(name, effect=effect)
        turn.log += [event.type for event in events]
        if step:
            turn.tail.append(step.data.decode())
            turn.fresh |= step.variables

    @precondition(lambda self: self.held)
    @rule(data=st.data(), given=writes)
    def emit(self, data: st.DataObject, given: Writes) -> None:
        self.emit_as(self.lease(data), **given)

    def emit_as(self, number: int, size: int, *, effect: bool, again: bool) -> None:
        """Write steps. An effect whose key is in the journal already (`again`) is not new."""
        if self.holds(number) and not self.of(number).first.begun:
            self.write(number, f"started:{self.held[number].attempt}")
        journal = self.of(number).first.journal if self.holds(number) else {}
        known = [there for there in journal if there.startswith("step")] if again else []
        for place in range(size):
            self.count += 1
            text = str(self.count)
            piece = {"xy"[self.count % 2]: text.encode() if self.count % 3 else None}
            step = replace(stores.packed_step(text, self.held[number].turn.number), variables=piece)
            self.write(number, known[place % len(known)] if known else f"step:{text}", effect=effect, step=step)

    @precondition(lambda self: self.held)
    @rule(replica=replicas)
    def renew(self, replica: int) -> None:
        self.loop.run(self.loop.stores[replica].scheduler.renew(self.held))
        for number, lease in enumerate(self.held):
            assert lease.lost is not self.holds(number)
            if self.holds(number):
                should = self.of(number)
                should.expired, should.first.told = False, True
                assert lease.stop_reason.done() == (should.first.wish is not None)

    @precondition(lambda self: self.held)
    @rule(conversation=conversations)
    def expire(self, conversation: str) -> None:
        should = self.played[self.name(conversation)]
        if should.holder is not None:
            stores.expire_lease(self.raw, self.name(conversation))
            should.expired = True

    @precondition(lambda self: self.held)
    @rule(replica=replicas, late=late)
    def sweep(self, replica: int, late: bool) -> None:
        """Take back expired leases. A sweep that comes `late` extends every lease instead."""
        expired = sorted(name for name, should in self.played.items() if should.expired)
        self.raw.set(stores.BEAT, int((time.time() - stores.LEASE_S * late) * 1e6))
        assert self.loop.run(self.loop.stores[replica].scheduler.sweep()) == (0 if late else len(expired))
        for name in expired:  # equal scores are ordered by name
            if late:
                self.played[name].expired = False
            else:
                self.played[name].sweep()
                self.ready.add(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), given=st.none() | writes, replica=replicas, late=late, woken=woken)
    def crash(self, data: st.DataObject, given: Writes | None, replica: int, late: bool, woken: Claim | None) -> None:
        """Let a worker be absent for a whole lease, perhaps after it wrote."""
        number = self.lease(data)
        if given:
            self.emit_as(number, **given)
        if self.holds(number):
            stores.expire_lease(self.raw, str(self.held[number].turn.ref))
            self.of(number).expired = True
        self.sweep(replica, late=late)
        self.wake(woken)

    @precondition(lambda self: any(should.holder is not None for should in self.played.values()))
    @rule()
    def come_back(self) -> None:
        """Let a process report that it had lost the store: turns lost meanwhile are not counted."""
        self.raw.execute_command(
            *script("outage").command(stores.PARTITION, (), {"lease_us": int(stores.LEASE_S * 1_000_000)})
        )
        for should in self.played.values():
            if should.holder is not None:
                should.first.spared = True

    @precondition(lambda self: self.ready.alone is not None)
    @rule()
    def reserve_no_longer(self) -> None:
        assert self.raw.delete(stores.ALONE)
        self.ready.alone = None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), status=statuses, woken=woken)
    def commit(self, data: st.DataObject, status: Any, woken: Claim | None) -> None:
        self.end(self.lease(data), status)
        self.wake(woken)

    def end(self, number: int, status: Any) -> None:
        lease, should = self.held[number], self.of(number)
        work = lease.commit(replace(stores.DONE, status=status))
        if should.deleted or number not in {should.holder, should.committed_by}:
            with pytest.raises(LeaseLostError):
                self.loop.run(work)
            return
        turn = self.loop.run(work)
        if should.holder == number:
            ended = ended_as(turn)
            assert ended in should.first.endings(status)
            should.commit(ended)
            self.requeue(str(lease.turn.ref))

    def requeue(self, name: str) -> None:
        if self.played[name].queue:
            self.ready.add(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), replica=replicas)
    def hand_back(self, data: st.DataObject, replica: int) -> None:
        number = self.lease(data)
        self.loop.run(self.loop.stores[replica].scheduler.hand_back(self.held[number]))
        if self.holds(number):
            self.of(number).hand_back()
            self.requeue(str(self.held[number].turn.ref))

    @precondition(lambda self: self.live())
    @rule(data=st.data(), replica=replicas)
    def cancel(self, data: st.DataObject, replica: int) -> None:
        name = data.draw(st.sampled_from(self.live()))
        should = self.played[name]
        number = data.draw(st.integers(1, should.turns + 1))
        work = self.loop.stores[replica].turns.cancel(stores.ref_of(name), number)
        if number > should.turns:
            with pytest.raises(TurnNotFoundError):
                self.loop.run(work)
            return
        shown, landed = self.loop.run(work)
        turn = next((turn for turn in should.queue if turn.number == number), None)
        assert landed == (turn is not None and not turn.started)
        if turn is None:
            assert ended_as(shown) == should.ended[number]
        elif turn.started:
            assert (shown.status, shown.attempts) == ("running", turn.attempts)
            turn.stop(Wish())
        else:
            should.end(turn, Ended("cancelled", 0))
            assert ended_as(shown) == should.ended[number]
            if not should.queue:
                self.ready.remove(name)

    @precondition(lambda self: len(self.held) > 2 * len(self.played))
    @rule(conversation=conversations, replica=replicas)
    def delete(self, conversation: str, replica: int) -> None:
        name = self.name(conversation)
        should = self.played[name]
        work = self.loop.stores[replica].conversations.delete(stores.ref_of(name))
        if not should.lives:
            with pytest.raises(ConversationNotFoundError):
                self.loop.run(work)
            return
        open_turns = [turn.number for turn in should.queue]
        ended = {turn.number: ended_as(turn) for turn in self.loop.run(work)}
        should.delete()
        assert ended == {number: should.ended[number] for number in open_turns}
        if name in self.ready.names:
            self.ready.remove(name)

    @invariant()
    def work_is_ready_or_leased(self) -> None:
        names = self.live()
        asked = (
            self.raw.pipeline(transaction=False)
            .zrange(stores.READY, 0, -1)
            .zrangebyscore(stores.LEASES, 1, 1)
            .zrange(stores.LEASES, 0, -1)
        )
        asked.exists(stores.ALONE).zrange(stores.OWNERS, 0, -1)
        asked.zrange(f"{stores.PARTITION}:owned:{stores.AGENT}:local", 0, -1).zrange(
            f"{stores.PARTITION}:owned:{stores.AGENT}:other", 0, -1
        )
        for name in names:
            asked.lrange(stores.key_of("queue", name), 0, -1)
        ready, expired, leased, reserved, line, *shares_and_queues = asked.execute()
        shares, queues = shares_and_queues[:2], shares_and_queues[2:]
        assert line == self.ready.line
        assert shares == [self.ready.of("local"), self.ready.of("other")]
        assert reserved == (self.ready.alone is not None)
        assert expired == sorted(str(stores.ref_of(name)) for name, should in self.played.items() if should.expired)
        assert not set(ready) & set(leased)
        assert {*ready, *leased} == {str(stores.ref_of(n)) for n, queue in zip(names, queues, strict=True) if queue}
        assert ready == [str(stores.ref_of(name)) for name in self.ready.names]
        assert queues == [[str(turn.number) for turn in self.played[name].queue] for name in names]

    @invariant()
    def what_a_turn_wrote_is_there_once_and_what_others_tried_is_not(self) -> None:
        names = [name for name in self.live() if self.played[name].queue]
        asked = self.raw.pipeline(transaction=False)
        for name in names:
            number = self.played[name].first.number
            asked.llen(stores.key_of("steps", name, 0)).hkeys(stores.key_of("journal", name, number)).llen(
                stores.key_of("log", name, number)
            )
            asked.hgetall(stores.key_of("run", name, number))
        found = asked.execute()
        for place, name in enumerate(names):
            turn = self.played[name].first
            steps, journal, logged, run = found[4 * place : 4 * place + 4]
            assert (steps, set(journal)) == (len(self.played[name].shown), set(turn.journal))
            assert logged == len(turn.log)
            assert ("input" in run, "started" in run) == (True, turn.started)
            assert (int(run.get("attempts", 0)), int(run.get("counted", 0))) == (turn.attempts, turn.counted)
            assert run.get("cancel") == (turn.wish and turn.wish.flag)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # otherwise the test has failed already
                self.play_all()
                for name, should in self.played.items():
                    self.see_that_all_is_over(name, should)
        finally:
            left = [found for name in self.played for found in self.raw.keys(f"*{name}*")]
            shares = self.raw.keys(f"{stores.PARTITION}:owned:*")
            self.raw.delete(
                stores.LEASES,
                stores.READY,
                stores.OWNERS,
                stores.ALONE,
                *shares,
                *left,
                *self.raw.keys(f"{stores.PARTITION}:idem:*"),
            )

    def play_all(self) -> None:
        for number in range(len(self.held)):
            if self.holds(number):
                self.end(number, "cancelled")
        while self.ready.names:
            first = len(self.held)
            self.claim_as(0, 3, idle=True, begins=True)
            for number in range(first, len(self.held)):
                self.end(number, "cancelled")
        assert self.raw.exists(stores.LEASES, stores.READY, stores.OWNERS) == 0

    def see_that_all_is_over(self, name: str, should: Played) -> None:
        kinds = {found.removeprefix(f"{stores.PARTITION}:").partition(":")[0] for found in self.raw.keys(f"*{name}*")}
        assert kinds <= ({"conversation", "log"} if should.deleted else AT_REST)
        assert set(should.ended) == set(should.logs) == set(range(1, should.turns + 1))
        self.see_that_logs_last(name, should)
        if not should.lives:
            return
        one, other = self.loop.stores
        assert self.loop.run(stores.step_texts(one, name)) == should.steps
        page = self.loop.run(other.turns.turns(stores.ref_of(name), 1, 100))
        assert {turn.number: ended_as(turn) for turn in page.items} == should.ended
        assert {turn.number: turn.last_seq for turn in page.items} == {n: len(log) for n, log in should.logs.items()}
        for turn in page.items:
            logged = self.loop.run(stores.read_events(other, name, turn.number))
            assert logged == list(enumerate(should.logs[turn.number], 1))

    def see_that_logs_last(self, name: str, should: Played) -> None:
        """Check that logs expire, or else that a live conversation has each of them once and a deleted one none."""
        apart = {int(found.rpartition(":")[2]) for found in self.raw.keys(stores.key_of("log", name, "*"))}
        expiring = {number for number in apart if self.raw.ttl(stores.key_of("log", name, number)) > 0}
        noted = {int(number) for number in self.raw.smembers(stores.key_of("longlogs", name))}
        packed = {int(number) for number in self.raw.hkeys(stores.key_of("logs", name))}
        if self.loop.log_ttl_s:
            assert (apart, expiring, noted, packed) == ({*should.logs}, apart, set(), set())
            if not should.lives:
                assert {number: stores.event_names_of(self.raw, name, number) for number in should.logs} == should.logs
        else:
            assert (apart, expiring, apart & packed) == (noted, set(), set())
            assert apart | packed == ({*should.logs} if should.lives else set())


def ended_as(turn: Turn) -> Ended:
    code, outcome = stores.error_code_of(turn), turn.outcome
    assert outcome
    by = re.match(r"Turn (\d+) ", outcome.error.message) if outcome.error else None
    return Ended(outcome.status, turn.attempts, code, int(by[1]) if by else 0)


@pytest.mark.parametrize("examples", mostly_deep([25, 75], fast=[25]))
@pytest.mark.parametrize("log_ttl_s", [0, stores.LOG_TTL_S])
def test_every_turn_ends_once(socket_path: Path, raw: Raw, sealer: Sealer, log_ttl_s: int, examples: int) -> None:
    """The fast tier plays the same examples each time, the deep one others."""
    known = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        derandomize=examples == 25,
        suppress_health_check=list(HealthCheck),
    )
    with stores.Loop(socket_path, sealer, log_ttl_s) as loop:
        run_state_machine_as_test(cast("type[Machine]", partial(Machine, loop, raw)), settings=known)
