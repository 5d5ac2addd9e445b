"""OpenAI's Responses: a response is a turn, or the part of one between two waits for answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from smolsessions.core.errors import ConflictError, InvalidRequestError, NotFoundError
from smolsessions.core.records import AgentName, Owner, Ref, Turn
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.dialects.bodies import checked, object_at, read_body
from smolsessions.web.dialects.gateway import (
    STOP_S,
    Gateway,
    LateAnswer,
    Place,
    digest_of,
    new_id,
    turn_of_request,
)
from smolsessions.web.dialects.openai.content import (
    InputItem,
    Message,
    Part,
    approvals_in,
    messages_of,
    schema_of,
    turn_request,
)
from smolsessions.web.dialects.openai.conversations import Metadata, asks_of, input_items, page_of, read_turn, texts_of
from smolsessions.web.dialects.openai.items import Item, Segment, parsed_segment, segment_of
from smolsessions.web.dialects.openai.responses_fold import NO_FRAMES, ResponseFold
from smolsessions.web.routes.common import CallerOwner
from smolsessions.wire.requests import AnswerIn

MOST_ITEMS = 5000
FAILED = 500
_ANSWERS = frozenset({"mcp_approval_response", "function_call_output"})


class ResponseRequest(BaseModel):
    """Body of a request. Fields that set how a model samples are read over: the agent has its own."""

    model: AgentName = Field(min_length=1, max_length=64)
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
    stream: bool | None = False
    background: bool | None = False
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    metadata: Metadata | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=64)] | None = None
    text: dict[str, Any] | None = None

    @property
    def items(self) -> list[InputItem]:
        return [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input


def response_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/responses")
    responses = Responses(gateway)

    @router.post("")
    async def create_response(request: Request, owner: CallerOwner) -> Response:
        body = await read_body(request, ResponseRequest)
        gateway.conversations.agent(body.model)
        segment = await responses.begin(request, owner, body)
        if body.stream:
            return await responses.stream(segment, owner)
        if body.background:
            return JSONResponse({**await responses.snapshot(segment, owner), "background": True})
        return LateAnswer(responses.whole(segment, owner))

    @router.get("/{response_id}")
    async def get_response(
        owner: CallerOwner,
        response_id: str,
        *,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1)] = -1,
    ) -> Response:
        """Return a response as it is now, or its events after one that the client has."""
        segment, _ = await responses.find(response_id, owner)
        if stream:
            return await responses.stream(segment, owner, starting_after)
        return JSONResponse(await responses.snapshot(segment, owner))

    @router.post("/{response_id}/cancel")
    async def cancel_response(owner: CallerOwner, response_id: str) -> Response:
        segment, turn = await responses.find(response_id, owner)
        await gateway.turns.cancel(turn.ref, turn.number, STOP_S)
        return JSONResponse(await responses.snapshot(segment, owner))

    @router.delete("/{response_id}")
    async def delete_response(owner: CallerOwner, response_id: str) -> Response:
        """Roll the conversation back to the turn before. To delete it all, delete the conversation."""
        _, turn = await responses.find(response_id, owner)
        if (await gateway.conversations.store.conversation(turn.ref)).turn_count != turn.number:
            raise ConflictError("Later responses follow this one. Delete them first, or the conversation.")
        await gateway.conversations.history.roll_back(turn.ref, turn.number - 1)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @router.get("/{response_id}/input_items")
    async def list_input_items(owner: CallerOwner, response_id: str) -> Response:
        segment, turn = await responses.find(response_id, owner)
        found = await input_items(gateway, turn, segment, await read_turn(gateway, turn))
        return JSONResponse(page_of(found, has_more=False))

    return router


class Responses:
    """Responses of all owners."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def begin(self, request: Request, owner: Owner, body: ResponseRequest) -> Segment:
        """Answer a waiting turn, or play the input as a new one. Return the part of the turn that responds."""
        gateway, key = self._gateway, f"responses:{digest_of(body.model_dump())}"
        if answers := await answers_in(gateway, owner, body.items):
            place = turn_of_request(answers[0].request_id)
            return Segment(place, (await gateway.answer(request.scope, place, answers))[1])
        if known := await gateway.repeated(owner, key, request.headers):
            return Segment(*known)
        return await play(gateway, request, body, key)

    async def find(self, response_id: str, owner: Owner) -> tuple[Segment, Turn]:
        """Return a response and its turn. Raises `NotFoundError`, also if that was rolled back."""
        segment = segment_of(response_id)
        turn = await self._gateway.kept_turn(owner, segment.place)
        if turn and (not segment.after or any(each.seq == segment.after + 1 for each in turn.answered)):
            return segment, turn
        raise NotFoundError(f"No response has the id {response_id[:80]!r}.")

    async def whole(self, segment: Segment, owner: Owner) -> Response:
        """Return the response at its end. A failure has an error's status, so that clients raise."""
        subscription, fold = await self._fold(segment, owner, NO_FRAMES)
        await self._gateway.run(subscription, fold)
        if fold.response["status"] == "failed":
            return JSONResponse(fold.response, FAILED, {"x-should-retry": "false"})
        return JSONResponse(fold.response)

    async def snapshot(self, segment: Segment, owner: Owner) -> Item:
        subscription, fold = await self._fold(segment, owner, NO_FRAMES)
        await self._gateway.read(subscription, fold)
        return fold.response

    async def stream(self, segment: Segment, owner: Owner, starting_after: int = -1) -> Response:
        return self._gateway.stream(*await self._fold(segment, owner, starting_after))

    async def _fold(self, segment: Segment, owner: Owner, starting_after: int) -> tuple[TurnSubscription, ResponseFold]:
        (conversation_id, number), _ = segment
        conversation = await self._gateway.conversations.store.conversation(Ref(owner, conversation_id))
        asks, metadata = asks_of(self._gateway, conversation), texts_of(conversation.metadata)
        subscription = await self._gateway.follow(conversation.ref, number)
        return subscription, ResponseFold(
            subscription.turn, segment, metadata, asks=asks, starting_after=starting_after
        )


async def answers_in(gateway: Gateway, owner: Owner, sent: Sequence[InputItem]) -> list[AnswerIn]:
    """Return the answers to a waiting turn in an input.

    Those after the last message of the user are new. Earlier ones are history, unless their turn still waits for them.
    """
    last = max((place for place, item in enumerate(sent) if item.role == "user"), default=-1)
    found = [(place, _answer(item, f"/input/{place}")) for place, item in enumerate(sent) if item.type in _ANSWERS]
    new = [answer for place, answer in found if place > last]
    if found and not new:
        place = turn_of_request_or_none(found[-1][1].request_id)
        turn = await gateway.turn_at(owner, place) if place else None
        still_open = {request.request_id for request in turn.requests} if turn else set()
        new = [answer for _, answer in found if answer.request_id in still_open]
    if not new:
        return []
    asked = turn_of_request(new[-1].request_id)
    return [answer for answer in new if turn_of_request_or_none(answer.request_id) == asked]


def _answer(item: InputItem, pointer: str) -> AnswerIn:
    if item.type == "mcp_approval_response":
        decision = "approve" if item.approve else "reject"
        about = {"request_id": item.approval_request_id, "decision": decision, "reason": item.reason}
        return checked(AnswerIn, pointer, about)
    texts = (
        [str(part.get("text", "")) for part in item.output] if isinstance(item.output, list) else [item.output or ""]
    )
    return checked(AnswerIn, pointer, {"request_id": item.call_id, "result": "\n".join(texts)})


def turn_of_request_or_none(request_id: str) -> Place | None:
    try:
        return turn_of_request(request_id)
    except NotFoundError:
        return None


async def play(gateway: Gateway, request: Request, body: ResponseRequest, key: str) -> Segment:
    """Play the user's messages at the end of an input."""
    owner, sent = Owner(request.scope["owner"]), body.items
    first = len(sent)
    while first and sent[first - 1].role in {"user", "system", "developer"}:
        first -= 1
    said = [message for message in messages_of(sent[first:]) if message.role == "user"]
    if not said:
        raise InvalidRequestError.at("/input", "does not end with a message of the user, or an answer to a request")
    message = (
        said[0] if len(said) == 1 else Message(role="user", content=[part for each in said for part in _parts(each)])
    )
    before = await last_of(gateway, owner, body, sent[:first])
    if before and before.turn and (turn := await gateway.turn_at(owner, before)) and turn.requests:
        after = await gateway.answer_in_words(request.scope, before, turn.requests, message.text)
        await gateway.keep_words(owner, key, before)
        return Segment(before, after)
    functions = [tool for tool in body.tools or () if tool.get("type") == "function"]
    new = turn_request(body.model, f"/input/{first}", message, functions)
    new.metadata, new.approve = dict(body.metadata or {}), approvals_in(body.tools or ())
    form = object_at((body.text or {}).get("format"), "/text/format")
    if form.get("type") == "json_schema":
        new.output_schema = schema_of(form, "/text/format")
    elif form.get("type") == "json_object":
        new.output_schema = {"type": "object"}
    wanted = before and await gateway.place_after(owner, before)
    if wanted is None:
        earlier = [(each.role, each.text) for each in messages_of(sent[:first])]
        wanted = await gateway.import_history(owner, f"conv_{new_id()}", earlier, body.model, new.metadata)
    subscription = await gateway.play(request.scope, key, wanted, new)
    subscription.close()
    return Segment(Place(subscription.turn.ref.id, subscription.turn.number), 0)


async def last_of(gateway: Gateway, owner: Owner, body: ResponseRequest, history: Sequence[InputItem]) -> Place | None:
    """Return the turn to go on after: of the conversation or response that is named, else of the last known item."""
    named = body.conversation.get("id") if isinstance(body.conversation, dict) else body.conversation
    if named is not None:
        if body.previous_response_id:
            raise InvalidRequestError.at("/conversation", "comes beside previous_response_id; send one of both")
        ref = Ref(owner, str(named))
        found = await gateway.conversations.store.conversation(ref)
        if not found.turn_count and found.agent != body.model:  # it was made before its agent was known
            await gateway.conversations.patch(ref, {}, lambda _: None, body.model)
        return Place(ref.id, found.turn_count)
    if body.previous_response_id:
        place = segment_of(body.previous_response_id).place
        if await gateway.kept_turn(owner, place):
            return place
        raise NotFoundError(f"No response has the id {body.previous_response_id[:80]!r}.")
    for item in reversed(history):
        segment = parsed_segment(item.id or "") if item.role != "user" else None
        if segment and await gateway.kept_turn(owner, segment.place):
            return segment.place
    return None


def _parts(message: Message) -> list[Part]:
    return message.parts or [Part(type="text", text=message.text)]
