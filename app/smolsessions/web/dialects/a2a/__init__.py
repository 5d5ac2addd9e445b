"""The Agent2Agent protocol, version 1.0: each agent is one of its agents, and a turn is a task."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from smolsessions.core.agent_ports import AgentInfo
from smolsessions.core.records import AgentName
from smolsessions.web.dialects.a2a.rpc import answer_call
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.files import ACCEPTED
from smolsessions.web.links import link
from smolsessions.web.routes.common import CallerOwner, answer

VERSION = "1.0"
MODES = ["image/png", "image/jpeg", "image/gif", "image/webp", *ACCEPTED]
CARD_S = 60  # for which a client may keep a card


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/a2a")

    @router.get("/{agent}/.well-known/agent-card.json")
    async def get_card(request: Request, _owner: CallerOwner, agent: AgentName) -> Response:
        found = card_of(gateway.conversations.agent(agent), _address_of(request, agent))
        if request.app.state.authenticator.needs_key:
            found["securitySchemes"] = {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
            found["securityRequirements"] = [{"schemes": {"key": {"list": []}}}]
        return answer(found, headers={"Cache-Control": f"private, max-age={CARD_S}"})

    @router.post("/{agent}")
    async def call(request: Request, _owner: CallerOwner, agent: AgentName) -> Response:
        gateway.conversations.agent(agent)
        return await answer_call(gateway, request, agent)

    return router


def card_of(info: AgentInfo, address: str) -> dict[str, Any]:
    """Return the card of an agent. Its one skill is the agent, with the names of its tools as tags."""
    name = info.version.name
    about = info.description or f"The agent {name}."
    tags = [tool.name for tool in info.tools] or [name]
    skill = {"id": name, "name": name, "description": about, "tags": tags, "examples": info.examples}
    return {
        "name": name,
        "description": about,
        "version": info.version.version or info.version.fingerprint,
        "supportedInterfaces": [{"url": address, "protocolBinding": "JSONRPC", "protocolVersion": VERSION}],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": MODES,
        "defaultOutputModes": MODES,
        "skills": [skill],
    }


def _address_of(request: Request, agent: str) -> str:
    """Return the URL of an agent as the client sees it, also behind a proxy that ends TLS."""
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else request.url.scheme
    return f"{scheme}://{request.url.netloc}{link(f'/a2a/{agent}')}"
