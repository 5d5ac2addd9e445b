"""Messages of A2A's clients: each plays the turn that is its task, or answers the task that it names."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import to_json
from starlette.types import Scope

from smolsessions.core.errors import BusyError, ConflictError, InvalidRequestError, NotFoundError
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.dialects.bodies import turn_request
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.places import CONVERSATION_ID, Place, key_digest, new_id, place_in, place_of
from smolsessions.wire.requests import TurnRequest

_OF_TURN = ("output_schema", "max_steps", "deadline_s")  # members of POST /turn that a message's metadata may have


class Params(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class Part(Params):
    text: str | None = None
    raw: str | None = None
    data: Any = None
    filename: str = ""
    media_type: str = ""


class Message(Params):
    message_id: str = Field(min_length=1, max_length=500)
    role: Literal["ROLE_USER"]
    parts: list[Part] = Field(min_length=1, max_length=100, fail_fast=True)
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = {}


async def begin(gateway: Gateway, scope: Scope, agent: AgentName, message: Message) -> tuple[TurnSubscription, int]:
    """Play the turn of a message, or answer with it the task that it names. A repeat of the message changes nothing.

    Returns the turn's events, and the number of the event at which those for this message begin.
    """
    owner, context = Owner(scope["owner"]), message.context_id
    key = f"a2a:{await asyncio.to_thread(key_digest, agent, message.model_dump())}"  # 20 MB of files take 60 ms
    body = turn_request_of(agent, message)
    if message.task_id:
        turn = await turn_of(gateway, owner, agent, message.task_id)
        if context not in {"", turn.ref.id}:
            raise InvalidRequestError.at("/message/contextId", "is not that of the task")
        if await gateway.find(owner, key) == place_of(turn) and turn.answered:
            return await gateway.follow(turn.ref, turn.number), turn.answered[-1].seq
        if turn.requests:
            subscription, after = await gateway.answer_in_words(scope, turn, body.message, key)
            return subscription, after + 1
        raise ConflictError("The task asks for no input; send the message without its taskId.")
    if context and not CONVERSATION_ID.fullmatch(context):
        raise InvalidRequestError.at("/message/contextId", "is no id: 1 to 64 letters, digits, `-` and `_`")
    wanted = Place(context or new_id(), 1)
    with suppress(NotFoundError):
        found = await gateway.conversations.store.conversation(Ref(owner, context)) if context else None
        if found and found.waits and not await gateway.find(owner, key):
            raise BusyError(f"The task {context}:{found.running_turn} waits for input; name it as taskId.")
        wanted = Place(context, found.turn_count + 1) if found else wanted
    return await gateway.play(scope, key, wanted, body), 1


async def turn_of(gateway: Gateway, owner: Owner, agent: AgentName, task_id: str) -> Turn:
    """Return the turn that a task of this agent is. Raises `NotFoundError`."""
    place = place_in(task_id)
    turn = await gateway.turn_at(owner, place) if place else None
    if turn is None or turn.agent.name != agent:
        raise NotFoundError(f"No task has the id {task_id[:80]!r}.")
    return turn


def turn_request_of(agent: AgentName, message: Message) -> TurnRequest:
    """Return a message as a request of this service. It waits for earlier tasks of its context."""
    texts: list[str] = []
    media: list[tuple[str, str, str | None, str]] = []
    for nth, part in enumerate(message.parts):
        at, kind = f"/message/parts/{nth}", part.media_type
        if part.text is not None:
            texts.append(part.text)
        elif part.raw is not None:
            media.append((f"data:{kind};base64,{part.raw}", kind, part.filename, f"{at}/raw"))
        elif "data" in part.model_fields_set:
            texts.append(to_json(part.data).decode())
        else:
            raise InvalidRequestError.at(at, "has no text, raw or data; a url is not fetched")
    own = {name: message.metadata[name] for name in _OF_TURN if name in message.metadata}
    return turn_request(agent, "\n".join(texts), media, {"on_busy": "enqueue", **own}, "/message/metadata")
