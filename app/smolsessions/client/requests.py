"""Requests as JSON data, and the wait between their attempts."""

from __future__ import annotations

import logging
import math
import mimetypes
import re
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Required, TypedDict
from urllib.parse import quote

import httpx2

from smolsessions.client.errors import ApiError, UnreachableError
from smolsessions.client.tools import Toolbox
from smolsessions.core.records import OnBusy
from smolsessions.core.requests import Decision

LOG = logging.getLogger(__name__)
Image = str | bytes | Path
"""Base64 or a data: URL, the bytes of an image file, or its path."""
FileContent = Path | tuple[str, str, bytes]
"""Path of a file, or its name, media type and bytes."""
Policy = str | dict[str, Any] | list[str | dict[str, Any]]
"""Memory policy: a rule by name, a rule with its arguments, or several."""
Tools = Sequence[Callable[..., Any]]
"""Functions of yours, which the client calls when a turn asks for them."""
Order = Literal["asc", "desc"]
Until = Literal["waiting"]
"""Event before the final one at which a stream ends, too."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
PORTS = 65536
OUTAGES = {502, 503, 504}
"""Statuses of a service that is not there or not ready, also from a gateway in front of it."""
NOT_DONE = {"overloaded", "shutting_down", "too_many_connections"}
"""Codes of the service that has done nothing. After any other error of an outage, the change may have been made."""


class TurnOptions(TypedDict, total=False):
    """Options of a turn (POST /turn). `idempotency_key` is a new one for each call, if it is not set.

    `tools` are functions of yours, which the client describes in `client_tools`, and calls when the turn asks.
    """

    conversation_id: str
    create: bool
    agent: str
    images: Sequence[Image]
    files: Sequence[FileContent]
    additional_args: Mapping[str, Any]
    max_steps: int
    deadline_s: float
    reset: bool
    on_busy: OnBusy
    approve: Sequence[str]
    client_tools: Sequence[Mapping[str, Any]]
    output_schema: Mapping[str, Any]
    tools: Tools
    metadata: Mapping[str, Any]
    include_internal_tools: bool
    idempotency_key: str


def turn_request(message: str, options: TurnOptions, *, blocks: bool) -> tuple[dict[str, Any], dict[str, str], bool]:
    """Return body and headers of POST /turn, and its parameter `include_internal_tools`. `blocks` as in `Toolbox`."""
    fields: dict[str, Any] = {"message": message, **options}
    key = fields.pop("idempotency_key", None)
    internal = fields.pop("include_internal_tools", False)
    if tools := fields.pop("tools", ()):
        fields["client_tools"] = [*fields.get("client_tools", ()), *Toolbox(tools, blocks=blocks).described]
    if images := fields.get("images"):
        fields["images"] = [_image(image) for image in images]
    if files := fields.get("files"):
        fields["files"] = [_file(file) for file in files]
    return fields, {"Idempotency-Key": key} if key else new_key(), internal


def new_key() -> dict[str, str]:
    """Return the header of a new Idempotency-Key, with which a request may be repeated."""
    return {"Idempotency-Key": uuid.uuid4().hex}


class Answer(TypedDict, total=False):
    """Answer to one request of a waiting turn (POST …/answers): a decision, a text, or the result of your tool."""

    request_id: Required[str]
    decision: Decision
    arguments: Mapping[str, Any]
    reason: str
    text: str
    result: Any
    error: str


def _image(image: Image) -> str:
    if isinstance(image, Path):
        image = image.read_bytes()
    return b64encode(image).decode() if isinstance(image, bytes) else image


def _file(file: FileContent) -> dict[str, str]:
    if isinstance(file, Path):
        kind = _KINDS.get(file.suffix.lower()) or mimetypes.guess_type(file.name)[0] or "text/plain"
        file = file.name, kind, file.read_bytes()
    name, media_type, data = file
    return {"name": name, "media_type": media_type, "data": b64encode(data).decode()}


_KINDS = {".csv": "text/csv", ".md": "text/markdown", ".wav": "audio/wav", ".tsv": "text/tab-separated-values"}
"""Types that the tables of operating systems lack, or name in several ways."""


def path_of(*parts: object) -> str:
    """Return a path. No character of a part leads to another path."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def check_address(url: str) -> httpx2.URL:
    """Return the address of a service as a URL. Raises `ValueError`."""
    with suppress(httpx2.InvalidURL, UnicodeError):
        parsed = httpx2.URL(url)
        if parsed.scheme in {"http", "https"} and parsed.host and (parsed.port or 0) < PORTS:
            return parsed
    raise ValueError(f"{url!r} is no address of a service; write it as http://127.0.0.1:8000")


def check_key(api_key: str) -> str:
    """Return the API key. Raises `ValueError`."""
    if not re.fullmatch("[!-~]+", api_key):
        raise ValueError("the API key has characters that no key has, such as a line's end; copy it again")
    return api_key


def named(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


class Patience:
    """Waits between the attempts at a request: longer each time, until `limit_s` seconds after the first failure."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._held_at = math.inf
        self.restart()

    def restart(self) -> None:
        """Start again, as the service has answered."""
        self._ends_at = math.inf
        self._wait_s = FIRST_WAIT_S
        self._has_warned = False

    def hold(self) -> None:
        """Note that the service holds a connection open. A connection that it held for long is an answer."""
        self._held_at = time.monotonic()

    def next_wait_s(self, cause: Exception | None, after_s: float | None = None) -> float:
        """Return the seconds until the next attempt. Raises `cause` or `UnreachableError` if no time is left."""
        now = time.monotonic()
        if now - self._held_at > LONGEST_WAIT_S:
            self.restart()
        self._held_at = math.inf
        self._ends_at = min(self._ends_at, now + self._limit_s)
        wait_s = max(self._wait_s, after_s or 0)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        if now + wait_s <= self._ends_at:
            if wait_s >= LONGEST_WAIT_S and not self._has_warned:
                self._has_warned = True
                LOG.warning("%s Trying again for %.0f s.", cause or "The stream ended.", self._ends_at - now)
            return wait_s
        if cause is None:
            raise UnreachableError("The service ended the stream of a turn again and again before the turn's end.")
        raise cause


def may_repeat(error: ApiError, *, is_safe: bool) -> bool:
    """Return whether a request may be sent again after a refusal. `is_safe`: a repetition changes nothing."""
    return error.status in OUTAGES if is_safe else error.code in NOT_DONE
