"""Chats of clients that name a chat and its messages themselves, and may edit them.

A chat is the conversation with its id. After an edit its newest fork is, whose number the store keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import APIRouter, Response

from smolsessions.core.errors import NotFoundError
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.web.dialects.gateway import CONVERSATION_ID, Gateway, Place, digest_of, new_id
from smolsessions.web.routes.common import CallerOwner

MOST_TRIES = 10


@dataclass(frozen=True)
class Chat:
    """Chat of an owner. `id` is any text of the client."""

    gateway: Gateway
    owner: Owner
    dialect: str
    id: str

    async def last_turn(self) -> Turn | None:
        _, conversation_id = await self._newest_branch()
        try:
            count = (await self.gateway.conversations.store.conversation(Ref(self.owner, conversation_id))).turn_count
        except NotFoundError:
            return None
        return await self.gateway.turn_at(self.owner, Place(conversation_id, count)) if count else None

    async def next_place(self, before: Place | None, history: Iterable[tuple[str, str]], agent: AgentName) -> Place:
        """Return the place after a turn, which may be in a fork. A history that led to no turn is imported."""
        if before and (after := await self.gateway.place_after(self.owner, before, stops=True)):
            return after
        branch, conversation_id = await self._newest_branch()
        is_free = not branch and await self.gateway.turn_at(self.owner, Place(conversation_id, 1)) is None
        return await self.gateway.import_history(self.owner, conversation_id if is_free else new_id(), history, agent)

    async def reserve(self, key: str, wanted: Place) -> None:
        """Reserve a place for a key. The chat leads to its conversation from now on."""
        branch, conversation_id = await self._newest_branch()
        place, _ = await self.gateway.reserve(self.owner, key, wanted)
        if place != wanted or place.conversation_id == conversation_id:
            return
        first = Place(place.conversation_id, 1)
        for number in range(branch + 1, branch + 1 + MOST_TRIES):
            if (await self.gateway.reserve(self.owner, f"{self._branches}:{number}", first))[1]:
                break

    @property
    def _branches(self) -> str:
        return f"{self.dialect}:{digest_of(self.id)}:branch"

    async def _newest_branch(self) -> tuple[int, str]:
        """Return number and conversation of the newest branch. Number 0 has the id of the chat."""
        number, place = await newest(self.gateway, self.owner, self._branches)
        if place:
            return number, place.conversation_id
        return 0, self.id if CONVERSATION_ID.fullmatch(self.id) else f"chat-{digest_of(self.id)}"


def add_stop_route(router: APIRouter, gateway: Gateway, dialect: str) -> None:
    """Add the route that stops the turn of a chat: a client that leaves does not stop it."""

    @router.post("/{agent}/{chat:path}/stop")
    async def stop(owner: CallerOwner, agent: AgentName, chat: str) -> Response:
        gateway.conversations.agent(agent)
        if turn := await Chat(gateway, owner, dialect, chat).last_turn():
            await gateway.turns.cancel(turn.ref, turn.number)
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
