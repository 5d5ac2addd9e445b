"""Submissions, deletions and stops: every accepted turn exists once, and ends as the strongest request asks for."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest

from smolsessions.core.agent_ports import AgentCatalog
from smolsessions.core.callers import Caller
from smolsessions.core.conversations import Conversations
from smolsessions.core.errors import ConversationExistsError, LeaseLostError, SealBrokenError, StoreUnavailableError
from smolsessions.core.memories import ImportedConversation, ImportedMemory, Memory, PrunePreview
from smolsessions.core.policies import Policy
from smolsessions.core.records import (
    Conversation,
    ConversationFields,
    IdempotentRequest,
    OnBusy,
    Owner,
    PromptSize,
    Ref,
)
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support import stores
from tests.support.stores import Raw


async def test_a_submission_that_is_asked_twice_is_one_turn_behind_others_too(one: Store, raw: Raw) -> None:
    for number in (1, 2, 3):
        assert stores.submit_raw(raw, number, "sealed once", "enqueue") == ["ok", 1]
    before = {name: raw.dump(name) for name in raw.keys("*local/c*")}
    for number in (2, 1, 3):
        assert stores.submit_raw(raw, number, "sealed once", "rollback") == ["ok", 1]
    assert stores.submit_raw(raw, 3, "sealed again", "enqueue") == ["full", "2"]
    assert stores.submit_raw(raw, 3, "sealed again") == ["busy", "1", 0]
    assert {name: raw.dump(name) for name in raw.keys("*local/c*")} == before
    assert [lease.turn.number for lease in await one.scheduler.claim({stores.AGENT: stores.KIND}, 9)] == [1]


async def test_a_turn_over_before_its_acceptance_is_known_is_not_repeated(one: Store, other: Store, raw: Raw) -> None:
    for rounds in range(8):
        accepting = asyncio.create_task(stores.submit(one, f"lost {rounds}"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        raw.client_kill_filter(_type="normal", skipme=True)
        leases: list[HeldLease] = []
        while not leases:
            with suppress(StoreUnavailableError):
                leases = await stores.claim(other)
        await leases[0].commit(stores.DONE)
        assert await accepting == 1
        assert raw.llen(stores.key_of("turns", f"lost {rounds}")) == 1


async def test_a_key_that_names_the_turn_of_another_owner_is_refused(one: Store, other: Store, raw: Raw) -> None:
    once, names = IdempotentRequest("key", b"request"), list[str]()
    for owner in ("ann", "bob"):
        known = set(raw.keys("*:idem:*"))
        await one.conversations.create(stores.ref_of(f"{owner}/c"), stores.AGENT, ConversationFields({}))
        await stores.submit(one, f"{owner}/c", new=False, once=once)
        names += set(raw.keys("*:idem:*")) - known
    ann, bob = (raw.get(name).split("\n") for name in names)
    assert (await other.turns.recall(Owner("bob"), once)) is not None
    raw.set(names[1], "\n".join([*ann[:3], bob[3]]))
    with pytest.raises(SealBrokenError):
        await other.turns.recall(Owner("bob"), once)


async def test_a_delete_ends_what_runs_and_leaves_a_tombstone(one: Store, other: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    await stores.emit(raw, lease, "step:1", stores.packed_step())
    await other.conversations.delete(stores.ref_of("c"))
    await stores.emit(raw, lease, "step:2", stores.packed_step())
    with pytest.raises(LeaseLostError):
        await lease.commit(stores.DONE)
    assert stores.event_names_of(raw, "c") == ["turn.queued", "turn.started", "turn.cancelled"]
    assert set(raw.keys("*local/c*")) == {stores.key_of("conversation", "c"), stores.key_of("log", "c", 1)}
    log_ttl, ttl = raw.ttl(stores.key_of("log", "c", 1)), raw.ttl(stores.key_of("conversation", "c"))
    assert 0 < log_ttl <= stores.LOG_TTL_S < ttl <= stores.ID_REUSE_S
    assert raw.zcard(stores.LEASES) == 0
    for store in (one, other):
        with pytest.raises(ConversationExistsError):
            await stores.submit(store, "c")
    assert await stores.claim(one) == []


async def test_an_import_whose_id_is_taken_meanwhile_gives_its_files_back(one: Store) -> None:
    ref, taken_back = stores.ref_of("meanwhile"), asyncio.Event()

    async def write_files(_ref: Ref) -> Callable[[], Awaitable[None]]:
        await one.conversations.create(ref, stores.AGENT, ConversationFields({}))

        async def take_back() -> None:
            taken_back.set()

        return take_back

    imported = ImportedConversation((), (), ImportedMemory(()))
    with pytest.raises(ConversationExistsError):
        await one.history.store_import(ref, stores.AGENT, ConversationFields({}), imported, write_files)
    assert taken_back.is_set()
    with pytest.raises(ConversationExistsError):  # now its files are not touched at all
        await one.history.store_import(ref, stores.AGENT, ConversationFields({}), imported, write_files)


@pytest.mark.parametrize(
    ("asked", "code", "by"),
    [
        (("interrupt", "interrupt"), "interrupted", 2),
        (("interrupt", "rollback"), "rolled_back", 3),
        (("rollback", "interrupt"), "rolled_back", 2),
        (("rollback", "rollback"), "rolled_back", 2),
    ],
)
async def test_claims_are_least(one: Store, other: Store, asked: tuple[OnBusy, OnBusy], code: str, by: int) -> None:
    await stores.submit(one, "c")
    for on_busy in asked:
        await stores.submit(other, "c", on_busy=on_busy)
    lease = await stores.claim_one(one)
    assert await lease.stop_reason == code
    ended = await lease.commit(replace(stores.DONE, status="cancelled"))
    assert stores.error_code_of(ended) == code
    assert ended.outcome
    assert ended.outcome.error
    assert f"Turn {by} " in ended.outcome.error.message


@pytest.mark.parametrize("way", ["renewal", "suspend"])
async def test_a_renewal_or_suspend_brings_back_why_a_turn_is_to_stop(one: Store, raw: Raw, way: str) -> None:
    lease = await stores.second_turn(one, raw)
    one.scheduler.hear_stop(b"local/c\n2\n1")
    assert await lease.stop_reason == "cancelled"
    raw.hset(stores.key_of("run", "c", 2), "cancel", "interrupt:3")  # as if the message was lost
    assert not await (lease.suspend(stores.waiting()) if way == "suspend" else one.scheduler.renew([lease]))
    assert stores.error_code_of(await lease.commit(replace(stores.DONE, status="cancelled"))) == "interrupted"


async def test_a_stop_that_comes_before_the_reply_to_its_claim_is_heard_once(one: Store) -> None:
    await stores.submit(one, "c")
    for flag in (b"interrupt:2", b"steer"):
        one.scheduler.hear_stop(b"local/c\n1\n" + flag)
    lease = await stores.claim_one(one)
    assert lease.stop_reason.result() == "interrupted"
    await one.scheduler.hand_back(lease)
    assert not (await stores.claim_one(one)).stop_reason.done()


async def test_a_change_that_meets_another_one_is_made_again(one: Store, raw: Raw) -> None:
    ref, conversation = stores.ref_of("c"), stores.key_of("conversation", "c")
    await (await stores.second_turn(one, raw)).commit(stores.DONE)

    async def write_files(_new: Ref) -> Callable[[], Awaitable[None]]:
        if not forks:
            await one.history.roll_back(ref, 1)
        forks.append(_new)
        return lambda: asyncio.sleep(0)

    forks: list[Ref] = []
    made = await one.history.fork(ref, one.history.name_beside(ref), None, None, write_files)
    assert (len(forks), made.step_counts, made.turn_count) == (2, {"action": 1}, 2)

    def change(now: Conversation) -> ConversationFields:
        seen.append(now.approve)
        raw.hset(conversation, "settings", before)
        return ConversationFields(now.metadata, approve=now.approve)

    seen: list[tuple[str, ...]] = []
    await one.conversations.patch(ref, lambda _: ConversationFields({}, approve=("a",)))
    before = raw.hget(conversation, "settings").encode(errors="surrogateescape")
    await one.conversations.patch(ref, lambda _: ConversationFields({}, approve=("b",)))
    assert (await one.conversations.patch(ref, change)).approve == ("a",)
    assert seen == [("b",), ("a",)]

    class Agents:
        def preview_prune(self, _caller: Caller, memory: Memory, _policy: Policy) -> PrunePreview:
            weighed.append(memory.version.settings)
            raw.hset(conversation, "settings", before)
            return PrunePreview(nothing, nothing, (), 0)

    weighed, nothing, agents = list[bytes](), PromptSize(0, 0, 0), cast("AgentCatalog", Agents())
    parts = one.conversations, one.history, one.turns, agents, stores.AGENT
    await Conversations(*parts, on_end=print, max_pixels=1).prune(ref, {}, None, dry_run=False, destroy=False)
    assert (len(weighed), weighed[1]) == (2, before)


async def test_what_cannot_be_read_is_not_rolled_back_but_told(one: Store, other: Store, raw: Raw) -> None:
    await stores.second_turn(one, raw)
    raw.hset(stores.key_of("conversation", "c"), "head", "x" * 60)
    stores.expire_lease(raw, "c")
    await other.scheduler.sweep()
    await stores.submit(one, "c", on_busy="rollback")
    broken = await stores.claim_one(other)
    with pytest.raises(SealBrokenError):
        broken.check_readable()
    assert (await broken.commit(replace(stores.DONE, status="failed"))).status == "failed"
    assert stores.step_count(raw, "c") == 2
    assert (await stores.claim_one(one)).turn.number == 3
