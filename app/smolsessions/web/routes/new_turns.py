"""Routes that submit a turn."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from smolsessions.core.errors import InvalidRequestError, ShuttingDownError
from smolsessions.core.records import AgentName, TurnInput, TurnOptions
from smolsessions.core.turns import NewTurn
from smolsessions.web.fast_route import FastRoute
from smolsessions.web.images import read_images
from smolsessions.web.problems import WRITE, responses
from smolsessions.web.requests import TurnRequest  # noqa: TC001 - FastAPI reads the annotations
from smolsessions.web.routes.common import CallerOwner, Limits, OnDisconnect, PathId, Prefer, turn_answer, wait_of
from smolsessions.web.sse import EVENT_STREAM, TurnStream
from smolsessions.web.views import TurnView

if TYPE_CHECKING:
    from smolsessions.core.turns import Turns
    from smolsessions.web.sse import EventStreams

Accept = Annotated[str | None, Header(description="`text/event-stream`: the turn's events as they happen.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,255}$",
        description="A unique name for this request. A request with the same name and content returns the first "
        "request's turn, for 24 hours.",
    ),
]
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": TurnView,
        "description": "The turn at its end, or its events. A failed turn is `status: failed` in a 200.",
        **EVENT_STREAM,
    },
    202: {"model": TurnView, "description": "The turn, which is still running or queued. `Location` is its address."},
    **responses(None, *WRITE, 429),
}
_QUALITY = re.compile(r"[01](\.\d{0,3})?")


def new_turn_routes(turns: Turns, limits: Limits, streams: EventStreams) -> APIRouter:
    router = APIRouter(tags=["turns"], route_class=FastRoute)

    @router.post("/turn", responses=_RESPONSES)
    async def post_turn(  # noqa: PLR0917 - FastAPI passes them by name
        request: Request,
        owner: CallerOwner,
        body: TurnRequest,
        accept: Accept = None,
        prefer: Prefer = None,
        on_disconnect: OnDisconnect = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Send a message to an agent, and return the turn at its end or stream its events."""
        if request.app.state.draining:
            raise ShuttingDownError
        new = await _new_turn(body, idempotency_key, limits)
        internal = body.include_internal_tools
        if wants_stream(accept):
            return TurnStream(streams, await turns.submit(owner, new), internal=internal, on_disconnect=on_disconnect)
        wait_s, applied = wait_of(prefer, limits.wait_s)
        return turn_answer(await turns.submit_and_wait(owner, new, wait_s), applied, internal=internal)

    @router.post("/conversations/{conversation_id}/turns", responses=_RESPONSES)
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
        """Send a message in this conversation, and return the turn at its end or stream its events."""
        if body.conversation_id not in {None, conversation_id}:
            raise InvalidRequestError.at("/conversation_id", "is another one than the path's; leave it out")
        body.conversation_id = conversation_id
        return await post_turn(request, owner, body, accept, prefer, on_disconnect, idempotency_key)

    return router


async def _new_turn(body: TurnRequest, idempotency_key: str | None, limits: Limits) -> NewTurn:
    """Check the bounds that are settings, and decode the images."""
    if not body.message.strip():
        raise InvalidRequestError.at("/message", "is empty; say something")
    if len(body.message) > limits.max_message_chars:
        raise InvalidRequestError.at("/message", f"is longer than {limits.max_message_chars} characters")
    if body.max_steps is not None and body.max_steps > limits.max_steps:
        raise InvalidRequestError.at("/max_steps", f"is more than {limits.max_steps}")
    if body.deadline_s is not None and body.deadline_s > limits.max_deadline_s:
        raise InvalidRequestError.at("/deadline_s", f"is more than {limits.max_deadline_s:g}")
    data, images = await read_images(body.images, limits.max_image_pixels)
    return NewTurn(
        message=body.message,
        conversation_id=body.conversation_id,
        agent=AgentName(body.agent) if body.agent is not None else None,
        options=TurnOptions(body.max_steps, body.reset, body.deadline_s),
        turn_input=TurnInput(data, body.additional_args),
        images=images,
        metadata=body.metadata,
        on_busy=body.on_busy,
        idempotency_key=idempotency_key,
    )


def wants_stream(accept: str | None) -> bool:
    """Return whether `Accept` names `text/event-stream` and does not rank JSON above it."""
    if not accept:
        return False
    ranks: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        ranks[kind] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    stream = ranks.get("text/event-stream", 0.0)
    json = ranks.get("application/json", ranks.get("application/*", ranks.get("*/*", 0.0)))
    return stream > 0 and stream >= json
