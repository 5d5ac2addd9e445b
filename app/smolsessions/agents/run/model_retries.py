"""Waits before a model call is made again. The service alone repeats calls, inside the turn's deadline."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from smolsessions.agents.run.failures import attribute, causes

BACK_OFF_S = 0.5  # before the first retry, doubled for each further one
MAX_BACK_OFF_S = 8.0
MAX_RETRY_AFTER_S = 60.0
"""Longest wait that a provider may ask for. Beyond it, or beyond the turn's deadline, the call is not repeated."""


def wait_before_retry(error: Exception, retry: int, left_s: float, *, has_fallback: bool) -> float | None:
    """Return the wait before the next retry, counted from 0. None: no retry, as it would come too late.

    A model with a fallback is not waited for longer than the usual back-off.
    """
    back_off_s = min(BACK_OFF_S * 2**retry, MAX_BACK_OFF_S) * random.uniform(0.5, 1)  # noqa: S311 - hides nothing
    wait_s = max(back_off_s, retry_after_s(error))
    longest_s = MAX_BACK_OFF_S if has_fallback else MAX_RETRY_AFTER_S
    return wait_s if wait_s <= longest_s and wait_s < left_s else None


def retry_after_s(error: BaseException) -> float:
    """Return how long the provider asks to wait, or 0."""
    held: list[Any] = []
    for link in causes(error):
        response = attribute(link, "response")
        held += [attribute(link, "litellm_response_headers"), attribute(response, "headers")]
        if isinstance(response, dict):  # of botocore
            held.append((response.get("ResponseMetadata") or {}).get("HTTPHeaders"))
    found = next((each for each in held if isinstance(each, Mapping) and each), {})
    headers = {str(name).lower(): value for name, value in found.items()}
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None and isinstance(text, str):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
    return max(0.0, seconds or 0.0)


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # of a header
    except (TypeError, ValueError):
        return None
    return number if number == number else None  # noqa: PLR0124 - not a number
