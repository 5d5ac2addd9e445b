"""A conversation's memory over HTTP: what the model is shown next, prune, rollback, fork, export and import."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic_core import to_json

from smolsessions.core.document_format import read_json
from smolsessions.core.records import AgentName, Ref
from smolsessions.web.fast_route import StrictRoute
from smolsessions.web.requests import ForkRequest, PruneRequest, RollbackRequest
from smolsessions.web.routes.common import CallerOwner, PathId, answer, problems
from smolsessions.web.views import (
    ConversationView,
    MessagesView,
    PruneView,
    conversation_view,
    message_view,
    prune_view,
)

if TYPE_CHECKING:
    from smolsessions.core.history import History

Summary = Annotated[bool, Query(description="As an agent that plans is shown it: without its own words.")]
Dry = Annotated[bool, Query(description="As the body's member.")]
Destroy = Annotated[bool, Query(description="As the body's member.")]
NewId = Annotated[
    str | None,
    Query(alias="id", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The new conversation's id; else one is made."),
]
Agent = Annotated[
    str | None, Query(min_length=1, max_length=64, description="The new conversation's agent; else the document's.")
]
DOCUMENT = {"application/json": {"schema": {"type": "object", "description": "See docs/export.md."}}}


def history_routes(memories: History) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["memory"], route_class=StrictRoute)
    at = "/conversations/{conversation_id}"

    @router.post(
        "/conversations/import",
        status_code=201,
        responses={201: {"model": ConversationView}, **problems(400, 409, 413, 415, 422)},
        openapi_extra={"requestBody": {"required": True, "content": DOCUMENT}},
    )
    async def bring_in(owner: CallerOwner, request: Request, new_id: NewId = None, agent: Agent = None) -> Response:
        """Make a conversation of an exported one, or of what smolagents' `agent.memory.get_full_steps()` gives."""
        document = await asyncio.to_thread(read_json, await request.body())
        made = await memories.bring_in(owner, document, new_id, AgentName(agent) if agent is not None else None)
        return answer(conversation_view(made), 201, {"Location": f"/conversations/{made.ref.id}"})

    @router.get(f"{at}/messages", responses={200: {"model": MessagesView}, **problems(404, 422)})
    async def messages(owner: CallerOwner, conversation_id: PathId, summary_mode: Summary = False) -> Response:
        """Show the messages that the model is given next, before the next task, as the memory policy bounds them."""
        found, left_out = await memories.messages(Ref(owner, conversation_id), summary_mode=summary_mode)
        views = [message_view(conversation_id, message) for message in found]
        return answer({"messages": views, "left_out": left_out})

    @router.post(f"{at}/prune", responses={200: {"model": PruneView}, **problems(400, 404, 409, 413, 415, 422)})
    async def prune(
        owner: CallerOwner,
        conversation_id: PathId,
        body: Annotated[PruneRequest | None, Body()] = None,
        *,
        dry_run: Dry = False,
        destroy: Destroy = False,
    ) -> Response:
        """Take out of the memory what a policy drops: archived, on record as before, or destroyed."""
        wanted = body or PruneRequest()
        policy = None if wanted.policy is None else tuple(wanted.policy)
        destroys = destroy or wanted.destroy
        weighed, count, conversation = await memories.prune(
            Ref(owner, conversation_id), policy, dry_run=dry_run or wanted.dry_run, destroy=destroys
        )
        return answer(prune_view(weighed, count, conversation, destroyed=destroys))

    @router.post(
        f"{at}/rollback", responses={200: {"model": ConversationView}, **problems(400, 404, 409, 413, 415, 422)}
    )
    async def roll_back(owner: CallerOwner, conversation_id: PathId, body: RollbackRequest) -> Response:
        """Go back to what the conversation was after a turn: steps and variables. Later turns stay on record."""
        return answer(conversation_view(await memories.roll_back(Ref(owner, conversation_id), body.turn)))

    @router.post(
        f"{at}/fork",
        status_code=201,
        responses={201: {"model": ConversationView}, **problems(400, 404, 409, 413, 415, 422)},
    )
    async def fork(
        owner: CallerOwner, conversation_id: PathId, body: Annotated[ForkRequest | None, Body()] = None
    ) -> Response:
        """Make a conversation of its own of what this one was after a turn."""
        wanted = body or ForkRequest()
        made = await memories.fork(Ref(owner, conversation_id), wanted.turn, wanted.metadata)
        return answer(conversation_view(made), 201, {"Location": f"/conversations/{made.ref.id}"})

    @router.get(
        f"{at}/export",
        responses={200: {"content": DOCUMENT, "description": "The document."}, **problems(404, 409, 422)},
    )
    async def export(owner: CallerOwner, conversation_id: PathId) -> Response:
        """Take the whole conversation out as a document that holds no pickle (docs/export.md)."""
        document = await memories.export(Ref(owner, conversation_id))
        return Response(await asyncio.to_thread(to_json, document), media_type="application/json")

    return router
