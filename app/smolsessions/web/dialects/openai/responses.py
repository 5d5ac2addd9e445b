"""OpenAI's Responses: a response is a turn, or the part of one between two waits for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from smolsessions.core.errors import ConflictError, InvalidRequestError, NotFoundError
from smolsessions.core.records import AgentName, Conversation, Owner, Ref, Turn
from smolsessions.core.turns import TurnSubscription
from smolsessions.web.body import in_thread_if_large
from smolsessions.web.dialects.bodies import checked, object_at, read_body
from smolsessions.web.dialects.gateway import STOP_S, DialectStream, Gateway
from smolsessions.web.dialects.late_answer import LateAnswer
from smolsessions.web.dialects.openai.content import (
    InputItem,
    approvals_in,
    messages_of,
    schema_of,
    text_of,
    turn_request_of,
)
from smolsessions.web.dialects.openai.conversations import Metadata, asks_of, input_items, page_of, read_turn, texts_of
from smolsessions.web.dialects.openai.items import Item, Segment, parsed_segment, segment_of
from smolsessions.web.dialects.openai.responses_fold import NO_FRAMES, ResponseFold
from smolsessions.web.dialects.places import IN_TURN, Place, key_digest, new_id, place_in, place_of, turn_of_request
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

    @router.post("")
    async def create_response(request: Request, owner: CallerOwner) -> Response:
        body = await read_body(request, ResponseRequest)
        gateway.conversations.agent(body.model)
        subscription, after = await begin(gateway, request, owner, body)
        if body.background:
            subscription.close()  # the events so far are those of the log
            return JSONResponse({**await snapshot(gateway, subscription.turn, after), "background": True})
        fold = await fold_of(gateway, subscription, after, -1 if body.stream else NO_FRAMES)
        if body.stream:
            return DialectStream(gateway, subscription, fold)

        async def whole() -> Response:
            """Return the response at its end. A failure has an error's status, so that clients raise."""
            await gateway.run(subscription, fold)
            if fold.response["status"] == "failed":
                return JSONResponse(fold.response, FAILED, {"x-should-retry": "false"})
            return JSONResponse(fold.response)

        return LateAnswer(whole())

    @router.get("/{response_id}")
    async def get_response(
        owner: CallerOwner,
        response_id: str,
        *,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1)] = -1,
    ) -> Response:
        """Return a response as it is now, or its events after one that the client has."""
        turn, after = await find(gateway, owner, response_id)
        if not stream:
            return JSONResponse(await snapshot(gateway, turn, after))
        subscription = await gateway.follow(turn.ref, turn.number)
        return DialectStream(gateway, subscription, await fold_of(gateway, subscription, after, starting_after))

    @router.post("/{response_id}/cancel")
    async def cancel_response(owner: CallerOwner, response_id: str) -> Response:
        turn, after = await find(gateway, owner, response_id)
        await gateway.turns.cancel(turn.ref, turn.number, STOP_S)
        return JSONResponse(await snapshot(gateway, turn, after))

    @router.delete("/{response_id}")
    async def delete_response(owner: CallerOwner, response_id: str) -> Response:
        """Roll the conversation back to the turn before. To delete it all, delete the conversation."""
        turn, _ = await find(gateway, owner, response_id)
        if (await gateway.conversations.store.conversation(turn.ref)).turn_count != turn.number:
            raise ConflictError("Later responses follow this one. Delete them first, or the conversation.")
        await gateway.conversations.history.roll_back(turn.ref, turn.number - 1)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @router.get("/{response_id}/input_items")
    async def list_input_items(owner: CallerOwner, response_id: str) -> Response:
        turn, after = await find(gateway, owner, response_id)
        found = await input_items(gateway, turn, Segment(place_of(turn), after), await read_turn(gateway, turn))
        return JSONResponse(page_of(found, has_more=False))

    return router


async def find(gateway: Gateway, owner: Owner, response_id: str) -> tuple[Turn, int]:
    """Return the turn of a response, and the event that it follows. Raises `NotFoundError`, also if rolled back."""
    segment = segment_of(response_id)
    turn = await gateway.kept_turn(owner, segment.place)
    if turn and (not segment.after or any(each.seq == segment.after + 1 for each in turn.answered)):
        return turn, segment.after
    raise NotFoundError(f"No response has the id {response_id[:80]!r}.")


async def snapshot(gateway: Gateway, turn: Turn, after: int) -> Item:
    """Return the response as it is now."""
    subscription = await gateway.follow(turn.ref, turn.number)
    fold = await fold_of(gateway, subscription, after, NO_FRAMES)
    await gateway.read(subscription, fold)
    return fold.response


async def fold_of(gateway: Gateway, subscription: TurnSubscription, after: int, starting_after: int) -> ResponseFold:
    """Return the fold for a response. Closes the subscription if that fails."""
    turn = subscription.turn
    try:
        conversation = await gateway.conversations.store.conversation(turn.ref)
    except BaseException:  # also of a request that was cancelled
        subscription.close()
        raise
    asks, metadata = asks_of(gateway, conversation), texts_of(conversation.metadata)
    return ResponseFold(turn, Segment(place_of(turn), after), metadata, asks=asks, starting_after=starting_after)


async def begin(
    gateway: Gateway, request: Request, owner: Owner, body: ResponseRequest
) -> tuple[TurnSubscription, int]:
    """Answer a waiting turn, or play the input as a new one. Return its events, and the one to go on after."""
    digest = await in_thread_if_large(lambda _: key_digest(body.model_dump()), await request.body())
    key = f"responses:{digest}"
    if answers := await answers_in(gateway, owner, body.items):
        turn, after = await gateway.answer(request.scope, turn_of_request(answers[0].request_id), answers)
        return await gateway.follow(turn.ref, turn.number), after
    if known := await gateway.repeated(owner, key, request.headers):
        (conversation_id, number), after = known
        return await gateway.follow(Ref(owner, conversation_id), number), after
    return await play(gateway, request, owner, body, key)


async def answers_in(gateway: Gateway, owner: Owner, sent: Sequence[InputItem]) -> list[AnswerIn]:
    """Return the answers to a waiting turn in an input.

    Those after the last message of the user are new. Earlier ones are history, unless their turn still waits for them.
    """
    last = max((place for place, item in enumerate(sent) if item.role == "user"), default=-1)
    found = [(place, _answer(item, f"/input/{place}")) for place, item in enumerate(sent) if item.type in _ANSWERS]
    new = [answer for place, answer in found if place > last]
    if found and not new:
        place = place_in(found[-1][1].request_id, IN_TURN)
        turn = await gateway.turn_at(owner, place) if place else None
        still_open = {request.request_id for request in turn.requests} if turn else set()
        new = [answer for _, answer in found if answer.request_id in still_open]
    if not new:
        return []
    asked = turn_of_request(new[-1].request_id)
    return [answer for answer in new if place_in(answer.request_id, IN_TURN) == asked]


def _answer(item: InputItem, pointer: str) -> AnswerIn:
    if item.type == "mcp_approval_response":
        decision = "approve" if item.approve else "reject"
        about = {"request_id": item.approval_request_id, "decision": decision, "reason": item.reason}
        return checked(AnswerIn, pointer, about)
    texts = (
        [str(part.get("text", "")) for part in item.output] if isinstance(item.output, list) else [item.output or ""]
    )
    return checked(AnswerIn, pointer, {"request_id": item.call_id, "result": "\n".join(texts)})


async def play(
    gateway: Gateway, request: Request, owner: Owner, body: ResponseRequest, key: str
) -> tuple[TurnSubscription, int]:
    """Play the user's messages at the end of an input."""
    sent = body.items
    first = len(sent)
    while first and sent[first - 1].role in {"user", "system", "developer"}:
        first -= 1
    said = {at: each for at, each in messages_of(sent[first:], "/input", first).items() if each.role == "user"}
    if not said:
        raise InvalidRequestError.at("/input", "does not end with a message of the user, or an answer to a request")
    conversation, before = await last_of(gateway, owner, body, sent[:first])
    if before and (asked := await gateway.asked_turn(conversation, before)):
        return await gateway.answer_in_words(request.scope, asked, text_of(said), key)
    functions = [tool for tool in body.tools or () if tool.get("type") == "function"]
    new = turn_request_of(body.model, said, functions)
    new.metadata, new.approve = dict(body.metadata or {}), approvals_in(body.tools or ())
    form = object_at((body.text or {}).get("format"), "/text/format")
    if form.get("type") == "json_schema":
        new.output_schema = schema_of(form, "/text/format")
    elif form.get("type") == "json_object":
        new.output_schema = {"type": "object"}
    wanted = await gateway.place_after(conversation, before.turn) if conversation and before else None
    if wanted is None:
        earlier = [(each.role, each.text) for each in messages_of(sent[:first], "/input").values()]
        wanted = await gateway.import_history(owner, f"conv_{new_id()}", earlier, body.model, new.metadata)
    return await gateway.play(request.scope, key, wanted, new), 0


async def last_of(
    gateway: Gateway, owner: Owner, body: ResponseRequest, history: Sequence[InputItem]
) -> tuple[Conversation | None, Place | None]:
    """Return the turn to go on after, and its conversation.

    It is that of the conversation or response that is named, else of the last known item.
    """
    named = body.conversation.get("id") if isinstance(body.conversation, dict) else body.conversation
    if named is not None:
        if body.previous_response_id:
            raise InvalidRequestError.at("/conversation", "comes beside previous_response_id; send one of both")
        found = await gateway.conversations.store.conversation(Ref(owner, str(named)))
        if not found.turn_count and found.agent != body.model:  # it was made before its agent was known
            await gateway.conversations.patch(found.ref, {}, lambda _: None, body.model)
        return found, Place(found.ref.id, found.turn_count)
    if body.previous_response_id:
        segments = [segment_of(body.previous_response_id)]
    else:
        known = (parsed_segment(item.id or "") for item in reversed(history) if item.role != "user")
        segments = [segment for segment in known if segment]
    for segment in segments:
        place = segment.place
        turn, conversation = await asyncio.gather(
            gateway.kept_turn(owner, place), gateway.conversation(Ref(owner, place.conversation_id))
        )
        if turn:
            return conversation, place
    if body.previous_response_id:
        raise NotFoundError(f"No response has the id {body.previous_response_id[:80]!r}.")
    return None, None
