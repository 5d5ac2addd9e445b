"""Parts that all dialects share: a request plays its turn once, and a turn's log becomes a dialect's frames."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from typing import Any, Protocol

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from smolsessions.core.conversations import Conversations
from smolsessions.core.errors import (
    ConflictError,
    NotFoundError,
    ServiceError,
    ShuttingDownError,
    StoreUnavailableError,
)
from smolsessions.core.events import InputAnswered, Logged, MessageDelta, MessageRestarted, TurnEnded, TurnWaiting
from smolsessions.core.records import AgentName, Conversation, IdempotentRequest, Order, Owner, Ref, Turn
from smolsessions.core.turns import Turns, TurnSubscription
from smolsessions.web.dialects.bodies import checked, imported_history
from smolsessions.web.dialects.places import Place, place_of
from smolsessions.web.http_connection import BREAK_OFF
from smolsessions.web.routes.common import Delivery
from smolsessions.web.routes.turns import NewTurns
from smolsessions.web.sse import PING, EventStreams, TurnStream
from smolsessions.wire.requests import AnswerIn, AnswersRequest, TurnRequest

KEEP_S = 30 * 86_400
"""Seconds for which the store keeps the turn of a dialect's request."""
JUST_FAILED_S = 60.0
AT_ONCE_S = 10.0  # in which libraries that do not mark a repeat send it
RETRIES = b"x-stainless-retry-count"  # header of OpenAI's libraries: the repeats before this request
TURNS_AT_ONCE = 50  # turns in a read
STOP_S = 10.0  # that a turn may take to stop
YES = frozenset({"approve", "approved", "ok", "okay", "y", "yes"})


class Fold(Protocol):
    """Pure fold of a turn's events into frames of a dialect: the same log gives the same frames."""

    is_complete: bool = False
    """True if nothing follows the frames so far."""
    drops_void_text: bool = True
    """True to leave out text that was made void before the stream began.

    A fold that cannot take back a later one raises `StreamCutError`.
    """
    media: Mapping[str, str] = {}
    """Images and files of the answer as data: URLs, by their names. They are there before the final event."""

    def frames(self, logged: Logged, *, waits: bool) -> Iterable[bytes]:
        """Return the frames of an event.

        `waits`: it is `turn.waiting` or `input.answered`, and nothing follows until an answer comes, if one is needed.
        """


class StreamCutError(Exception):
    """A turn's events end before their end is reached: at shutdown, for example."""


class Gateway:
    """Turns and conversations, as the dialects use them."""

    def __init__(self, turns: Turns, conversations: Conversations, new_turns: NewTurns, streams: EventStreams) -> None:
        self.turns = turns
        self.conversations = conversations
        self.streams = streams
        self._new_turns = new_turns

    async def find(self, owner: Owner, key: str) -> Place | None:
        """Return the place that a key has."""
        name = await self.turns.store.reserved_name(owner, IdempotentRequest(key, b"", KEEP_S))
        return name and _reserved_place(name)

    async def repeated(self, owner: Owner, key: str, headers: Mapping[str, str]) -> tuple[Place, int] | None:
        """Return the turn of an earlier request with this key, and the event that it went on after, for a repeat.

        Otherwise `play` may have the key.
        """
        if headers.get(RETRIES.decode()) == "0":  # no repeat, which `play` knows, too
            return None
        place = await self.find(owner, key)
        turn = await self.turn_at(owner, place) if place else None
        if place is None or turn is None:  # none had it, or its process ended before the turn was accepted
            return None
        if is_repeat(turn, headers):
            in_words = turn.answered and await self.find(owner, f"{key}:words") == place
            return place, turn.answered[-1].seq - 1 if in_words else 0
        await self._release(owner, key)
        return None

    async def reserve(self, owner: Owner, key: str, wanted: Place) -> tuple[Place, bool]:
        """Reserve a place for a key. Returns the one that it has, and whether it is new."""
        name = Ref(owner, f"{wanted.conversation_id}.{wanted.turn}")
        reserved, is_new = await self.turns.store.reserve_name(name, IdempotentRequest(key, b"", KEEP_S))
        return _reserved_place(reserved), is_new

    async def _release(self, owner: Owner, key: str) -> None:
        await self.turns.store.release_name(owner, IdempotentRequest(key, b"", KEEP_S))

    async def turn_at(self, owner: Owner, place: Place) -> Turn | None:
        """Return the turn at a place, or None if it was deleted, or never accepted."""
        try:
            return await self.turns.store.turn(Ref(owner, place.conversation_id), place.turn)
        except NotFoundError:
            return None

    async def conversation(self, ref: Ref) -> Conversation | None:
        """Return a conversation, or None if it was deleted, or never made."""
        try:
            return await self.conversations.store.conversation(ref)
        except NotFoundError:
            return None

    async def asked_turn(self, conversation: Conversation | None, place: Place) -> Turn | None:
        """Return the turn at a place, which is in this conversation, if it waits for answers."""
        if conversation is None or not conversation.waits or conversation.running_turn != place.turn:
            return None
        turn = await self.turn_at(conversation.ref.owner, place)
        return turn if turn and turn.requests else None

    async def kept_turn(self, owner: Owner, place: Place) -> Turn | None:
        """Return the turn at a place, or None if it was deleted, rolled back, or never accepted."""
        turn = await self.turn_at(owner, place)
        return None if turn is None or turn.rolled_back else turn

    async def turns_from(self, ref: Ref, first: int | None, order: Order) -> AsyncGenerator[Turn, None]:
        """Yield turns from number `first` on. None: from the first of this order. Raises `NotFoundError`."""
        while first != 0:
            page = await self.turns.store.turns(ref, first, TURNS_AT_ONCE, order)
            for turn in page.items:
                yield turn
            first = int(page.next_cursor or 0)

    async def play(
        self, scope: Scope, key: str, wanted: Place, body: TurnRequest, reserved: tuple[Place, bool] | None = None
    ) -> TurnSubscription:
        """Play the turn of a request, which `key` names. A repeat of the request follows the turn of the first.

        `reserved` is what `reserve` has returned for the key.
        """
        owner = Owner(scope["owner"])
        place, is_new = reserved or await self.reserve(owner, key, wanted)
        if not is_new and (RETRIES, b"0") in scope["headers"]:  # an equal one came before, or at the same time
            await self._release(owner, key)
            await self.reserve(owner, key, wanted)
            place, is_new = wanted, True
        if not is_new and await self.turn_at(owner, place):
            return await self.follow(Ref(owner, place.conversation_id), place.turn)
        body.conversation_id, body.create = place.conversation_id, place.turn == 1
        own = f"{key}:{place}"  # a key that became free may come again
        try:
            new = await self._new_turns.prepare(scope, body, own, place.turn)
            subscription = await self.turns.submit(owner, new)
        except (StoreUnavailableError, asyncio.CancelledError):
            raise  # it may have been accepted
        except Exception as error:  # whatever refused it: a retry with the key may succeed
            await self._release(owner, key)
            if not is_new and isinstance(error, ConflictError | NotFoundError):  # it was deleted
                return await self.play(scope, key, wanted, body)
            raise
        number = subscription.turn.number
        if number != place.turn:  # another client of the conversation was faster
            await self._release(owner, key)
            await self.reserve(owner, key, Place(place.conversation_id, number))
        return subscription

    async def import_history(
        self,
        owner: Owner,
        conversation_id: str,
        messages: Iterable[tuple[str, str]],
        agent: AgentName,
        metadata: Mapping[str, Any] | None = None,
    ) -> Place:
        """Return the place after earlier messages, as role and text. Any become a new conversation with this id."""
        document = imported_history(messages, agent) | {"metadata": metadata or {}}
        if count := len(document["turns"]):
            content = await self.conversations.read_document(document, agent)
            await self.conversations.create_from(owner, content, conversation_id)
        return Place(conversation_id, count + 1)

    async def place_after(self, now: Conversation, turn: int, *, stops: bool = False) -> Place | None:
        """Return the place after a turn of a conversation, or in a fork if that went on. None: it was deleted.

        A conversation can be forked once its turns are over. `stops` stops them. Else it raises `BusyError`.
        """
        ref = now.ref
        with suppress(NotFoundError):
            if now.turn_count != turn:
                left = now.queued_turns + (now.running_turn is not None) if stops else 0
                for number in range(now.turn_count, max(turn, now.turn_count - left), -1):
                    await self.turns.cancel(ref, number, STOP_S)
                ref = (await self.conversations.fork(ref, turn, None)).ref
            return Place(ref.id, turn + 1)
        return None

    async def answer(
        self, scope: Scope, place: Place, answers: Sequence[AnswerIn | dict[str, Any]]
    ) -> tuple[Turn, int]:
        """Record answers to requests of a waiting turn. Returns it, and the number of the event before theirs."""
        body = checked(AnswersRequest, "", {"answers": answers})
        return await self._new_turns.record_answers(scope, place.conversation_id, place.turn, body)

    async def answer_in_words(
        self, scope: Scope, turn: Turn, text: str, key: str | None = None
    ) -> tuple[TurnSubscription, int]:
        """Answer each open request of a turn with a user's words. An approval needs a plain yes.

        Returns the turn's events, and the number of the one before the answers. A repeat finds the turn by the `key`.
        """
        owner, place = turn.ref.owner, place_of(turn)
        answers: list[dict[str, Any]] = []
        for each in turn.requests:
            if each.kind == "question":
                fields = {"text": text}
            elif each.kind == "result":
                fields = {"error": f"The user wrote instead: {text}"[:10_000]}
            elif text.strip(" .!\n").casefold() in YES:
                fields = {"decision": "approve"}
            else:
                fields = {"decision": "reject", "reason": text[:10_000]}
            answers.append({"request_id": each.request_id, **fields})
        _, after = await self.answer(scope, place, answers)
        for name in (key, f"{key}:words") if key else ():
            await self._release(owner, name)
            await self.reserve(owner, name, place)
        return await self.follow(turn.ref, turn.number), after

    async def follow(self, ref: Ref, number: int) -> TurnSubscription:
        """Subscribe to a turn from its first event. The caller, or a `DialectStream`, must close the subscription."""
        subscription = await self.turns.subscribe(ref, number, 0)
        assert subscription, "a turn has events"
        return subscription

    async def fold(self, subscription: TurnSubscription, fold: Fold) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield number and frames of each event, up to the end of the fold or of the events. A ping has number -1."""
        reader, number = subscription.reader, subscription.turn.number
        restarts: dict[str, int] = {}  # number of the event by which a model call began again, for the last time
        if fold.drops_void_text and reader.length:
            async with aclosing(reader.follow(number)) as events:
                async for logged in events:
                    if logged and isinstance(logged.event, MessageRestarted):
                        restarts[logged.event.call_id] = logged.seq
                    if not logged or logged.seq >= reader.length:
                        break
            await reader.prepare(number, 0)
        async with aclosing(reader.follow(number)) as events:
            async for logged in events:
                if logged is None:
                    yield -1, PING
                    continue
                event = logged.event
                if isinstance(event, MessageDelta | MessageRestarted) and logged.seq <= restarts.get(event.call_id, 0):
                    continue
                if isinstance(event, TurnEnded):
                    fold.media = await self.media_of(event.result)
                waits = isinstance(event, TurnWaiting | InputAnswered) and (
                    logged.seq > reader.length or (reader.waits and logged.seq == reader.length)
                )
                yield logged.seq, b"".join(fold.frames(logged, waits=waits))
                if fold.is_complete:
                    return

    async def media_of(self, turn: Turn) -> dict[str, str]:
        """Return the images and files of a turn's answer as data: URLs, by their names. Destroyed ones are left out."""
        found = {}
        with suppress(NotFoundError):  # destroyed meanwhile
            for image in turn.outcome.images if turn.outcome else ():
                found[image.name] = data_url(*await self.conversations.image(turn.ref, image.name))
            for file in turn.outcome.files if turn.outcome else ():
                found[file.name] = data_url(file.media_type, (await self.conversations.file(turn.ref, file.name)).data)
        return found

    async def read(self, subscription: TurnSubscription, fold: Fold) -> None:
        """Fold the events that a turn has now."""
        reader, is_over = subscription.reader, bool(subscription.turn.outcome)
        with closing(subscription):
            if not (is_over or reader.length):  # the store is away
                raise StoreUnavailableError
            async with aclosing(self.fold(subscription, fold)) as steps:
                async for seq, _ in steps:
                    if not is_over and seq >= reader.length:
                        break

    async def run(self, subscription: TurnSubscription, fold: Fold) -> None:
        """Fold a turn's events until the fold is complete. Raises `ShuttingDownError` if this process ends first."""
        with closing(subscription):
            async with aclosing(self.fold(subscription, fold)) as steps:
                async for _ in steps:
                    pass
            if not fold.is_complete:
                raise ShuttingDownError


def _reserved_place(name: Ref) -> Place:
    conversation_id, _, turn = name.id.rpartition(".")
    return Place(conversation_id, int(turn))


def sse_data(data: Any) -> bytes:
    """Return JSON data as a frame of server-sent events."""
    return b"data: " + to_json(data) + b"\n\n"


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def split_data_url(url: str) -> tuple[str, str]:
    """Return the media type of a data: URL, and its content in base64."""
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return media_type, data


def is_repeat(turn: Turn, headers: Mapping[str, str]) -> bool:
    """Return whether a client sends the request of this turn again, and not a person who asks the same once more.

    Libraries repeat a request whose answer they missed or could not use. Those of OpenAI mark the repeat.
    """
    if count := headers.get(RETRIES.decode()):
        return count != "0"
    if turn.requests:  # the same words may answer the next question, but hardly at once
        return time.time() - turn.requests[0].asked_at < AT_ONCE_S
    if turn.outcome is None:
        return True
    finished_at = turn.timing.finished_at or 0.0
    return turn.outcome.status == "failed" and time.time() - finished_at < JUST_FAILED_S


class DialectStream(TurnStream):
    """Response with the frames of the events after number `after`.

    If the events end too early it breaks the connection: a clean end would count as the end of the turn
    (docs/dialects.md). `on_end` is called before the last frames, and may return others to come in front of them.
    """

    def __init__(
        self,
        gateway: Gateway,
        subscription: TurnSubscription,
        fold: Fold,
        after: int = 0,
        headers: Mapping[str, str] | None = None,
        *,
        on_end: Callable[[], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self._gateway = gateway
        self._on_end = on_end
        self._fold = fold
        super().__init__(gateway.streams, subscription, Delivery(), after)
        self.headers.update(headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except StreamCutError:
            scope[BREAK_OFF]()

    async def _frames(self, after: int) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._gateway.fold(self._subscription, self._fold)) as steps:
                async for seq, frames in steps:
                    self._is_complete = self._fold.is_complete
                    if self._is_complete and self._on_end and (before := await self._on_end()):
                        yield before
                    if frames and (seq < 0 or seq > after):
                        yield frames
        except ServiceError:  # deleted meanwhile, or not readable: a request for the turn says which
            raise StreamCutError from None
        if not self._is_complete and self._subscription.stopped:
            raise StreamCutError
