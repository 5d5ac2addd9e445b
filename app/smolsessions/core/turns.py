"""Turns as callers use them: submit, wait for the end, subscribe to events, cancel, read."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any

from smolsessions.core import errors, records
from smolsessions.core.agent_ports import AgentCatalog
from smolsessions.core.effects import MAX_PAGE_BYTES, EffectEntry, EffectKey, EffectPage, JournalSizes, effect_keys
from smolsessions.core.frozen import record
from smolsessions.core.json_data import bounded
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.core.requests import Answer, InputRequest
from smolsessions.core.store_ports import LogReader, TurnStore

CheckArguments = Callable[[dict[str, Any], Any], Sequence[tuple[str, str]]]
"""Returns pointer and message of each mistake in arguments or a result, by their JSON Schema."""
_NO_OPTIONS = records.TurnOptions()


@record
class NewTurn:
    """Turn as a caller sends it. `metadata` is that of a new conversation: without an id, or with `create`.

    `number` is the one that the turn is expected to get, or 0. A turn with it has a key of its conversation alone.
    """

    message: str
    conversation_id: str | None = None
    number: int = 0
    create: bool = False
    agent: AgentName | None = None
    options: records.TurnOptions = field(default_factory=records.TurnOptions)
    turn_input: records.TurnInput = field(default_factory=records.TurnInput)
    images: tuple[StepImage, ...] = ()
    files: tuple[StepFile, ...] = ()
    additional_args: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None

    @property
    def idempotent_request(self) -> records.IdempotentRequest | None:
        """The key with everything that makes two requests equal. The form of the response is not part of it."""
        if self.idempotency_key is None:
            return None
        # The names of images and files are hashes of their bytes.
        small = replace(self, idempotency_key=None, turn_input=records.TurnInput(), additional_args={}, metadata={})
        fields = asdict(small) | {"additional_args": self.additional_args, "metadata": self.metadata}  # a copy is slow
        fields |= fields.pop("options")
        # Without defaults, so that a later release with more fields makes the same bytes.
        sent = {name: value for name, value in fields.items() if value and name != "turn_input"}
        return records.IdempotentRequest(self.idempotency_key, json.dumps(sent, sort_keys=True).encode())


class Turns:
    """Turns of all owners."""

    def __init__(
        self, store: TurnStore, agents: AgentCatalog, default_agent: AgentName, on_end: Callable[[Turn], None]
    ) -> None:
        """`on_end` is called with each turn that a cancel ended before it began."""
        self.store = store
        self._agents = agents
        self._default_agent = default_agent
        self._on_end = on_end
        self._subscriptions: set[TurnSubscription] = set()
        self._cancelling: set[asyncio.Task[Turn]] = set()
        self._closing = False

    async def submit(self, owner: Owner, new: NewTurn, *, for_end: bool = False) -> TurnSubscription:
        """Accept a turn. The caller must close the subscription, which starts with the first event.

        A subscription `for_end` only waits for the end of the turn. A retry of a request with an Idempotency-Key
        returns the turn that the first one made.
        """
        once = new.idempotent_request
        if once and not new.number and (known := await self.store.recall(owner, once)):
            return await self._read(known, for_end=for_end)
        if new.agent is not None and new.agent not in self._agents.infos and new.agent not in self._agents.unavailable:
            raise errors.UnknownAgentError.at("/agent", f"no agent {new.agent!r} here; GET /agents lists them")
        is_named = new.conversation_id is not None
        ref = Ref(owner, new.conversation_id or secrets.token_hex(12))
        turn = Turn(
            ref,
            number=new.number,
            agent=self._version_of(new.agent or self._default_agent),
            message=new.message,
            options=new.options,
            timing=records.Timing(time.time()),
            images=new.images,
            files=new.files,
            additional_args=new.additional_args,
        )
        create = None if is_named and not new.create else bounded(new.metadata)
        version_of = partial(self._version_of, options=new.options)
        submission = records.Submission(
            turn, new.turn_input, create, new.agent is not None, version_of, once, is_named, follows=not for_end
        )
        subscription = self._subscribe(turn, is_new=True, for_end=for_end)  # before the first event
        try:
            existing = replace(submission, create=None)
            refusal: errors.ServiceError | None = None
            attempts = [submission]
            if is_named and new.create:  # most of these exist; the last try is for one that was created in between
                attempts = [submission, existing] if new.number == 1 else [existing, submission, existing]
            for attempt in attempts:
                try:
                    subscription.turn, is_new = await self.store.submit(attempt)
                    break
                except errors.ConversationExistsError as error:  # another request made it, or it was deleted
                    refusal = error
                except errors.ConversationNotFoundError as error:
                    refusal = refusal or error
            else:
                assert refusal
                raise refusal  # noqa: TRY301 - the subscription must be closed
        except BaseException:  # also of a request that was cancelled
            subscription.close()
            raise
        if is_new and subscription.turn.ref == ref:  # an Idempotency-Key may name an earlier turn
            return subscription
        subscription.close()  # it has another conversation, or has missed the first events
        return await self._read(subscription.turn, for_end=for_end)

    async def submit_and_wait(self, owner: Owner, new: NewTurn, wait_s: float) -> Turn:
        """Submit a turn and wait for its end. It has no outcome if it did not end in time, or waits for a person."""
        with closing(await self.submit(owner, new, for_end=True)) as subscription:
            return await self._wait_for_end(subscription, wait_s)

    async def subscribe(
        self, ref: Ref, number: int, after: int, *, until_waiting: bool = False
    ) -> TurnSubscription | None:
        """Subscribe to a turn's events after the cursor. The caller must close the subscription.

        Returns None if no event follows, or if `until_waiting` and the turn waits.
        """
        turn = await self.store.turn(ref, number)
        if turn.outcome and turn.last_seq is not None and after >= turn.last_seq:
            return None
        subscription = await self._read(turn, after)
        if until_waiting and subscription.reader.waits and after >= subscription.reader.length:
            subscription.close()
            return None
        return subscription

    async def cancel(self, ref: Ref, number: int, wait_s: float = 0) -> Turn:
        """Request a turn's stop, and wait up to `wait_s` for its end. A turn that is over stays as it is."""
        turn, ended = await self.store.cancel(ref, number)
        if ended:
            self._on_end(turn)
        if turn.outcome or not wait_s:
            return turn
        with closing(self._subscribe(turn)) as subscription:
            return await self._wait_for_end(subscription, wait_s, past_waits=True)

    async def answer(self, ref: Ref, number: int, answers: Sequence[Answer]) -> tuple[Turn, int, Sequence[Answer]]:
        """Record a person's answers. Return the turn, the number of the event before theirs, and the new ones.

        A turn whose agent is another one by now gets no answer: it goes on, and ends as `agent_changed`. Raises the
        errors of `new_answers`.
        """
        new: Sequence[Answer] = ()

        async def accept(turn: Turn, waits: bool) -> Sequence[Answer] | None:
            nonlocal new
            new = await asyncio.to_thread(new_answers, turn, answers, self._agents.schema_problems, waits=waits)
            is_changed = self._version_of(turn.agent.name).fingerprint != turn.agent.fingerprint
            if new and is_changed and not self._agents.depends_on_caller(turn.agent.name):
                new = ()
                return None
            return new

        turn = await self.store.answer(ref, number, accept)
        names = {answer.request_id for answer in answers}
        return turn, min((each.seq for each in turn.answered if each.request_id in names), default=1) - 1, new

    async def effects(self, ref: Ref, number: int, first: int | None, limit: int, order: records.Order) -> EffectPage:
        """Return effects of a turn that is not over, from place `first` on. Large results make a page shorter."""
        turn = await self.store.turn(ref, number)
        journal = JournalSizes() if turn.outcome else await self.store.journal(ref, number)
        keys = await asyncio.to_thread(effect_keys, journal)
        step = 1 if order == "asc" else -1
        place = first if first is not None else 0 if step == 1 else len(keys) - 1
        chosen: list[EffectKey] = []
        left = MAX_PAGE_BYTES
        while 0 <= place < len(keys) and len(chosen) < limit:
            left -= journal.sizes.get(keys[place].key, 0)
            if chosen and left < 0:
                break
            chosen.append(keys[place])
            place += step
        done = [key.key for key in chosen if key.begun_by is None]
        results = await self.store.journaled_results(ref, number, done)
        if len(results) < len(done):  # the turn ended meanwhile
            return EffectPage((), None)
        entries = []
        for key in chosen:
            result = results.get(key.key)
            is_call = key.kind not in {"request", "answer", "message"}
            outcome = self._agents.effect_outcome(result.start) if result and is_call else None
            entries.append(EffectEntry(key, outcome, result.size_bytes if result else None))
        more = str(place) if 0 <= place < len(keys) else None
        return EffectPage(tuple(entries), more, journal.is_whole)

    async def wait(self, turn: Turn, wait_s: float) -> Turn:
        """Wait until a turn is over or waits for a person, for at most `wait_s`."""
        with closing(self._subscribe(turn, for_end=True)) as subscription:
            return await self._wait_for_end(subscription, wait_s)

    def cancel_in_background(self, turn: Turn) -> None:
        task = asyncio.create_task(self.cancel(turn.ref, turn.number))
        self._cancelling.add(task)

        def forget(task: asyncio.Task[Turn]) -> None:
            self._cancelling.discard(task)
            if not task.cancelled():
                task.exception()  # the conversation may be deleted by now, or the store away

        task.add_done_callback(forget)

    def stop_waiting(self) -> None:
        """Return to each waiting caller its turn as it is now, and end all streams."""
        self._closing = True
        for subscription in list(self._subscriptions):
            subscription.stop()

    def _subscribe(self, turn: Turn, *, is_new: bool = False, for_end: bool = False) -> TurnSubscription:
        reader = self.store.reader(turn.ref, reads_log=not is_new, all_events=not for_end)
        subscription = TurnSubscription(reader, turn, self._subscriptions)
        if self._closing:
            subscription.stop()
        return subscription

    async def _read(self, turn: Turn, after: int = 0, *, for_end: bool = False) -> TurnSubscription:
        """Subscribe to a turn that the store has. Raises the error that its log would raise in mid-stream."""
        subscription = self._subscribe(turn, for_end=for_end)
        try:
            if not for_end:
                await subscription.reader.prepare(turn.number, after)
        except BaseException:  # as above
            subscription.close()
            raise
        return subscription

    def _version_of(
        self,
        name: AgentName,
        client_tools: Sequence[records.ClientTool] = (),
        options: records.TurnOptions = _NO_OPTIONS,
    ) -> records.AgentVersion:
        """Return an agent's version. Raises a `ServiceError` if it cannot play these options with `client_tools`."""
        info = self._agents.infos.get(name)
        if info is None:
            unknown = f"The conversation's agent {name!r} is not configured here."
            raise errors.AgentUnavailableError(self._agents.unavailable.get(name, unknown))
        if options.output_schema is not None:
            self._agents.check_output_schema(options.output_schema)
        if options.client_tools:
            self._agents.check_client_tools(name, options.client_tools)
        if options.approve:
            self._agents.check_approve(name, options.approve, client_tools)
        return info.version

    async def _wait_for_end(self, subscription: TurnSubscription, wait_s: float, *, past_waits: bool = False) -> Turn:
        turn = subscription.turn
        if turn.outcome or (turn.status == "waiting" and not past_waits):
            return turn
        timer = asyncio.get_running_loop().call_later(wait_s, subscription.stop)
        try:
            if ended := await subscription.reader.end_of(turn.number, past_waits=past_waits):
                return ended
        finally:
            timer.cancel()
        try:
            return await self.store.turn(turn.ref, turn.number)
        except errors.StoreUnavailableError:
            return turn  # the caller must learn that it was accepted


class TurnSubscription:
    """Subscription of one caller to one turn's log. It misses no event until it is closed."""

    def __init__(
        self, reader: AbstractContextManager[LogReader], turn: Turn, subscriptions: set[TurnSubscription]
    ) -> None:
        self.turn = turn
        self.stopped = False
        self._registered = reader
        self.reader = reader.__enter__()
        self._subscriptions = subscriptions
        subscriptions.add(self)

    def stop(self) -> None:
        """End the reader's events before the final one."""
        self.stopped = True
        self.reader.stop()

    def close(self) -> None:
        if self in self._subscriptions:
            self._subscriptions.discard(self)
            self._registered.__exit__(None, None, None)


def new_answers(turn: Turn, answers: Sequence[Answer], check_arguments: CheckArguments, *, waits: bool) -> list[Answer]:
    """Return the answers that the turn does not have yet. One that is invalid refuses all.

    Raises `RequestNotFoundError`, `AlreadyAnsweredError`, `NotWaitingError` and `InvalidRequestError`.
    """
    still_open = {request.request_id: request for request in turn.requests}
    known = {answered.request_id: answered.digest for answered in turn.answered}
    new: list[Answer] = []
    problems: list[dict[str, str]] = []
    for place, answer in enumerate(answers):
        name = answer.request_id
        if name in known:
            if known[name] != answer.digest:
                raise errors.AlreadyAnsweredError(request_id=name)
            continue
        if name not in still_open:
            is_of_turn = name.startswith(f"{turn.ref.id}:{turn.number}:")
            raise errors.NotWaitingError if turn.outcome and is_of_turn else errors.RequestNotFoundError
        if any(name == each.request_id for each in new):
            problems.append({"pointer": f"/answers/{place}/request_id", "message": "is answered twice in this request"})
        of_kind = _problems_of_result if "result" in {still_open[name].kind, answer.decision} else _problems
        found = of_kind(still_open[name], answer, check_arguments)
        problems += [{"pointer": f"/answers/{place}{pointer}", "message": message} for pointer, message in found]
        new.append(answer)
    if problems:
        raise errors.InvalidRequestError.of(problems)
    if new and not waits:
        raise errors.NotWaitingError
    return new


def _problems_of_result(request: InputRequest, answer: Answer, check: CheckArguments) -> Iterator[tuple[str, str]]:
    """Yield pointer and message of each mistake in a client's result, or in another answer in its place."""
    if request.kind != "result":
        yield "", "is no call of a tool of yours: send a decision, or text for a question"
    elif answer.decision != "result":
        yield "", "answers a call of your tool: send result or error"
    elif answer.error is None:
        for pointer, message in check(request.output_schema or {}, answer.result):
            yield f"/result{pointer}", message


def _problems(request: InputRequest, answer: Answer, check_arguments: CheckArguments) -> Iterator[tuple[str, str]]:
    """Yield pointer and message of each mistake in an answer."""
    if request.kind == "question":
        if answer.arguments is not None:
            yield "/arguments", "are for an approval; this is a question: send text"
        if answer.decision == "reject":
            if answer.text is not None:
                yield "/text", "cannot come with reject; send one of both"
        elif answer.text is None or not answer.text.strip():
            yield "/text", "is missing: it is the answer to this question; or send decision: reject"
        elif request.choices and answer.text not in request.choices:
            yield "/text", f"is none of the choices: {', '.join(map(repr, request.choices))}"
        return
    if answer.text is not None:
        yield "/text", "answers questions only; this is an approval: leave it out, or send a reason"
    if answer.arguments is None:
        return
    if answer.decision == "reject":
        yield "/arguments", "are for an approval; leave them out to reject the call"
        return
    for pointer, message in check_arguments(request.parameters or {}, answer.arguments):
        yield f"/arguments{pointer}", message
    for media in request.media:
        label = _part_at(request.arguments, media.pointer)  # None: a key of the pointer was cut
        if label is None or _part_at(answer.arguments, media.pointer) != label:
            yield f"/arguments{media.pointer}", "is an image or a file; leave its label there, or reject the call"


def _part_at(part: Any, pointer: str) -> Any:
    """Return the part of a JSON value at a pointer. None: it has no such part."""
    try:
        for key in pointer.split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            part = part[int(name)] if isinstance(part, list) else part[name]
    except (LookupError, TypeError, ValueError):
        return None
    return part
