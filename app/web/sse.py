"""Events as server-sent events: frames, cursors, and the response that streams a turn's log."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from sse_starlette import EventSourceResponse, ServerSentEvent

from app.errors import InvalidRequestError
from app.web.common import location_of
from app.web.events import event_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from app.events import Logged
    from app.records import Ref
    from app.turns import TurnDesk, Watch

PING_S = 15
MOST_FRAMES = 512
EVENT_STREAM: dict[str, Any] = {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}}}}


class TurnStream(EventSourceResponse):
    """A turn's events from a cursor on, until the final one, or the reader is gone or takes nothing, or at shutdown."""

    def __init__(
        self,
        turns: TurnDesk,
        watch: Watch,
        *,
        send_timeout_s: float,
        after: int = 0,
        internal: bool = False,
        on_disconnect: str | None = None,
    ) -> None:
        """Take over the watch: it is closed when the response is over."""
        super().__init__(
            _frames(watch, after, internal=internal),
            headers={"Location": location_of(watch.turn)},
            ping=PING_S,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            sep="\n",
            send_timeout=send_timeout_s,
        )
        self._turns = turns
        self._watch = watch
        self._cancels = on_disconnect == "cancel"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            watch = self._watch
            watch.close()
            if self._cancels and not watch.complete and not watch.stopped:
                self._turns.cancel_soon(watch.turn)


def cursor_of(header: str | None, query: str | None) -> int:
    """Read a cursor; the header wins, since a browser sends it when it comes back."""
    for place, value in (("header:Last-Event-ID", header), ("query:after", query)):
        if value:
            if not (value.isascii() and value.isdigit() and len(value) < 16):  # noqa: PLR2004 - no log is that long
                raise InvalidRequestError.at(place, "is not the id of an event: a number")
            return int(value)
    return 0


async def _frames(watch: Watch, after: int, *, internal: bool) -> AsyncIterator[bytes]:
    async for logged in watch.events(after):
        yield _frame(watch.turn.ref, watch.turn.number, logged, internal=internal)


def _frame(ref: Ref, turn: int, logged: Logged, *, internal: bool) -> bytes:
    """Write an event once, however many readers of this process it has."""
    key = (id(logged), internal)
    known = _written.get(key)
    if known and known[0] is logged:
        return known[1]
    data = to_json(event_view(ref, turn, logged, internal=internal))
    frame = f"event: {logged.event.type}\nid: {logged.seq}\ndata: ".encode() + data + b"\n\n"
    _written[key] = (logged, frame)
    if len(_written) > MOST_FRAMES:
        _written.popitem(last=False)
    return frame


_written: OrderedDict[tuple[int, bool], tuple[Logged, bytes]] = OrderedDict()
