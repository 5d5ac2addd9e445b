"""One request to a model: its deltas are emitted as they arrive, and joined to one message at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from smolagents import Model, TransformersModel
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
    agglomerate_stream_deltas,
    remove_content_after_stop_sequences,
)
from smolagents.monitoring import TokenUsage

from smolsessions.agents.memory.step_types import text_in
from smolsessions.agents.memory.tokens import estimate, estimate_messages
from smolsessions.agents.models.token_usage import reported_usage, with_details
from smolsessions.agents.run.model_connections import current_call
from smolsessions.agents.run.partial_texts import CodeSplitter, PartialJson
from smolsessions.agents.run.turn_run import TurnRun
from smolsessions.agents.values.json_forms import json_form, json_text, utf8_text
from smolsessions.core.events import MessageChannel, MessageDelta, StepPlace

MAX_ANSWER_CHARS = 16 * 1024 * 1024
"""Characters of one answer, and its deltas count as one more each. A provider may stream without an end."""


class AnswerTooLongError(Exception):
    """The model streamed more than one answer may hold."""


class DeltaEmitter:
    """Emits the text of one model call, sorted into channels."""

    def __init__(
        self,
        turn_run: TurnRun,
        where: StepPlace | None,
        call_id: str,
        channel: MessageChannel = "thought",
        new_reader: Callable[[], CodeSplitter | PartialJson] | None = None,
    ) -> None:
        """`channel` is that of the content, unless a reader splits it into thoughts and code.

        Without `where` nothing is emitted. A stop still ends the call at its next delta.
        """
        self.turn_run = turn_run
        self.call_id = call_id
        self._where = where
        self._channel = channel
        self._new_reader = new_reader
        self._begin()

    def _begin(self) -> None:
        self._reader = self._new_reader() if self._new_reader else None
        self._names: dict[int, str] = {}
        self._answers: dict[int, PartialJson] = {}

    def restart(self, *, is_retry: bool = False) -> None:
        """Void the text that readers have seen: of an earlier attempt, or before a retry."""
        self._begin()
        if self._where:
            self.turn_run.restart(self._where, self.call_id, is_retry=is_retry)

    def add_delta(self, delta: ChatMessageStreamDelta) -> None:
        """Emit the text of a delta. Raises `TurnStopped` if a stop was requested."""
        self.turn_run.check()
        if delta.content:
            self._add_content(delta.content)
        for call in delta.tool_calls or ():
            if call.function and call.index is not None:
                self._add_arguments(call.index, call.function.name, call.function.arguments or "")

    def add_message(self, message: ChatMessage) -> None:
        if content := text_in(message):
            self._add_content(content)
        for index, call in enumerate(message.tool_calls or ()):
            name, arguments = call.function.name, call.function.arguments
            if isinstance(arguments, str):
                self._add_arguments(index, name, arguments)
            elif name == "final_answer":  # as `PartialJson` reads it out of a stream
                form = json_form(arguments)
                answer = form.get("answer", "") if isinstance(form, dict) else ""
                if text := answer if isinstance(answer, str) else json_text(answer):
                    self._emit("answer", text)
            else:
                self._add_arguments(index, name, json_text(json_form(arguments)))
        if self._reader or self._answers:
            self.flush()

    def flush(self) -> None:
        """Emit the text that was held back, at the end of the message."""
        if self._reader:
            self._emit_all(self._reader.end())
        for answer in self._answers.values():
            self._emit_all(answer.end())

    def _add_content(self, text: str) -> None:
        if self._reader:
            self._emit_all(self._reader.feed(text))
        else:
            self._emit(self._channel, text)

    def _add_arguments(self, index: int, name: str | None, text: str) -> None:
        if name:
            self._names[index] = utf8_text(str(name))
        name = self._names.get(index, "")
        if name == "final_answer":
            self._emit_all(self._answers.setdefault(index, PartialJson("answer")).feed(text))
        elif text:
            self._emit("arguments", text, index, name)

    def _emit_all(self, pieces: Iterable[tuple[str, str]]) -> None:
        for channel, text in pieces:
            self._emit(cast("MessageChannel", channel), text)

    def _emit(self, channel: MessageChannel, text: str, index: int | None = None, name: str | None = None) -> None:
        if self._where:
            self.turn_run.emit(MessageDelta(self._where, self.call_id, channel, utf8_text(text), index, name))


def request_message(
    model: Model, messages: list[ChatMessage], options: dict[str, Any], emitter: DeltaEmitter
) -> ChatMessage:
    """Call a model, by its stream if it has one, and return the message that its `generate` would return."""
    call = current_call()
    if not _has_stream(model):
        whole: ChatMessage = model.generate(messages, **options)
        reported = call.usage if call else None
        whole.token_usage = with_details(whole.token_usage, reported or reported_usage(whole.raw))
        emitter.add_message(whole)
        return whole
    stream: Any = model.generate_stream(messages, **options)  # type: ignore[attr-defined]  # `_has_stream`
    deltas: list[ChatMessageStreamDelta] = []
    left = MAX_ANSWER_CHARS
    try:
        for delta in stream:
            deltas.append(delta)
            emitter.add_delta(delta)
            left -= 1 + len(delta.content or "")
            for each in delta.tool_calls or ():
                left -= len(each.function.arguments or "") if each.function else 0
            if left < 0:
                raise AnswerTooLongError  # noqa: TRY301 - the provider counts what it sent
    except BaseException:  # also a stop: the provider counts what it sent
        used = next((delta.token_usage for delta in reversed(deltas) if delta.token_usage), None)
        if deltas and not used:  # a provider reports at the end
            calls = [call.function.arguments for delta in deltas for call in delta.tool_calls or () if call.function]
            text = "".join([str(part) for part in (*(delta.content for delta in deltas), *calls) if part])
            used = TokenUsage(estimate_messages(messages), estimate(text))
        emitter.turn_run.note_usage(with_details(used, call and call.usage))
        raise
    finally:
        if close := getattr(stream, "close", None):  # the provider stops generating
            close()
    emitter.flush()
    joined = _joined(deltas)
    content = joined.content
    # Beside calls, the content is None if the provider sent none: smolagents puts an empty text beside the usage. An
    # empty text without calls stays, as it makes another prompt.
    if joined.tool_calls and all(delta.content is None or delta.token_usage for delta in deltas):
        content = content or None
    if not getattr(model, "supports_stop_parameter", True) or isinstance(model, TransformersModel):
        # As `generate` of these models does: the agent would take text after a stop sequence as the model's own.
        content = remove_content_after_stop_sequences(cast("str | None", content), options.get("stop_sequences"))
    used = joined.token_usage if any(delta.token_usage for delta in deltas) else None
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content=content,
        tool_calls=joined.tool_calls or None,
        token_usage=with_details(used, call and call.usage),
    )


def _joined(deltas: Iterable[ChatMessageStreamDelta]) -> ChatMessage:
    """Join deltas as smolagents does, which copies a call's arguments so far for each piece of them."""
    bare: list[ChatMessageStreamDelta] = []  # those that hold more than arguments
    arguments: dict[int | None, list[str]] = {}
    for delta in deltas:
        calls = []
        for call in delta.tool_calls or ():
            function, is_first = call.function, call.index not in arguments
            pieces = arguments.setdefault(call.index, [])
            if function and function.arguments:
                pieces.append(function.arguments)
            if is_first or call.id or call.type or (function and function.name):
                name = function and ChatMessageToolCallFunction("", function.name)
                calls.append(ChatMessageToolCallStreamDelta(call.index, call.id, call.type, name))
        if calls or delta.content or delta.token_usage:
            bare.append(ChatMessageStreamDelta(delta.content, calls, delta.token_usage) if delta.tool_calls else delta)
    joined = agglomerate_stream_deltas(bare)
    for whole, pieces in zip(joined.tool_calls or (), arguments.values(), strict=True):
        whole.function.arguments = "".join(pieces)
    return joined


def _has_stream(model: Model) -> bool:
    """True if the stream may replace `generate`: not if a class overrides `generate` alone, as a guard does."""
    if not hasattr(model, "generate_stream"):  # a property may hide it
        return False
    for holder in (model, *type(model).__mro__):
        if "generate_stream" in vars(holder):
            return True
        if "generate" in vars(holder):
            return False
    return True  # of a model that hands attributes on to another
