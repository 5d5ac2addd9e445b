"""Turns over HTTP: hand one in and wait for its end, or look at it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from app.errors import InvalidRequestError, ShuttingDownError
from app.records import AgentName, Owner, Ref, Turn, TurnInput, TurnOptions
from app.web.common import CallerOwner, Cursor, Limit, Limits, PathId, TurnNumber, answer, number_of, problems
from app.web.images import read_images
from app.web.prefer import wait_of
from app.web.schemas import TurnPage, TurnRequest, TurnView, page_view, turn_view

if TYPE_CHECKING:
    from app.turns import TurnDesk

Internal = Annotated[bool, Query(description="Name python_interpreter and final_answer too.")]
Prefer = Annotated[str | None, Header(description="`respond-async`, or `wait=SECONDS`: how long to wait for the end.")]
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": TurnView, "description": "The turn, over. A turn's own failure is `status: failed` in here."},
    202: {"model": TurnView, "description": "The turn, which goes on; `Location` is where to look."},
}


def turn_routes(turns: TurnDesk, limits: Limits) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["turns"])

    async def hand_in(
        request: Request, owner: Owner, conversation_id: str | None, body: TurnRequest, prefer: str | None
    ) -> Response:
        if request.app.state.draining:
            raise ShuttingDownError
        _check(body, limits)
        images = await _images(body, limits)
        wait_s, applied = wait_of(prefer, limits.wait_s)
        turn = await turns.play(
            owner=owner,
            conversation_id=conversation_id,
            agent=AgentName(body.agent) if body.agent is not None else None,
            message=body.message,
            options=TurnOptions(body.max_steps, body.reset),
            given=TurnInput(images, body.additional_args),
            metadata=body.metadata,
            wait_s=wait_s,
        )
        return _turn_answer(turn, applied, internal=body.include_internal_tools)

    @router.post("/turn", responses={**_ANSWERS, **problems(400, 404, 409, 413, 415, 422)})
    async def post_turn(request: Request, owner: CallerOwner, body: TurnRequest, prefer: Prefer = None) -> Response:
        """Say something to an agent and wait for its answer."""
        return await hand_in(request, owner, body.conversation_id, body, prefer)

    @router.post(
        "/conversations/{conversation_id}/turns", responses={**_ANSWERS, **problems(400, 404, 409, 413, 415, 422)}
    )
    async def post_turn_to(
        request: Request, owner: CallerOwner, conversation_id: PathId, body: TurnRequest, prefer: Prefer = None
    ) -> Response:
        """Say something in this conversation and wait for the answer."""
        if body.conversation_id not in {None, conversation_id}:
            raise InvalidRequestError.at("/conversation_id", "is another one than the path's; leave it out")
        return await hand_in(request, owner, conversation_id, body, prefer)

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


def _check(body: TurnRequest, limits: Limits) -> None:
    """Check what pydantic does not: bounds that are settings."""
    if not body.message.strip():
        raise InvalidRequestError.at("/message", "is empty; say something")
    if len(body.message) > limits.max_message_chars:
        raise InvalidRequestError.at("/message", f"is longer than {limits.max_message_chars} characters")
    if body.max_steps is not None and body.max_steps > limits.max_steps:
        raise InvalidRequestError.at("/max_steps", f"is more than {limits.max_steps}")


async def _images(body: TurnRequest, limits: Limits) -> tuple[bytes, ...]:
    if not body.images:
        return ()
    # Decoding takes long enough to be felt by others, and Pillow lets go of the interpreter lock meanwhile.
    return await asyncio.to_thread(read_images, body.images, limits.max_image_pixels)


def _turn_answer(turn: Turn, applied: str | None, *, internal: bool) -> Response:
    headers = {"Location": f"/conversations/{turn.ref.id}/turns/{turn.number}"}
    if applied:
        headers["Preference-Applied"] = applied
    return answer(turn_view(turn, internal=internal), 200 if turn.outcome else 202, headers)
