"""Route that lists the effects of a running or waiting turn."""

from __future__ import annotations

from fastapi import APIRouter, Response

from smolsessions.core.records import Page, Ref
from smolsessions.core.turns import Turns
from smolsessions.web.cursors import number_at
from smolsessions.web.problems import responses
from smolsessions.web.routes.common import (
    Ascending,
    CallerOwner,
    Cursor,
    Limit,
    PathId,
    StrictRoute,
    TurnNumber,
    answer,
)
from smolsessions.web.views import effect_view, page_view
from smolsessions.wire.effects import EffectPage


def effect_routes(turns: Turns) -> APIRouter:
    router = APIRouter(tags=["turns"], route_class=StrictRoute)

    @router.get("/conversations/{conversation_id}/turns/{number}/effects", responses=responses(EffectPage, 404, 422))
    async def list_turn_effects(
        owner: CallerOwner,
        conversation_id: PathId,
        number: TurnNumber,
        *,
        limit: Limit = 20,
        cursor: Cursor = None,
        order: Ascending = "asc",
    ) -> Response:
        """List the effects in the journal of a turn that runs or waits, without their results.

        A model call is listed once it was answered. The list of a turn that is over is empty: its journal is deleted.
        A page of large results may hold fewer than `limit`. `next_cursor` shows whether more follow.
        """
        of = ("effects", owner, conversation_id, str(number), order)
        page = await turns.effects(Ref(owner, conversation_id), number, number_at(cursor, *of), limit, order)
        view = page_view(Page(page.items, page.next_cursor), effect_view, *of)
        return answer({**view, "complete": page.is_whole})

    return router
