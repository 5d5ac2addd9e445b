"""Fold of a turn's events into events of an AG-UI run, and into the messages that the client has by then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from smolsessions.core.events import (
    InputAnswered,
    Logged,
    MessageDelta,
    MessageRestarted,
    StepFinished,
    StepPlace,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnWaiting,
)
from smolsessions.core.records import Turn, Usage
from smolsessions.core.requests import InputRequest
from smolsessions.core.times import time_text
from smolsessions.web.dialects.gateway import Fold, split_data_url, sse_data
from smolsessions.web.dialects.places import place_of
from smolsessions.web.dialects.words import CODE, FINAL, failure_of

VERSION = "1.0"
_KINDS = {"answer": "TEXT_MESSAGE", "thought": "REASONING_MESSAGE", "plan": "REASONING_MESSAGE"}
_TEXT: dict[str, Any] = {"type": "string"}
_OBJECT: dict[str, Any] = {"type": "object"}

Message = dict[str, Any]


class _Text(NamedTuple):
    """Text that is being sent. `head` begins each of its deltas."""

    kind: str
    about: dict[str, Any]
    step_id: str
    call_id: str
    head: bytes


class RunFold(Fold):
    """Fold of a turn's events into one run: all of them, or those after event number `after`.

    With `history`, the messages before the turn, the client may know a part of the run already. Then a snapshot of all
    messages up to event number `after` comes first. `results` are messages of the client by the calls of its tools.
    `known_calls` are those that the client has of a turn that waits for it. A client from before 1.0 `is_old`: it
    refuses pending calls, cancelled runs, and results with parts.
    """

    def __init__(
        self,
        turn: Turn,
        run: tuple[str, str],
        after: int,
        history: Sequence[Message],
        results: Mapping[str, Message],
        *,
        snapshot: bool,
        known_calls: frozenset[str] | None,
        is_old: bool,
    ) -> None:
        self.may_send_state = False
        """True if the run began before the last event: another one may come in front of that."""
        self._prefix = f"{place_of(turn)}:"  # of the ids of its messages and calls
        self._run = {"threadId": run[0], "runId": run[1]}
        self._after = after
        self._history = history
        self._results = results
        self._snapshot = snapshot
        self._known_calls = known_calls
        self._is_old = is_old
        self._has_begun = self._is_caught_up = False
        self._messages: dict[str, Message] = {}  # of the turn
        self._said: dict[str, list[str]] = {}  # text of its messages
        self._calls_of_model: dict[str, list[str]] = {}  # messages by model call
        self._last_answer: str | None = None
        self._texts: dict[str, _Text] = {}  # open messages
        self._steps: dict[str, dict[str, Any]] = {}  # open steps
        self._subagents: dict[str, dict[str, Any]] = {}  # running inner agents, by the call that called each
        self._owners: dict[str, dict[str, Any]] = {}  # whose each call is
        self._settled: set[str] = set()  # calls whose results the client has
        self._requests: dict[str, InputRequest] = {}

    def frames(self, logged: Logged, *, waits: bool) -> Iterable[bytes]:
        event, after = logged.event, self._after
        self.may_send_state = self._has_begun
        if not self._has_begun:
            self._has_begun = True
            yield _data("RUN_STARTED", self._run, protocolVersion=VERSION)
        is_last = isinstance(event, TurnEnded) or waits
        if not self._is_caught_up and (logged.seq > after or is_last):
            yield from self._catch_up()
        new = self._events(event, waits=waits)
        if self._is_caught_up:
            yield from new
        else:
            for _ in new:
                pass
            if logged.seq == after:
                yield from self._catch_up()

    def _catch_up(self) -> Iterable[bytes]:
        """Bring the client to where the fold is: with its messages, and with all open again that is open."""
        self._is_caught_up = True
        if self._snapshot:
            yield self._all_messages()
        for call_id, about in self._subagents.items():
            yield _data("SUBAGENT_STARTED", about, subagentRunId=self._prefix + call_id)
        for step_id, owner in self._steps.items():
            yield _data("STEP_STARTED", owner, stepName=step_id)
        for message_id, text in self._texts.items():
            yield _data(f"{text.kind}_START", text.about, messageId=message_id)

    def _events(self, event: Any, *, waits: bool) -> Iterable[bytes]:
        if isinstance(event, TurnEnded):
            yield from self._end(event.result)
        elif isinstance(event, TurnWaiting):
            self._requests = {each.request_id: each for each in event.requests}
            yield from self._show_calls()
            if waits:
                yield from self._pause()
        elif isinstance(event, InputAnswered):
            self._take_answers(event)
            if waits and self._requests:
                yield from self._show_calls()
                yield from self._pause()
        elif not hasattr(event, "where"):  # it is of no step, and no protocol here has a word for it
            return
        else:
            yield from self._in_step(event)

    def _in_step(self, event: Any) -> Iterable[bytes]:
        where: StepPlace = event.where
        parent = where.parent_call_id
        if parent and parent not in self._subagents:
            outer = self._owners.get(parent, {})
            about = {"name": where.agent, "parentToolCallId": self._prefix + parent}
            if outer:
                about["parentSubagentRunId"] = outer["subagentRunId"]
            self._subagents[parent] = about
            yield _data("SUBAGENT_STARTED", about, subagentRunId=self._prefix + parent)
        owner = {"subagentRunId": self._prefix + parent} if parent else {}
        if isinstance(event, MessageDelta):
            if event.channel in _KINDS:  # code and arguments come with the call
                yield from self._say(event, owner)
        elif isinstance(event, MessageRestarted):
            yield from self._take_back(event.call_id)
        elif isinstance(event, StepStarted):
            if where.step_id not in self._steps:
                self._steps[where.step_id] = owner
                yield _data("STEP_STARTED", owner, stepName=where.step_id)
        elif isinstance(event, ToolCalled):
            yield from self._end_texts(where.step_id)
            if event.name != FINAL:
                arguments = {"code": event.arguments} if event.name == CODE else event.arguments
                yield from self._call(event.call_id, event.name, arguments, where.step_id, owner)
        elif isinstance(event, ToolReturned):
            yield from self._return(event)
        elif isinstance(event, StepFinished):
            yield from self._end_texts(where.step_id)
            if self._steps.pop(where.step_id, None) is not None:
                yield _data("STEP_FINISHED", owner, stepName=where.step_id)

    def _say(self, event: MessageDelta, owner: dict[str, Any]) -> Iterable[bytes]:
        channel = event.channel
        message_id = f"{self._prefix}{event.call_id}" + ("" if channel == "answer" else f":{channel}")
        text = self._texts.get(message_id)
        if text is None:
            yield from self._end_texts(event.where.step_id)
            kind = _KINDS[channel]
            role = "assistant" if channel == "answer" else "reasoning"
            head = _data(f"{kind}_CONTENT", owner, messageId=message_id)[:-3] + b',"delta":'
            text = _Text(kind, {"role": role, **owner}, event.where.step_id, event.call_id, head)
            self._texts[message_id] = text
            if message_id not in self._said:
                self._said[message_id] = []
                self._calls_of_model.setdefault(event.call_id, []).append(message_id)
            self._messages.setdefault(message_id, {"id": message_id, **text.about})
            if channel == "answer" and not owner:
                self._last_answer = message_id
            yield _data(f"{kind}_START", text.about, messageId=message_id)
        self._said[message_id].append(event.text)
        yield text.head + to_json(event.text) + b"}\n\n"

    def _end_texts(self, step_id: str | None = None) -> Iterable[bytes]:
        """End the open messages, or those of one step."""
        for message_id in [name for name, text in self._texts.items() if step_id in {None, text.step_id}]:
            text = self._texts.pop(message_id)
            owner = {name: value for name, value in text.about.items() if name != "role"}
            yield _data(f"{text.kind}_END", owner, messageId=message_id)

    def _take_back(self, call_id: str) -> Iterable[bytes]:
        """Void what a model call said. A thought stays as an empty one: clients keep those that a snapshot lacks."""
        if not (void := self._calls_of_model.get(call_id)):
            return
        yield from self._end_texts(next((text.step_id for text in self._texts.values() if text.call_id == call_id), ""))
        for message_id in void:
            self._said[message_id].clear()
            if self._messages.get(message_id, {}).get("role") == "assistant":
                del self._messages[message_id]
        yield self._all_messages()

    def _all_messages(self) -> bytes:
        said = {name: "".join(parts) for name, parts in self._said.items()}
        own = [
            {**message, "content": said[name]} if name in said else message for name, message in self._messages.items()
        ]
        return _data("MESSAGES_SNAPSHOT", {}, messages=[*self._history, *own])

    def _call(self, call_id: str, name: str, arguments: Any, step_id: str, owner: dict[str, Any]) -> Iterable[bytes]:
        """Show a call in the message of its step."""
        is_again = call_id in self._owners
        self._owners[call_id] = owner
        tool_call_id, message_id = self._prefix + call_id, self._prefix + step_id
        text = to_json(arguments).decode()
        message = self._messages.setdefault(
            message_id, {"id": message_id, "role": "assistant", "toolCalls": [], **owner}
        )
        function = {"name": name, "arguments": text}
        if is_again:  # a block of code may call tools many thousand times, so only then
            message["toolCalls"] = [call for call in message["toolCalls"] if call["id"] != tool_call_id]
        message["toolCalls"].append({"id": tool_call_id, "type": "function", "function": function})
        about = {"toolCallName": name, "parentMessageId": message_id, **owner}
        yield _data("TOOL_CALL_START", about, toolCallId=tool_call_id)
        yield _data("TOOL_CALL_ARGS", owner, toolCallId=tool_call_id, delta=text)
        yield _data("TOOL_CALL_END", owner, toolCallId=tool_call_id)

    def _result(self, call_id: str, content: Any) -> Iterable[bytes]:
        self._settled.add(call_id)
        tool_call_id, owner = self._prefix + call_id, self._owners[call_id]
        message_id = result_id(tool_call_id)
        about = {"role": "tool", "toolCallId": tool_call_id, "content": content, **owner}
        self._messages[message_id] = {"id": message_id, **about}
        yield _data("TOOL_CALL_RESULT", about, messageId=message_id)

    def _return(self, event: ToolReturned) -> Iterable[bytes]:
        call_id = event.call_id
        if (about := self._subagents.pop(call_id, None)) is not None:
            named = {"subagentRunId": self._prefix + call_id}
            for step_id in [step_id for step_id, owner in self._steps.items() if owner == named]:
                yield from self._end_texts(step_id)
                del self._steps[step_id]
                yield _data("STEP_FINISHED", named, stepName=step_id)
            if event.ok:
                yield _data("SUBAGENT_FINISHED", named)
            else:
                yield _data("SUBAGENT_ERROR", named, message=event.error or f"{about['name']} failed.")
        if call_id in self._owners and call_id not in self._settled:
            yield from self._result(call_id, (event.result if event.ok else event.error) or "")

    def _show_calls(self) -> Iterable[bytes]:
        """Show the calls of open requests that the client does not have."""
        for each in self._requests.values():
            is_known = each.call_id in self._owners
            if self._known_calls is not None:
                is_known = self._prefix + each.call_id in self._known_calls
            if not is_known:
                arguments = {"question": each.question} if each.kind == "question" else each.arguments
                yield from self._call(
                    each.call_id, each.tool, arguments, each.step_id, self._owners.get(each.call_id, {})
                )

    def _pause(self) -> Iterable[bytes]:
        """End the run with interrupts for approvals and questions, and with pending calls of the client's tools."""
        interrupts = [self._interrupt(each) for each in self._requests.values() if each.kind != "result"]
        outcome: dict[str, Any] = {"type": "interrupt", "interrupts": interrupts}
        if not interrupts:
            outcome = {"type": "success"}
            if not self._is_old:
                outcome["pendingToolCallIds"] = [self._prefix + each.call_id for each in self._requests.values()]
        yield from self._close([each["id"] for each in interrupts])
        yield _data("RUN_FINISHED", self._run, outcome=outcome)

    def _interrupt(self, request: InputRequest) -> dict[str, Any]:
        is_question = request.kind == "question"
        answer = {**_TEXT, "enum": request.choices} if request.choices else _TEXT
        edited = {**(request.parameters or _OBJECT), "description": "All arguments, in place of those of the call."}
        members = {"approved": {"type": "boolean"}, "reason": _TEXT, "editedArgs": edited}
        properties, required = ({"answer": answer}, "answer") if is_question else (members, "approved")
        return {
            "id": request.request_id,
            "reason": "input_required" if is_question else "tool_call",
            "message": request.question or f"May I call {request.tool}?",
            "toolCallId": self._prefix + request.call_id,
            "responseSchema": {**_OBJECT, "properties": properties, "required": [required]},
            "expiresAt": time_text(request.expires_at),
            "metadata": {"tool": request.tool, "arguments": request.arguments},
            **self._owners.get(request.call_id, {}),
        }

    def _take_answers(self, event: InputAnswered) -> None:
        for answer in event.answers:
            request = self._requests.pop(answer.request_id, None)
            if request and answer.decision == "result":
                tool_call_id = self._prefix + request.call_id
                if result := self._results.get(tool_call_id):  # else the return of the call shows it
                    self._settled.add(request.call_id)
                    message = {"id": result_id(tool_call_id), **result}
                    self._messages[message["id"]] = message

    def _close(self, interrupts: Sequence[str] = ()) -> Iterable[bytes]:
        """End all that is open, since a run ends with nothing open."""
        self.is_complete = True
        yield from self._end_texts()
        for step_id, owner in reversed(self._steps.items()):
            yield _data("STEP_FINISHED", owner, stepName=step_id)
        for call_id in reversed(self._subagents):
            named = {"subagentRunId": self._prefix + call_id}
            outcome = {"outcome": {"type": "suspended", "interruptIds": interrupts}} if interrupts else {}
            yield _data("SUBAGENT_FINISHED", named, **outcome)

    def _end(self, turn: Turn) -> Iterable[bytes]:
        outcome = turn.outcome
        assert outcome, "a turn that ended has an outcome"
        usage = [_usage_of(outcome.usage)]
        yield from self._end_texts()
        if outcome.status == "failed":  # such a run may leave parts open
            self.is_complete = True
            code, message = failure_of(turn)
            yield _data("RUN_ERROR", {}, message=message, code=code, usage=usage)
            return
        said = "".join(self._said.get(self._last_answer or "", ()))
        if outcome.status == "finished" and outcome.reply and outcome.reply != said:
            named = {"messageId": f"{self._prefix}reply"}
            yield _data("TEXT_MESSAGE_START", named, role="assistant")
            yield _data("TEXT_MESSAGE_CONTENT", named, delta=outcome.reply)
            yield _data("TEXT_MESSAGE_END", named)
        if self.media:  # only results of tools can have images and files
            parts = [_part_of(name, url) for name, url in self.media.items()]
            yield from self._call(FINAL, FINAL, {"names": list(self.media)}, f"{FINAL}:call", {})
            yield from self._result(FINAL, to_json(parts).decode() if self._is_old else parts)
        yield from self._close()
        about: dict[str, Any] = (
            {} if outcome.output is None or isinstance(outcome.output, str) else {"result": outcome.output}
        )
        if outcome.status == "finished" or not self._is_old:
            about["outcome"] = {"type": "success" if outcome.status == "finished" else "cancelled"}
        yield _data("RUN_FINISHED", self._run, **about, usage=usage)


def _data(event_type: str, about: Mapping[str, Any], **fields: Any) -> bytes:
    return sse_data({"type": event_type, **fields, **about})


def result_id(tool_call_id: str) -> str:
    """Return the id of this service's message with the result of a call."""
    return f"{tool_call_id}:result"


def state_frame(state: Any) -> bytes:
    return _data("STATE_SNAPSHOT", {}, snapshot=state)


def error_frames(run: tuple[str, str], code: str, message: str) -> bytes:
    """Return a run that ends before it begins."""
    started = {"threadId": run[0], "runId": run[1], "protocolVersion": VERSION}
    return _data("RUN_STARTED", started) + _data("RUN_ERROR", {}, code=code, message=message)


def _part_of(name: str, url: str) -> dict[str, Any]:
    media_type, data = split_data_url(url)
    family = media_type.partition("/")[0]
    kind = family if family in {"image", "audio", "video"} else "document"
    source = {"type": "data", "value": data, "mimeType": media_type}
    return {"type": kind, "source": source, "metadata": {"filename": name}}


def _usage_of(used: Usage) -> dict[str, int]:
    counts = {
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.input_tokens + used.output_tokens,
        "cachedInputTokens": used.cached_input_tokens,
        "cacheWriteInputTokens": used.cache_write_tokens,
        "reasoningTokens": used.reasoning_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}
