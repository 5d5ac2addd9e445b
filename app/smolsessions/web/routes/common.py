"""What the routers share: limits, paths, answers and how errors are described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.security import HTTPBearer
from pydantic_core import to_json

from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.records import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smolsessions.core.records import Turn
    from smolsessions.web.auth import Authenticator

PathId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The conversation's id.")]
Internal = Annotated[bool, Query(description="Name python_interpreter and final_answer too.")]
Prefer = Annotated[
    str | None,
    Header(
        description="`respond-async`: answer at once; `wait=SECONDS`: how long to wait for the end. Both: wait so long."
    ),
]
OnDisconnect = Annotated[
    Literal["cancel"] | None, Query(description="`cancel`: stop the turn when this stream's reader goes away.")
]
TurnNumber = Annotated[int, Path(ge=1, le=2**31, description="The turn's number: 1, 2, 3 …")]
Limit = Annotated[int, Query(ge=1, le=100, description="Most items of the page.")]
Cursor = Annotated[str | None, Query(min_length=1, max_length=20, description="`next_cursor` of the page before.")]

_MEANINGS = {
    400: "The request is not sound: its body is not JSON in UTF-8, ends too early, or its Host is missing or wrong.",
    401: "An API key is needed.",
    403: "The host is not this machine's, or a page of another site asks.",
    404: "There is no such thing, or it is not yours.",
    409: "It does not fit the state: a turn runs (see `on_busy`), the id is taken, the agent is another one.",
    413: "The request is too large.",
    415: "The body is not `application/json`.",
    422: "A field does not hold what it should; `errors` names it.",
    429: "Too many turns wait in this conversation; `Retry-After` says when to try again.",
    500: "The service made a mistake.",
    503: "The store does not answer, too much waits, or this process is shutting down; `Retry-After` says when to try "
    "again.",
}


@dataclass(frozen=True)
class Limits:
    """What callers may send, and to which host. `wait_s` is how long an answer may be waited for."""

    host: str
    max_body_bytes: int
    max_message_chars: int
    max_steps: int
    max_image_pixels: int
    wait_s: float
    max_deadline_s: float
    send_timeout_s: float
    cors_origins: tuple[str, ...] = ()


_bearer = HTTPBearer(auto_error=False, description="An API key, where the service has a file of them.")


async def owner_of(request: Request, _described: Annotated[object, Depends(_bearer)]) -> Owner:
    if "owner" in request.scope:
        return Owner(request.scope["owner"])
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator.owner(request.headers.get("authorization"))


CallerOwner = Annotated[Owner, Depends(owner_of)]


def location_of(turn: Turn) -> str:
    """Give the path of a turn."""
    return f"/conversations/{turn.ref.id}/turns/{turn.number}"


def number_of(cursor: str | None, first: int) -> int:
    """Read a cursor that counts."""
    if cursor is None:
        return first
    if not (cursor.isascii() and cursor.isdigit()):
        raise InvalidRequestError.in_parameter("query", "cursor", "is not a next_cursor of this list")
    return min(max(int(cursor), first), 2**31)


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Send JSON data as it is: the views made it, a second validation would only cost."""
    return Response(to_json(data), status, headers, media_type="application/json")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": _MEANINGS[status], "content": content}
        for status in (400, *statuses, 401, 403, 500, 503)
    }
