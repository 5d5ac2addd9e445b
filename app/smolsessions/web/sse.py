"""Events of a turn as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic_core import to_json
from sse_starlette import EventSourceResponse
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from smolsessions.core.errors import InvalidRequestError, NotFoundError, ServiceError
from smolsessions.core.events import Logged, TurnEnded, TurnWaiting
from smolsessions.core.records import Turn
from smolsessions.core.turns import Turns, TurnSubscription
from smolsessions.web.auth import Authenticator
from smolsessions.web.http_connection import call_on_disconnect
from smolsessions.web.routes.common import Delivery, location_of
from smolsessions.web.views import event_view

log = logging.getLogger(__name__)

PING = b": ping\n\n"
RECONNECT = b": this process ends; come back with Last-Event-ID\nretry: 500\n\n"
REVOKED = b": the API key of this stream is not known any more\n\n"
BROKEN = b": the rest cannot be read; ask for the turn\n\n"
MAX_CACHED = 128
LARGE_BYTES = 64 * 1024
MAX_CURSOR_DIGITS = 15
EVENT_STREAM: dict[str, Any] = {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}}}}


class EventStreams:
    """Event streams of this process: their count, and a cache that encodes each event once for all readers."""

    def __init__(self, turns: Turns, send_timeout_s: float) -> None:
        self.turns = turns
        self.send_timeout_s = send_timeout_s
        self.open_count = 0
        self._cache: OrderedDict[tuple[int, bool], tuple[Logged, bytes]] = OrderedDict()

    def frame(self, turn: Turn, logged: Logged, *, internal: bool) -> bytes:
        key = (id(logged), internal)
        cached = self._cache.get(key)
        if cached and cached[0] is logged:
            return cached[1]
        data = to_json(event_view(turn.ref, turn.number, logged, internal=internal))
        frame = b"event: %b\nid: %d\ndata: %b\n\n" % (logged.event.type.encode(), logged.seq, data)
        if len(frame) < LARGE_BYTES:
            self._cache[key] = (logged, frame)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return frame


class TurnStream(EventSourceResponse):
    """Response with a turn's events after a cursor.

    It ends after the final event, at shutdown, if the API key is revoked, and if the client leaves or stops reading.
    It closes the subscription. It streams in the request's own task, beside one that hears the client leave. The three
    tasks that the library starts are 12 % of the instructions of a streamed turn.
    """

    def __init__(
        self, streams: EventStreams, subscription: TurnSubscription, delivery: Delivery, after: int = 0
    ) -> None:
        self._streams = streams
        self._subscription = subscription
        self._delivery = delivery
        self._is_complete = False
        self._last_frame = RECONNECT
        self._content = self._frames(after)
        super().__init__(self._content, headers={"Location": location_of(subscription.turn)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        subscription = self._subscription
        authenticator: Authenticator = scope["app"].state.authenticator
        authorization = Headers(scope=scope).get("authorization")

        def revoke() -> None:
            self._last_frame = REVOKED
            subscription.stop()

        self._streams.open_count += 1
        end = subscription.reader.stop  # and not `subscription.stop`: that is the service's end, which cancels nothing
        listener = asyncio.create_task(call_on_disconnect(receive, end))
        try:
            with authenticator.watch_key(authorization, subscription.turn.ref.owner, revoke):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async with aclosing(self._content) as frames:
                    async for frame in frames:
                        async with asyncio.timeout(self._streams.send_timeout_s):
                            await send({"type": "http.response.body", "body": frame, "more_body": True})
                async with asyncio.timeout(self._streams.send_timeout_s):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("a reader of events stopped reading and is dropped", extra={"action": "reader.dropped"})
        finally:
            listener.cancel()
            self._streams.open_count -= 1
            subscription.close()
            if self._delivery.on_disconnect == "cancel" and not self._is_complete and not subscription.stopped:
                self._streams.turns.cancel_in_background(subscription.turn)

    async def _frames(self, after: int) -> AsyncGenerator[bytes, None]:
        subscription, turn = self._subscription, self._subscription.turn
        internal = self._delivery.include_internal_tools
        try:
            async with aclosing(subscription.reader.follow(turn.number, after)) as events:
                async for logged in events:
                    self._is_complete = logged is not None and self._ends(logged)
                    yield self._streams.frame(turn, logged, internal=internal) if logged else PING
                    if self._is_complete:
                        break
        except NotFoundError:
            pass  # deleted in the meantime
        except ServiceError as error:  # a request for the rest gets it as its answer
            sentence = f"the events of turn {turn.ref}#{turn.number} end early: {error}"
            log.error(sentence, extra={"action": "stream.broken"})  # noqa: TRY400
            yield BROKEN
        if subscription.stopped and not self._is_complete:
            yield self._last_frame

    def _ends(self, logged: Logged) -> bool:
        if isinstance(logged.event, TurnEnded) or self._delivery.until != "waiting":
            return isinstance(logged.event, TurnEnded)
        reader = self._subscription.reader
        if logged.seq <= reader.length:  # of the past: the wait is over, unless nothing follows
            return reader.waits and logged.seq == reader.length
        return isinstance(logged.event, TurnWaiting)


def cursor_of(header: str | None, query: str | None) -> int:
    """Read a cursor. The header wins, because a browser sends it when it reconnects."""
    for place, name, value in (("header", "Last-Event-ID", header), ("query", "after", query)):
        if value:
            if not (value.isascii() and value.isdigit() and len(value) <= MAX_CURSOR_DIGITS):
                raise InvalidRequestError.in_parameter(place, name, "is not the id of an event: a number")
            return int(value)
    return 0
