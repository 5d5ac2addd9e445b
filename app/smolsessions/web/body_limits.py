"""Bounds of a body, checked before it is parsed: parsing holds the interpreter lock, and so blocks the event loop."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from smolsessions.core.errors import TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LARGE_BYTES = 64 * 1024
"""A smaller body needs no check: it cannot hold enough to block the event loop for long."""
MOST_VALUES = 10_000
MOST_QUOTES = 200_000
MOST_BARE_BYTES = 256 * 1024
_IMAGE_BYTES = 4 * 1024  # a shorter string counts as text
_IMAGE_URL = re.compile(rb"data:image\\?/[a-z0-9.+-]{1,40};base64,", re.IGNORECASE)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_THREAD = ThreadPoolExecutor(1, "bodies")  # several would take the interpreter lock from the event loop in turn


async def aside(call: Callable[[bytes], T], body: bytes) -> T:
    """Call a function with a body, in a thread if the body is large."""
    if len(body) <= LARGE_BYTES:
        return call(body)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call, body)


def check_structure(body: bytes, max_text_bytes: int) -> None:
    """Refuse a body that takes long to parse: too much beside images, or too many values. Raises `TooLargeError`."""
    if body.count(b'"') > MOST_QUOTES:
        raise TooLargeError(f"The body has more than {MOST_QUOTES} quotation marks; send less.")
    first, *parts = body.split(b'"')
    text = b'"'.join([first, *map(_without_image, parts)])
    if len(text) > max_text_bytes:
        raise TooLargeError(f"The body has more than {max_text_bytes} bytes beside its images; send less.")
    # Without escapes, each quotation mark begins or ends a string.
    strings = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    bare = b"".join(strings[::2]).translate(None, b" \t\r\n")
    if sum(map(bare.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise TooLargeError(f"The body has more than {MOST_VALUES} values; send fewer.")
    if len(bare) > MOST_BARE_BYTES:
        raise TooLargeError(f"The body has more than {MOST_BARE_BYTES} bytes outside strings; send shorter numbers.")


def _without_image(part: bytes) -> bytes:
    """Return what base64 leaves of a part between quotation marks; some clients escape its slashes."""
    if len(part) < _IMAGE_BYTES or part.endswith(b"\\"):
        return part
    url = _IMAGE_URL.match(part)
    left = part[url.end() if url else 0 :].translate(None, _BASE64)
    return part if left.strip(b"\\") else b"/" * len(left)
