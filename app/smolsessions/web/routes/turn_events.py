"""Watching and stopping a turn over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Query, Response

from smolsessions.core.records import Ref
from smolsessions.web.negotiation import wait_of
from smolsessions.web.query_parameters import StrictRoute
from smolsessions.web.routes.common import (
    CallerOwner,
    Internal,
    Limits,
    OnDisconnect,
    PathId,
    Prefer,
    TurnNumber,
    problems,
)
from smolsessions.web.routes.turns import turn_answer
from smolsessions.web.sse import EVENT_STREAM, TurnStream, cursor_of
from smolsessions.web.views import TurnView

if TYPE_CHECKING:
    from smolsessions.core.turns import Turns
    from smolsessions.web.sse import EventStreams

LastEventId = Annotated[str | None, Header(description="The last event that was seen; wins over `after`.")]
After = Annotated[str | None, Query(description="Number of an event: only those after it.")]


def watch_routes(turns: Turns, limits: Limits, streams: EventStreams) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["turns"], route_class=StrictRoute)

    @router.get(
        "/conversations/{conversation_id}/turns/{number}/events",
        responses={
            200: {"description": "The turn's events, live or again. See docs/events.md.", **EVENT_STREAM},
            204: {"description": "The cursor is at the final event: there is nothing to come."},
            **problems(404, 422),
        },
    )
    async def events(  # noqa: PLR0917 - FastAPI gives them by name
        owner: CallerOwner,
        conversation_id: PathId,
        number: TurnNumber,
        last_event_id: LastEventId = None,
        after: After = None,
        include_internal_tools: Internal = False,
        on_disconnect: OnDisconnect = None,
    ) -> Response:
        """Watch a turn, from its beginning or from a cursor."""
        cursor = cursor_of(last_event_id, after)
        watch = await turns.subscribe(Ref(owner, conversation_id), number, cursor)
        if watch is None:
            return Response(status_code=204)
        return TurnStream(
            turns,
            watch,
            streams=streams,
            send_timeout_s=limits.send_timeout_s,
            after=cursor,
            internal=include_internal_tools,
            on_disconnect=on_disconnect,
        )

    @router.post(
        "/conversations/{conversation_id}/turns/{number}/cancel",
        responses={
            200: {"model": TurnView, "description": "The turn, over."},
            202: {"model": TurnView, "description": "The stop is on its way."},
            **problems(404, 422),
        },
    )
    async def cancel(
        owner: CallerOwner,
        conversation_id: PathId,
        number: TurnNumber,
        prefer: Prefer = None,
        include_internal_tools: Internal = False,
    ) -> Response:
        """Stop a turn: it lands at the next model call, piece of text or tool call. Finished steps are kept."""
        wait_s, applied = wait_of(prefer, limits.wait_s) if prefer else (0.0, None)
        turn = await turns.cancel(Ref(owner, conversation_id), number, wait_s if applied else 0.0)
        return turn_answer(turn, applied, internal=include_internal_tools)

    return router
