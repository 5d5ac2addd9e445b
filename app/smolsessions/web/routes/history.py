"""Routes of a conversation's memory: messages, prune, rollback, fork, export and import."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic_core import to_json

from smolsessions.core.json_data import read_json
from smolsessions.core.records import AgentName, Ref
from smolsessions.web.fast_route import StrictRoute
from smolsessions.web.problems import WRITE, responses
from smolsessions.web.requests import ForkRequest, PruneRequest, RollbackRequest
from smolsessions.web.routes.common import CallerOwner, PathId, answer
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

Summary = Annotated[bool, Query(description="The prompt of a planning step, without the model's own messages.")]
Dry = Annotated[bool, Query(description="As in the body.")]
Destroy = Annotated[bool, Query(description="As in the body.")]
NewId = Annotated[
    str | None,
    Query(
        alias="id",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="The new conversation's id. Without it one is generated.",
    ),
]
Agent = Annotated[
    str | None,
    Query(min_length=1, max_length=64, description="The new conversation's agent. Without it the document's."),
]
DOCUMENT = {"application/json": {"schema": {"type": "object", "description": "See docs/export.md."}}}


def history_routes(history: History) -> APIRouter:
    router = APIRouter(tags=["memory"], route_class=StrictRoute)
    at = "/conversations/{conversation_id}"

    @router.post(
        "/conversations/import",
        status_code=201,
        responses=responses(ConversationView, 409, 413, 415, 422, status=201),
        openapi_extra={"requestBody": {"required": True, "content": DOCUMENT}},
    )
    async def bring_in(owner: CallerOwner, request: Request, new_id: NewId = None, agent: Agent = None) -> Response:
        """Create a conversation from an exported one, or from the result of `agent.memory.get_full_steps()`."""
        document = await asyncio.to_thread(read_json, await request.body())
        made = await history.bring_in(owner, document, new_id, AgentName(agent) if agent is not None else None)
        return answer(conversation_view(made), 201, {"Location": f"/conversations/{made.ref.id}"})

    @router.get(f"{at}/messages", responses=responses(MessagesView, 404, 422))
    async def messages(owner: CallerOwner, conversation_id: PathId, summary_mode: Summary = False) -> Response:
        """Return the model's next prompt without the next task, with the memory policy applied."""
        found, left_out = await history.messages(Ref(owner, conversation_id), summary_mode=summary_mode)
        views = [message_view(conversation_id, message) for message in found]
        return answer({"messages": views, "left_out": left_out})

    @router.post(f"{at}/prune", responses=responses(PruneView, *WRITE))
    async def prune(
        owner: CallerOwner,
        conversation_id: PathId,
        body: Annotated[PruneRequest | None, Body()] = None,
        *,
        dry_run: Dry = False,
        destroy: Destroy = False,
    ) -> Response:
        """Remove the steps from the memory that a policy drops. They stay on record, except if destroyed."""
        request = body or PruneRequest()
        destroys = destroy or request.destroy
        weighed, count, conversation = await history.prune(
            Ref(owner, conversation_id), request.policy, dry_run=dry_run or request.dry_run, destroy=destroys
        )
        return answer(prune_view(weighed, count, conversation, destroyed=destroys))

    @router.post(f"{at}/rollback", responses=responses(ConversationView, *WRITE))
    async def roll_back(owner: CallerOwner, conversation_id: PathId, body: RollbackRequest) -> Response:
        """Restore the steps and variables that the conversation had after a turn. Later turns stay on record."""
        return answer(conversation_view(await history.roll_back(Ref(owner, conversation_id), body.turn)))

    @router.post(f"{at}/fork", status_code=201, responses=responses(ConversationView, *WRITE, status=201))
    async def fork(
        owner: CallerOwner, conversation_id: PathId, body: Annotated[ForkRequest | None, Body()] = None
    ) -> Response:
        """Create a conversation from the state of this one after a turn."""
        request = body or ForkRequest()
        made = await history.fork(Ref(owner, conversation_id), request.turn, request.metadata)
        return answer(conversation_view(made), 201, {"Location": f"/conversations/{made.ref.id}"})

    @router.get(
        f"{at}/export",
        responses={200: {"content": DOCUMENT, "description": "The document."}, **responses(None, 404, 409, 422)},
    )
    async def export(owner: CallerOwner, conversation_id: PathId) -> Response:
        """Return the whole conversation as a document without pickles (docs/export.md)."""
        document = await history.export(Ref(owner, conversation_id))
        return Response(await asyncio.to_thread(to_json, document), media_type="application/json")

    return router
