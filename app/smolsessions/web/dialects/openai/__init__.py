"""OpenAI's Chat Completions, Responses and Conversations, for the libraries and programs that speak it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from smolsessions.core.records import Ref
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.openai.chat import chat_routes
from smolsessions.web.dialects.openai.conversations import conversation_routes
from smolsessions.web.dialects.openai.responses import response_routes
from smolsessions.web.files import served
from smolsessions.web.routes.common import CallerOwner


def routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/openai/v1")
    for make in (chat_routes, response_routes, conversation_routes):
        router.include_router(make(gateway))

    @router.get("/containers/{conversation_id}/files/{name}/content")
    async def get_file(owner: CallerOwner, conversation_id: str, name: str) -> Response:
        """Return a file that the text of an answer cites."""
        file = await gateway.conversations.file(Ref(owner, conversation_id), name)
        kind, headers = served(file)
        return Response(file.data, media_type=kind, headers=headers)

    return router
