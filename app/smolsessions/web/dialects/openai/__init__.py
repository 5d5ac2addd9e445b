"""OpenAI's Chat Completions, Responses and Conversations, for the libraries and programs that speak it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from smolsessions.core.records import Ref
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.openai.chat import chat_routes
from smolsessions.web.dialects.openai.conversations import conversation_routes
from smolsessions.web.dialects.openai.responses import response_routes
from smolsessions.web.files import served
from smolsessions.web.routes.common import CallerOwner

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_BAD_REQUEST, _DEFECT, _BUSY = 400, 500, 409


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


def ERROR_FORM(problem: dict[str, Any], headers: dict[str, str]) -> JSONResponse:  # noqa: N802 - a constant of a dialect
    """Return a problem as OpenAI's libraries read it, so that they raise the right exception."""
    status = problem["status"]
    first = (problem.get("errors") or [{}])[0]
    place = str(first.get("pointer") or first.get("parameter") or "")
    kind = _TYPES.get(status, "server_error" if status >= _DEFECT else _TYPES[_BAD_REQUEST])
    detail = f"{problem['detail']} {place}: {first['message']}" if first.get("message") else problem["detail"]
    error = {"message": detail, "type": kind, "param": place.lstrip("/") or None, "code": problem["code"]}
    if status == _BUSY:  # a second try would be refused as well
        headers["x-should-retry"] = "false"
    return JSONResponse({"error": error}, status, headers)
