"""Reading a request's body, and bounds on it before it is parsed.

Parsing holds the interpreter lock, and so blocks the event loop.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect

from smolsessions.core.errors import TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Receive

T = TypeVar("T")

LARGE_BYTES = 64 * 1024
"""A body up to this size cannot block the event loop for long, so it needs no check and no thread."""
MAX_VALUES = 10_000
MAX_QUOTES = 200_000
MAX_BARE_BYTES = 256 * 1024
MAX_DOCUMENT_VALUES = 2_000_000
MAX_DOCUMENT_QUOTES = 2 * MAX_DOCUMENT_VALUES
_MIN_BASE64_BYTES = 4 * 1024  # a shorter string counts as text
_DATA_URL = re.compile(rb"data:[a-z0-9.+-]{1,40}\\?/[a-z0-9.+-]{1,80}(;charset=utf-8)?;base64,", re.IGNORECASE)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_THREAD = ThreadPoolExecutor(1, "bodies")  # several would take the interpreter lock from the event loop in turn


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Read a body. Raises `TooLargeError` and `ClientDisconnect`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        if not message.get("more_body"):
            return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that was read before, then continues."""
    sent = False

    async def receive_again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(f"The request is larger than {max_bytes} bytes (SMOLSESSIONS_MAX_BODY_BYTES).")


async def in_thread_if_large(call: Callable[[bytes], T], body: bytes) -> T:
    """Call a function with a body, in a thread if the body is large."""
    if len(body) <= LARGE_BYTES:
        return call(body)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call, body)


def check_structure(body: bytes, max_text_bytes: int) -> None:
    """Raise `TooLargeError` for a body that takes long to parse: much text beside images and files, or many values."""
    if body.count(b'"') > MAX_QUOTES:
        raise TooLargeError(f"The body has more than {MAX_QUOTES} quotation marks; send less.")
    first, *parts = body.split(b'"')
    text = b'"'.join([first, *map(_without_base64, parts)])
    if len(text) > max_text_bytes:
        raise TooLargeError(f"The body has more than {max_text_bytes} bytes beside its images and files; send less.")
    bare = _outside_strings(text).translate(None, b" \t\r\n")
    if _separators(bare) > MAX_VALUES:
        raise TooLargeError(f"The body has more than {MAX_VALUES} values; send fewer.")
    if len(bare) > MAX_BARE_BYTES:
        raise TooLargeError(f"The body has more than {MAX_BARE_BYTES} bytes outside strings; send shorter numbers.")


def check_document(body: bytes) -> None:
    """Raise `TooLargeError` for a document for import of so many values that parsing blocks the event loop for long."""
    if _separators(body) <= MAX_DOCUMENT_VALUES:
        return
    is_sound = body.count(b'"') - body.count(b'\\"') <= MAX_DOCUMENT_QUOTES
    if not is_sound or _separators(_outside_strings(body)) > MAX_DOCUMENT_VALUES:
        raise TooLargeError(f"The document has more than {MAX_DOCUMENT_VALUES} values; send fewer.")


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _outside_strings(text: bytes) -> bytes:
    # Without escapes, each quotation mark begins or ends a string.
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _without_base64(part: bytes) -> bytes:
    """Remove base64 from a part between quotation marks. Some clients escape its slashes."""
    if len(part) < _MIN_BASE64_BYTES or part.endswith(b"\\"):
        return part
    url = _DATA_URL.match(part)
    left = part[url.end() if url else 0 :].translate(None, _BASE64)
    return part if left.strip(b"\\") else b"/" * len(left)
