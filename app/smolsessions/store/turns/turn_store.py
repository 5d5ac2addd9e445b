"""Turns in the store: submit, read, cancel."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from smolsessions.core import errors, records
from smolsessions.core.effects import JournaledResult, JournalSizes
from smolsessions.core.events import Logged, TurnEnded, TurnQueued
from smolsessions.core.records import AgentName, Owner, Page, Ref, Turn
from smolsessions.store import codec
from smolsessions.store.conversations.stored_steps import with_stored_images
from smolsessions.store.partition import Options, Partition, Partitions
from smolsessions.store.turns.answers import Accept, record_answers
from smolsessions.store.turns.claim import ClaimReply, open_claim
from smolsessions.store.turns.lease import HeldLease
from smolsessions.store.turns.scheduler import Reservation, Scheduler
from smolsessions.store.turns.steering import LAST_SEQ
from smolsessions.store.turns.turn_log import LogReader
from smolsessions.store.turns.turn_memory import JOURNAL_SENTENCE

MOST_GUESSES = 10_000
MOST_OF_A_KEY = 1000  # conversations that one Idempotency-Key began, each deleted and begun again
MOST_DERIVED_IDS = 20
ID_CHARS = 24
NUMBER_PATIENCE_S = 10.0  # limit for retries while other submissions take each number
SUBMIT_PATIENCE_S = 1.0
RETRY_S = 0.25
NO_RESERVATION = Reservation("", 0, "", [])
PAGE_BYTES = 4 * 1024 * 1024  # of the records in one page of turns
MOST_ENTRIES = 10_000  # of a journal
START_BYTES = 16 * 1024  # of a journaled result, which are unpacked to tell how the call ended
LARGE_BYTES = 256 * 1024  # sealing or opening more delays the event loop noticeably


class IdempotencyKeys:
    """Names and digests of Idempotency-Keys, keyed with the store's secret so that they reveal no request."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def idem(self, owner: Owner, once: records.IdempotentRequest) -> str:
        return self._digest("key", owner, once.key).hex()

    def names(self, owner: Owner, once: records.IdempotentRequest | None) -> dict[str, str]:
        """Return the arguments of the scripts that know a key and its request."""
        if once is None:
            return {"idem": "", "digest": ""}
        digest = self._digest("request", owner, once.key, once.request)
        return {"idem": self.idem(owner, once), "digest": digest.hex()}

    def conversation_id(self, owner: Owner, once: records.IdempotentRequest, nth: int) -> str:
        """Return the id of the nth conversation that begins with this key: derived at first, random in the end."""
        if nth >= MOST_DERIVED_IDS:
            return secrets.token_hex(ID_CHARS // 2)
        return self._digest("conversation", owner, once.key, str(nth)).hex()[:ID_CHARS]

    def _digest(self, *parts: str | bytes) -> bytes:
        joined = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
        return hmac.digest(self._secret, joined, "sha256")


class TurnStore:
    def __init__(self, partitions: Partitions, scheduler: Scheduler, keys: IdempotencyKeys, options: Options) -> None:
        """`scheduler` wakes this process's own worker. Each partition has its share of `max_queued`."""
        self._partitions = partitions
        self._scheduler = scheduler
        self._keys = keys
        self._limits = {"most_behind": options.max_behind, "most_queued": -(-options.max_queued // len(partitions))}
        self._locks: WeakValueDictionary[Ref, asyncio.Lock] = WeakValueDictionary()
        self._next: OrderedDict[Ref, tuple[int, AgentName]] = OrderedDict()

    async def submit(self, new: records.Submission) -> tuple[Turn, bool]:
        if new.once is None:
            return await self._submit_next(new)
        owner, refs = new.turn.ref.owner, iter([new.turn.ref])
        if new.create is not None and not new.is_named:  # the first free id of its key
            ids = (self._keys.conversation_id(owner, new.once, nth) for nth in range(MOST_OF_A_KEY))
            refs = (Ref(owner, conversation_id) for conversation_id in ids)
        for ref in refs:
            with suppress(errors.ConversationExistsError):
                accepted = await self._submit_next(replace(new, turn=replace(new.turn, ref=ref)))
                break
        else:
            raise errors.ConversationExistsError
        home = self._home(owner, new.once)
        is_for_all = not new.turn.number  # else no other conversation has such a key
        if is_for_all and home is not self._partitions.of(accepted[0].ref):  # another request with it is refused
            with suppress(errors.StoreUnavailableError):  # the turn is accepted, and a retry finds it
                await home.call("record_key", **self._keys.names(owner, new.once))
        return accepted

    async def recall(self, owner: Owner, once: records.IdempotentRequest) -> Turn | None:
        state, *rest = await self._home(owner, once).call("find_key", **self._keys.names(owner, once))
        if state == b"attached":
            return await self._attached(owner, *rest)
        if state != b"new":
            raise _refusal(state, rest)
        return None

    async def reserve_name(self, ref: Ref, once: records.IdempotentRequest) -> tuple[Ref, bool]:
        found = await self._name_of_key(ref.owner, once, str(ref))
        assert found, "a name is wanted"
        return found

    async def reserved_name(self, owner: Owner, once: records.IdempotentRequest) -> Ref | None:
        found = await self._name_of_key(owner, once, "")
        return found and found[0]

    async def _name_of_key(self, owner: Owner, once: records.IdempotentRequest, wanted: str) -> tuple[Ref, bool] | None:
        names = self._keys.names(owner, once)
        state, *rest = await self._home(owner, once).call("reserve", wanted=wanted, keep_s=once.keep_s, **names)
        if state == b"reused":
            raise _refusal(state, rest)
        if state == b"none":
            return None
        found = codec.ref_of(codec.text(rest[0]))
        if found.owner != owner:
            raise errors.SealBrokenError
        return found, state == b"new"

    async def release_name(self, owner: Owner, once: records.IdempotentRequest) -> None:
        home = self._home(owner, once)
        await home.ask("DEL", f"{home.name}:idem:{self._keys.idem(owner, once)}")

    def _home(self, owner: Owner, once: records.IdempotentRequest) -> Partition:
        """Return the partition that knows a key, whichever conversation it was sent for."""
        return self._partitions.named(self._keys.idem(owner, once))

    def reader(self, ref: Ref, *, reads_log: bool, all_events: bool) -> AbstractContextManager[LogReader]:
        return LogReader(self._partitions.scope(ref), reads_log=reads_log, all_events=all_events)

    async def cancel(self, ref: Ref, number: int) -> tuple[Turn, bool]:
        turn = await self.turn(ref, number)
        if turn.outcome:
            return turn, False
        ended = replace(
            turn,
            timing=replace(turn.timing, started_at=None, finished_at=time.time()),
            attempts=0,
            outcome=records.Outcome("cancelled"),
            last_seq=LAST_SEQ,
        )
        scope = self._partitions.scope(ref)
        partition = scope.partition
        state, *rest = await scope.call(
            "cancel",
            turn=number,
            record=scope.seal(codec.encode_turn(ended), "turn", number),
            own_channel=partition.channel,
            wake=partition.wake,
            log_ttl_s=partition.options.log_ttl_s,
        )
        if state == b"ended":
            partition.deliver(ref, number, Logged(rest[0], TurnEnded(ended)))
            return ended, True
        has_changed = state == b"over" or turn.status == "waiting"  # it waits no more
        return (await self.turn(ref, number) if has_changed else turn), False

    async def answer(self, ref: Ref, number: int, accept: Accept) -> Turn:
        return await record_answers(self._partitions.scope(ref), number, accept)

    async def open_turns(self, ref: Ref) -> list[Turn]:
        """Read the running and waiting turns, in order."""
        _, known = await self._read(ref, 1, 1)
        if not (numbers := sorted(known.open)):
            return []
        records, known = await self._read(ref, numbers[0], numbers[-1])
        scope = self._partitions.scope(ref)
        return [
            _decoded(ref, number, scope.open(record, "turn", number), known)
            for number, record in enumerate(records, numbers[0])
            if number in numbers
        ]

    async def journal(self, ref: Ref, number: int) -> JournalSizes:
        """Return the keys of a turn's journal with their sizes, of a longer one `MOST_ENTRIES`."""
        scope = self._partitions.scope(ref)
        length, effects, found = await scope.call("journal", turn=number, most=MOST_ENTRIES)
        sizes = {codec.text(name): size for name, size in zip(found[::2], found[1::2], strict=True)}
        is_whole = length == len(sizes)
        if is_whole and sum(map(bool, sizes.values())) != codec.number(effects):
            raise errors.SealBrokenError(JOURNAL_SENTENCE)
        return JournalSizes(sizes, is_whole)

    async def journaled_results(self, ref: Ref, number: int, keys: Sequence[str]) -> dict[str, JournaledResult]:
        scope = self._partitions.scope(ref)
        peek = scope.partition.sealer.peek
        blobs: list[bytes | None] = await scope.call("effects", *keys, turn=number) if keys else []

        def opened() -> dict[str, JournaledResult]:
            return {
                key: JournaledResult(*peek(blob, scope.name, "effect", number, key, most=START_BYTES))
                for key, blob in zip(keys, blobs, strict=True)
                if blob
            }

        is_large = sum(len(blob or b"") for blob in blobs) > LARGE_BYTES
        return await asyncio.to_thread(opened) if is_large else opened()

    async def turn(self, ref: Ref, number: int) -> Turn:
        page = await self.turns(ref, number, 1)
        if not page.items:
            raise errors.TurnNotFoundError
        return page.items[0]

    async def turns(self, ref: Ref, first: int | None, limit: int, order: records.Order = "asc") -> Page[Turn]:
        if order == "desc" and first is None:
            first = (await self._read(ref, 1, 1))[1].last
        first, step = first or 1, 1 if order == "asc" else -1
        records, known = await self._read(ref, first, max(1, first + step * (limit - 1)), PAGE_BYTES)
        scope = self._partitions.scope(ref)
        items: list[Turn] = []
        left_bytes = PAGE_BYTES
        for number, sealed in zip(count(first, step), records, strict=False):
            record = scope.open(sealed, "turn", number)
            left_bytes -= len(record)
            if left_bytes < 0 and items:
                break
            items.append(await with_stored_images(scope, _decoded(ref, number, record, known)))
        following = first + step * len(items)
        return Page(tuple(items), str(following) if 1 <= following <= known.last else None)

    async def _read(self, ref: Ref, first: int, last: int, max_bytes: int = 2**53) -> tuple[list[bytes], _OpenTurns]:
        scope = self._partitions.scope(ref)
        found = await scope.call("turns", first=first, last=last, max_bytes=max_bytes)
        if not found:
            raise errors.ConversationNotFoundError
        records, still_open, sealed, last_turn, agent = found
        known = {codec.number(number): (at, attempts, bool(waits)) for number, at, attempts, waits in still_open}
        return records, _OpenTurns(known, scope.settings(sealed), last_turn, agent)

    async def _submit_next(self, new: records.Submission) -> tuple[Turn, bool]:
        """Seal the turn for the next number, and retry one at a time in this process if another turn has it."""
        lock = self._locks.get(new.turn.ref)
        is_contended = lock is not None and lock.locked()
        if not is_contended and (accepted := await self._submit_once(new, is_first=new.create is not None)):
            return accepted
        async with self._locks.setdefault(new.turn.ref, asyncio.Lock()):
            give_up_at = time.monotonic() + NUMBER_PATIENCE_S
            while time.monotonic() < give_up_at:
                if accepted := await self._submit_once(new):
                    return accepted
        raise errors.StoreUnavailableError("Too many turns were posted to this conversation at once; try again.")

    async def _submit_once(self, new: records.Submission, *, is_first: bool = False) -> tuple[Turn, bool] | None:
        """Submit as the next turn. Returns None if another turn has its number, and notes the next."""
        ref, wanted = new.turn.ref, new.turn.agent.name
        number, agent = (1, wanted) if is_first else self._next.get(ref, (new.turn.number, wanted))
        scope, client_tools = self._partitions.scope(ref), new.turn.options.client_tools
        names_tools = bool(new.turn.options.approve) and not is_first
        if not number or names_tools or (new.asked and agent != wanted):
            if not (found := await scope.call("next_turn")):
                raise errors.ConversationNotFoundError
            unsealed, turns, record, settings = found
            client_tools = (*scope.settings(settings).client_tools, *client_tools)
            about = codec.decode_conversation(scope.open(record or b"", "conversation"), unsealed)
            number, agent = turns + 1, about.agent
        if new.asked and agent != wanted:
            sentence = f"The conversation belongs to the agent {agent!r}; leave agent out, or name it."
            raise errors.OtherAgentError(sentence)
        turn = replace(new.turn, number=number, agent=new.version_of(agent, client_tools))
        reservation, lease = self._scheduler.reserve_thread(scope.partition, agent, ref.owner), None
        try:
            state, *rest = await self._send(turn, new, reservation)
            if state == b"ok":
                seq, *claimed, sent_at = rest
                self._remember(ref, number + 1, agent)
                scope.partition.deliver(ref, number, Logged(seq, TurnQueued()))
                if reservation and claimed:
                    lease = HeldLease(scope, open_claim(scope, ClaimReply(*claimed[0]), (turn, new.turn_input)))
                    self._scheduler.register(lease, sent_at)
                else:
                    self._scheduler.nudge(scope.partition, ref.owner)
        finally:
            if reservation:
                self._scheduler.use_thread(lease, ref.owner)
        if state == b"ok":
            return turn, True
        if state == b"attached":
            return await self._attached(ref.owner, *rest), False
        if state != b"moved":
            raise _refusal(state, rest)
        self._next.pop(ref, None)
        if rest[0] == agent.encode():
            self._remember(ref, rest[1], agent)
        return None

    async def _attached(self, owner: Owner, scope: bytes, number: bytes) -> Turn:
        ref = codec.ref_of(codec.text(scope))
        if ref.owner != owner:
            raise errors.SealBrokenError
        return await self.turn(ref, codec.number(number))

    async def _send(self, turn: Turn, new: records.Submission, reservation: Reservation | None) -> list[Any]:
        """Seal a turn, run submit.lua, and retry: one record is one turn. The request's time follows the reply `ok`."""
        scope = self._partitions.scope(turn.ref)
        conversation, title, data = b"", b"", codec.encode_input(new.turn_input)
        if new.create is not None:
            about = codec.encode_conversation(turn.agent.name, new.create, records.title_of(turn.message))
            conversation = scope.seal(about, "conversation")
        elif turn.number == 1:
            title = scope.seal(records.title_of(turn.message).encode(), "title")
        record = codec.encode_turn(turn)

        def seal_both() -> tuple[bytes, bytes]:
            return scope.seal(record, "turn", turn.number), scope.seal(data, "input", turn.number)

        is_large = len(data) + len(record) > LARGE_BYTES
        sealed_record, sealed_input = await asyncio.to_thread(seal_both) if is_large else seal_both()
        arguments: dict[str, Any] = {
            "owner": turn.ref.owner,
            "agent": turn.agent.name,
            "conversation": conversation,
            "title": title,
            "turn": turn.number,
            "record": sealed_record,
            "input": sealed_input,
            "event": scope.seal(codec.encode_event(TurnQueued()), "event", turn.number, TurnQueued.type),
            "own_channel": scope.partition.channel,
            "follows": int(new.follows),
            "wake": "" if self._scheduler.waiting else scope.partition.wake,
            "on_busy": turn.options.on_busy,
            **self._limits,
            **self._keys.names(turn.ref.owner, new.once),
            **(reservation or NO_RESERVATION)._asdict(),
        }
        agents = arguments.pop("agents")
        give_up_at, is_retry = time.monotonic() + SUBMIT_PATIENCE_S, False
        while True:
            sent_at = time.monotonic()
            try:
                reply: list[Any] = await scope.call("submit", *agents, **arguments)
                break
            except errors.StoreUnavailableError:
                if time.monotonic() > give_up_at:
                    raise
            is_retry = True
            await asyncio.sleep(RETRY_S)
            if (scope.name, turn.number) in self._scheduler.held:  # it was made ready, and claimed since
                arguments["worker"] = ""
        if is_retry and reply[0] != b"ok":
            with suppress(errors.NotFoundError):
                stored = await self.turn(turn.ref, turn.number)
                if (stored.message, stored.timing.submitted_at) == (turn.message, turn.timing.submitted_at):
                    return [b"ok", 1, sent_at]  # the first reply was lost, and the turn has progressed since
        return [*reply, sent_at] if reply[0] == b"ok" else reply

    def _remember(self, ref: Ref, number: int, agent: AgentName) -> None:
        self._next[ref] = (number, agent)
        self._next.move_to_end(ref)
        if len(self._next) > MOST_GUESSES:
            self._next.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _OpenTurns:
    """State of a conversation beside its turn records.

    `open`: start (empty if not started), attempts, and whether it waits for a person, of each turn that is not over.
    `last`: the last number.
    """

    open: dict[int, tuple[bytes, bytes, bool]]
    settings: records.ConversationSettings
    last: int
    agent: bytes


def _decoded(ref: Ref, number: int, record: bytes, known: _OpenTurns) -> Turn:
    turn = codec.decode_turn(record, ref, number)
    if not turn.outcome and (number not in known.open or turn.agent.name.encode() != known.agent):
        raise errors.SealBrokenError(errors.DAMAGED)
    at, attempts, waits = known.open.get(number, (b"", b"", False))
    if known.settings.is_rolled_back(number, known.last):
        turn = replace(turn, rolled_back=True)
    if not at or turn.outcome:
        return turn
    return codec.started(turn, codec.moment(at), codec.number(attempts), waits=waits)


def _refusal(state: bytes, rest: list[Any]) -> Exception:
    match state:
        case b"busy":
            advice = "wait for its end, or choose with on_busy how both turns go on"
            return errors.BusyError.of_turn(codec.number(rest[0]), advice, waits=bool(rest[1]))
        case b"full":
            return errors.TooManyTurnsError(
                f"{int(rest[0])} turns wait in this conversation, more may not (SMOLSESSIONS_MAX_TURNS_BEHIND); try "
                "again when one of them is over."
            )
        case b"overloaded":
            return errors.OverloadedError()
        case b"reused":
            message = "was sent with another request before"
            problem = {"in": "header", "parameter": "Idempotency-Key", "message": message}
            return errors.IdempotencyKeyReusedError(errors=[problem])
        case b"gone":
            return errors.ConversationNotFoundError(
                "The conversation of the turn that this Idempotency-Key made was deleted; use a new key for a new turn."
            )
    return {b"unknown": errors.ConversationNotFoundError, b"taken": errors.ConversationExistsError}[state]()
