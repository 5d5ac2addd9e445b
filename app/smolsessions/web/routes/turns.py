"""Turns over HTTP: hand one in and wait for its end, or look at it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from smolsessions.core.errors import InvalidRequestError, ShuttingDownError
from smolsessions.core.records import AgentName, Owner, Ref, Turn, TurnInput, TurnOptions
from smolsessions.core.turns import NewTurn
from smolsessions.web.fast_route import FastRoute
from smolsessions.web.image_checks import DECODER, read_images
from smolsessions.web.negotiation import wait_of, wants_stream
from smolsessions.web.requests import TurnRequest  # noqa: TC001 - FastAPI reads the annotations
from smolsessions.web.routes.common import (
    CallerOwner,
    Cursor,
    Internal,
    Limit,
    Limits,
    OnDisconnect,
    PathId,
    Prefer,
    TurnNumber,
    answer,
    location_of,
    number_of,
    problems,
)
from smolsessions.web.sse import EVENT_STREAM, TurnStream
from smolsessions.web.views import TurnPage, TurnView, page_view, turn_view

if TYPE_CHECKING:
    from smolsessions.core.records import StepImage
    from smolsessions.core.turns import Turns
    from smolsessions.web.sse import EventStreams

Accept = Annotated[str | None, Header(description="`text/event-stream`: the turn's events as they happen.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,255}$",
        description="A name for this request, new for each. Sent again with it the same request is answered with the "
        "turn that it made, for 24 hours.",
    ),
]
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": TurnView,
        "description": "The turn, over; a turn's own failure is `status: failed` in here. Or its events.",
        **EVENT_STREAM,
    },
    202: {"model": TurnView, "description": "The turn, which goes on; `Location` is where to look."},
}


@dataclass(frozen=True)
class Asked:
    """How a caller wants the answer to a turn, and the key that makes it safe to ask again."""

    accept: str | None
    prefer: str | None
    on_disconnect: str | None
    idempotency_key: str | None


def turn_routes(turns: Turns, limits: Limits, streams: EventStreams) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["turns"], route_class=FastRoute)

    async def hand_in(
        request: Request, owner: Owner, conversation_id: str | None, body: TurnRequest, asked: Asked
    ) -> Response:
        if request.app.state.draining:
            raise ShuttingDownError
        new = await _new_turn(body, conversation_id, asked.idempotency_key, limits)
        internal = body.include_internal_tools
        if wants_stream(asked.accept):
            watch = await turns.submit(owner, new)
            return TurnStream(
                turns,
                watch,
                streams=streams,
                send_timeout_s=limits.send_timeout_s,
                internal=internal,
                on_disconnect=asked.on_disconnect,
            )
        wait_s, applied = wait_of(asked.prefer, limits.wait_s)
        return turn_answer(await turns.submit_and_wait(owner, new, wait_s), applied, internal=internal)

    @router.post("/turn", responses={**_ANSWERS, **problems(400, 404, 409, 413, 415, 422, 429)})
    async def post_turn(  # noqa: PLR0917 - FastAPI gives them by name
        request: Request,
        owner: CallerOwner,
        body: TurnRequest,
        accept: Accept = None,
        prefer: Prefer = None,
        on_disconnect: OnDisconnect = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Say something to an agent and wait for its answer, or watch it come."""
        return await hand_in(
            request, owner, body.conversation_id, body, Asked(accept, prefer, on_disconnect, idempotency_key)
        )

    @router.post(
        "/conversations/{conversation_id}/turns", responses={**_ANSWERS, **problems(400, 404, 409, 413, 415, 422, 429)}
    )
    async def post_turn_to(  # noqa: PLR0917 - see above
        request: Request,
        owner: CallerOwner,
        conversation_id: PathId,
        body: TurnRequest,
        accept: Accept = None,
        prefer: Prefer = None,
        on_disconnect: OnDisconnect = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Say something in this conversation and wait for the answer, or watch it come."""
        if body.conversation_id not in {None, conversation_id}:
            raise InvalidRequestError.at("/conversation_id", "is another one than the path's; leave it out")
        return await hand_in(
            request, owner, conversation_id, body, Asked(accept, prefer, on_disconnect, idempotency_key)
        )

    @router.get("/conversations/{conversation_id}/turns", responses={200: {"model": TurnPage}, **problems(404, 422)})
    async def list_turns(
        owner: CallerOwner,
        conversation_id: PathId,
        limit: Limit = 20,
        cursor: Cursor = None,
        include_internal_tools: Internal = False,
    ) -> Response:
        """List turns, in ascending order."""
        page = await turns.turns(Ref(owner, conversation_id), number_of(cursor, 1), limit)
        return answer(page_view(page, lambda turn: turn_view(turn, internal=include_internal_tools)))

    @router.get(
        "/conversations/{conversation_id}/turns/{number}", responses={200: {"model": TurnView}, **problems(404, 422)}
    )
    async def show_turn(
        owner: CallerOwner,
        conversation_id: PathId,
        number: TurnNumber,
        include_internal_tools: Internal = False,
    ) -> Response:
        """Look at one turn."""
        turn = await turns.turn(Ref(owner, conversation_id), number)
        return answer(turn_view(turn, internal=include_internal_tools))

    return router


async def _new_turn(body: TurnRequest, conversation_id: str | None, key: str | None, limits: Limits) -> NewTurn:
    _check(body, limits)
    data, images = await _images(body, limits)
    return NewTurn(
        message=body.message,
        conversation_id=conversation_id,
        agent=AgentName(body.agent) if body.agent is not None else None,
        options=TurnOptions(body.max_steps, body.reset, body.deadline_s),
        turn_input=TurnInput(data, body.additional_args),
        images=images,
        metadata=body.metadata,
        on_busy=body.on_busy,
        idempotency_key=key,
    )


def _check(body: TurnRequest, limits: Limits) -> None:
    """Check what pydantic does not: bounds that are settings."""
    if not body.message.strip():
        raise InvalidRequestError.at("/message", "is empty; say something")
    if len(body.message) > limits.max_message_chars:
        raise InvalidRequestError.at("/message", f"is longer than {limits.max_message_chars} characters")
    if body.max_steps is not None and body.max_steps > limits.max_steps:
        raise InvalidRequestError.at("/max_steps", f"is more than {limits.max_steps}")
    if body.deadline_s is not None and body.deadline_s > limits.max_deadline_s:
        raise InvalidRequestError.at("/deadline_s", f"is more than {limits.max_deadline_s:g}")


async def _images(body: TurnRequest, limits: Limits) -> tuple[tuple[bytes, ...], tuple[StepImage, ...]]:
    if not body.images:
        return (), ()
    # Decoding takes long enough to be felt by others, and Pillow lets go of the interpreter lock meanwhile.
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(DECODER, read_images, body.images, limits.max_image_pixels)


def turn_answer(turn: Turn, applied: str | None, *, internal: bool) -> Response:
    """Answer with a turn: 200 where it is over, 202 where it goes on."""
    headers = {"Location": location_of(turn)}
    if applied:
        headers["Preference-Applied"] = applied
    return answer(turn_view(turn, internal=internal), 200 if turn.outcome else 202, headers)
