"""Checks of every request before its route: host, site, API key, content type and body size. Answers to defects."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address
from secrets import token_hex

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smolsessions.core.errors import ForeignHostError, ForeignOriginError, MalformedError, MediaTypeError, ServiceError
from smolsessions.core.request_id import request_id
from smolsessions.web.auth import Authenticator
from smolsessions.web.body import LARGE_BYTES, BodyBudget, HeldBody, check_structure, in_thread_if_large, too_large
from smolsessions.web.problems import response_to

log = logging.getLogger(__name__)

LOGGED_CHARS = 100
MOST_LARGEST_BODIES = 12  # bytes of so many are held at once: 240 MB by default, a quarter of a web pod's memory

_HOST = re.compile(rb"((?:[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_.])?)?|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(rb"(https?)://(.+)")
_PORTS = {b"http": 80, b"https": 443}
_LAST_PORT = 65535
_SINGLE = frozenset(
    b"host origin authorization content-type content-length sec-fetch-site idempotency-key last-event-id".split()
)
_LISTS = frozenset({b"accept", b"if-match", b"prefer"})
_LOOPBACK_NAMES = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
_PRIVATE = (b".internal", b".local", b".localhost", b".svc")
_IPV4 = re.compile(rb"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_JSON_KIND = re.compile(rb"application/[^/]+\+json")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_IMPORT = ("POST", "/imports")  # its document may be large, and is parsed in a thread


class RequestChecks:
    """Plain ASGI middleware that refuses requests which no route should handle.

    It also answers an unexpected exception. Starlette's own handler raises it again, which closes the connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        hosts: Collection[str] | None,
        origins: Collection[str],
        max_body_bytes: int,
        max_text_bytes: int,
        prefix: str = "",
        answer_at_once: Callable[[Scope, Mapping[bytes, bytes], HeldBody], Awaitable[ASGIApp | None]] | None = None,
    ) -> None:
        """`hosts` are the names beside those of the machine that it answers to, None for any.

        A path may begin with `prefix`, or a reverse proxy has removed it. `answer_at_once` answers a request with a
        body, or leaves it to the application by returning None.
        """
        self._app = app
        self._prefix = prefix
        self._answer_at_once = answer_at_once
        self._origins = frozenset(origin.encode() for origin in origins)
        named = None if hosts is None else {name.encode() for host in hosts for name in (host, f"[{host}]")}
        self._host_names = None if named is None else _LOOPBACK_NAMES | named
        self._authenticator = authenticator
        self._max_body_bytes = max_body_bytes
        self._budget = BodyBudget(max_body_bytes * MOST_LARGEST_BODIES)
        self._check_structure = partial(check_structure, max_text_bytes=max_text_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._prefix and f"{scope['path']}/".startswith(f"{self._prefix}/"):
            scope["path"] = scope["path"].removeprefix(self._prefix) or "/"
        has_begun = False
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        own = given if _REQUEST_ID.fullmatch(given) else token_hex(8).encode()
        request_id.set(own.decode())

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                message["headers"].append((b"x-request-id", own))
            await send(message)

        try:
            await self._answer(scope, headers, receive, send_noted)
        except ClientDisconnect:
            return  # the client left in the middle of its body, so no one reads an answer
        except Exception as error:  # of any route: the caller gets an answer
            if has_begun:
                raise  # the server logs it and closes the connection
            if not isinstance(error, ServiceError):
                log.exception("a request met a defect of this service")
                error = ServiceError()
            if isinstance(error, ForeignOriginError):
                origin = ascii(headers.get(b"origin", b"").decode("latin-1"))[:LOGGED_CHARS]
                log.warning("refused a page of the origin %s", origin, extra={"action": "origin.refused"})
            await response_to(error, scope)(scope, receive, send_noted)

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        if len(headers) != len(scope["headers"]):
            lists: dict[bytes, list[bytes]] = {}
            others: list[tuple[bytes, bytes]] = []
            for name, value in scope["headers"]:
                if name in _LISTS:
                    lists.setdefault(name, []).append(value)
                elif name in _SINGLE and any(name == other for other, _ in others):
                    raise MalformedError(f"The request has two headers {name.decode()}; send one.")
                else:
                    others.append((name, value))
            # One line for each list in place of several (RFC 9110, 5.3).
            scope["headers"] = others + [(name, b", ".join(values)) for name, values in lists.items()]
            headers = dict(scope["headers"])
        host = _host_of(headers.get(b"host"), scope["http_version"])
        name = host[0]
        # Beyond loopback, no page of a public site can have an address or a local name.
        is_private = b"." not in name or name.startswith(b"[") or name.endswith(_PRIVATE) or _IPV4.fullmatch(name)
        if self._host_names and name not in self._host_names and (self._authenticator.loopback or not is_private):
            # A page of another site can make a browser call any address under that site's name.
            raise ForeignHostError
        _check_site(scope["method"], headers, host, self._origins)
        if scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        # An unauthorized body is not read. The route takes owner and claims from the scope.
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        scope["owner"], scope["claims"], scope["key"] = self._authenticator.identify(authorization)
        held = HeldBody(self._budget, scope["owner"])
        length = headers.get(b"content-length", b"0")
        has_body = length != b"0" or b"transfer-encoding" in headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and kind != b"application/json" and not _JSON_KIND.fullmatch(kind):
            raise MediaTypeError
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)
        try:
            await held.read(receive, self._max_body_bytes)
            body = held.data
            if len(body) > LARGE_BYTES and (scope["method"], scope["path"]) != _IMPORT:
                await in_thread_if_large(self._check_structure, body)
            try:
                body.decode()
            except UnicodeDecodeError:
                raise MalformedError from None
            if b"\0" in body:  # UTF-16 or UTF-32
                raise MalformedError
            del body
            if self._answer_at_once and (response := await self._answer_at_once(scope, headers, held)):
                await response(scope, receive, send)
            else:
                await self._app(scope, held.replay(receive), send)
        finally:
            held.free()


def _host_of(value: bytes | None, http_version: str) -> tuple[bytes, int | None]:
    if value is None:
        if http_version != "1.0":
            raise MalformedError("The request has no header Host, which HTTP/1.1 requires; send it.")
        return b"", None
    match = _HOST.fullmatch(value.lower())
    if match and match[1].startswith(b"["):
        try:
            IPv6Address(match[1][1:-1].decode())
        except ValueError:
            match = None
    if not match:
        raise MalformedError("The header Host is not of the form host or host:port.")
    port = int(match[2]) if match[2] else None
    if port is not None and not 0 < port <= _LAST_PORT:
        raise MalformedError("The port in the header Host is out of range.")
    return match[1], port


def _check_site(
    method: str, headers: dict[bytes, bytes], host: tuple[bytes, int | None], origins: Collection[bytes]
) -> None:
    """Raise `ForeignOriginError` for a page of another site, also for GET: the end of a stream may cancel a turn."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin in origins:
        return
    if site in _FOREIGN_SITES:
        if method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate" and origin is None:
            return
        raise ForeignOriginError
    # A browser omits Sec-Fetch-Site towards plain HTTP. If present, it holds also behind a proxy that changes Host.
    if origin is None or (site == b"same-origin" and origin != b"null"):
        return
    if match := _ORIGIN.fullmatch(origin.lower()):
        with suppress(MalformedError):
            name, port = _host_of(match[2], "1.1")
            usual = _PORTS[match[1]]
            if name == host[0] and (port or usual) == (host[1] or usual):
                return
    raise ForeignOriginError
