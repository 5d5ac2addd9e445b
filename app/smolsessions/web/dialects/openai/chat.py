"""Chat Completions: a request with the whole history becomes the next turn of a stored conversation."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from smolsessions.core.errors import (
    BusyError,
    InvalidRequestError,
    StoreUnavailableError,
)
from smolsessions.core.records import AgentName, Owner, Ref
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.body import in_thread_if_large
from smolsessions.web.dialects.bodies import checked, read_body
from smolsessions.web.dialects.gateway import DialectStream, Gateway
from smolsessions.web.dialects.late_answer import LateAnswer
from smolsessions.web.dialects.openai.chat_fold import ChatFold, completion
from smolsessions.web.dialects.openai.content import Message, schema_of, turn_request_of
from smolsessions.web.dialects.places import CONVERSATION_ID, Place, key_digest, new_id, place_of, turn_of_request
from smolsessions.web.routes.common import CallerOwner
from smolsessions.wire.requests import AnswerIn

MOST_MESSAGES = 5000
TASK = "### Task:"  # begins Open WebUI's own questions: for a title, tags and next questions


class ChatRequest(BaseModel):
    """Body of a request. Fields that set how a model samples are read over: the agent has its own."""

    model: AgentName = Field(min_length=1, max_length=64)
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=64)] | None = None
    metadata: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


def chat_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.get("/models")
    async def list_models(_owner: CallerOwner) -> Response:
        return JSONResponse(
            {"object": "list", "data": [model_of(info.version.name) for info in gateway.conversations.agents()]}
        )

    @router.get("/models/{model}")
    async def get_model(_owner: CallerOwner, model: str) -> Response:
        gateway.conversations.agent(AgentName(model))
        return JSONResponse(model_of(model))

    @router.post("/chat/completions")
    async def create_completion(request: Request, owner: CallerOwner) -> Response:
        body = await read_body(request, ChatRequest)
        gateway.conversations.agent(body.model)
        if is_task(body, request):
            return JSONResponse(completion(body.model, new_id(), "{}", "stop"))
        users = [message for message in body.messages if message.role == "user"]
        own_id, chat_id = ids_of(body, request)

        def digests(_body: bytes) -> list[str]:
            return [key_digest([message.text, [part.model_dump() for part in message.parts]]) for message in users]

        said = await in_thread_if_large(digests, await request.body())  # of 20 MB of images they take 100 ms
        key, history = (f"chat:{key_digest(body.model, chat_id, each)}" for each in (said, said[:-1]))
        if body.messages[-1].role in {"tool", "function"}:
            subscription, after = await answer_tools(gateway, request, body.messages)
        elif body.messages[-1].role != "user":
            raise InvalidRequestError.at("/messages", "does not end with a message of the user, or a tool's result")
        elif known := await gateway.repeated(owner, key, request.headers):
            (conversation_id, number), after = known
            subscription = await gateway.follow(Ref(owner, conversation_id), number)
        else:
            before = await last_of(gateway, owner, history, body.messages) if len(said) > 1 else None
            subscription, after = await play(gateway, request, body, key, before, own_id, chat_id)
        place = place_of(subscription.turn)
        wants_usage = bool((body.stream_options or {}).get("include_usage"))
        fold = ChatFold(subscription.turn, after, streams=bool(body.stream), wants_usage=wants_usage)

        async def remember() -> None:
            """Keep the turn under its answer, too: chats with the same questions may have other ones."""
            with suppress(StoreUnavailableError):
                await gateway.reserve(owner, key_of_answer(key, fold.text), place)

        if body.stream:
            headers = {"X-Conversation-Id": place.conversation_id}
            return DialectStream(gateway, subscription, fold, after, headers, on_end=remember)

        async def whole() -> Response:
            await gateway.run(subscription, fold)
            await remember()
            return fold.answer()

        return LateAnswer(whole())

    return router


def model_of(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "smolsessions"}


def is_task(body: ChatRequest, request: Request) -> bool:
    """Return whether Open WebUI asks for a title, tags or next questions: never a turn of the conversation."""
    users = [message for message in body.messages if message.role == "user"]
    by_text = not body.stream and len(users) == 1 and users[0].text.startswith(TASK)
    return bool(request.headers.get("x-openwebui-task")) or by_text


def ids_of(body: ChatRequest, request: Request) -> tuple[str | None, str | None]:
    """Return the id of the conversation that a client names, and else that of its chat."""
    own_id = (body.metadata or {}).get("conversation_id") or request.headers.get("x-conversation-id")
    if own_id is not None and not (isinstance(own_id, str) and CONVERSATION_ID.fullmatch(own_id)):
        raise InvalidRequestError.at("/metadata/conversation_id", "is no id: 1 to 64 letters, digits, `-` and `_`")
    return own_id, own_id or request.headers.get("x-openwebui-chat-id")


def key_of_answer(key: str, text: str) -> str:
    return f"{key}:{key_digest(text.strip())}"


async def last_of(gateway: Gateway, owner: Owner, history: str, messages: list[Message]) -> Place | None:
    """Return the turn that a history led to: the one with its last answer, else the newest with its questions."""
    answer = next((message.text for message in reversed(messages) if message.role == "assistant"), "")
    return await gateway.find(owner, key_of_answer(history, answer)) or await gateway.find(owner, history)


async def play(  # noqa: PLR0917 - all say where
    gateway: Gateway,
    request: Request,
    body: ChatRequest,
    key: str,
    before: Place | None,
    own_id: str | None,
    chat_id: str | None,
) -> tuple[TurnSubscription, int]:
    """Play the last message after the turn `before`. Return the turn's events, and the one to go on after.

    If that is not the last turn, because the user edited a message or asked again, it goes on in a fork.
    """
    owner, message = Owner(request.scope["owner"]), body.messages[-1]
    conversation = await gateway.conversation(Ref(owner, before.conversation_id)) if before else None
    if before and (asked := await gateway.asked_turn(conversation, before)):
        return await gateway.answer_in_words(request.scope, asked, message.text, key)
    sent = turn_request_of(body.model, {f"/messages/{len(body.messages) - 1}": message}, body.tools or ())
    sent.output_schema = schema_of((body.response_format or {}).get("json_schema"), "/response_format/json_schema")
    wanted = None
    with suppress(BusyError):  # of another chat with the same history: this one gets a copy of it
        if conversation and before:
            wanted = await gateway.place_after(conversation, before.turn)
    if wanted is None:
        wanted = await place_without_history(gateway, owner, body, chat_id, is_own=bool(own_id))
    return await gateway.play(request.scope, key, wanted, sent), 0


async def place_without_history(
    gateway: Gateway, owner: Owner, body: ChatRequest, chat_id: str | None, *, is_own: bool
) -> Place:
    """Return where the next turn comes if its history led to no turn.

    It is at the end of the conversation that the client names (`is_own`), or in a new one that begins with the history.
    """
    conversation_id = chat_id if chat_id and CONVERSATION_ID.fullmatch(chat_id) else new_id()
    found = await gateway.conversation(Ref(owner, conversation_id)) if conversation_id == chat_id else None
    if found and is_own:
        return Place(conversation_id, found.turn_count + 1)
    if found and found.turn_count:
        conversation_id = new_id()
    earlier = [(each.role, each.text) for each in body.messages[:-1]]
    return await gateway.import_history(owner, conversation_id, earlier, body.model)


async def answer_tools(gateway: Gateway, request: Request, messages: list[Message]) -> tuple[TurnSubscription, int]:
    """Answer a waiting turn with the results of the client's tools, whose calls have the ids of its requests."""
    answers: list[AnswerIn] = []
    for message in reversed(messages):
        if message.role not in {"tool", "function"}:
            break
        fields = {"request_id": message.tool_call_id or "", "result": message.text}
        answers.append(checked(AnswerIn, "/messages", fields))
    turn, after = await gateway.answer(request.scope, turn_of_request(answers[0].request_id), answers[::-1])
    return await gateway.follow(turn.ref, turn.number), after
