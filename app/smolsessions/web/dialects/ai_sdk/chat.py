"""Chats of the AI SDK: a message becomes a turn, an edited one a fork, and answers go to the waiting turn."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

from smolsessions.core.errors import InvalidRequestError, NotFoundError
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.dialects.ai_sdk.fold import MessageFold
from smolsessions.web.dialects.bodies import checked, read_body, turn_request
from smolsessions.web.dialects.chats import add_stop_route, newest, open_chat
from smolsessions.web.dialects.gateway import DialectStream, Gateway
from smolsessions.web.dialects.places import Place, key_digest, place_in, place_of
from smolsessions.web.routes.common import CallerOwner
from smolsessions.wire.requests import AnswerIn

DIALECT = "ai-sdk"
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
MOST_MESSAGES = 5000


class UIMessage(BaseModel):
    id: str = Field("", max_length=500)
    role: str
    parts: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        return "\n".join(str(part.get("text", "")) for part in self.parts if part.get("type") == "text")

    @property
    def place(self) -> Place | None:
        """The turn that an assistant's message is, if it is one of this service."""
        return place_in(self.id) if self.role == "assistant" else None


class ChatRequest(BaseModel):
    """Body of a request. Other members are those of `POST /turn`."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(min_length=1, max_length=500)
    messages: list[UIMessage] = Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)
    trigger: str | None = None
    messageId: str | None = None  # noqa: N815 - as the client names it

    @cached_property
    def digest(self) -> str:
        """Hash of all messages, in place of the id that a message lacks."""
        return key_digest(self.id, [each.model_dump() for each in self.messages])

    @model_validator(mode="before")
    @classmethod
    def _take_last_message(cls, data: Any) -> Any:
        """Take `message` for `messages`, which clients send whose server keeps the messages."""
        if isinstance(data, dict) and "messages" not in data and "message" in data:
            return {**data, "messages": [data["message"]]}
        return data


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/ai-sdk")

    @router.post("/{agent}")
    async def send_messages(request: Request, owner: CallerOwner, agent: AgentName) -> Response:
        body = await read_body(request, ChatRequest)
        gateway.conversations.agent(agent)
        answered = body.messages[-1]
        if answered.role == "assistant":
            return await answer(gateway, request, owner, answered)
        subscription = await play(gateway, request, owner, agent, body)
        return DialectStream(gateway, subscription, MessageFold(subscription.turn), headers=HEADERS)

    @router.get("/{agent}/{chat:path}/stream")
    async def resume_stream(owner: CallerOwner, agent: AgentName, chat: str, finished: bool = False) -> Response:
        """Replay the chat's last message from its start, and follow it. `finished`: also one that is complete."""
        gateway.conversations.agent(agent)
        last = (await open_chat(gateway, owner, DIALECT, chat)).last
        turn = await gateway.turn_at(owner, last) if last else None
        if turn is None or (turn.outcome and not finished):
            return Response(status_code=204)
        subscription = await gateway.follow(turn.ref, turn.number)
        return DialectStream(gateway, subscription, MessageFold(subscription.turn), headers=HEADERS)

    add_stop_route(router, gateway, DIALECT)
    return router


async def play(
    gateway: Gateway, request: Request, owner: Owner, agent: AgentName, body: ChatRequest
) -> TurnSubscription:
    """Play the user's message at the end.

    The same message again follows its turn. One that was edited, or whose answer is to be another one, has a number of
    its own, and goes on in a fork.
    """
    *history, message = body.messages
    at = f"/messages/{len(history)}"
    if message.role != "user":
        raise InvalidRequestError.at("/messages", "does not end with a message of the user or the assistant")
    key = key_of(body, message)
    (count, known), chat = await asyncio.gather(
        newest(gateway, owner, key), open_chat(gateway, owner, DIALECT, body.id)
    )
    is_again = body.trigger == "regenerate-message" or body.messageId is not None
    if known and not is_again and await gateway.turn_at(owner, known):
        return await gateway.follow(Ref(owner, known.conversation_id), known.turn)
    media = [
        (str(part.get("url")), str(part.get("mediaType")), part.get("filename"), f"{at}/parts/{nth}/url")
        for nth, part in enumerate(message.parts)
        if part.get("type") == "file"
    ]
    fields = {"on_busy": "interrupt", **(body.model_extra or {})}  # only the newest turn of a chat may run
    sent = turn_request(agent, message.text, media, fields)
    before, conversation, asked = await chat.find_before(known, history, lambda each: key_of(body, each))
    if asked and history and history[-1].place == before and (answers := answers_in(asked, history[-1])[0]):
        await gateway.answer(request.scope, place_of(asked), answers)
        if len(answers) == len(asked.requests):
            sent.on_busy = "enqueue"  # behind the turn that has its answers now
    return await chat.play(request.scope, f"{key}:{count + 1}", conversation, before, history, sent)


def key_of(body: ChatRequest, message: UIMessage) -> str:
    """Return the key of the turns that a message of the user has had: one, and another for each edit."""
    return f"{DIALECT}:{key_digest(body.id, message.id) if message.id else body.digest}"


async def answer(gateway: Gateway, request: Request, owner: Owner, message: UIMessage) -> Response:
    """Record the answers in an assistant's message, and stream the rest of it. A repeat gets the same rest."""
    if not (place := message.place) or not (turn := await gateway.turn_at(owner, place)):
        raise NotFoundError("This message is no turn that waits for answers.")
    answers, outputs, after = answers_in(turn, message)
    if answers:
        _, after = await gateway.answer(request.scope, place, answers)
    elif not after:  # a stream without an outcome would make the client send the message for ever
        raise InvalidRequestError.at("/messages", "ends without an answer to an open request")
    subscription = await gateway.follow(turn.ref, turn.number)
    return DialectStream(gateway, subscription, MessageFold(turn, after, outputs), after, HEADERS)


def answers_in(turn: Turn, message: UIMessage) -> tuple[list[AnswerIn], dict[str, Any], int]:
    """Return answers to open requests, outputs of the client's tools by call, and the event before known answers."""
    still_open = {request.call_id: request for request in turn.requests}
    seqs = {answered.request_id: answered.seq for answered in turn.answered}
    answers: list[AnswerIn] = []
    outputs: dict[str, Any] = {}
    after = 0
    for part in message.parts:
        call_id = str(part.get("toolCallId", "")).removeprefix(f"{message.id}:")
        approval = part.get("approval")
        approval = approval if isinstance(approval, dict) else {}
        state, output = part.get("state"), part.get("output")
        request_id = str(approval.get("id") or f"{message.id}:{call_id}")
        after = max(after, seqs.get(request_id, 1) - 1)
        if state == "output-available":
            outputs[call_id] = output
        request = still_open.get(call_id)
        if request is None:
            continue
        fields: dict[str, Any] | None = None
        if request.kind == "approval" and state == "approval-responded" and request.request_id == request_id:
            fields = {"decision": "approve" if approval.get("approved") is True else "reject"}
            fields["reason"] = approval.get("reason")
        elif request.kind != "approval" and state == "output-error":
            text = str(part.get("errorText"))[:10_000]
            fields = {"error": text} if request.kind == "result" else {"decision": "reject", "reason": text}
        elif request.kind == "result" and state == "output-available":
            fields = {"result": output}
        elif request.kind == "question" and state == "output-available":
            fields = {"text": output if isinstance(output, str) else to_json(output).decode()}
        if fields:
            answers.append(checked(AnswerIn, "/messages", {"request_id": request.request_id, **fields}))
    return answers, outputs, after
