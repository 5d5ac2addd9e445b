"""What every request passes before its route: host, site, content type, size. Plain ASGI, for the way must be short."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from app.errors import ForeignHostError, ForeignOriginError, MalformedError, MediaTypeError, ServiceError, TooLargeError
from app.web.problems import response_to

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from app.web.auth import Callers

_OWN_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})
_JSON_KIND = re.compile(rb"application/[^/]+\+json")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class Gate:
    """Refuses what no route should see."""

    def __init__(
        self, app: ASGIApp, *, callers: Callers, host: str, origins: Collection[str], max_body_bytes: int
    ) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)
        self._own_names = _OWN_NAMES | {host.encode(), f"[{host}]".encode()}
        self._callers = callers
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            if self._callers.loopback:
                _check_host(headers, self._own_names)
            _check_site(scope["method"], headers, self._origins)
            if scope["method"] in _WITH_BODY:
                # Before its body is read, a request must be somebody's; the route finds the owner here.
                scope["owner"] = self._callers.owner(headers.get(b"authorization", b"").decode("latin-1"))
                receive = await self._checked_body(headers, receive)
        except ServiceError as error:
            await response_to(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _checked_body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        length = headers.get(b"content-length", b"0")
        has_body = length != b"0" or b"transfer-encoding" in headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and kind != b"application/json" and not _JSON_KIND.fullmatch(kind):
            raise MediaTypeError
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise _too_large(self._max_body_bytes)
        body = await _whole(receive, self._max_body_bytes)
        if b"\0" in body or not _is_utf8(body):  # a NUL is in no JSON, but in all that is UTF-16 or UTF-32
            raise MalformedError
        return again(body, receive)


def again(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read once more, then what comes."""
    sent = False

    async def once_more() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once_more


async def _whole(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(body)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_host(headers: dict[bytes, bytes], own_names: frozenset[bytes]) -> None:
    # A page of another site can have a browser call a loopback address under that site's name (DNS rebinding).
    host = headers.get(b"host", b"").lower()
    name = host[: host.find(b"]") + 1] if host.startswith(b"[") else host.partition(b":")[0]
    if name not in own_names:
        raise ForeignHostError


def _check_site(method: str, headers: dict[bytes, bytes], origins: Collection[bytes]) -> None:
    # A stop needs no body, and a stream that stops its turn when it ends is a GET: any page could ask for them unseen.
    if headers.get(b"sec-fetch-site") in _FOREIGN_SITES and headers.get(b"origin") not in origins:
        if method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate":
            return
        raise ForeignOriginError


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The request is larger than {limit} bytes (SMOLSESSIONS_MAX_BODY_BYTES).")
