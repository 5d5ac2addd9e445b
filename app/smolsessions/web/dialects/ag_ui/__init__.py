"""AG-UI 1.0: runs of an agent in a thread, for CopilotKit and other clients that speak it."""

from __future__ import annotations

from fastapi import APIRouter

from smolsessions.web.dialects.ag_ui.runs import run_routes
from smolsessions.web.dialects.gateway import Gateway


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/ag-ui")
    router.include_router(run_routes(gateway))
    return router
