"""Reading a body, and bounds on it before it is parsed, which holds the interpreter lock and the event loop."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from smolsessions.core.errors import OverloadedError, TooLargeError
from smolsessions.core.records import Owner

T = TypeVar("T")

LARGE_BYTES = 64 * 1024
"""A body up to this size cannot block the event loop for long, so it needs no check and no thread."""
MAX_VALUES = 10_000
MAX_QUOTES = 200_000
MAX_BARE_BYTES = 256 * 1024
_CUT_BYTES = 1024 * 1024  # of one call, which holds the interpreter lock
_MIN_BASE64_BYTES = 4 * 1024  # a shorter string counts as text
_DATA_URL = re.compile(rb"data:[a-z0-9.+-]{1,40}\\?/[a-z0-9.+-]{1,80}(;charset=utf-8)?;base64,", re.IGNORECASE)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_THREAD = ThreadPoolExecutor(1, "bodies")  # several would take the interpreter lock from the event loop in turn


class BodyBudget:
    """Bytes of all bodies that this process holds at once. One owner gets half of them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = 0
        self._by_owner: Counter[Owner] = Counter()

    def take(self, owner: Owner, count: int) -> None:
        """Raise `OverloadedError` if too many bytes are held already."""
        if self._held + count > self._most_bytes or self._by_owner[owner] + count > self._most_bytes // 2:
            raise OverloadedError("Too many bytes of request bodies are held at once; try again later.")
        self._held += count
        self._by_owner[owner] += count

    def give_back(self, owner: Owner, count: int) -> None:
        self._held -= count
        self._by_owner[owner] -= count
        if not self._by_owner[owner]:
            del self._by_owner[owner]


class HeldBody:
    """Body of a request. It counts in a budget until it is freed."""

    def __init__(self, budget: BodyBudget, owner: Owner) -> None:
        self._budget, self._owner = budget, owner
        self._taken = 0
        self.data = b""

    async def read(self, receive: Receive, most_bytes: int) -> None:
        """Raises `TooLargeError`, `OverloadedError` and `ClientDisconnect`."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece = message.get("body", b"")
            if len(body) + len(piece) > most_bytes:
                raise too_large(most_bytes)
            self._budget.take(self._owner, len(piece))
            self._taken += len(piece)
            body += piece
            if not message.get("more_body"):
                self.data = bytes(body)
                return

    def replay(self, receive: Receive) -> Receive:
        """Return a `receive` that yields the body, then continues."""
        sent = False

        async def receive_again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": self.data, "more_body": False}

        return receive_again

    def free(self) -> None:
        self._budget.give_back(self._owner, self._taken)
        self._taken, self.data = 0, b""


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
    parts = body.split(b'"')
    for place, part in enumerate(parts):
        if place and len(part) >= _MIN_BASE64_BYTES and not part.endswith(b"\\"):
            url = _DATA_URL.match(part)
            left = part[url.end() if url else 0 :].translate(None, _BASE64)
            if not left.strip(b"\\"):  # base64 alone, of which some clients escape the slashes
                parts[place] = b"/" * len(left)
    text = b'"'.join(parts)
    if len(text) > max_text_bytes:
        raise TooLargeError(f"The body has more than {max_text_bytes} bytes beside its images and files; send less.")
    bare = _outside_strings(text).translate(None, b" \t\r\n")
    if _separators(bare) > MAX_VALUES:
        raise TooLargeError(f"The body has more than {MAX_VALUES} values; send fewer.")
    if len(bare) > MAX_BARE_BYTES:
        raise TooLargeError(f"The body has more than {MAX_BARE_BYTES} bytes outside strings; send shorter numbers.")


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _outside_strings(text: bytes) -> bytes:
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # so each quotation mark begins or ends a string
    found, inside = [], 0
    for start in range(0, len(text), _CUT_BYTES):
        parts = text[start : start + _CUT_BYTES].split(b'"')
        found += parts[inside::2]
        inside = (inside + len(parts) - 1) % 2
    return b"".join(found)
