"""Is it alive, does it take work, what are its figures. Open to whoever reaches the port; no content is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from smolsessions.core.errors import ShuttingDownError
from smolsessions.web.routes.common import answer, problems

if TYPE_CHECKING:
    from smolsessions.web.metrics import MetricsSource


def health_routes(metrics: MetricsSource) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", responses=problems())
    async def livez() -> Response:
        """Say that the process lives."""
        return answer({"status": "ok"})

    @router.get("/readyz", responses=problems())
    async def readyz(request: Request) -> Response:
        """Say that the process takes requests; not while it is shutting down."""
        if request.app.state.draining:
            raise ShuttingDownError
        return answer({"status": "ok"})

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **problems()})
    async def figures() -> Response:
        """Give figures in Prometheus' text format."""
        return Response(await metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
