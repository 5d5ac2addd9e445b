"""Runs of AG-UI: a message becomes a turn, an edited one a fork, and answers go on with the turn that waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from smolsessions.core.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ServiceError,
    StoreUnavailableError,
)
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.core.requests import InputRequest
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.dialects.ag_ui.fold import RunFold, error_frames, result_id, state_frame
from smolsessions.web.dialects.bodies import checked, client_tool, object_at, read_body, turn_request
from smolsessions.web.dialects.chats import SPOKEN, add_stop_route, newest, open_chat
from smolsessions.web.dialects.gateway import DialectStream, Gateway
from smolsessions.web.dialects.places import IN_TURN, Place, key_digest, place_in, place_of, turn_of_request
from smolsessions.web.routes.common import CallerOwner
from smolsessions.web.views import variable_views
from smolsessions.wire.requests import AnswerIn, TurnRequest

DIALECT = "ag-ui"
MOST_MESSAGES = 5000
EVENT_STREAM = "text/event-stream"


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str = Field("", max_length=500)
    role: str
    content: Any = None
    toolCallId: str = ""  # noqa: N815 - as the protocol names it
    toolCalls: list[dict[str, Any]] = []  # noqa: N815
    error: str | None = None

    @property
    def parts(self) -> list[dict[str, Any]]:
        parts = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []

    @property
    def text(self) -> str:
        return "\n".join(str(part.get("text")) for part in self.parts if part.get("type") == "text")

    @property
    def place(self) -> Place | None:
        """The turn that the message is of, if this service sent it, or it has the result of a call of that turn."""
        return place_in(self.id, IN_TURN) or place_in(self.toolCallId, IN_TURN)


class Resume(BaseModel):
    """Answer to an interrupt."""

    interruptId: str = Field(max_length=500)  # noqa: N815
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunInput(BaseModel):
    """Body of a request. `forwardedProps` may have members of `POST /turn`."""

    threadId: str = Field(min_length=1, max_length=500)  # noqa: N815
    runId: str = Field(min_length=1, max_length=500)  # noqa: N815
    protocolVersion: str | None = None  # noqa: N815
    messages: list[Message] = Field(max_length=MOST_MESSAGES, fail_fast=True)
    tools: list[dict[str, Any]] = Field([], max_length=64, fail_fast=True)
    context: list[dict[str, Any]] = Field([], max_length=100, fail_fast=True)
    forwardedProps: Any = None  # noqa: N815
    resume: list[Resume] = Field([], max_length=100, fail_fast=True)
    state: Any = None

    @property
    def key(self) -> str:
        return f"{DIALECT}:{key_digest(self.threadId, self.runId)}"

    @property
    def results(self) -> list[Message]:
        """Results of the client's tools after the agent's last message."""
        found: list[Message] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            found += [message] if message.role == "tool" else []
        return found[::-1]


class Begun(NamedTuple):
    """Turn of a run, and the number of the event that the run goes on after."""

    subscription: TurnSubscription
    after: int = 0
    is_known: bool = False
    """True if the client may have a part of the run."""
    asks_again: bool = False


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/ag-ui")

    @router.post("/{agent}")
    async def run(request: Request, owner: CallerOwner, agent: AgentName) -> Response:
        body = await read_body(request, RunInput)
        gateway.conversations.agent(agent)
        try:
            subscription, after, is_known, asks_again = await begin(gateway, request, owner, agent, body)
        except (ConflictError, InvalidRequestError, NotFoundError) as error:
            if not body.resume:
                raise
            return Response(error_frames((body.threadId, body.runId), error.code, str(error)), media_type=EVENT_STREAM)
        turn, prefix = subscription.turn, f"{place_of(subscription.turn)}:"
        ours = next((nth for nth, each in enumerate(body.messages) if each.id.startswith(prefix)), len(body.messages))
        sent = [message.model_dump(exclude_none=True, exclude_unset=True) for message in body.messages]
        fold = RunFold(
            turn,
            (body.threadId, body.runId),
            after,
            sent[:ours],
            {each["toolCallId"]: each for each in sent if each["role"] == "tool" and "toolCallId" in each},
            snapshot=is_known,
            is_old=body.protocolVersion is None,
            known_calls=frozenset(str(call.get("id")) for message in body.messages for call in message.toolCalls)
            if asks_again
            else None,
        )

        async def state() -> bytes | None:
            """Return the variables of an agent that writes code, beside the client's own state."""
            if turn.agent.kind != "CodeAgent" or not fold.may_send_state:
                return None
            try:
                variables = await gateway.conversations.variables(turn.ref)
            except ServiceError:  # this turn waits, or the next one runs: the run ends without a state
                return None
            views = await asyncio.to_thread(variable_views, variables)
            known = {view["name"]: view["preview"] for view in views if not view["agent"]}
            own = body.state if isinstance(body.state, dict) else {}
            return state_frame({**own, "variables": known})

        return DialectStream(gateway, subscription, fold, on_end=state)

    add_stop_route(router, gateway, DIALECT)
    return router


async def begin(gateway: Gateway, request: Request, owner: Owner, agent: AgentName, body: RunInput) -> Begun:
    """Begin a run, or follow the one with this id. Raises the errors of submitting a turn and of answering one."""
    last = next((message for message in reversed(body.messages) if message.role in SPOKEN), None)
    if last and last.role == "user" and not body.resume:
        return await play(gateway, request, owner, agent, body, last)
    known = await gateway.find(owner, body.key)
    is_known = bool(known and await gateway.turn_at(owner, known))
    if body.resume or (last and last.role == "tool"):
        place, after = await answer(gateway, request, owner, body, is_known=is_known)
        await gateway.reserve(owner, body.key, place)
        subscription = await gateway.follow(Ref(owner, place.conversation_id), place.turn)
        is_known = is_known or not after
        return Begun(subscription, subscription.reader.length if is_known else after, is_known)
    if known and is_known:
        return await rejoin(gateway, Ref(owner, known.conversation_id), known.turn)
    raise InvalidRequestError.at("/messages", "does not end with a message of the user, or a tool's result")


async def rejoin(gateway: Gateway, ref: Ref, number: int) -> Begun:
    """Follow a turn from here on, for a client that may have a part of it."""
    subscription = await gateway.follow(ref, number)
    return Begun(subscription, subscription.reader.length, is_known=True)


async def play(  # noqa: PLR0917
    gateway: Gateway, request: Request, owner: Owner, agent: AgentName, body: RunInput, message: Message
) -> Begun:
    """Play a message of the user.

    A known run, and a message whose turn still runs, are followed. If the turn is over, or the message was edited, it
    goes on in a fork.
    """
    history = body.messages[: next(nth for nth, each in enumerate(body.messages) if each is message)]
    key = key_of(body, message)
    of_run, (count, of_message), chat = await asyncio.gather(
        gateway.find(owner, body.key),
        newest(gateway, owner, key),
        open_chat(gateway, owner, DIALECT, body.threadId),
    )
    for place in filter(None, (of_run, of_message)):
        turn = await gateway.turn_at(owner, place)
        if turn and (place == of_run or not turn.outcome):
            return await rejoin(gateway, turn.ref, turn.number)
    before, conversation, asked = await chat.find_before(of_message, history, lambda each: key_of(body, each))
    if asked and any(each.kind != "result" for each in asked.requests):
        subscription = await gateway.follow(asked.ref, asked.number)
        return Begun(subscription, subscription.reader.length - 1, asks_again=True)
    sent = request_of(agent, len(history), message, body)
    if asked and (answers := answers_of(asked, body)):
        await gateway.answer(request.scope, place_of(asked), answers)
        if len(answers) == len(asked.requests):
            sent.on_busy = "enqueue"  # behind the turn that has its results now
    subscription = await chat.play(request.scope, body.key, conversation, before, history, sent)
    with suppress(StoreUnavailableError):  # the turn is accepted
        await gateway.reserve(owner, f"{key}:{count + 1}", place_of(subscription.turn))
    return Begun(subscription)


def key_of(body: RunInput, message: Message) -> str:
    """Return the key of the turns that a message of the user has had: one, and another for each edit."""
    return f"{DIALECT}:{key_digest(body.threadId, 'message', message.id or body.runId)}"


async def answer(
    gateway: Gateway, request: Request, owner: Owner, body: RunInput, *, is_known: bool
) -> tuple[Place, int]:
    """Record the answers of a run. Returns its turn, and the event before the answers, or 0 if they came too late."""
    asked = [each.interruptId for each in body.resume] + [message.toolCallId for message in body.results]
    place = turn_of_request(asked[0])
    turn = await gateway.turn_at(owner, place)
    if turn is None:
        raise NotFoundError(f"No open request has the id {asked[0][:80]!r}.")
    is_late = not any(each.request_id in asked for each in turn.requests)
    if is_late and (is_known or all(each.status == "cancelled" for each in body.resume)):
        return place, 0
    answers = answers_of(turn, body, is_late=is_late)
    given = {each.request_id for each in answers}
    if left := [each.request_id for each in turn.requests if each.kind != "result" and each.request_id not in given]:
        raise InvalidRequestError.at("/resume", f"leaves an interrupt open: {left[0]}")
    _, after = await gateway.answer(request.scope, place, answers)
    return place, after


def answers_of(turn: Turn, body: RunInput, *, is_late: bool = False) -> list[AnswerIn]:
    """Return the answers to interrupts, and the results of the client's tools. Raises `InvalidRequestError`.

    A step may have results of the agent's own calls, too, and of calls that were answered before. A late answer is one
    to no open request: the store knows whether it is a repeat.
    """
    still_open = {each.request_id: each for each in turn.requests}
    of_calls = {f"{place_of(turn)}:{each.call_id}": each.request_id for each in turn.requests if each.kind == "result"}
    answers = [
        checked(AnswerIn, f"/resume/{nth}", _answer(each, still_open.get(each.interruptId), f"/resume/{nth}"))
        for nth, each in enumerate(body.resume)
    ]
    for message in body.results:
        urls = [_url_of(part) for part in message.parts if part.get("type") == "image"]
        request_id = of_calls.get(message.toolCallId, message.toolCallId)
        if message.id == result_id(message.toolCallId) if is_late else request_id not in still_open:
            continue
        result = {"error": message.error[:10_000]} if message.error else {"result": message.text, "images": urls}
        answers.append(checked(AnswerIn, "/messages", {"request_id": request_id, **result}))
    return answers


def _answer(entry: Resume, request: InputRequest | None, pointer: str) -> dict[str, Any]:
    payload, named = entry.payload, {"request_id": entry.interruptId}
    if entry.status == "cancelled":
        return {**named, "decision": "reject"}
    fields = payload if isinstance(payload, dict) else {"approved": payload, "answer": payload}
    if request and request.kind == "question":
        said = fields.get("answer", payload)
        return {**named, "text": said if isinstance(said, str) else to_json(said).decode()}
    if not isinstance(fields.get("approved"), bool):
        raise InvalidRequestError.at(f"{pointer}/payload/approved", "is neither true nor false")
    edited = {"arguments": fields["editedArgs"]} if fields.get("editedArgs") is not None else {}
    return {
        **named,
        "decision": "approve" if fields["approved"] else "reject",
        "reason": fields.get("reason"),
        **edited,
    }


def request_of(agent: AgentName, place: int, message: Message, body: RunInput) -> TurnRequest:
    """Return the user's message number `place` as a request of this service, with the client's tools and context."""
    at = f"/messages/{place}/content"
    media = []
    for nth, part in enumerate(message.parts):
        if part.get("type") != "text":
            about = object_at(part.get("metadata"), f"{at}/{nth}/metadata")
            url, name = _url_of(part), about.get("filename")
            media.append((url, url[5:].partition(";")[0], name, f"{at}/{nth}/source"))
    props = body.forwardedProps if isinstance(body.forwardedProps, dict) else {}
    fields = {"on_busy": "interrupt", **props, "client_tools": []}  # only the newest turn of a thread may run
    if body.context:
        own = props.get("additional_args")
        fields["additional_args"] = {"context": body.context, **(own if isinstance(own, dict) else {})}
    sent = turn_request(agent, message.text, media, fields, "/forwardedProps")
    sent.client_tools = [client_tool(tool, f"/tools/{nth}") for nth, tool in enumerate(body.tools)]
    return sent


def _url_of(part: dict[str, Any]) -> str:
    """Return the content of an image or a file as a data: URL, or its address elsewhere."""
    source = part.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "data":
        return f"data:{source.get('mimeType')};base64,{source.get('value')}"
    return str(source.get("value"))
