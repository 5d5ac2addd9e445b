"""Conversations and agents over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query, Response

from smolsessions.core.metadata import merge
from smolsessions.core.records import AgentName, ConversationFields, Ref, StepType
from smolsessions.web.fast_route import StrictRoute
from smolsessions.web.requests import ConversationPatch, NewConversation  # noqa: TC001 - FastAPI reads the annotations
from smolsessions.web.routes.common import CallerOwner, Cursor, Limit, PathId, answer, number_of, problems
from smolsessions.web.views import (
    AgentList,
    ConversationPage,
    ConversationView,
    StepPage,
    agent_view,
    conversation_view,
    page_view,
    step_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.core.conversations import Conversations

ImageName = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="The image's name: a hash of its content.")]
StepKind = Annotated[StepType | None, Query(alias="type", description="Steps of this type alone.")]
Archived = Annotated[
    bool, Query(description="Also the steps that a prune or a rollback took out of the memory, each marked so.")
]
IMAGE_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def conversation_routes(conversations: Conversations) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["conversations"], route_class=StrictRoute)

    @router.post(
        "/conversations",
        status_code=201,
        responses={201: {"model": ConversationView}, **problems(400, 409, 413, 415, 422)},
    )
    async def create(owner: CallerOwner, body: NewConversation) -> Response:
        """Make an empty conversation; POST /turn does it by itself."""
        agent = AgentName(body.agent) if body.agent is not None else None
        draft = ConversationFields(body.metadata, None if body.policy is None else tuple(body.policy), body.ttl_s)
        made = await conversations.create(owner, body.id, agent, draft)
        return answer(conversation_view(made), 201, {"Location": f"/conversations/{made.ref.id}"})

    @router.get("/conversations", responses={200: {"model": ConversationPage}, **problems(422)})
    async def list_conversations(owner: CallerOwner, limit: Limit = 20, cursor: Cursor = None) -> Response:
        """List conversations, newest first."""
        if cursor is not None:
            number_of(cursor, 0)
        return answer(page_view(await conversations.page(owner, cursor, limit), conversation_view))

    @router.get("/conversations/{conversation_id}", responses={200: {"model": ConversationView}, **problems(404, 422)})
    async def show(owner: CallerOwner, conversation_id: PathId) -> Response:
        """Look at one conversation."""
        return answer(conversation_view(await conversations.show(Ref(owner, conversation_id))))

    @router.patch(
        "/conversations/{conversation_id}",
        responses={200: {"model": ConversationView}, **problems(400, 404, 413, 415, 422)},
    )
    async def patch(owner: CallerOwner, conversation_id: PathId, body: ConversationPatch) -> Response:
        """Change metadata, memory policy or time to live by a merge patch; a turn that runs is played as it began."""
        return answer(conversation_view(await conversations.patch(Ref(owner, conversation_id), patch_of(body))))

    @router.delete("/conversations/{conversation_id}", status_code=204, responses=problems(404, 422))
    async def delete(owner: CallerOwner, conversation_id: PathId) -> Response:
        """Delete a conversation for good; turns that run or wait are cancelled first."""
        await conversations.delete(Ref(owner, conversation_id))
        return Response(status_code=204)

    @router.get(
        "/conversations/{conversation_id}/steps", responses={200: {"model": StepPage}, **problems(404, 409, 422)}
    )
    async def steps(
        owner: CallerOwner,
        conversation_id: PathId,
        *,
        limit: Limit = 20,
        cursor: Cursor = None,
        kind: StepKind = None,
        archived: Archived = False,
    ) -> Response:
        """List the steps of the agent's memory, the oldest first, also those that a reset hides.

        Of one type alone a page may hold fewer than `limit` although there are more: `next_cursor` tells.
        """
        ref = Ref(owner, conversation_id)
        page = await conversations.steps(ref, number_of(cursor, 0), limit, kind, archived=archived)
        views = [step_view(conversation_id, step) for step in page.items]
        return answer({"items": views, "next_cursor": page.next_cursor})

    @router.get(
        "/conversations/{conversation_id}/images/{name}",
        responses={200: {"content": {"image/*": {}}, "description": "The image."}, **problems(404, 422)},
        response_class=Response,
    )
    async def image(owner: CallerOwner, conversation_id: PathId, name: ImageName) -> Response:
        """Fetch an image that a step shows; its name stands for its content, so it never changes."""
        kind, data = await conversations.image(Ref(owner, conversation_id), name)
        return Response(data, media_type=kind, headers=IMAGE_HEADERS)

    return router


def patch_of(body: ConversationPatch) -> Callable[[ConversationFields], ConversationFields]:
    """Give what a merge patch makes of a conversation."""
    told = body.model_fields_set

    def patched(now: ConversationFields) -> ConversationFields:
        policy = None if body.policy is None else tuple(body.policy)
        return ConversationFields(
            merge(now.metadata, body.metadata) if "metadata" in told else now.metadata,
            policy if "policy" in told else now.policy,
            body.ttl_s if "ttl_s" in told else now.ttl_s,
        )

    return patched


def agent_routes(conversations: Conversations) -> APIRouter:
    """Make the router."""
    router = APIRouter(tags=["agents"], route_class=StrictRoute)

    @router.get("/agents", responses={200: {"model": AgentList}, **problems()})
    async def agents(_owner: CallerOwner) -> Response:
        """List the agents that conversations can be held with, the default one first."""
        confinement = await conversations.confinement()
        views = [
            agent_view(info, confinement[info.version.name], default=number == 0)
            for number, info in enumerate(conversations.agents())
        ]
        return answer({"items": views})

    return router
