"""Routes of conversations and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query, Response

from smolsessions.core.json_data import merge
from smolsessions.core.records import AgentName, ConversationFields, Ref, StepType
from smolsessions.web.fast_route import StrictRoute
from smolsessions.web.problems import responses
from smolsessions.web.requests import ConversationPatch, NewConversation  # noqa: TC001 - FastAPI reads the annotations
from smolsessions.web.routes.common import CallerOwner, Cursor, Limit, PathId, answer, number_of
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

ImageName = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="The image's name, a hash of its content.")]
StepKind = Annotated[StepType | None, Query(alias="type", description="Only steps of this type.")]
Archived = Annotated[
    bool, Query(description="Include steps that a prune or a rollback removed from the memory. Each is marked.")
]
IMAGE_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def conversation_routes(conversations: Conversations) -> APIRouter:
    router = APIRouter(tags=["conversations"], route_class=StrictRoute)

    @router.post(
        "/conversations", status_code=201, responses=responses(ConversationView, 409, 413, 415, 422, status=201)
    )
    async def create(owner: CallerOwner, body: NewConversation) -> Response:
        """Create an empty conversation. POST /turn also creates one."""
        agent = AgentName(body.agent) if body.agent is not None else None
        fields = ConversationFields(body.metadata, body.policy, body.ttl_s)
        made = await conversations.create(owner, body.id, agent, fields)
        return answer(conversation_view(made), 201, {"Location": f"/conversations/{made.ref.id}"})

    @router.get("/conversations", responses=responses(ConversationPage, 422))
    async def list_conversations(owner: CallerOwner, limit: Limit = 20, cursor: Cursor = None) -> Response:
        """List conversations, newest first."""
        if cursor is not None:
            number_of(cursor, 0)
        return answer(page_view(await conversations.page(owner, cursor, limit), conversation_view))

    @router.get("/conversations/{conversation_id}", responses=responses(ConversationView, 404, 422))
    async def show(owner: CallerOwner, conversation_id: PathId) -> Response:
        """Return one conversation."""
        return answer(conversation_view(await conversations.show(Ref(owner, conversation_id))))

    @router.patch("/conversations/{conversation_id}", responses=responses(ConversationView, 404, 413, 415, 422))
    async def patch(owner: CallerOwner, conversation_id: PathId, body: ConversationPatch) -> Response:
        """Change metadata, memory policy or time to live by a merge patch. A running turn is not affected."""
        return answer(conversation_view(await conversations.patch(Ref(owner, conversation_id), patch_of(body))))

    @router.delete("/conversations/{conversation_id}", status_code=204, responses=responses(None, 404, 422))
    async def delete(owner: CallerOwner, conversation_id: PathId) -> Response:
        """Permanently delete a conversation, after cancelling its running and queued turns."""
        await conversations.delete(Ref(owner, conversation_id))
        return Response(status_code=204)

    @router.get("/conversations/{conversation_id}/steps", responses=responses(StepPage, 404, 409, 422))
    async def steps(
        owner: CallerOwner,
        conversation_id: PathId,
        *,
        limit: Limit = 20,
        cursor: Cursor = None,
        kind: StepKind = None,
        archived: Archived = False,
    ) -> Response:
        """List the steps of the agent's memory, the oldest first, including those that a reset hides.

        A page of one type may hold fewer than `limit` steps. `next_cursor` shows whether more follow.
        """
        ref = Ref(owner, conversation_id)
        page = await conversations.steps(ref, number_of(cursor, 0), limit, kind, archived=archived)
        views = [step_view(conversation_id, step) for step in page.items]
        return answer({"items": views, "next_cursor": page.next_cursor})

    @router.get(
        "/conversations/{conversation_id}/images/{name}",
        responses={200: {"content": {"image/*": {}}, "description": "The image."}, **responses(None, 404, 422)},
        response_class=Response,
    )
    async def image(owner: CallerOwner, conversation_id: PathId, name: ImageName) -> Response:
        """Return an image of a step. It never changes, because its name is a hash of its content."""
        kind, data = await conversations.image(Ref(owner, conversation_id), name)
        return Response(data, media_type=kind, headers=IMAGE_HEADERS)

    return router


def patch_of(body: ConversationPatch) -> Callable[[ConversationFields], ConversationFields]:
    """Return the function that applies a merge patch."""
    sent = body.model_fields_set

    def patched(now: ConversationFields) -> ConversationFields:
        return ConversationFields(
            merge(now.metadata, body.metadata) if "metadata" in sent else now.metadata,
            body.policy if "policy" in sent else now.policy,
            body.ttl_s if "ttl_s" in sent else now.ttl_s,
        )

    return patched


def agent_routes(conversations: Conversations) -> APIRouter:
    router = APIRouter(tags=["agents"], route_class=StrictRoute)

    @router.get("/agents", responses=responses(AgentList))
    async def agents(_owner: CallerOwner) -> Response:
        """List the agents, the default agent first."""
        confinement = await conversations.confinement()
        views = [
            agent_view(info, confinement[info.version.name], default=number == 0)
            for number, info in enumerate(conversations.agents())
        ]
        return answer({"items": views})

    return router
