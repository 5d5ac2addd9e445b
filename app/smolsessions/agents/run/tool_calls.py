"""One tool call of a run: shown, counted, and journaled."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from smolsessions.agents.run.cancellation import TurnStopped
from smolsessions.agents.run.effects import as_text, error_of, error_text, raised
from smolsessions.agents.run.journal import digest_of
from smolsessions.agents.values.json_forms import truncate_json, truncated
from smolsessions.core.events import ToolCalled, ToolReturned

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.agents.run.effects import Effect
    from smolsessions.agents.run.recorder import Recorder
    from smolsessions.core.events import Where
    from smolsessions.core.records import ToolCall


class CallInProgress:
    """A tool call that has begun: `with call: call.result = …`.

    One that is an effect is looked up first (`recall`); what it gives live is written with the event of its end.
    """

    def __init__(self, recorder: Recorder, where: Where, call: ToolCall, explains: Callable[[str], bool]) -> None:
        """`explains` tells which calls an earlier attempt may have made beside this one."""
        self.result: Any = None
        self.effect: Effect | None = None
        """What is to be written of it, if anything."""
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

    def recall(self, kind: str, arguments: Any) -> Effect | None:
        """Give what an earlier attempt wrote of this very call; None where it is to be made."""
        journal = self._recorder.journal
        self._key = f"{kind}:{self.call_id}:{self._call.name}:{digest_of(self._call.name, arguments)}"
        known = journal.take(self._key, self._explains)
        if known and not known.is_opaque:
            self._known = known
            self._call = replace(self._call, repeated=known.repeated)
        elif known or journal.was_begun(self._key):
            self._call = replace(self._call, repeated=True)
        return self._known

    def is_of_unknown_outcome(self) -> None:
        """An earlier attempt made it, nobody knows how it ended, and it is not made again."""
        self._call = replace(self._call, repeated=False)

    def begin(self, *, does_nothing_itself: bool = False) -> None:
        """Write that this call is made; wait for that, and for all that was before, unless it is nothing by itself."""
        if does_nothing_itself:
            self._recorder.journal.note(self._key)
        else:
            self._recorder.journal.begin(self._key)
        self._recorder.check()
        self._since = time.perf_counter()

    def live(self, act: Callable[[], Any], keep: Callable[[Any], tuple[Effect, Any]]) -> Any:
        """Make the call; give, or raise, what is kept of what it gave."""
        self.begin()
        try:
            value = act()
        except Exception as error:
            self.effect = raised(error)
            assert self.effect.raised, "it was raised"
            raise error_of(*self.effect.raised) from error
        self.effect, value = keep(value)
        return value

    def __enter__(self) -> Self:
        call = self._call
        self._recorder.note_call(call)
        told = ToolCalled(
            self._where, call.call_id, call.name, truncate_json(call.arguments), call.internal, repeated=call.repeated
        )
        self._recorder.tell(told)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        took_ms = round((time.perf_counter() - self._since) * 1000, 3)
        duration_ms = self._known.duration_ms if self._known else took_ms
        call = replace(self._call, ok=error is None, duration_ms=duration_ms)
        self._recorder.note_call(call)
        if isinstance(error, TurnStopped) and self._recorder.hands_over:
            return
        written = (self._key, self._written(duration_ms)) if self.effect else None
        self._recorder.tell(
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
        assert self.effect, "there is something to write"
        return replace(self.effect, duration_ms=duration_ms, repeated=self._call.repeated).to_bytes()


def _words(error: BaseException) -> str:
    return "stopped" if isinstance(error, TurnStopped) else f"{type(error).__name__}: {error_text(error)}"
