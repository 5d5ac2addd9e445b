"""Fold of a turn's events into the events of one response, whose last one has the whole response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

from pydantic_core import to_json

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
    TurnStarted,
    TurnWaiting,
)
from smolsessions.core.records import Turn, Usage
from smolsessions.core.requests import InputRequest
from smolsessions.web.dialects.gateway import Fold, split_data_url
from smolsessions.web.dialects.openai import items
from smolsessions.web.dialects.openai.content import SERVER
from smolsessions.web.dialects.openai.items import Item, Segment
from smolsessions.web.dialects.words import CODE, FINAL, failure_of, question_words

FRAMES = 1000
"""Numbers of frames that one event of a turn may have. Each of up to 100 requests has up to six."""
NO_FRAMES = 2**63
"""For `starting_after`: the response alone is wanted."""
ASK_USER = "ask_user"

Event = tuple[str, dict[str, Any]]


class ResponseFold(Fold):
    """Fold of a turn's events after number `segment.after`, up to the next wait for answers or the turn's end.

    `starting_after` is the number of the last frame that a client has. `asks` are names and patterns of tools whose
    calls may end the response. Those calls become items when they return. None: a call of any tool may.
    """

    drops_void_text = False

    def __init__(
        self,
        turn: Turn,
        segment: Segment,
        metadata: dict[str, str],
        *,
        asks: tuple[str, ...] | None,
        starting_after: int,
    ) -> None:
        self._turn = turn
        self._metadata = metadata
        self._starting_after = starting_after
        tools = (ASK_USER, *turn.options.approve, *(tool.name for tool in turn.options.client_tools))
        self._asks = None if asks is None else (*asks, *tools)
        # A preview that is not accepted is no JSON, at which a client with a schema would fail.
        self._shows_previews = turn.options.output_schema is None
        self._calls: dict[str, ToolCalled] = {}  # calls that have not returned
        self._requests: dict[str, InputRequest] = {}  # by id, those that are open
        self._asked: dict[str, InputRequest] = {}  # by call, all so far
        self._usage, self._used_before = Usage(), Usage()
        self.begin(segment)

    def begin(self, segment: Segment) -> None:
        """Begin the response of a segment. For a later one the events before it were folded already."""
        self.is_complete = False
        self._segment = segment
        self._response = items.response_of(self._turn, segment, self._metadata)
        self._has_begun = False
        self._is_queued = not segment.after
        self._items: list[Item] = []  # by their output_index
        self._void: set[int] = set()  # indexes of items that are no part of the answer
        self._texts: dict[str, tuple[int, str, str]] = {}  # index, model call and kind of the open text of a step
        self._texts_of: dict[str, list[int]] = {}  # by model call
        self._pieces: dict[int, list[str]] = {}  # of the texts of items
        self._answer: int | None = None  # the open message
        self._open_calls: dict[str, int] = {}  # indexes of those that are items
        self._used_before = self._usage

    @property
    def response(self) -> Item:
        """The response as it is now."""
        if self._is_queued:
            return {**self._response, "status": "queued"}
        return {**self._response, "output": self.output}

    @property
    def output(self) -> list[Item]:
        for index in self._pieces:
            self._part(index)
        return [item for index, item in enumerate(self._items) if index not in self._void]

    def frames(self, logged: Logged, *, waits: bool) -> Iterable[bytes]:  # noqa: ARG002 - a wait always ends it
        event = logged.event
        if isinstance(event, StepFinished) and event.usage:
            self._usage = _sum(self._usage, event.usage)
        if logged.seq <= self._segment.after:
            self._remember(event)
            self._used_before = self._usage
            return
        number = logged.seq * FRAMES
        for kind, data in self._events(event):
            if number > self._starting_after:
                frame = to_json({"type": kind, "sequence_number": number, **data})
                yield b"event: %b\ndata: %b\n\n" % (kind.encode(), frame)
            number += 1

    def _remember(self, event: Any) -> None:
        """Take up an event that belongs to an earlier response, or that this one shows later."""
        if isinstance(event, ToolCalled):
            self._calls[event.call_id] = event
        elif isinstance(event, ToolReturned):
            self._calls.pop(event.call_id, None)
        elif isinstance(event, TurnWaiting):
            self._requests = {each.request_id: each for each in event.requests}
            self._asked |= {each.call_id: each for each in event.requests}
        elif isinstance(event, InputAnswered):
            for answer in event.answers:
                self._requests.pop(answer.request_id, None)

    def _events(self, event: Any) -> Iterator[Event]:
        if not self._has_begun:
            self._has_begun = True
            yield "response.created", {"response": self._response}
            yield "response.in_progress", {"response": self._response}
        if isinstance(event, MessageDelta):
            yield from self._say(event)
        elif isinstance(event, TurnStarted):
            self._is_queued = False
        elif isinstance(event, StepStarted):
            if event.where.parent_call_id is None:
                yield from self._drop_answer()
        elif isinstance(event, MessageRestarted):
            yield from self._restart(event)
        elif isinstance(event, ToolCalled):
            yield from self._end_text(event.where.step_id)
            self._remember(event)
            if not self._may_ask(event.name):
                yield from self._call(event)
        elif isinstance(event, ToolReturned):
            yield from self._return(event)
        elif isinstance(event, StepFinished):
            yield from self._end_text(event.where.step_id)
        elif isinstance(event, TurnWaiting):
            self._remember(event)
            yield from self._ask()
        elif isinstance(event, InputAnswered):
            self._is_queued = False
            self._remember(event)
            if self._requests:  # else the turn goes on, and its calls become items when they return
                yield from self._ask()
        elif isinstance(event, TurnEnded):
            yield from self._end(event.result)

    def _add(self, kind: str, item: Item) -> Iterator[Event]:
        """Add an item, and show it as it is before its content comes. One with an id keeps it."""
        item = {"id": self._segment.item_id(kind, len(self._items)), **item}
        self._items.append(item)
        yield "response.output_item.added", {"output_index": len(self._items) - 1, "item": item}

    def _of(self, index: int, **more: Any) -> dict[str, Any]:
        return {"item_id": self._items[index]["id"], "output_index": index, **more}

    def _done(self, index: int, status: str | None = "completed") -> Iterator[Event]:
        if status:
            self._items[index]["status"] = status
        yield "response.output_item.done", {"output_index": index, "item": self._items[index]}

    def _say(self, event: MessageDelta) -> Iterator[Event]:
        is_answer = event.channel == "answer"
        where = event.where
        if is_answer and (where.parent_call_id is not None or not self._shows_previews):
            return
        if not is_answer and event.channel not in {"thought", "plan"}:  # code and arguments come with the call
            return
        kind = "message" if is_answer else "reasoning"
        index, call_id, open_kind = self._texts.get(where.step_id, (-1, "", ""))
        if (call_id, open_kind) != (event.call_id, kind):
            yield from self._end_text(where.step_id)
            index = len(self._items)
            yield from self._begin_text(index, is_answer=is_answer)
            self._texts[where.step_id] = index, event.call_id, kind
            self._texts_of.setdefault(event.call_id, []).append(index)
            if not is_answer and where.parent_call_id is not None:
                self._items[index] |= {"agent": where.agent, "parent_call_id": where.parent_call_id}
        yield self._text(index, event.text)

    def _begin_text(self, index: int, *, is_answer: bool) -> Iterator[Event]:
        part: Item
        if is_answer:
            yield from self._add("msg", items.MESSAGE)
            self._answer, part = index, {**items.TEXT}
            yield "response.content_part.added", self._of(index, content_index=0, part={**part})
            self._items[index]["content"], self._pieces[index] = [part], []
        else:
            yield from self._add("rs", items.REASONING)
            part = {"type": "summary_text", "text": ""}
            yield "response.reasoning_summary_part.added", self._of(index, summary_index=0, part={**part})
            self._items[index]["summary"], self._pieces[index] = [part], []

    def _text(self, index: int, text: str) -> Event:
        self._pieces[index].append(text)
        if self._items[index]["type"] == "message":
            return "response.output_text.delta", self._of(index, content_index=0, delta=text, logprobs=[])
        return "response.reasoning_summary_text.delta", self._of(index, summary_index=0, delta=text)

    def _part(self, index: int) -> Item:
        """Return the part of an item that holds its text so far."""
        part: Item = self._items[index]["content" if self._items[index]["type"] == "message" else "summary"][0]
        part["text"] = "".join(self._pieces[index])
        return part

    def _end_text(self, step_id: str, status: str = "completed") -> Iterator[Event]:
        """End the text of a step. An answer stays open until the next step shows that it was not accepted."""
        index, _, kind = self._texts.pop(step_id, (-1, "", ""))
        if kind == "reasoning":
            part = self._part(index)
            yield "response.reasoning_summary_text.done", self._of(index, summary_index=0, text=part["text"])
            yield "response.reasoning_summary_part.done", self._of(index, summary_index=0, part=part)
            yield from self._done(index, status)

    def _end_answer(self, status: str = "completed") -> Iterator[Event]:
        index, self._answer = self._answer, None
        if index is None:
            return
        part = self._part(index)
        yield "response.output_text.done", self._of(index, content_index=0, text=part["text"], logprobs=[])
        yield "response.content_part.done", self._of(index, content_index=0, part=part)
        yield from self._done(index, status)

    def _drop_answer(self) -> Iterator[Event]:
        if self._answer is not None:
            self._void.add(self._answer)
            yield from self._end_answer("incomplete")

    def _restart(self, event: MessageRestarted) -> Iterator[Event]:
        texts = self._texts_of.pop(event.call_id, [])
        self._void.update(texts)
        yield from self._end_text(event.where.step_id, "incomplete")
        if self._answer in texts:
            yield from self._end_answer("incomplete")

    def _may_ask(self, name: str) -> bool:
        return self._asks is None or any(fnmatchcase(name, pattern) for pattern in self._asks)

    def _call(self, event: ToolCalled) -> Iterator[Event]:
        """Show a call that runs now."""
        if event.name == FINAL:
            return
        index = self._open_calls[event.call_id] = len(self._items)
        where = event.where
        place = {"call_id": event.call_id, "agent": where.agent, "parent_call_id": where.parent_call_id}
        if event.name == CODE:
            code = event.arguments if isinstance(event.arguments, str) else items.json_text(event.arguments)
            call = {**items.CODE, "container_id": self._turn.ref.id, "code": "", "outputs": None}
            yield from self._add("ci", {**call, **place})
            yield "response.code_interpreter_call.in_progress", self._of(index)
            yield "response.code_interpreter_call_code.delta", self._of(index, delta=code)
            yield "response.code_interpreter_call_code.done", self._of(index, code=code)
            self._items[index]["code"] = code
            yield "response.code_interpreter_call.interpreting", self._of(index)
            return
        yield from self._add("mcp", {**items.CALL, "name": event.name, **items.NO_RESULT, **place})
        yield "response.mcp_call.in_progress", self._of(index)
        arguments = self._items[index]["arguments"] = items.json_text(event.arguments)
        yield "response.mcp_call_arguments.delta", self._of(index, delta=arguments)
        yield "response.mcp_call_arguments.done", self._of(index, arguments=arguments)
        if asked := self._asked.get(event.call_id):
            self._items[index]["approval_request_id"] = asked.request_id

    def _return(self, event: ToolReturned) -> Iterator[Event]:
        call = self._calls.pop(event.call_id, None)
        asked = self._asked.get(event.call_id)
        if call is None or call.name == FINAL or (asked and asked.kind != "approval"):
            return
        if event.call_id not in self._open_calls:
            yield from self._call(call)
        index = self._open_calls.pop(event.call_id)
        item = self._items[index]
        if event.name == CODE:
            item["outputs"] = [{"type": "logs", "logs": event.result or event.error or ""}]
            yield "response.code_interpreter_call.completed", self._of(index)
        elif event.ok:
            item["output"] = event.result or ""
            yield "response.mcp_call.completed", self._of(index)
        else:
            content = [{"type": "text", "text": event.error or ""}]
            item["error"] = {"type": "mcp_tool_execution_error", "content": content}
            yield "response.mcp_call.failed", self._of(index)
        yield from self._done(index, "completed" if event.ok else "failed")

    def _stop(self) -> Iterator[Event]:
        """End the items that are open. Calls come again in the response that they return in."""
        for step_id in list(self._texts):
            yield from self._end_text(step_id)
        for index in self._open_calls.values():
            self._void.add(index)
            yield from self._done(index, "incomplete")
        self._open_calls = {}

    def _ask(self) -> Iterator[Event]:
        """End the response with all open requests."""
        yield from self._stop()
        yield from self._drop_answer()
        for each in self._requests.values():
            index = len(self._items)
            arguments = items.json_text(each.arguments)
            if each.kind == "approval":
                about = {"id": each.request_id, "type": "mcp_approval_request", "server_label": SERVER}
                yield from self._add("mcpr", {**about, "name": each.tool, "arguments": arguments})
                yield from self._done(index, None)
            elif each.kind == "result":
                about = {"type": "function_call", "status": "in_progress", "call_id": each.request_id}
                yield from self._add("fc", {**about, "name": each.tool, "arguments": ""})
                self._items[index]["arguments"] = arguments
                yield "response.function_call_arguments.delta", self._of(index, delta=arguments)
                named = {"name": each.tool, "arguments": arguments}
                yield "response.function_call_arguments.done", self._of(index, **named)
                yield from self._done(index)
            else:
                yield from self._write(question_words(each))
        yield from self._finish("completed", self._usage)

    def _write(self, text: str) -> Iterator[Event]:
        """Add a whole message."""
        index = len(self._items)
        yield from self._begin_text(index, is_answer=True)
        yield self._text(index, text)
        yield from self._end_answer()

    def _end(self, turn: Turn) -> Iterator[Event]:
        outcome = turn.outcome
        assert outcome, "a turn that ended has an outcome"
        self._is_queued = False
        yield from self._stop()
        if outcome.status == "finished":
            reply = outcome.reply or ""
            said = "" if self._answer is None else self._part(self._answer)["text"]
            if self._answer is None or not reply.startswith(said):
                yield from self._drop_answer()
                said = ""
                yield from self._begin_text(len(self._items), is_answer=True)
            assert self._answer is not None, "a message is open"
            if rest := reply[len(said) :]:
                yield self._text(self._answer, rest)
            cited = [items.citation(turn, file) for file in outcome.files]
            self._items[self._answer]["content"][0]["annotations"] = cited
            yield from self._end_answer()
            for url in self.media.values():
                if url.startswith("data:image/"):
                    about = {"type": "image_generation_call", "status": "completed"}
                    yield from self._add("ig", {**about, "result": split_data_url(url)[1]})
                    yield from self._done(len(self._items) - 1)
        yield from self._end_answer("incomplete")
        if outcome.status == "failed":
            self._response["error"] = {"code": "server_error", "message": ": ".join(failure_of(turn))}
            if not self._items:  # Vercel's client posts again if a response fails without any item
                self._void.add(0)
                yield from self._add("rs", items.REASONING)
                yield from self._done(0)
        finished_at = turn.timing.finished_at
        self._response["completed_at"] = finished_at and int(finished_at)
        yield from self._finish("completed" if outcome.status == "finished" else outcome.status, outcome.usage)

    def _finish(self, status: str, usage: Usage) -> Iterator[Event]:
        self.is_complete = True
        usage_now = items.usage_of(usage, self._used_before)
        self._response = {**self._response, "status": status, "output": self.output, "usage": usage_now}
        last = "failed" if status == "failed" else "completed"
        yield f"response.{last}", {"response": self._response}


def _sum(one: Usage, other: Usage) -> Usage:
    """Return the sum of two counts, in which None is nothing."""
    return Usage(
        **{each.name: (getattr(one, each.name) or 0) + (getattr(other, each.name) or 0) for each in fields(Usage)}
    )
