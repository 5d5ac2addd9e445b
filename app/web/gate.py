"""What every request passes before its route: host, content type, size. Plain ASGI, for the way must be short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.errors import ForeignHostError, MediaTypeError, ServiceError, TooLargeError
from app.web.problems import response_to

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class Gate:
    """Refuses what no route should see."""

    def __init__(self, app: ASGIApp, *, loopback: bool, max_body_bytes: int) -> None:
        self._app = app
        self._loopback = loopback
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            if self._loopback:
                _check_host(headers)
            if scope["method"] in _WITH_BODY:
                receive = self._checked_body(headers, receive)
        except ServiceError as error:
            await response_to(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _checked_body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        length = headers.get(b"content-length", b"0")
        has_body = length != b"0" or b"transfer-encoding" in headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and kind != b"application/json" and not kind.endswith(b"+json"):
            raise MediaTypeError
        limit = self._max_body_bytes
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        if b"transfer-encoding" not in headers:
            return receive
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise _too_large(limit)
            return message

        return counted


def _check_host(headers: dict[bytes, bytes]) -> None:
    # A page of another site can have a browser call a loopback address under that site's name (DNS rebinding).
    host = headers.get(b"host", b"").lower()
    name = host[: host.find(b"]") + 1] if host.startswith(b"[") else host.partition(b":")[0]
    if name not in _OWN_NAMES:
        raise ForeignHostError


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The request is larger than {limit} bytes (SMOLSESSIONS_MAX_BODY_BYTES).")
