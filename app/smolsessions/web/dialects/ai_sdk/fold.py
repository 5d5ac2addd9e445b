"""Fold of a turn's events into chunks of a UI message, which the versions 6 and 7 of `ai` both know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smolsessions.core.events import (
    InputAnswered,
    Logged,
    MessageDelta,
    MessageRestarted,
    StepFinished,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnWaiting,
)
from smolsessions.core.records import Turn
from smolsessions.core.requests import InputRequest
from smolsessions.web.dialects.gateway import Fold, StreamCutError, sse_data
from smolsessions.web.dialects.places import place_of
from smolsessions.web.dialects.words import CODE, FINAL, failure_of

MOST_SHOWN = 2000  # characters of what an inner agent says in a step
MOST_CALLS = 20  # the last ones of an inner agent's step: each change sends all of them again
DONE = b"data: [DONE]\n\n"
_KINDS = {"answer": "text", "thought": "reasoning", "plan": "reasoning"}

Chunk = dict[str, Any]


class MessageFold(Fold):
    """Fold of a turn's events into one message, or into its rest from the answers after event number `after` on.

    `outputs` are the results by which the client has just answered calls of its tools, by the ids of the calls.
    """

    def __init__(self, turn: Turn, after: int = 0, outputs: Mapping[str, Any] | None = None) -> None:
        self._after = after
        self._hides_previews = turn.options.output_schema is not None
        self._outputs = outputs or {}
        self._id = str(place_of(turn))  # by which `UIMessage.place` knows the turn
        self._has_begun = False
        self._step: str | None = None  # the open step of the turn's own agent
        self._has_new_step = False
        self._part: tuple[str, str] | None = None  # model call and kind of the open text
        self._part_count = 0
        self._said: list[str] = []  # pieces of the last text of the kind `answer`
        self._sent_calls: set[str] = set()  # model calls whose text was sent
        self._shown: set[str] = set()  # tool calls that are parts of the message
        self._settled: set[str] = set()  # those whose outcome the client has
        self._open: dict[str, InputRequest] = {}
        self._inner: dict[str, Chunk] = {}  # steps of inner agents

    def frames(self, logged: Logged, *, waits: bool) -> Iterable[bytes]:
        chunks = list(self._chunks(logged.event, waits=waits, is_new=logged.seq > self._after))
        if logged.seq <= self._after:
            return
        if not self._has_begun:
            self._has_begun = True
            yield sse_data({"type": "start", "messageId": self._id})
        for chunk in chunks:
            self._has_new_step = self._has_new_step or chunk["type"] == "start-step"
            yield sse_data(chunk)
        if self.is_complete:
            yield DONE

    def _chunks(self, event: Any, *, waits: bool, is_new: bool) -> Iterable[Chunk]:
        if isinstance(event, TurnEnded):
            yield from self._end(event.result)
        elif isinstance(event, TurnWaiting):
            self._open = {each.request_id: each for each in event.requests}
            if waits:
                yield from self._ask(event.requests)
            else:  # calls of inner agents are parts only if they ask
                yield from (self._asked(each) for each in event.requests if each.call_id not in self._shown)
        elif isinstance(event, InputAnswered):
            yield from self._take_answers(event, waits=waits)
        elif not hasattr(event, "where"):  # it is of no step, and no protocol here has a word for it
            return
        elif event.where.parent_call_id is not None:
            yield from self._show_inner(event)
        elif isinstance(event, MessageRestarted):
            if event.call_id in self._sent_calls:
                raise StreamCutError
        elif isinstance(event, MessageDelta):
            yield from self._say(event, is_new=is_new)
        elif isinstance(event, StepStarted):
            yield from self._end_step()
            self._step = event.where.step_id
            yield {"type": "start-step"}
        elif isinstance(event, ToolCalled) and event.name != FINAL:
            yield from self._end_part()
            yield self._input(event.call_id, event.name, event.arguments)
        elif isinstance(event, ToolReturned):
            yield from self._settle(event)
        elif isinstance(event, StepFinished):
            yield from self._end_part()  # the answer's files belong to the last step

    def _say(self, event: MessageDelta, *, is_new: bool) -> Iterable[Chunk]:
        kind = _KINDS.get(event.channel)
        # Code and arguments come with the call. A client with a schema would fail at an answer that is not accepted.
        if kind is None or (event.channel == "answer" and self._hides_previews):
            return
        if is_new:
            self._sent_calls.add(event.call_id)
        if self._part != (event.call_id, kind):
            yield from self._end_part()
            self._part = event.call_id, kind
            self._part_count += 1
            yield {"type": f"{kind}-start", "id": f"{self._id}:{self._part_count}"}
            if kind == "text":
                self._said.clear()
        if kind == "text":
            self._said.append(event.text)
        yield {"type": f"{kind}-delta", "id": f"{self._id}:{self._part_count}", "delta": event.text}

    def _end_part(self) -> Iterable[Chunk]:
        if self._part:
            yield {"type": f"{self._part[1]}-end", "id": f"{self._id}:{self._part_count}"}
            self._part = None

    def _end_step(self) -> Iterable[Chunk]:
        yield from self._end_part()
        if self._step:
            self._step = None
            yield {"type": "finish-step"}

    def _input(self, call_id: str, name: str, arguments: Any, *, is_of_client: bool = False) -> Chunk:
        self._shown.add(call_id)
        named = {"toolCallId": self._tool_call_id(call_id), "toolName": name, "dynamic": True}
        value = {"code": arguments} if name == CODE else arguments
        return {"type": "tool-input-available", **named, "input": value, "providerExecuted": not is_of_client}

    def _tool_call_id(self, call_id: str) -> str:
        return f"{self._id}:{call_id}"

    def _settle(self, event: ToolReturned) -> Iterable[Chunk]:
        """Show the outcome of a call that is a part of the message, unless the client has it."""
        if event.call_id not in self._shown or event.call_id in self._settled:
            return
        self._settled.add(event.call_id)
        named = {"toolCallId": self._tool_call_id(event.call_id), "dynamic": True, "providerExecuted": True}
        if event.ok:
            yield {"type": "tool-output-available", **named, "output": event.result}
        else:
            yield {"type": "tool-output-error", **named, "errorText": event.error or ""}

    def _ask(self, requests: Sequence[InputRequest]) -> Iterable[Chunk]:
        """End this part of the message with the open requests.

        A client sends its answers once all calls of the last step have an output. So the output of a call that still
        runs, as code or an inner agent asked, is null until it ends.
        """
        yield from self._end_part()
        for call_id in sorted(self._shown - self._settled - {each.call_id for each in requests}):
            named = {"toolCallId": self._tool_call_id(call_id), "dynamic": True, "providerExecuted": True}
            yield {"type": "tool-output-available", **named, "output": None}
        for each in requests:
            if each.kind != "approval" or each.replaces or each.call_id not in self._shown:
                yield self._asked(each)
            if each.kind != "approval":
                continue
            named = {"approvalId": each.request_id, "toolCallId": self._tool_call_id(each.call_id)}
            yield {"type": "tool-approval-request", **named}
        yield from self._pause()

    def _asked(self, request: InputRequest) -> Chunk:
        """Show the call of a request. Without an approval the client gives its output."""
        arguments = request.arguments
        if request.kind == "question":
            arguments = {"question": request.question, "choices": request.choices}
        elif request.kind == "approval" and request.tool == CODE:
            arguments = (arguments or {}).get("code")
        return self._input(request.call_id, request.tool, arguments, is_of_client=request.kind != "approval")

    def _pause(self) -> Iterable[Chunk]:
        yield from self._end_step()
        yield {"type": "finish", "finishReason": "tool-calls"}
        self.is_complete = True

    def _take_answers(self, event: InputAnswered, *, waits: bool) -> Iterable[Chunk]:
        for answer in event.answers:
            request = self._open.pop(answer.request_id, None)
            if request is None or request.call_id not in self._shown:
                continue
            named = {"toolCallId": self._tool_call_id(request.call_id)}
            if request.kind == "approval" and answer.decision == "reject":
                self._settled.add(request.call_id)
                yield {"type": "tool-output-denied", **named}
            elif request.kind != "approval" and request.call_id in self._outputs:  # it is no more the client's
                self._settled.add(request.call_id)
                about = {**named, "dynamic": True, "providerExecuted": True}
                yield {"type": "tool-output-available", **about, "output": self._outputs[request.call_id]}
        if waits and self._open:
            yield from self._pause()

    def _show_inner(self, event: Any) -> Iterable[Chunk]:
        """Show a step of an inner agent as one part, which each later state replaces."""
        where = event.where
        part_id = f"{self._id}:{where.step_id}"
        named = {"agent": where.agent, "step": where.step, "parentCallId": self._tool_call_id(where.parent_call_id)}
        step = self._inner.setdefault(part_id, {**named, "state": "running", "text": "", "calls": []})
        calls: list[Chunk] = step["calls"]
        if isinstance(event, MessageDelta):
            if event.channel in _KINDS:
                step["text"] = f"{step['text']}{event.text}"[:MOST_SHOWN]
            return  # the next event shows it
        if isinstance(event, MessageRestarted):
            step["text"] = ""
        if isinstance(event, ToolCalled):
            calls.append(
                {"toolCallId": self._tool_call_id(event.call_id), "toolName": event.name, "input": event.arguments}
            )
            del calls[:-MOST_CALLS]
        elif isinstance(event, ToolReturned):
            for call in (each for each in calls if each["toolCallId"] == self._tool_call_id(event.call_id)):
                call.update({"output": event.result} if event.ok else {"errorText": event.error})
            yield from self._settle(event)
        elif isinstance(event, StepFinished):
            step["state"] = "error" if event.error else "done"
            del self._inner[part_id]
        yield {"type": "data-step", "id": part_id, "data": step}

    def _end(self, turn: Turn) -> Iterable[Chunk]:
        outcome = turn.outcome
        assert outcome, "a turn that ended has an outcome"
        yield from self._end_part()
        self.is_complete = True
        if outcome.status == "failed":
            yield {"type": "error", "errorText": ": ".join(failure_of(turn))}
            return
        if self._after and not self._has_new_step:  # the client would send its answers for ever
            self._step = "end"
            yield {"type": "start-step"}
        if outcome.status == "finished" and outcome.reply and outcome.reply != "".join(self._said):
            text_id = f"{self._id}:reply"
            yield {"type": "text-start", "id": text_id}
            yield {"type": "text-delta", "id": text_id, "delta": outcome.reply}
            yield {"type": "text-end", "id": text_id}
        for url in self.media.values():
            yield {"type": "file", "mediaType": url[5:].partition(";")[0], "url": url}
        yield from self._end_step()
        used = outcome.usage
        counts = {"inputTokens": used.input_tokens, "outputTokens": used.output_tokens}
        metadata = {"messageMetadata": {"usage": {**counts, "totalTokens": used.input_tokens + used.output_tokens}}}
        if outcome.status == "cancelled":
            yield {"type": "message-metadata", **metadata}  # the client keeps a new step only if something follows it
            yield {"type": "abort"}
            return
        reason = "length" if outcome.state == "max_steps_error" else "stop"
        yield {"type": "finish", "finishReason": reason, **metadata}
