"""Parts shared by the routers: their class, limits, parameters, answers and descriptions of errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic_core import to_json
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from smolsessions.core import records
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.records import Order, Owner, Ref, Turn
from smolsessions.web.auth import Authenticator
from smolsessions.web.links import link
from smolsessions.wire.requests import MAX_INT, ClientTool

MAX_NAME_CHARS = 50
PathId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The conversation's id.")]
TurnNumber = Annotated[int, Path(alias="turn", ge=1, le=MAX_INT, description="The turn's number: 1, 2, 3 …")]
Limit = Annotated[int, Query(ge=1, le=100, description="Most items of the page.")]
Cursor = Annotated[str | None, Query(min_length=1, max_length=200, description="`next_cursor` of the previous page.")]
Ascending = Annotated[Order, Query(description="`asc`: the oldest first. `desc`: the newest first.")]
KEY = re.compile(r"[!-~]{1,255}")
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=f"^{KEY.pattern}$",
        description="A unique name for this request. A request with the same name and content returns the first "
        "request's turn or conversation, for 24 hours.",
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        alias="Prefer",
        description="`respond-async`: answer at once. `wait=SECONDS`: longest wait for the end. Both: wait so long.",
    ),
]
Internal = Annotated[bool, Query(description="Include python_interpreter and final_answer.")]
OnDisconnect = Annotated[
    Literal["cancel"] | None, Query(description="`cancel`: stop the turn if this stream's client disconnects.")
]
Until = Annotated[
    Literal["waiting"] | None, Query(description="`waiting`: the stream also ends at an open wait for a person.")
]


@dataclass(frozen=True)
class Delivery:
    """The way in which a request gets its turn, as its headers and parameters say."""

    prefer: Prefer = None
    on_disconnect: OnDisconnect = None
    until: Until = None
    include_internal_tools: Internal = False
    accept: Annotated[str | None, Header(include_in_schema=False)] = None


Answered = Annotated[Delivery, Depends()]


class StrictRoute(APIRoute):
    """Route that refuses unknown query parameters. FastAPI would ignore a misspelt one."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        objects = (self.openapi_extra or {}).get("parameters", ())
        self._prefixes = tuple(f"{each['name']}[" for each in objects)
        dependants = (self.dependant, *self.dependant.dependencies)
        self._known = sorted(field.alias for each in dependants for field in each.query_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises `InvalidRequestError` for an unknown parameter."""
        if scope["query_string"] and scope["method"] in (self.methods or ()):
            for name in QueryParams(scope["query_string"]):
                if name not in self._known and not (name.startswith(self._prefixes) and name[-1] == "]"):
                    known = ", ".join([*self._known, *(f"{prefix}KEY]" for prefix in self._prefixes)]) or "none"
                    raise InvalidRequestError.in_parameter(
                        "query", name[:MAX_NAME_CHARS], f"is not known here; the parameters of this path are: {known}"
                    )
        await super().handle(scope, receive, send)


@dataclass(frozen=True)
class Limits:
    """Limits on requests that are settings. `wait_s` is the longest wait for a turn's end."""

    host: str
    max_body_bytes: int
    max_message_chars: int
    max_steps: int
    max_image_pixels: int
    max_file_bytes: int
    wait_s: float
    deadline_s: float
    max_deadline_s: float
    send_timeout_s: float
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    root_path: str = ""


_bearer = HTTPBearer(auto_error=False, description="An API key, if the service has an API keys file.")


async def owner_of(request: Request, _described: Annotated[object, Depends(_bearer)]) -> Owner:
    return Owner(_identified(request)["owner"])


async def claims_of(request: Request) -> dict[str, Any]:
    claims: dict[str, Any] = _identified(request)["claims"]
    return claims


def _identified(request: Request) -> Scope:
    """Return the scope with owner and claims. The middleware sets them for requests with a body."""
    scope = request.scope
    if "owner" not in scope:
        authenticator: Authenticator = request.app.state.authenticator
        scope["owner"], scope["claims"], scope["key"] = authenticator.identify(request.headers.get("authorization"))
    return scope


CallerOwner = Annotated[Owner, Depends(owner_of)]


async def ref_of(owner: CallerOwner, conversation_id: PathId) -> Ref:
    return Ref(owner, conversation_id)


CallerRef = Annotated[Ref, Depends(ref_of)]
CallerClaims = Annotated[dict[str, Any], Depends(claims_of)]


def location_of(turn: Turn) -> str:
    return link(f"/conversations/{turn.ref.id}/turns/{turn.number}")


def tools_of(sent: Iterable[ClientTool]) -> tuple[records.ClientTool, ...]:
    return tuple(records.ClientTool(**dict(tool)) for tool in sent)


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON data without FastAPI's second validation."""
    return Response(to_json(data), status, headers, media_type="application/json")
