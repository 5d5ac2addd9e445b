"""A model, seen: what it says is handed on as it comes, and joined once; a stop lands at every piece."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from typing import TYPE_CHECKING, Any, cast

from smolagents import ToolCallingAgent, TransformersModel
from smolagents.models import (
    ChatMessage,
    MessageRole,
    agglomerate_stream_deltas,
    remove_content_after_stop_sequences,
)
from smolagents.utils import truncate_content

from smolsessions.agents.compatibility import PLAN_END
from smolsessions.agents.run.code_text import CodeSplitter
from smolsessions.agents.run.failures import is_transient
from smolsessions.agents.run.message_encoding import MODEL_KEY, decode_message, encode_error, encode_message
from smolsessions.agents.run.model_connections import connected
from smolsessions.agents.run.partial_json import PartialJson
from smolsessions.agents.run.tool_proxy import Proxy, proxy_tools, unproxied
from smolsessions.agents.values.json_forms import json_form, utf8_text
from smolsessions.core.events import MessageDelta, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from smolagents import Model, MultiStepAgent
    from smolagents.models import ChatMessageStreamDelta
    from smolagents.monitoring import TokenUsage

    from smolsessions.agents.run.recorder import AgentRun, Recorder
    from smolsessions.agents.run.tool_proxy import RunContext
    from smolsessions.core.events import MessageChannel

BACK_OFF_S = 0.5  # before a failed call is made again; doubled each time
MOST_BACK_OFF_S = 8.0


class GarbledAnswerError(ValueError):
    """An answer's arguments are no JSON: smolagents would give their text, cut as it may be, as the answer."""


class ModelProxy(Proxy):
    """One agent's model."""

    _real: Model

    __slots__ = ("_agent",)
    _agent: MultiStepAgent

    def __init__(self, real: Model, context: RunContext, agent: MultiStepAgent) -> None:
        super().__init__(real, context)
        object.__setattr__(self, "_agent", agent)

    def __call__(self, *args: Any, **kwargs: Any) -> ChatMessage:
        return self.generate(*args, **kwargs)

    def generate(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **options: Any,
    ) -> ChatMessage:
        """Ask the real model, by its stream where it has one; the message is the one that it would have given."""
        if self._context.agent_run is None:
            return self._real.generate(messages, stop_sequences, response_format, tools_to_call_from, **options)
        agent_run = self._context.agent_run
        proxy_tools(self._agent, self._context)
        is_plan = stop_sequences == PLAN_END
        agent_run.before_model_call()
        is_between_steps = not agent_run.in_step
        where, call_id = agent_run.model_call("planning" if is_plan else "action")

        def emitter() -> DeltaEmitter:
            new = DeltaEmitter(agent_run.recorder, where, call_id)
            if is_plan:
                new.content_is("plan")
            elif stop_sequences is None and tools_to_call_from is None:
                # The answer that is forced at the last step; within a step, a question of the agent's own code.
                new.content_is("answer" if is_between_steps else "thought")
            elif opening_and_closing := getattr(self._agent, "code_block_tags", None):
                new.content_is_code(*opening_and_closing, structured=response_format is not None)
            return new

        # Only what was given: a model need not take what it is not asked for.
        asked = {
            "stop_sequences": stop_sequences,
            "response_format": response_format,
            "tools_to_call_from": tools_to_call_from and [unproxied(tool) for tool in tools_to_call_from],
        }
        options |= {name: value for name, value in asked.items() if value is not None}
        message = self._once(agent_run, call_id, emitter, lambda to: self._message(messages, options, to))
        agent_run.recorder.note_usage(message.token_usage)
        if tools_to_call_from and type(self._agent)._step_stream is ToolCallingAgent._step_stream:  # noqa: SLF001
            _refuse_garbled_answers(message)
        if message.tool_calls:
            agent_run.ask((call.function.name, _parsed(call.function.arguments)) for call in message.tool_calls)
        return message

    def _message(self, messages: list[ChatMessage], options: dict[str, Any], emitter: DeltaEmitter) -> ChatMessage:
        message = _message(self._real, messages, options, emitter)
        if self._context.author_streams and message.content is None:
            message.content = ""  # as smolagents joins a stream
        return message

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Find calls in a text. Raises where there were calls that cannot be read."""
        if isinstance(message.raw, GarbledAnswerError):
            raise message.raw
        return self._real.parse_tool_calls(message)

    def side_call(self, messages: list[ChatMessage], model: Model | None = None) -> ChatMessage:
        """Ask beside the agent's steps, this model or another one: an effect like any other that no reader is shown.

        Raises what the model raises.
        """
        agent_run, model = self._context.agent_run, model or self._real
        if agent_run is None:
            answer: ChatMessage = model.generate(messages)
            return answer
        recorder = agent_run.recorder
        call_id = recorder.next_side_call()
        message = self._once(
            agent_run,
            call_id,
            lambda: _SilentEmitter(recorder, call_id),
            lambda to: _message(model, messages, {}, to),
            lambda _: True,
        )
        recorder.note_usage(message.token_usage)
        return message

    def _once(
        self,
        agent_run: AgentRun,
        call_id: str,
        emitter: Callable[[], DeltaEmitter],
        ask: Callable[[DeltaEmitter], ChatMessage],
        explains: Callable[[str], bool] | None = None,
    ) -> ChatMessage:
        """Return the journaled answer, or ask; an answer is journaled before the agent acts upon it."""
        recorder, key = agent_run.recorder, f"{MODEL_KEY}{call_id}"
        known = recorder.journal.take(key, explains or agent_run.explains(0))
        if known and not known.is_opaque:
            message = decode_message(known)
            emitter().whole(message)
            return message
        emitter().restart()
        recorder.journal.keep_up()
        try:
            message = self._asked(recorder, emitter, ask)
        except Exception as error:
            recorder.tell(None, (key, encode_error(error).to_bytes()))
            raise
        _tell_apart(message, getattr(self._agent.write_memory_to_messages, "call_ids", frozenset()))
        effect, message = encode_message(message)
        recorder.tell(None, (key, effect.to_bytes()))
        return message

    def _asked(
        self, recorder: Recorder, emitter: Callable[[], DeltaEmitter], ask: Callable[[DeltaEmitter], ChatMessage]
    ) -> ChatMessage:
        """Ask, again after a transient failure as often as the agent's `model_retries` says."""
        for retry in itertools.count():
            with recorder.model_call() as call:
                if retry:
                    emitter().restart(is_retry=True)
                    back_off_s = min(BACK_OFF_S * 2 ** (retry - 1), MOST_BACK_OFF_S)
                    call.wait(back_off_s * random.uniform(0.5, 1))  # noqa: S311 - spreads calls, hides nothing
                try:
                    with connected(call):
                        return ask(emitter())
                except Exception as error:
                    if retry >= getattr(self._agent, "model_retries", 0) or not is_transient(error):
                        raise
        raise AssertionError("itertools.count ended")


class DeltaEmitter:
    """One model call on its way to the readers: sorts what comes into channels."""

    def __init__(self, recorder: Recorder, where: Where, call_id: str) -> None:
        self._recorder = recorder
        self._where = where
        self._call_id = call_id
        self._channel: MessageChannel = "thought"
        self._code: CodeSplitter | PartialJson | None = None
        self._names: dict[int, str] = {}
        self._answers: dict[int, PartialJson] = {}

    def restart(self, *, is_retry: bool = False) -> None:
        """Void the text of this call that readers have seen, of an earlier attempt or before a retry."""
        self._recorder.restart(self._where, self._call_id, is_retry=is_retry)

    def used(self, usage: TokenUsage | None) -> None:
        """Count tokens that the provider reported of a call which then failed."""
        self._recorder.note_usage(usage)

    def content_is(self, channel: MessageChannel) -> None:
        self._channel = channel

    def content_is_code(self, opening: str, closing: str, *, structured: bool) -> None:
        """Expect thoughts with code blocks between tags, or a JSON object of both."""
        self._code = PartialJson("thought", "code") if structured else CodeSplitter(opening, closing)

    def piece(self, delta: ChatMessageStreamDelta) -> None:
        """Hand on what a delta adds. Raises `TurnStopped` where the turn is to stop."""
        self._recorder.check()
        if delta.content:
            self._content(delta.content)
        for call in delta.tool_calls or ():
            if call.function and call.index is not None:
                self._arguments(call.index, call.function.name, call.function.arguments or "")

    def whole(self, message: ChatMessage) -> None:
        """Hand on a message that came at once."""
        content = message.content
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if content:
            self._content(content)
        for index, call in enumerate(message.tool_calls or ()):
            arguments = call.function.arguments
            text = arguments if isinstance(arguments, str) else json.dumps(json_form(arguments), ensure_ascii=False)
            self._arguments(index, call.function.name, text)
        self.end()

    def end(self) -> None:
        """Hand on what was held back."""
        if self._code:
            self._sorted(self._code.end())
        for text in self._answers.values():
            self._sorted(text.end())

    def _content(self, text: str) -> None:
        if self._code:
            self._sorted(self._code.feed(text))
        else:
            self._tell(self._channel, text)

    def _arguments(self, index: int, name: str | None, text: str) -> None:
        if name:
            self._names[index] = utf8_text(str(name))
        name = self._names.get(index, "")
        if name == "final_answer":
            self._sorted(self._answers.setdefault(index, PartialJson("answer")).feed(text))
        elif text:
            self._tell("arguments", text, index, name)

    def _sorted(self, pieces: Iterable[tuple[str, str]]) -> None:
        for channel, text in pieces:
            self._tell(cast("MessageChannel", channel), text)

    def _tell(self, channel: MessageChannel, text: str, index: int | None = None, name: str | None = None) -> None:
        self._recorder.tell(MessageDelta(self._where, self._call_id, channel, utf8_text(text), index, name))


class _SilentEmitter(DeltaEmitter):
    """Shows nothing of a call; a stop lands in it all the same."""

    def __init__(self, recorder: Recorder, call_id: str) -> None:
        super().__init__(recorder, Where("", 0, ""), call_id)

    def restart(self, *, is_retry: bool = False) -> None:
        """Nothing was shown."""

    def _tell(self, *_told: Any) -> None:
        pass


def _message(model: Model, messages: list[ChatMessage], options: dict[str, Any], emitter: DeltaEmitter) -> ChatMessage:
    if not _streams(model):
        message: ChatMessage = model.generate(messages, **options)
        emitter.whole(message)
        return message
    deltas = []
    stream: Any = model.generate_stream  # type: ignore[attr-defined]  # it is there: `_streams`
    with _closing(stream(messages, **options)) as pieces:
        try:
            for delta in pieces:
                deltas.append(delta)
                emitter.piece(delta)
        except BaseException:
            emitter.used(next((delta.token_usage for delta in reversed(deltas) if delta.token_usage), None))
            raise
    emitter.end()
    message = _whole(deltas)
    if not getattr(model, "supports_stop_parameter", True) or isinstance(model, TransformersModel):
        # As these models' own `generate` does: what comes after would be read, and run, as the model's own.
        text = cast("str | None", message.content)
        message.content = remove_content_after_stop_sequences(text, options.get("stop_sequences"))
    return message


def _streams(model: Model) -> bool:
    """Tell whether a model is to be asked by its stream: not where a class overrides `generate` alone (a guard)."""
    if not hasattr(model, "generate_stream"):
        return False
    if "generate" in vars(model):
        return "generate_stream" in vars(model)
    kinds = type(model).__mro__
    generate, stream = (
        next((place for place, kind in enumerate(kinds) if name in vars(kind)), len(kinds))
        for name in ("generate", "generate_stream")
    )
    return stream <= generate or "generate_stream" in vars(model)


def _whole(deltas: list[ChatMessageStreamDelta]) -> ChatMessage:
    """Join a stream to the message that the model returns without one.

    No calls are None. Beside calls, content is None if the provider sent none. An empty text stays: it makes another
    prompt. smolagents itself puts an empty text beside the usage.
    """
    message = agglomerate_stream_deltas(deltas)
    if message.tool_calls and all(delta.content is None or delta.token_usage for delta in deltas):
        message.content = message.content or None
    message.tool_calls = message.tool_calls or None
    if not any(delta.token_usage for delta in deltas):
        message.token_usage = None
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content=message.content,
        tool_calls=message.tool_calls,
        token_usage=message.token_usage,
    )


def _tell_apart(message: ChatMessage, taken: Collection[str]) -> None:
    """Give calls ids of their own: smolagents drops all but one of those of a message that share theirs.

    A model that counts what it is shown gives the ids of calls that a memory policy leaves out (`taken`) again.
    """
    seen: set[str] = set()
    for number, call in enumerate(message.tool_calls or (), 1):
        while call.id in seen or call.id in taken:
            call.id = f"{call.id}_{number}"
        seen.add(call.id)


def _refuse_garbled_answers(message: ChatMessage) -> None:
    """Take the calls from a message with an answer that cannot be read, and leave why: then none of them is made.

    smolagents looks for calls in the text next, and is told why there (`parse_tool_calls`); so is the model.
    """
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        if call.function.name != "final_answer" or not isinstance(arguments, str) or not arguments:
            continue
        try:
            json.loads(arguments)
        except (ValueError, RecursionError) as error:  # as smolagents, which takes whatever cannot be read as it is
            message.tool_calls = None
            message.raw = GarbledAnswerError(
                f"the arguments of final_answer are no JSON ({error}), so they were not taken as the answer, and no "
                f"tool was called. They were: {truncate_content(utf8_text(arguments))}"
            )
            return


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@contextlib.contextmanager
def _closing(stream: Iterable[ChatMessageStreamDelta]) -> Iterator[Iterable[ChatMessageStreamDelta]]:
    """Close a stream that is left early: the provider need not write what nobody reads."""
    try:
        yield stream
    finally:
        close = getattr(stream, "close", None)
        if close:
            close()
