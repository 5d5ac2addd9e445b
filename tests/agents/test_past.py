"""Conversations that are played, pruned, rolled back and forked in any order equal whole copies of them."""

import sys
import time
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from smolsessions.core.errors import TurnNotFoundError
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import EntryType, OnBusy, Ref, Submission, Timing, Turn, TurnInput, TurnOptions
from smolsessions.store.seal import Sealer
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support.stores import AGENT, DONE, Loop, Raw, claim_one, read_events, ref_of, version_of
from tests.support.tiers import mostly_deep

Wanted = tuple[Any, str | None, str | None, bool]
"""Of a step: its type, its image, the variable that changes with it, and whether that is gone then."""
IMAGES = [byte * 16 for byte in ("aa", "bb", "cc")]
NAMES = ["x", "y"]


async def no_files(_ref: Ref) -> Any:
    """Write no files of a fork."""


@dataclass
class State:
    """State of a conversation at some time: `line` holds the places of the steps that led to it, of `total` ones."""

    total: int = 0
    line: set[int] = field(default_factory=set)
    archived: set[int] = field(default_factory=set)
    shown_from: int = 0
    variables: dict[str, bytes] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)


@dataclass
class Life:
    ref: Ref
    now: State = field(default_factory=State)
    after: list[State] = field(default_factory=lambda: [State()])
    steps: list[tuple[EntryType, int, bytes]] = field(default_factory=list)
    destroyed: set[int] = field(default_factory=set)

    @property
    def turns(self) -> int:
        return len(self.after) - 1

    @property
    def rolled_back(self) -> set[int]:
        return {*range(self.now.total)} - self.now.line - self.destroyed

    def note(self) -> None:
        self.now.live.add(self.turns + 1)
        self.after.append(deepcopy(self.now))

    def roll_back(self, turn: int) -> None:
        self.now = replace(deepcopy(self.after[turn]), total=self.now.total)

    def fork(self, ref: Ref, turn: int | None) -> "Life":
        now = deepcopy(self.now if turn is None else self.after[turn])
        last = self.turns if turn is None else turn
        below = {place for place in self.destroyed if place < now.total}
        return Life(ref, now, deepcopy(self.after[: last + 1]), self.steps[: now.total], below)


class Machine(RuleBasedStateMachine):
    """One store, a few conversations, and their expected states."""

    def __init__(self, loop: Loop, raw: Raw) -> None:
        super().__init__()
        self.loop = loop
        self.store: Store = loop.stores[0]
        self.lives = [Life(ref_of(f"{raw.incr('era')}"))]
        self.count = 0

    lives_ = st.integers(0, 100)
    wanted_ = st.lists(
        st.tuples(
            st.sampled_from(["action", "planning", "note"]),
            st.none() | st.sampled_from(IMAGES),
            st.none() | st.sampled_from(NAMES),
            st.booleans(),
        ),
        max_size=3,
    )

    def life(self, number: int) -> Life:
        return self.lives[number % len(self.lives)]

    async def submit(self, life: Life, on_busy: OnBusy = "reject", *, reset: bool = False) -> int:
        timing = Timing(time.time())
        turn = Turn(life.ref, 0, version_of(AGENT), "hello", TurnOptions(reset=reset, on_busy=on_busy), timing)
        is_new = life.turns == 0 and life is self.lives[0] and on_busy == "reject"
        submission = Submission(turn, TurnInput(), create={} if is_new else None, asked=True, version_of=version_of)
        accepted, _ = await self.store.turns.submit(submission)
        return accepted.number

    def write(self, lease: HeldLease, wanted: list[Wanted]) -> list[PackedStep]:
        steps = []
        for kind, image, name, removes in wanted:
            self.count += 1
            data = str(self.count).encode()
            step = PackedStep(
                kind,
                lease.turn.number,
                data,
                {image: image.encode()} if image else {},
                {name: None if removes else data} if name else {},
            )
            lease.emit(f"step:{self.count}", step=step)
            steps.append(step)
        return steps

    def keep(self, life: Life, steps: list[PackedStep], *, reset: bool = False) -> None:
        if reset:
            life.now.shown_from = life.now.total
        for step in steps:
            life.now.line.add(life.now.total)
            life.steps.append((step.type, step.turn, step.data))
            life.now.total += 1
            for name, piece in step.variables.items():
                life.now.variables.pop(name, None)
                if piece is not None:
                    life.now.variables[name] = piece

    @rule(number=lives_, wanted=wanted_, reset=st.sampled_from([False, False, True]))
    def play(self, number: int, wanted: list[Wanted], *, reset: bool) -> None:
        life = self.life(number)

        async def play() -> list[PackedStep]:
            await self.submit(life, reset=reset)
            lease = await claim_one(self.store)
            assert await lease.variables() == life.now.variables
            shown, _ = await lease.steps()
            first = life.now.total if reset else life.now.shown_from
            in_memory = life.now.line - life.now.archived - life.destroyed
            places = range(first, life.now.total)
            assert shown == [life.steps[place][2] if place in in_memory else b"" for place in places]
            steps = self.write(lease, wanted)
            await lease.commit(DONE)
            return steps

        self.keep(life, self.loop.run(play()), reset=reset)
        life.note()

    @rule(number=lives_)
    def cancel_one_that_never_began(self, number: int) -> None:
        life = self.life(number)

        async def cancel() -> None:
            await self.store.turns.cancel(life.ref, await self.submit(life))

        self.loop.run(cancel())
        life.note()

    @rule(number=lives_, wanted=wanted_)
    def cancel_one_that_waits(self, number: int, wanted: list[Wanted]) -> None:
        life = self.life(number)

        async def play() -> list[PackedStep]:
            await self.submit(life)
            lease = await claim_one(self.store)
            await self.store.turns.cancel(life.ref, await self.submit(life, "enqueue"))
            steps = self.write(lease, wanted)
            await lease.commit(DONE)
            return steps

        self.keep(life, self.loop.run(play()))
        life.note()
        life.note()

    @rule(number=lives_, wanted=wanted_)
    def take_back_one_that_runs(self, number: int, wanted: list[Wanted]) -> None:
        life = self.life(number)

        async def play() -> list[PackedStep]:
            await self.submit(life)
            lease = await claim_one(self.store)
            self.write(lease, [("action", IMAGES[0], NAMES[0], False)] * 2)
            await self.submit(life, "rollback")
            await lease.commit(DONE)
            lease = await claim_one(self.store)
            steps = self.write(lease, wanted)
            await lease.commit(DONE)
            return steps

        steps = self.loop.run(play())
        life.note()
        self.keep(life, steps)
        life.note()

    @rule(number=lives_, data=st.data(), destroys=st.booleans())
    def prune(self, number: int, data: st.DataObject, *, destroys: bool) -> None:
        life = self.life(number)
        if not life.turns:
            return
        memory = self.loop.run(self.store.history.memory(life.ref))
        places = [step.index for step in memory.steps if data.draw(st.booleans())]
        if destroys:
            gone = life.now.archived | life.rolled_back | set(places)
            destroyed = self.loop.run(self.store.history.destroy(life.ref, memory.version, places))
            assert destroyed
            assert destroyed[1] == len(gone - life.destroyed)
            life.destroyed |= gone
        else:
            assert self.loop.run(self.store.history.archive(life.ref, memory.version, places))
            life.now.archived |= set(places)

    @rule(number=lives_, data=st.data())
    def roll_back(self, number: int, data: st.DataObject) -> None:
        life = self.life(number)
        if life.turns:
            turn = data.draw(st.integers(0, life.turns))
            self.loop.run(self.store.history.roll_back(life.ref, turn))
            life.roll_back(turn)
            with pytest.raises(TurnNotFoundError):
                self.loop.run(self.store.history.roll_back(life.ref, life.turns + 1))

    @rule(number=lives_, data=st.data())
    def fork(self, number: int, data: st.DataObject) -> None:
        life = self.life(number)
        if life.turns and len(self.lives) < 5:
            turn = data.draw(st.none() | st.integers(0, life.turns))
            made = self.loop.run(
                self.store.history.fork(life.ref, self.store.history.name_beside(life.ref), turn, None, no_files)
            )
            self.lives.append(life.fork(made.ref, turn))

    @invariant()
    def all_are_as_they_should_be(self) -> None:
        for life in self.lives:
            if life.turns or life is not self.lives[0]:
                self.check(life)

    def check(self, life: Life) -> None:
        now = life.now
        record = self.loop.run(self.store.history.record(life.ref))
        assert {turn.number: turn.rolled_back for turn in record.turns} == {
            number: number not in now.live for number in range(1, life.turns + 1)
        }
        found: dict[int, tuple[Any, ...]] = {
            step.index: (step.type, step.turn, step.data, step.archived, step.rolled_back, step.hidden)
            for step in record.steps
        }
        rolled_back = life.rolled_back
        assert found == {
            place: (*life.steps[place], place in now.archived, place in rolled_back, place < now.shown_from)
            for place in range(now.total)
            if place not in life.destroyed
        }
        assert record.pieces == now.variables
        kinds = [life.steps[place][0] for place in now.line - now.archived - life.destroyed]
        counted = {kind: count for kind, count in record.conversation.step_counts.items() if count}
        assert counted == {kind: kinds.count(kind) for kind in kinds}
        assert record.conversation.archived_steps == len((now.archived - life.destroyed) | rolled_back)

    def teardown(self) -> None:
        """Check that only the logs of destroyed steps were deleted."""
        if sys.exc_info()[0] is None:  # no earlier failure
            for life in self.lives:
                gone = {life.steps[place][1] for place in life.destroyed}
                for number in range(1, life.turns + 1):
                    logged = self.loop.run(read_events(self.store, str(life.ref), number))
                    assert (logged[0][0] == 1) == (number not in gone)


@pytest.mark.parametrize("examples", mostly_deep([15, 60], fast=[15]))
def test_a_conversation_equals_a_copy_of_it(socket_path: Path, raw: Raw, sealer: Sealer, examples: int) -> None:
    with Loop(socket_path, sealer, log_ttl_s=0) as loop:
        run_state_machine_as_test(
            cast("type[Machine]", partial(Machine, loop, raw)),
            settings=settings(
                max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
