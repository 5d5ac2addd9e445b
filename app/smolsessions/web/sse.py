"""Events as server-sent events: frames, cursors, and the response that streams a turn's log."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers

from smolsessions.core.errors import InvalidRequestError, ServiceError
from smolsessions.web.event_views import event_view
from smolsessions.web.routes.common import location_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send

    from smolsessions.core.events import Logged
    from smolsessions.core.records import Ref
    from smolsessions.core.turns import Turns, TurnSubscription
    from smolsessions.web.auth import Authenticator

log = logging.getLogger(__name__)

PING = b": ping\n\n"
RECONNECT = b": this process ends; come back with Last-Event-ID\nretry: 500\n\n"
REVOKED = b": the API key of this stream is not known any more\n\n"
BROKEN = b": the rest cannot be read; ask for the turn\n\n"
MOST_FRAMES = 512
LARGE_BYTES = 64 * 1024
EVENT_STREAM: dict[str, Any] = {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}}}}


class TurnStream(EventSourceResponse):
    """A turn's events from a cursor on, until the final one, or the reader is gone or takes nothing, or at shutdown."""

    def __init__(
        self,
        turns: Turns,
        watch: TurnSubscription,
        *,
        streams: EventStreams,
        send_timeout_s: float,
        after: int = 0,
        internal: bool = False,
        on_disconnect: str | None = None,
    ) -> None:
        """Take over the watch: it is closed when the response is over."""
        self._last_words = RECONNECT
        super().__init__(
            streams.frames(watch, after, internal=internal, last_words=lambda: self._last_words),
            headers={"Location": location_of(watch.turn)},
            ping=0,  # a task and its locks for each reader: `EventStreams` pings instead
            sep="\n",
            send_timeout=send_timeout_s,
        )
        self._turns = turns
        self._watch = watch
        self._streams = streams
        self._cancels = on_disconnect == "cancel"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open_count += 1
        authenticator: Authenticator = scope["app"].state.authenticator
        authorization = Headers(scope=scope).get("authorization")
        try:
            with authenticator.held(authorization, self._watch.turn.ref.owner, self._revoke):
                await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("a reader of events takes nothing and is dropped", extra={"action": "reader.dropped"})
        finally:
            self._streams.open_count -= 1
            watch = self._watch
            watch.close()
            if self._cancels and not watch.complete and not watch.stopped:
                self._turns.cancel_in_background(watch.turn)

    def _revoke(self) -> None:
        self._last_words = REVOKED
        self._watch.stop()


def cursor_of(header: str | None, query: str | None) -> int:
    """Read a cursor; the header wins, since a browser sends it when it comes back."""
    for place, name, value in (("header", "Last-Event-ID", header), ("query", "after", query)):
        if value:
            if not (value.isascii() and value.isdigit() and len(value) < 16):  # noqa: PLR2004 - no log is that long
                raise InvalidRequestError.in_parameter(place, name, "is not the id of an event: a number")
            return int(value)
    return 0


class EventStreams:
    """Writes each event once, however many readers of this process it has."""

    def __init__(self) -> None:
        self.open_count = 0
        self._written: OrderedDict[tuple[int, bool], tuple[Logged, bytes]] = OrderedDict()

    async def frames(
        self, watch: TurnSubscription, after: int, *, internal: bool, last_words: Callable[[], bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the events after the cursor as frames, and `last_words` if the watch is stopped early."""
        ref, turn = watch.turn.ref, watch.turn.number
        try:
            async for logged in watch.events(after):
                yield PING if logged is None else self._frame(ref, turn, logged, internal=internal)
        except ServiceError as error:  # a request for the rest is answered with it
            log.error("the events of turn %s#%d end early: %s", ref, turn, error, extra={"action": "stream.broken"})  # noqa: TRY400
            yield BROKEN
        if watch.stopped and not watch.complete:
            yield last_words()

    def _frame(self, ref: Ref, turn: int, logged: Logged, *, internal: bool) -> bytes:
        key = (id(logged), internal)
        known = self._written.get(key)
        if known and known[0] is logged:
            return known[1]
        data = to_json(event_view(ref, turn, logged, internal=internal))
        frame = f"event: {logged.event.type}\nid: {logged.seq}\ndata: ".encode() + data + b"\n\n"
        if len(frame) < LARGE_BYTES:
            self._written[key] = (logged, frame)
            if len(self._written) > MOST_FRAMES:
                self._written.popitem(last=False)
        return frame
