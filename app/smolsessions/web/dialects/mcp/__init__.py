"""The Model Context Protocol: each agent is a tool that a client's model may ask."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.routing import Route

from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.mcp.server import McpServer


def routes(gateway: Gateway) -> APIRouter:
    return APIRouter(routes=[Route("/mcp", McpServer(gateway), methods=["POST"])])
