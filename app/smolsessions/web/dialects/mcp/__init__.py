"""The Model Context Protocol: each agent is a tool that a client's model may ask."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from smolsessions.web.dialects.gateway import Gateway


class _Endpoint(Response):
    """Answers of the protocol's own library, which is imported for the first request."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self._server: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._server is None:
            from smolsessions.web.dialects.mcp.server import McpServer  # noqa: PLC0415 - it takes 30 MB

            self._server = McpServer(self._gateway)
        await self._server.handle(scope, receive, send)


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()
    endpoint = _Endpoint(gateway)

    @router.post("/mcp")
    async def call() -> Response:
        return endpoint

    return router
