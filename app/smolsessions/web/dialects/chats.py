"""Chats of clients that name a chat and its messages themselves, and may edit them.

A chat is the conversation with its id. After an edit its newest fork is, whose number the store keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fastapi import APIRouter, Response
from starlette.types import Scope

from smolsessions.core.records import AgentName, Conversation, Owner, Ref, Turn
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.places import CONVERSATION_ID, Place, key_digest, new_id
from smolsessions.web.routes.common import CallerOwner
from smolsessions.wire.requests import TurnRequest

MOST_TRIES = 10
MOST_UNANSWERED = 20  # messages before a new one whose answers the client never saw
SPOKEN = frozenset({"user", "assistant", "tool"})


class ChatMessage(Protocol):
    """Message of a client. Its place is the turn that it is of, if this service sent it."""

    role: str

    @property
    def text(self) -> str: ...

    @property
    def place(self) -> Place | None: ...


M = TypeVar("M", bound=ChatMessage)


@dataclass(frozen=True)
class Chat:
    """Chat of an owner with the conversation of its newest branch, as it is when the request comes."""

    gateway: Gateway
    owner: Owner
    branches: str
    """Begins the keys of its forks, which are numbered from 1 on."""
    branch: int
    """Number of the newest one. 0 is the conversation with the id of the chat."""
    conversation_id: str
    conversation: Conversation | None

    @property
    def last(self) -> Place | None:
        """The last turn."""
        count = self.conversation.turn_count if self.conversation else 0
        return Place(self.conversation_id, count) if count else None

    async def find_before(
        self, known: Place | None, history: Sequence[M], key_of: Callable[[M], str]
    ) -> tuple[Place | None, Conversation | None, Turn | None]:
        """Return where a message comes after: a turn, its conversation, and the turn again if it waits for answers.

        `known` is the last turn that the message has had. `key_of` returns the key of those of a message of the user.
        """
        place = Place(known.conversation_id, known.turn - 1) if known else await self._end_of(history, key_of)
        if place is None:
            return None, None, None
        conversation = self.conversation
        if place.conversation_id != self.conversation_id:
            conversation = await self.gateway.conversation(Ref(self.owner, place.conversation_id))
        return place, conversation, await self.gateway.asked_turn(conversation, place)

    async def _end_of(self, history: Sequence[M], key_of: Callable[[M], str]) -> Place | None:
        """Return the turn that a history led to. Without a history it is the last one."""
        if not any(message.role in SPOKEN for message in history):
            return self.last
        for message in history[: -MOST_UNANSWERED - 1 : -1]:
            if place := message.place:
                return place
            if message.role == "user" and (found := (await newest(self.gateway, self.owner, key_of(message)))[1]):
                return found
        return None

    async def play(  # noqa: PLR0917 - all say what
        self,
        scope: Scope,
        key: str,
        conversation: Conversation | None,
        before: Place | None,
        history: Iterable[ChatMessage],
        body: TurnRequest,
    ) -> TurnSubscription:
        """Play a turn after the one `before`, of this conversation. If that went on, it comes in a fork.

        A history that led to no turn is imported. The chat leads to the turn's conversation from now on.
        """
        wanted = None
        if conversation and before:
            wanted = await self.gateway.place_after(conversation, before.turn, stops=True)
        if wanted is None:
            assert body.agent, "dialects name it"
            own_id = self.conversation_id if not (self.branch or self.last) else new_id()
            earlier = [(message.role, message.text) for message in history]
            wanted = await self.gateway.import_history(self.owner, own_id, earlier, AgentName(body.agent))
        reserved = await self.gateway.reserve(self.owner, key, wanted)
        if reserved[0] == wanted and wanted.conversation_id != self.conversation_id:
            first = Place(wanted.conversation_id, 1)
            for number in range(self.branch + 1, self.branch + 1 + MOST_TRIES):
                if (await self.gateway.reserve(self.owner, f"{self.branches}:{number}", first))[1]:
                    break
        return await self.gateway.play(scope, key, wanted, body, reserved)


async def open_chat(gateway: Gateway, owner: Owner, dialect: str, chat_id: str) -> Chat:
    """Return a chat. Its id is any text of the client."""
    own_id = chat_id if CONVERSATION_ID.fullmatch(chat_id) else f"chat-{key_digest(chat_id)}"
    branches = f"{dialect}:{key_digest(chat_id)}:branch"
    (branch, place), found = await asyncio.gather(
        newest(gateway, owner, branches), gateway.conversation(Ref(owner, own_id))
    )
    if place:
        own_id, found = place.conversation_id, await gateway.conversation(Ref(owner, place.conversation_id))
    return Chat(gateway, owner, branches, branch, own_id, found)


def add_stop_route(router: APIRouter, gateway: Gateway, dialect: str) -> None:
    """Add the route that stops the turn of a chat: a client that leaves does not stop it."""

    @router.post("/{agent}/{chat:path}/stop")
    async def stop(owner: CallerOwner, agent: AgentName, chat: str) -> Response:
        gateway.conversations.agent(agent)
        if last := (await open_chat(gateway, owner, dialect, chat)).last:
            await gateway.turns.cancel(Ref(owner, last.conversation_id), last.turn)
        return Response(status_code=204)


async def newest(gateway: Gateway, owner: Owner, key: str) -> tuple[int, Place | None]:
    """Return how many places were reserved for `key:1`, `key:2` and so on, and the last one."""
    low, high, place = 0, 1, None
    while found := await gateway.find(owner, f"{key}:{high}"):
        low, high, place = high, 2 * high, found
    while high - low > 1:
        middle = (low + high) // 2
        if found := await gateway.find(owner, f"{key}:{middle}"):
            low, place = middle, found
        else:
            high = middle
    return low, place
