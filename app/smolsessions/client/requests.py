"""Requests as JSON data, and the wait between their attempts."""

from __future__ import annotations

import time
import uuid
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from smolsessions.client.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smolsessions.client.errors import ApiError
    from smolsessions.core.records import OnBusy

Image = str | bytes | Path
"""Base64 or a data: URL, the bytes of an image file, or its path."""
Policy = str | dict[str, Any] | list[str | dict[str, Any]]
"""Memory policy: a rule by name, a rule with its arguments, or several."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
MAYBE_DONE = "store_unavailable"
"""Code of an error after which the change may have been made."""


class TurnOptions(TypedDict, total=False):
    """Options of a turn (POST /turn). `idempotency_key` is a new one for each call, if it is not set."""

    conversation_id: str
    agent: str
    images: Sequence[Image]
    additional_args: Mapping[str, Any]
    max_steps: int
    deadline_s: float
    reset: bool
    on_busy: OnBusy
    metadata: Mapping[str, Any]
    include_internal_tools: bool
    idempotency_key: str


def turn_request(message: str, options: TurnOptions) -> tuple[dict[str, Any], dict[str, str]]:
    """Return body and headers of POST /turn."""
    fields: dict[str, Any] = {"message": message, **options}
    key = fields.pop("idempotency_key", None) or uuid.uuid4().hex
    if images := fields.get("images"):
        fields["images"] = [_image(image) for image in images]
    return fields, {"Idempotency-Key": key}


def _image(image: Image) -> str:
    if isinstance(image, Path):
        image = image.read_bytes()
    return b64encode(image).decode() if isinstance(image, bytes) else image


def named(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


class Patience:
    """Waits between the attempts at a request: longer each time, and together at most `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.restart()

    def restart(self) -> None:
        """Start again, as the service has answered."""
        self._ends_at = time.monotonic() + self._limit_s
        self._wait_s = FIRST_WAIT_S

    def next_wait_s(self, cause: Exception | None, after_s: float | None = None) -> float:
        """Return the seconds until the next attempt. Raises `cause` or `UnreachableError` if no time is left."""
        wait_s = self._wait_s if after_s is None else after_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        if time.monotonic() + wait_s <= self._ends_at:
            return wait_s
        if cause is None:
            raise UnreachableError("The service ended the stream of a turn again and again before the turn's end.")
        raise cause


def may_repeat(error: ApiError, *, is_safe: bool) -> bool:
    """Return whether a request may be sent again after a refusal. `is_safe`: a repetition changes nothing."""
    return error.status == 503 and (is_safe or error.code != MAYBE_DONE)  # noqa: PLR2004 - Service Unavailable
