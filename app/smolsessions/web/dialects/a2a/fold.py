"""Fold of a turn's events into a stream of A2A: a task first, then changes of its status and of its artifact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_core import to_json

from smolsessions.core import events
from smolsessions.core.records import Turn
from smolsessions.core.requests import InputRequest
from smolsessions.web.dialects.a2a.tasks import (
    Json,
    answer_parts,
    artifact,
    asking,
    ids_of,
    message,
    status_in,
    status_of,
    task_of,
)
from smolsessions.web.dialects.gateway import Fold, sse_data
from smolsessions.web.dialects.words import called_names, short

MOST_HELD = 500  # characters of a thought before it is sent
_THOUGHTS = frozenset({"thought", "plan", "code"})


class TaskFold(Fold):
    """Fold of a turn's events. The task comes at event number `first_seq`, as it is then, and changes follow.

    The answer is one artifact. A chunk is appended, or replaces a text that became void.
    """

    def __init__(self, turn: Turn, rpc_id: Any, first_seq: int) -> None:
        self._turn = turn
        self._rpc_id = rpc_id
        self._first_seq = first_seq
        self._has_begun = False
        self._status = status_in("queued", turn.timing.submitted_at)
        self._answers_of: str | None = None  # model call of the answer so far
        self._said: list[str] = []  # pieces of its text
        self._parts: list[Json] | None = None  # of the whole answer
        self._thought, self._thought_of = "", (0, "")  # with the number of its first event, and its model call
        self._open: dict[str, InputRequest] = {}

    def frames(self, logged: events.Logged, *, waits: bool) -> Iterable[bytes]:
        changes = list(self._changes(logged, waits=waits))
        if logged.seq >= self._first_seq:
            if not self._has_begun:
                self._has_begun = True
                said = [{"text": "".join(self._said)}] if self._said else []
                changes = [{"task": task_of(self._turn, self._status, said if self._parts is None else self._parts)}]
            for change in changes:
                yield sse_data({"jsonrpc": "2.0", "id": self._rpc_id, "result": change})

    def _changes(self, logged: events.Logged, *, waits: bool) -> Iterable[Json]:
        event: Any = logged.event
        is_delta = isinstance(event, events.MessageDelta)
        is_thought = is_delta and event.channel in _THOUGHTS
        waits_on = is_delta and event.call_id == self._thought_of[1]
        waits_on &= len(self._thought) < MOST_HELD if is_thought else is_delta and event.channel == "arguments"
        if self._thought and not waits_on and not isinstance(event, events.TurnStarted):  # which may make it void
            if not isinstance(event, events.MessageRestarted) or event.call_id != self._thought_of[1]:
                yield self._progress(self._thought_of[0], self._thought, "thought")
            self._thought = ""
        if is_thought:
            self._thought_of = self._thought_of if self._thought else (logged.seq, event.call_id)
            self._thought += event.text
        elif isinstance(event, events.MessageDelta):
            if event.channel == "answer" and event.where.parent_call_id is None:
                is_more, self._answers_of = event.call_id == self._answers_of, event.call_id
                if not is_more:
                    self._said.clear()
                self._said.append(event.text)
                yield self._chunk([{"text": event.text}], append=is_more)
        elif isinstance(event, events.MessageRestarted):
            if event.call_id == self._answers_of and self._said:
                self._said.clear()
                yield self._chunk([{"text": ""}], append=False)
        elif isinstance(event, events.ToolCalled | events.ToolReturned):
            if not event.internal:
                yield self._progress(logged.seq, _words(event), event.type)
        elif isinstance(event, events.TurnStarted):
            yield self._change(status_in("running", event.at))
        elif isinstance(event, events.TurnWaiting | events.InputAnswered):
            yield from self._wait(event, logged.seq, waits=waits)
        elif isinstance(event, events.TurnEnded):
            yield from self._end(event.result)

    def _wait(self, event: events.PersonEvent, seq: int, *, waits: bool) -> Iterable[Json]:
        """End the stream at an open request. A stream that begins there goes on, as another client may answer."""
        if isinstance(event, events.TurnWaiting):
            self._open = {each.request_id: each for each in event.requests}
        else:
            for answer in event.answers:
                self._open.pop(answer.request_id, None)
        if not self._open:
            yield self._change(status_in("running"))
        elif waits:
            self.is_complete = seq > self._first_seq
            yield self._change(asking(self._turn, self._open.values()))

    def _end(self, turn: Turn) -> Iterable[Json]:
        assert turn.outcome, "a turn that ended has an outcome"
        self.is_complete, self._turn = True, turn
        self._parts = answer_parts(turn, self.media)
        if rest := [*self._parts]:
            text = rest[0].get("text", "")
            append = self._answers_of is not None and text.startswith(said := "".join(self._said))
            if append:
                new = text[len(said) :]
                rest[:1] = [{"text": new}] if new or len(rest) == 1 else []
            yield self._chunk(rest, append=append, lastChunk=True)
        used, called = turn.outcome.usage, called_names(turn.outcome)
        usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
        yield self._change(status_of(turn), metadata={"tool_call_names": called, "usage": usage})

    def _chunk(self, parts: list[Json], **members: bool) -> Json:
        return {"artifactUpdate": {**ids_of(self._turn), "artifact": artifact(self._turn, parts), **members}}

    def _progress(self, seq: int, text: str, kind: str) -> Json:
        return self._change(status_in("running", said=message(self._turn, seq, text, type=kind)))

    def _change(self, status: Json, **members: Json) -> Json:
        self._status = status
        return {"statusUpdate": {**ids_of(self._turn), "status": status, **members}}


def _words(event: events.ToolCalled | events.ToolReturned) -> str:
    if isinstance(event, events.ToolCalled):
        return f"{event.name}({short(to_json(event.arguments).decode())})"
    return f"{event.name}: {short(event.result or event.error or '')}"
