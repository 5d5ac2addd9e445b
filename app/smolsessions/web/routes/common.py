"""Parts shared by the routers: limits, parameters, answers and descriptions of errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.security import HTTPBearer
from pydantic_core import to_json

from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.records import Owner
from smolsessions.web.views import turn_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smolsessions.core.records import Turn
    from smolsessions.web.auth import Authenticator

PathId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The conversation's id.")]
Internal = Annotated[bool, Query(description="Include python_interpreter and final_answer.")]
Prefer = Annotated[
    str | None,
    Header(
        description="`respond-async`: answer at once. `wait=SECONDS`: longest wait for the end. Both: wait so long."
    ),
]
OnDisconnect = Annotated[
    Literal["cancel"] | None, Query(description="`cancel`: stop the turn if this stream's client disconnects.")
]
TurnNumber = Annotated[int, Path(ge=1, le=2**31, description="The turn's number: 1, 2, 3 …")]
Limit = Annotated[int, Query(ge=1, le=100, description="Most items of the page.")]
Cursor = Annotated[str | None, Query(min_length=1, max_length=20, description="`next_cursor` of the previous page.")]

_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """Limits on requests that are settings. `wait_s` is the longest wait for a turn's end."""

    host: str
    max_body_bytes: int
    max_message_chars: int
    max_steps: int
    max_image_pixels: int
    wait_s: float
    max_deadline_s: float
    send_timeout_s: float
    cors_origins: tuple[str, ...] = ()


_bearer = HTTPBearer(auto_error=False, description="An API key, if the service has an API keys file.")


async def owner_of(request: Request, _described: Annotated[object, Depends(_bearer)]) -> Owner:
    if "owner" in request.scope:
        return Owner(request.scope["owner"])
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator.owner(request.headers.get("authorization"))


CallerOwner = Annotated[Owner, Depends(owner_of)]


def location_of(turn: Turn) -> str:
    return f"/conversations/{turn.ref.id}/turns/{turn.number}"


def number_of(cursor: str | None, first: int) -> int:
    """Read a cursor that is a number."""
    if cursor is None:
        return first
    if not (cursor.isascii() and cursor.isdigit()):
        raise InvalidRequestError.in_parameter("query", "cursor", "is not a next_cursor of this list")
    return min(max(int(cursor), first), 2**31)


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON data without FastAPI's second validation."""
    return Response(to_json(data), status, headers, media_type="application/json")


def turn_answer(turn: Turn, applied: str | None, *, internal: bool) -> Response:
    """Return a turn with status 200 if it is over, 202 if not. `applied` is the value of `Preference-Applied`."""
    headers = {"Location": location_of(turn)}
    if applied:
        headers["Preference-Applied"] = applied
    return answer(turn_view(turn, internal=internal), 200 if turn.outcome else 202, headers)


def wait_of(prefer: str | None, longest_s: float) -> tuple[float, str | None]:
    """Return the seconds to wait for a turn's end, and the preferences of `Prefer` (RFC 7240) that apply.

    `respond-async` together with `wait` waits that long, then lets the turn continue.
    """
    words = [part.partition(";")[0].strip() for part in (prefer or "").split(",")]
    waits = [match for word in words if (match := _WAIT.fullmatch(word))]
    is_async = "respond-async" in map(str.lower, words)
    applied = ["respond-async"] if is_async else []
    wait_s = 0.0 if is_async else longest_s
    if waits:
        wait_s = float(min(int(waits[0][1]), int(longest_s) or longest_s))
        applied.append(f"wait={wait_s:g}")
    return wait_s, ", ".join(applied) or None
