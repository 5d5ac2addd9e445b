"""Routes that read, stream and cancel turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Query, Response

from smolsessions.core.records import Ref
from smolsessions.web.fast_route import FastRoute
from smolsessions.web.problems import responses
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
    number_of,
    turn_answer,
    wait_of,
)
from smolsessions.web.sse import EVENT_STREAM, TurnStream, cursor_of
from smolsessions.web.views import TurnPage, TurnView, page_view, turn_view

if TYPE_CHECKING:
    from smolsessions.core.turns import Turns
    from smolsessions.web.sse import EventStreams

LastEventId = Annotated[str | None, Header(description="The last event that the client has; wins over `after`.")]
After = Annotated[str | None, Query(description="Number of an event. Only later events are sent.")]


def turn_routes(turns: Turns, limits: Limits, streams: EventStreams) -> APIRouter:
    router = APIRouter(tags=["turns"], route_class=FastRoute)

    @router.get("/conversations/{conversation_id}/turns", responses=responses(TurnPage, 404, 422))
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

    @router.get("/conversations/{conversation_id}/turns/{number}", responses=responses(TurnView, 404, 422))
    async def show_turn(
        owner: CallerOwner, conversation_id: PathId, number: TurnNumber, include_internal_tools: Internal = False
    ) -> Response:
        """Return one turn."""
        turn = await turns.turn(Ref(owner, conversation_id), number)
        return answer(turn_view(turn, internal=include_internal_tools))

    @router.get(
        "/conversations/{conversation_id}/turns/{number}/events",
        responses={
            200: {"description": "The turn's events, live or from its log. See docs/events.md.", **EVENT_STREAM},
            204: {"description": "The cursor is at the final event: no event follows."},
            **responses(None, 404, 422),
        },
    )
    async def events(  # noqa: PLR0917 - FastAPI passes them by name
        owner: CallerOwner,
        conversation_id: PathId,
        number: TurnNumber,
        last_event_id: LastEventId = None,
        after: After = None,
        include_internal_tools: Internal = False,
        on_disconnect: OnDisconnect = None,
    ) -> Response:
        """Stream a turn's events, from its beginning or from a cursor."""
        cursor = cursor_of(last_event_id, after)
        subscription = await turns.subscribe(Ref(owner, conversation_id), number, cursor)
        if subscription is None:
            return Response(status_code=204)
        return TurnStream(streams, subscription, cursor, internal=include_internal_tools, on_disconnect=on_disconnect)

    @router.post(
        "/conversations/{conversation_id}/turns/{number}/cancel",
        responses={
            200: {"model": TurnView, "description": "The turn, which is over."},
            202: {"model": TurnView, "description": "The stop is requested."},
            **responses(None, 404, 422),
        },
    )
    async def cancel(
        owner: CallerOwner,
        conversation_id: PathId,
        number: TurnNumber,
        prefer: Prefer = None,
        include_internal_tools: Internal = False,
    ) -> Response:
        """Stop a turn at its next model call, piece of text or tool call. Finished steps are kept."""
        wait_s, applied = wait_of(prefer, limits.wait_s) if prefer else (0.0, None)
        turn = await turns.cancel(Ref(owner, conversation_id), number, wait_s if applied else 0.0)
        return turn_answer(turn, applied, internal=include_internal_tools)

    return router
