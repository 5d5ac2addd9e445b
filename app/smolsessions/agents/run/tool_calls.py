"""One tool call of a run: emitted, counted and journaled."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from smolsessions.agents.run.effects import as_text, encode_raised, error_text, rebuild_error
from smolsessions.agents.run.failures import TurnStopped
from smolsessions.agents.run.journal import digest_of
from smolsessions.agents.values.json_forms import truncate_json, truncated
from smolsessions.core.events import ToolCalled, ToolReturned

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.agents.run.effects import Effect
    from smolsessions.agents.run.recorder import Recorder
    from smolsessions.core.events import Where
    from smolsessions.core.records import ToolCall


class ToolCallInProgress:
    """A tool call that has begun: `with call: call.result = …`.

    An effect is looked up first (`replay`). The effect of a live call is journaled with the event of its end.
    """

    def __init__(self, recorder: Recorder, where: Where, call: ToolCall, explains: Callable[[str], bool]) -> None:
        """`explains` returns True for calls that an earlier attempt may have made before this one."""
        self.result: Any = None
        self.effect: Effect | None = None
        """The effect to journal, if any."""
        self._known: Effect | None = None
        self._key = ""
        self._recorder = recorder
        self._where = where
        self._call = call
        self._explains = explains
        self._since = time.perf_counter()

    @property
    def call_id(self) -> str:
        return self._call.call_id

    @property
    def repeated(self) -> bool:
        return self._call.repeated

    def replay(self, kind: str, arguments: Any) -> Effect | None:
        """Return the effect that an earlier attempt journaled. None: the call is to be made."""
        journal = self._recorder.journal
        self._key = f"{kind}:{self.call_id}:{self._call.name}:{digest_of(self._call.name, arguments)}"
        known = journal.take(self._key, self._explains)
        if known and not known.is_opaque:
            self._known = known
            self._call = replace(self._call, repeated=known.repeated)
        elif known or journal.was_begun(self._key):
            self._call = replace(self._call, repeated=True)
        return self._known

    def mark_not_repeated(self) -> None:
        """Note that an earlier attempt made this call, and that it is not made again."""
        self._call = replace(self._call, repeated=False)

    def begin(self, *, is_harmless: bool = False) -> None:
        """Journal the start of this call. Unless it is harmless, wait until this and all earlier writes are stored."""
        if is_harmless:
            self._recorder.journal.begin_harmless(self._key)
        else:
            self._recorder.journal.begin(self._key)
        self._recorder.check()
        self._since = time.perf_counter()

    def run(self, act: Callable[[], Any], encode: Callable[[Any], tuple[Effect, Any]]) -> Any:
        """Make the call. Return or raise its result as it comes out of the journal."""
        self.begin()
        try:
            value = act()
        except Exception as error:
            self.effect = encode_raised(error)
            assert self.effect.raised, "it was raised"
            raise rebuild_error(*self.effect.raised) from error
        self.effect, value = encode(value)
        return value

    def __enter__(self) -> Self:
        call = self._call
        self._recorder.note_call(call)
        event = ToolCalled(
            self._where, call.call_id, call.name, truncate_json(call.arguments), call.internal, repeated=call.repeated
        )
        self._recorder.emit(event)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        took_ms = round((time.perf_counter() - self._since) * 1000, 3)
        duration_ms = self._known.duration_ms if self._known else took_ms
        call = replace(self._call, ok=error is None, duration_ms=duration_ms)
        self._recorder.note_call(call)
        if isinstance(error, TurnStopped) and self._recorder.hands_over:
            return
        written = (self._key, self._written(duration_ms)) if self.effect else None
        self._recorder.emit(
            ToolReturned(
                self._where,
                call.call_id,
                call.name,
                call.internal,
                ok=error is None,
                result=None if error else truncated(as_text(self.result)),
                error=truncated(_words(error)) if error else None,
                duration_ms=duration_ms,
                repeated=call.repeated,
            ),
            written,
        )

    def _written(self, duration_ms: float) -> bytes:
        assert self.effect, "only calls with an effect are written"
        return replace(self.effect, duration_ms=duration_ms, repeated=self._call.repeated).to_bytes()


def _words(error: BaseException) -> str:
    return "stopped" if isinstance(error, TurnStopped) else f"{type(error).__name__}: {error_text(error)}"
