"""Chat Completions: a request with the whole history becomes the next turn of a stored conversation."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from smolsessions.core.errors import AgentNotFoundError, InvalidRequestError, NotFoundError
from smolsessions.core.records import AgentName, Owner, Ref
from smolsessions.web.dialects.bodies import imported_history, read_body
from smolsessions.web.dialects.gateway import (
    Gateway,
    LateAnswer,
    Place,
    digest_of,
    is_repeat,
    new_id,
    turn_of_request,
)
from smolsessions.web.dialects.openai.chat_fold import ChatFold, completion
from smolsessions.web.dialects.openai.content import Message, turn_request
from smolsessions.web.routes.common import CallerOwner
from smolsessions.wire.requests import AnswerIn, AnswersRequest

MOST_MESSAGES = 5000
MOST_REPEATS = 100  # of the same question after the same history
TASK = "### Task:"  # begins Open WebUI's own questions: for a title, tags and next questions


class ChatRequest(BaseModel):
    """Body of a request. Fields that set how a model samples are read over: the agent has its own."""

    model: AgentName = Field(min_length=1, max_length=64)
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=64)] | None = None
    metadata: dict[str, Any] | None = None


def chat_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.get("/models")
    async def list_models(_owner: CallerOwner) -> Response:
        return JSONResponse({"object": "list", "data": [model_of(name) for name in agent_names(gateway)]})

    @router.get("/models/{model}")
    async def get_model(_owner: CallerOwner, model: str) -> Response:
        check_agent(gateway, model)
        return JSONResponse(model_of(model))

    @router.post("/chat/completions")
    async def create_completion(request: Request, owner: CallerOwner) -> Response:
        body = await read_body(request, ChatRequest)
        check_agent(gateway, body.model)
        if is_task(body, request):
            return JSONResponse(completion(body.model, new_id(), "{}", "stop"))
        if body.messages[-1].role in {"tool", "function"}:
            place, after = await answer_tools(gateway, request, body.messages)
        else:
            place, after = await place_of(gateway, request, owner, body)
        subscription = await gateway.follow(Ref(owner, place.conversation_id), place.turn)
        wants_usage = bool((body.stream_options or {}).get("include_usage"))
        fold = ChatFold(subscription.turn, after, wants_usage=wants_usage)
        if body.stream:
            return gateway.stream(subscription, fold, after, {"X-Conversation-Id": place.conversation_id})

        async def whole() -> Response:
            await gateway.run(subscription, fold)
            return fold.answer()

        return LateAnswer(whole())

    return router


def agent_names(gateway: Gateway) -> list[AgentName]:
    return [info.version.name for info in gateway.conversations.agents()]


def model_of(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "smolsessions"}


def check_agent(gateway: Gateway, name: str) -> None:
    """Raise `AgentNotFoundError` for a model that is no agent here."""
    if name not in agent_names(gateway):
        raise AgentNotFoundError(f"No agent {name!r} is here; GET /openai/v1/models lists them.")


def is_task(body: ChatRequest, request: Request) -> bool:
    """Return whether Open WebUI asks for a title, tags or next questions: never a turn of the conversation."""
    users = [message for message in body.messages if message.role == "user"]
    by_text = not body.stream and len(users) == 1 and users[0].text.startswith(TASK)
    return bool(request.headers.get("x-openwebui-task")) or by_text


async def place_of(gateway: Gateway, request: Request, owner: Owner, body: ChatRequest) -> tuple[Place, int]:
    """Play the last message after the history before it. Return the turn's place, and the event to go on after.

    A history is known by the digest of its user messages, which the store keeps with the turn that they led to. One
    that goes on from an earlier turn, because the user edited a message or asked again, goes on in a fork.
    """
    users = [message for message in body.messages if message.role == "user"]
    if not users or body.messages[-1].role != "user":
        raise InvalidRequestError.at("/messages", "does not end with a message of the user, or a tool's result")
    said = [digest_of([message.text, [part.model_dump() for part in message.parts]]) for message in users]
    own_id = (body.metadata or {}).get("conversation_id") or request.headers.get("x-conversation-id")
    chat_id = own_id or request.headers.get("x-openwebui-chat-id")
    seed = digest_of(body.model, chat_id)
    key = f"chat:{digest_of(seed, said)}"
    nth = 0
    for nth in count():
        if not (known := await gateway.find(owner, f"{key}:{nth}")) or nth == MOST_REPEATS:
            break
        turn = await gateway.turn_at(owner, known)
        if turn and is_repeat(turn, request.headers):
            return known, 0
    sent = turn_request(body.model, len(body.messages) - 1, users[-1], body.tools or ())
    history = f"chat:{digest_of(seed, said[:-1])}"
    before = await last_of(gateway, owner, history, body.messages) if len(said) > 1 else None
    if before and (turn := await gateway.turn_at(owner, before)) and turn.requests:
        after = await gateway.answer_in_words(request.scope, before, turn.requests, users[-1].text)
        await gateway.reserve(owner, f"{key}:{nth}", before)
        return before, after
    wanted = await next_place(gateway, owner, body, before, chat_id, is_own=bool(own_id))
    subscription = await gateway.play(request.scope, f"{key}:{nth}", wanted, sent)
    subscription.close()
    return Place(subscription.turn.ref.id, subscription.turn.number), 0


async def last_of(gateway: Gateway, owner: Owner, history: str, messages: list[Message]) -> Place | None:
    """Return the turn that a history led to. Of several it is the one whose answer the history has."""
    found: list[Place] = []
    while len(found) < MOST_REPEATS and (place := await gateway.find(owner, f"{history}:{len(found)}")):
        found.append(place)
    if len(found) > 1:
        answers = [message.text.strip() for message in messages if message.role == "assistant"]
        for place in reversed(found):
            turn = await gateway.turn_at(owner, place)
            if turn and turn.outcome and answers and (turn.outcome.reply or "").strip() == answers[-1]:
                return place
    return found[-1] if found else None


async def next_place(
    gateway: Gateway,
    owner: Owner,
    body: ChatRequest,
    before: Place | None,
    chat_id: str | None,
    *,
    is_own: bool,
) -> Place:
    """Return where the next turn comes: in the conversation of the history, a fork of it, or a new one."""
    conversations = gateway.conversations
    if before and (after := await gateway.place_after(owner, before)):
        return after
    if chat_id and is_own:
        try:
            return Place(chat_id, (await conversations.store.conversation(Ref(owner, chat_id))).turn_count + 1)
        except NotFoundError:
            pass
    is_free = chat_id and not is_own and await gateway.turn_at(owner, Place(chat_id, 1)) is None
    conversation_id = chat_id if chat_id and (is_own or is_free) else new_id()
    earlier = imported_history([(each.role, each.text) for each in body.messages[:-1]], body.model)
    if not earlier["turns"]:
        return Place(conversation_id, 1)
    await conversations.import_document(owner, earlier, conversation_id, body.model)
    return Place(conversation_id, len(earlier["turns"]) + 1)


async def answer_tools(gateway: Gateway, request: Request, messages: list[Message]) -> tuple[Place, int]:
    """Answer a waiting turn with the results of the client's tools, whose calls have the ids of its requests."""
    answers: list[AnswerIn] = []
    for message in reversed(messages):
        if message.role not in {"tool", "function"}:
            break
        answers.append(AnswerIn(request_id=message.tool_call_id or "", result=message.text))
    place = turn_of_request(answers[0].request_id)
    _, after = await gateway.answer(request.scope, place, AnswersRequest(answers=answers[::-1]))
    return place, after
