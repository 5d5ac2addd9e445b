"""Routes of conversations: their fields, steps and files, their memory, export and import. Route of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from pydantic_core import to_json

from smolsessions.core import records
from smolsessions.core.conversations import Conversations
from smolsessions.core.documents import SMALL_BYTES
from smolsessions.core.errors import InvalidRequestError, PreconditionFailedError, ShuttingDownError
from smolsessions.core.records import AgentName, Owner
from smolsessions.web import views
from smolsessions.web.cursors import PLACE, number_at, position_of
from smolsessions.web.files import download_headers, served
from smolsessions.web.links import link
from smolsessions.web.problems import WRITE, responses
from smolsessions.web.routes.common import (
    Ascending,
    CallerClaims,
    CallerOwner,
    CallerRef,
    Cursor,
    IdempotencyKey,
    Limit,
    Limits,
    StrictRoute,
    answer,
    tools_of,
)
from smolsessions.wire import conversations as wire
from smolsessions.wire import requests

AgentPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The agent's name.")]
ImageName = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="The image's name, a hash of its content.")]
FileName = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="The file's name in its `url`, a content hash.")]
FilePath = Annotated[str, Path(min_length=1, max_length=1024, description="Path in the workspace, as notes/plan.md.")]
StepKind = Annotated[records.StepType | None, Query(alias="type", description="Only steps of this type.")]
Archived = Annotated[bool, Query(description="Include steps that a prune or a rollback removed. Each is marked.")]
Summary = Annotated[bool, Query(description="The prompt of a planning step, without the model's own messages.")]
PastTurn = Annotated[
    int | None, Query(ge=1, le=requests.MAX_INT, description="Rebuild the prompt of this past turn. Null: the next.")
]
PastStep = Annotated[int, Query(ge=1, le=400, description="With `turn`: the prompt before this step of it, from 1.")]
SortBy = Annotated[records.Sort, Query(description="`updated`: by their last change. `created`: by their creation.")]
OfAgent = Annotated[str | None, Query(min_length=1, max_length=64, description="Only conversations of this agent.")]
OfStatus = Annotated[records.ConversationStatus | None, Query(description="Only conversations in this state.")]
Searched = Annotated[
    str | None, Query(min_length=1, max_length=200, description="Only conversations with this text, in any case.")
]
SearchPlace = Annotated[
    records.SearchIn,
    Query(
        description="`title`: `q` is searched for in titles. `messages`: also in messages and answers. Such a page is "
        "short, or empty, if it took many records. Its `next_cursor` continues the search."
    ),
]
METADATA = "metadata["
MOST_FILTERS = 10
OF_METADATA = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "`metadata[KEY]=VALUE`: only conversations with this member in their metadata. A value that is no "
    "text is compared as JSON.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MOST_FILTERS},
}
IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="ETag of an earlier answer. A change since then is a 412.")
]
Patch = Annotated[requests.ConversationPatch, Body(media_type="application/merge-patch+json")]
NewId = Annotated[
    str | None,
    Query(alias="id", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The new one's id. Else it is generated."),
]
Agent = Annotated[
    AgentName | None, Query(min_length=1, max_length=64, description="The new one's agent. Without it the document's.")
]
ALL, AT = "/conversations", "/conversations/{conversation_id}"
IMAGE_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}
BYTES = {"schema": {"type": "string", "format": "binary"}}
PICTURE = {f"image/{kind}": BYTES for kind in ("png", "jpeg", "gif", "webp")}
CONTENT = {"application/octet-stream": BYTES}
DOCUMENT = {"application/json": {"schema": {"type": "object", "description": "See docs/export.md."}}}


def conversation_routes(conversations: Conversations) -> APIRouter:
    router = APIRouter(tags=["conversations"], route_class=StrictRoute)

    @router.post(ALL, status_code=201, responses=responses(wire.Conversation, 409, 413, 415, 422, status=201))
    async def create_conversation(
        owner: CallerOwner, request: Request, body: requests.NewConversation, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Create an empty conversation. POST /turn also creates one."""
        tools = tools_of(body.client_tools)
        fields = records.ConversationFields(
            body.metadata, body.policy, body.ttl_s, approve=tuple(body.approve), client_tools=tools
        )
        once = await _once(request, idempotency_key)
        made = await conversations.create(owner, body.id, body.agent, fields, once)
        return _created(made)

    @router.get(ALL, responses=responses(wire.ConversationPage, 422), openapi_extra={"parameters": [OF_METADATA]})
    async def list_conversations(
        request: Request,
        owner: CallerOwner,
        *,
        limit: Limit = 20,
        cursor: Cursor = None,
        sort: SortBy = "updated",
        order: Ascending = "desc",
        agent: OfAgent = None,
        status: OfStatus = None,
        q: Searched = None,
        search_in: SearchPlace = "title",
    ) -> Response:
        """List conversations, those that changed last first.

        A filtered page may hold fewer than `limit` conversations. `next_cursor` shows whether more follow.
        """
        given = request.query_params.multi_items()
        metadata = sorted((name[len(METADATA) : -1], value) for name, value in given if name.startswith(METADATA))
        if len(metadata) > MOST_FILTERS:
            raise InvalidRequestError.in_parameter("query", "metadata", f"names more than {MOST_FILTERS} members")
        query = records.ConversationQuery(sort, order, agent, status, tuple(metadata), q, search_in)
        of = ("conversations", owner, repr(query))
        page = await conversations.store.conversations(owner, query, position_of(cursor, PLACE, *of), limit)
        return answer(views.page_view(page, partial(views.conversation_view, listed=True), *of))

    @router.get(AT, responses=responses(wire.Conversation, 404, 422))
    async def get_conversation(ref: CallerRef) -> Response:
        """Return one conversation."""
        return _shown(await conversations.store.conversation(ref))

    @router.patch(AT, responses=responses(wire.Conversation, 404, 412, 413, 415, 422))
    async def update_conversation(ref: CallerRef, body: Patch, if_match: IfMatch = None) -> Response:
        """Change metadata, memory policy, time to live, title or approvals by a merge patch.

        A running turn is not affected.
        """
        changes = {name: getattr(body, name) for name in body.model_fields_set}
        if "approve" in changes:
            changes["approve"] = tuple(body.approve)
        if "client_tools" in changes:
            changes["client_tools"] = tools_of(body.client_tools)

        def check(now: records.Conversation) -> None:
            tags = {"*"} if if_match is None else {tag.strip() for tag in if_match.split(",")}
            if not tags & {"*", _etag(to_json(views.conversation_view(now)))}:
                raise PreconditionFailedError

        return _shown(await conversations.patch(ref, changes, check))

    @router.delete(AT, status_code=204, responses=responses(None, 404, 422))
    async def delete_conversation(ref: CallerRef) -> Response:
        """Permanently delete a conversation, after cancelling its running and queued turns."""
        await conversations.delete(ref)
        return Response(status_code=204)

    @router.get(f"{AT}/steps", responses=responses(wire.StepPage, 404, 409, 422))
    async def list_steps(
        ref: CallerRef,
        *,
        limit: Limit = 20,
        cursor: Cursor = None,
        kind: StepKind = None,
        archived: Archived = False,
        order: Ascending = "asc",
    ) -> Response:
        """List the steps of the agent's memory, including those that a reset hides.

        A page of one type, or of large steps, may hold fewer than `limit`. `next_cursor` shows whether more follow.
        """
        of = ("steps", *ref, order, str(kind), str(archived))
        page = await conversations.steps(ref, number_at(cursor, *of), limit, kind, archived=archived, order=order)
        return answer(views.page_view(page, partial(views.step_view, ref.id), *of))

    return router


def file_routes(conversations: Conversations) -> APIRouter:
    router = APIRouter(tags=["conversations"], route_class=StrictRoute)

    @router.get(
        f"{AT}/images/{{name}}",
        responses={200: {"content": PICTURE, "description": "The image."}, **responses(None, 404, 422)},
        response_class=Response,
    )
    async def get_image(ref: CallerRef, name: ImageName) -> Response:
        """Return an image of a step. It never changes, because its name is a hash of its content."""
        kind, data = await conversations.image(ref, name)
        return Response(data, media_type=kind, headers=IMAGE_HEADERS)

    @router.get(
        f"{AT}/files/{{name}}",
        responses={200: {"content": CONTENT, "description": "The file."}, **responses(None, 404, 422)},
        response_class=Response,
    )
    async def get_file(ref: CallerRef, name: FileName) -> Response:
        """Return a file of a message or an answer, as a download. It never changes, as its name is a hash."""
        file = await conversations.file(ref, name)
        kind, headers = served(file)
        return Response(file.data, media_type=kind, headers=headers)

    @router.get(f"{AT}/workspace/files", responses=responses(wire.WorkspaceFileList, 404, 422))
    async def list_workspace_files(ref: CallerRef) -> Response:
        """List the files of the conversation's workspace that the agent may read."""
        files, is_whole = await conversations.workspace_files(ref)
        return answer({"items": views.workspace_views(ref.id, files), "complete": is_whole})

    @router.get(
        f"{AT}/workspace/files/{{path:path}}",
        responses={200: {"content": CONTENT, "description": "The file."}, **responses(None, 404, 422)},
        response_class=Response,
    )
    async def get_workspace_file(ref: CallerRef, path: FilePath) -> Response:
        """Return a file of the conversation's workspace, as a download."""
        data = await conversations.workspace_file(ref, path)
        headers = download_headers(path.rpartition("/")[2])
        return Response(data, media_type="application/octet-stream", headers=headers)

    return router


def memory_routes(conversations: Conversations) -> APIRouter:
    router = APIRouter(tags=["memory"], route_class=StrictRoute)
    # One large document is imported at a time: its process may take 1 GB. Small ones do not wait for it.
    large, small = asyncio.Lock(), asyncio.Lock()
    of_owner: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()  # of each owner, one waits for the turn

    @router.post(
        "/imports",
        status_code=201,
        responses=responses(wire.Conversation, 409, 413, 415, 422, status=201),
        openapi_extra={"requestBody": {"required": True, "content": DOCUMENT}},
    )
    async def import_conversation(
        owner: CallerOwner,
        request: Request,
        new_id: NewId = None,
        agent: Agent = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Create a conversation from an exported one."""
        body = await request.body()  # the middleware has read it, and holds it
        once = await _once(request, idempotency_key)
        async with AsyncExitStack() as locks:
            try:
                await locks.enter_async_context(of_owner.setdefault(owner, asyncio.Lock()))
                await locks.enter_async_context(large if len(body) > SMALL_BYTES else small)
                content = await conversations.read_document(body, agent)
            except asyncio.CancelledError:  # the server ends, and nothing was made
                raise ShuttingDownError from None
            return _created(await conversations.create_from(owner, content, new_id, once))

    @router.get(f"{AT}/prompt", responses=responses(wire.Prompt, 404, 409, 422))
    async def get_prompt(
        ref: CallerRef,
        claims: CallerClaims,
        *,
        summary_mode: Summary = False,
        turn: PastTurn = None,
        step: PastStep = 1,
    ) -> Response:
        """Return the model's next prompt without the next task, or rebuild one of a past turn.

        The memory policy is applied. A rebuilt prompt comes from the steps on record, with the agent's instructions
        and the policy as they are now. Steps that were destroyed are missing.
        """
        found, left_out = await conversations.prompt(ref, claims, summary_mode=summary_mode, turn=turn, step=step)
        messages = [views.message_view(ref.id, message) for message in found]
        return answer({"messages": messages, "left_out": left_out, "rebuilt": turn is not None})

    @router.get(f"{AT}/variables", responses=responses(wire.VariableList, 404, 409, 422))
    async def list_variables(ref: CallerRef) -> Response:
        """List the variables that the agent keeps between turns, with previews and sizes."""
        exported = await conversations.variables(ref)
        return answer({"items": await asyncio.to_thread(views.variable_views, exported)})

    @router.post(f"{AT}/prune", responses=responses(wire.PruneResult, *WRITE))
    async def prune_conversation(
        ref: CallerRef, claims: CallerClaims, body: Annotated[requests.PruneRequest | None, Body()] = None
    ) -> Response:
        """Remove the steps from the memory that a policy drops. They stay on record, except if destroyed."""
        request = body or requests.PruneRequest()
        weighed, count, conversation = await conversations.prune(
            ref, claims, request.policy, dry_run=request.dry_run, destroy=request.destroy
        )
        return answer(views.prune_view(weighed, count, conversation, destroyed=request.destroy))

    @router.post(f"{AT}/rollback", responses=responses(wire.Conversation, *WRITE))
    async def roll_back_conversation(ref: CallerRef, body: requests.RollbackRequest) -> Response:
        """Restore the steps and variables that the conversation had after a turn. Later turns stay on record."""
        return _shown(await conversations.history.roll_back(ref, body.turn))

    @router.post(f"{AT}/fork", status_code=201, responses=responses(wire.Conversation, *WRITE, status=201))
    async def fork_conversation(
        ref: CallerRef,
        request: Request,
        body: Annotated[requests.ForkRequest | None, Body()] = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Create a conversation from the state of this one after a turn."""
        asked, once = body or requests.ForkRequest(), await _once(request, idempotency_key)
        made = await conversations.fork(ref, asked.turn, asked.metadata, once)
        return _created(made)

    @router.get(
        f"{AT}/export",
        responses={200: {"content": DOCUMENT, "description": "The document."}, **responses(None, 404, 409, 422)},
    )
    async def export_conversation(ref: CallerRef) -> Response:
        """Return the whole conversation as a document without pickles (docs/export.md)."""
        return Response(await conversations.export(ref), media_type="application/json")

    return router


def _created(made: records.Conversation) -> Response:
    return _shown(made, 201, {"Location": link(f"/conversations/{made.ref.id}")})


def _shown(conversation: records.Conversation, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    response = answer(views.conversation_view(conversation), status, headers)
    response.headers["ETag"] = _etag(bytes(response.body))
    return response


def _etag(body: bytes) -> str:
    return f'"{sha256(body).hexdigest()[:32]}"'


def agent_routes(conversations: Conversations, limits: Limits) -> APIRouter:
    router = APIRouter(tags=["agents"], route_class=StrictRoute)

    @router.get("/agents", responses=responses(wire.AgentList))
    async def list_agents(_owner: CallerOwner) -> Response:
        """List the agents, the default agent first."""
        confinement, infos = await conversations.confinement(), conversations.agents()
        items = [views.agent_view(each, confinement[each.version.name], default=each is infos[0]) for each in infos]
        return answer({"items": items})

    @router.get("/agents/{name}", responses=responses(wire.AgentDetails, 404, 409, 422))
    async def get_agent(name: AgentPath, _owner: CallerOwner) -> Response:
        """Return an agent with the schema of its tools, its examples and its limits."""
        info = conversations.agent(AgentName(name))
        is_default = conversations.agents()[0].version.name == info.version.name
        view = views.agent_view(info, (await conversations.confinement())[info.version.name], default=is_default)
        own = views.view_of(wire.AgentLimits, limits, deadline_s=info.deadline_s or limits.deadline_s)
        return answer({**view, "limits": own})

    return router


async def _once(request: Request, key: str | None) -> records.IdempotentRequest | None:
    """Return the request of a key: its path, its query and its body as they were sent."""
    if key is None:
        return None
    place = f"{request.url.path}?{request.url.query}\n"
    return records.IdempotentRequest(key, place.encode() + await request.body())
