"""Model proxy: each call is an effect of the turn, emitted while it runs and journaled before the agent acts on it."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

from smolagents import ToolCallingAgent
from smolagents.utils import truncate_content

from smolsessions.agents.compatibility import PLAN_END
from smolsessions.agents.run.effects import MODEL_KEY, decode_message, encode_error, encode_message
from smolsessions.agents.run.failures import is_transient
from smolsessions.agents.run.model_stream import DeltaEmitter, SilentEmitter, request_message
from smolsessions.agents.run.partial_texts import CodeSplitter, PartialJson
from smolsessions.agents.run.tool_proxy import Proxy, proxy_tools, unproxied
from smolsessions.agents.values.json_forms import utf8_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from smolagents import Model, MultiStepAgent
    from smolagents.models import ChatMessage

    from smolsessions.agents.run.recorder import Recorder
    from smolsessions.agents.run.tool_proxy import RunContext

BACK_OFF_S = 0.5  # before the first retry, doubled for each further one
MAX_BACK_OFF_S = 8.0


class GarbledAnswerError(ValueError):
    """The arguments of an answer are no JSON. smolagents would return their text, which may be cut, as the answer."""


class ModelProxy(Proxy):
    """Proxy of one agent's model."""

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
        """Return the message that the real model would return."""
        agent_run = self._context.agent_run
        if agent_run is None:
            return self._real.generate(messages, stop_sequences, response_format, tools_to_call_from, **options)
        proxy_tools(self._agent, self._context)
        agent_run.before_model_call()
        recorder, is_plan, is_between_steps = agent_run.recorder, stop_sequences == PLAN_END, not agent_run.in_step
        where, call_id = agent_run.model_call("planning" if is_plan else "action")

        def new_emitter() -> DeltaEmitter:
            if is_plan:
                return DeltaEmitter(recorder, where, call_id, "plan")
            if stop_sequences is None and tools_to_call_from is None:
                # The answer that smolagents forces after the last step. Within a step, a call of the agent's own code.
                return DeltaEmitter(recorder, where, call_id, "answer" if is_between_steps else "thought")
            return DeltaEmitter(recorder, where, call_id, code=self._code_reader(structured=bool(response_format)))

        # Without arguments that the agent left out: a model need not accept them.
        asked = {
            "stop_sequences": stop_sequences,
            "response_format": response_format,
            "tools_to_call_from": tools_to_call_from and [unproxied(tool) for tool in tools_to_call_from],
        }
        options |= {name: value for name, value in asked.items() if value is not None}
        message = self._run_once(
            recorder,
            call_id,
            new_emitter,
            lambda emitter: self._request(messages, options, emitter),
            agent_run.explains(0),
        )
        if tools_to_call_from and type(self._agent)._step_stream is ToolCallingAgent._step_stream:  # noqa: SLF001
            _refuse_garbled_answers(message)
        if message.tool_calls:
            agent_run.expect_calls((call.function.name, _parse(call.function.arguments)) for call in message.tool_calls)
        return message

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Parse calls out of a text. Raises `GarbledAnswerError` if the message had calls that cannot be read."""
        if isinstance(message.raw, GarbledAnswerError):
            raise message.raw
        return self._real.parse_tool_calls(message)

    def side_call(self, messages: list[ChatMessage], model: Model | None = None) -> ChatMessage:
        """Call this model, or another one, outside the agent's steps: an effect without events.

        Raises the model's exception.
        """
        agent_run, model = self._context.agent_run, model or self._real
        if agent_run is None:
            answer: ChatMessage = model.generate(messages)
            return answer
        recorder = agent_run.recorder
        call_id = recorder.next_side_call()
        return self._run_once(
            recorder,
            call_id,
            lambda: SilentEmitter(recorder, call_id),
            lambda emitter: request_message(model, messages, {}, emitter),
            lambda _: True,
        )

    def _code_reader(self, *, structured: bool) -> CodeSplitter | PartialJson | None:
        tags = getattr(self._agent, "code_block_tags", None)
        if not tags:
            return None
        return PartialJson("thought", "code") if structured else CodeSplitter(*tags)

    def _request(self, messages: list[ChatMessage], options: dict[str, Any], emitter: DeltaEmitter) -> ChatMessage:
        message = request_message(self._real, messages, options, emitter)
        if self._context.author_streams and message.content is None:
            message.content = ""  # as smolagents joins a stream
        return message

    def _run_once(
        self,
        recorder: Recorder,
        call_id: str,
        new_emitter: Callable[[], DeltaEmitter],
        request: Callable[[DeltaEmitter], ChatMessage],
        explains: Callable[[str], bool],
    ) -> ChatMessage:
        """Return the journaled message, or request one and journal it."""
        key, emitter = MODEL_KEY + call_id, new_emitter()
        known = recorder.journal.take(key, explains)
        if known and not known.is_opaque:
            message = decode_message(known)
            emitter.add_message(message)
        else:
            emitter.restart()
            recorder.journal.wait_if_late()
            try:
                message = self._request_with_retries(emitter, new_emitter, request)
            except Exception as error:
                recorder.emit(None, (key, encode_error(error).to_bytes()))
                raise
            _make_ids_unique(message, getattr(self._agent.write_memory_to_messages, "call_ids", frozenset()))
            effect, message = encode_message(message)
            recorder.emit(None, (key, effect.to_bytes()))
        recorder.note_usage(message.token_usage)
        return message

    def _request_with_retries(
        self,
        emitter: DeltaEmitter,
        new_emitter: Callable[[], DeltaEmitter],
        request: Callable[[DeltaEmitter], ChatMessage],
    ) -> ChatMessage:
        """Retry after transient failures, at most `agent.model_retries` times."""
        for retry in itertools.count():
            with emitter.recorder.model_call() as call:
                if retry:
                    emitter = new_emitter()
                    emitter.restart(is_retry=True)
                    back_off_s = min(BACK_OFF_S * 2 ** (retry - 1), MAX_BACK_OFF_S)
                    call.wait(back_off_s * random.uniform(0.5, 1))  # noqa: S311 - spreads retries, hides nothing
                try:
                    with call:
                        return request(emitter)
                except Exception as error:
                    if retry >= getattr(self._agent, "model_retries", 0) or not is_transient(error):
                        raise
        raise AssertionError("itertools.count ended")


def _make_ids_unique(message: ChatMessage, taken: Collection[str]) -> None:
    """Make the ids of a message's calls unique: smolagents drops calls that share an id.

    `taken` holds the ids of calls that a memory policy hides: a model that counts the visible ones repeats them.
    """
    seen: set[str] = set()
    for number, call in enumerate(message.tool_calls or (), 1):
        while call.id in seen or call.id in taken:
            call.id = f"{call.id}_{number}"
        seen.add(call.id)


def _refuse_garbled_answers(message: ChatMessage) -> None:
    """Remove all calls of a message if one is an answer that cannot be parsed, and store the error in `raw`.

    smolagents then parses the text for calls. `parse_tool_calls` raises the error there, and the model reads it.
    """
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        if call.function.name != "final_answer" or not isinstance(arguments, str) or not arguments:
            continue
        try:
            json.loads(arguments)
        except (ValueError, RecursionError) as error:
            message.tool_calls = None
            message.raw = GarbledAnswerError(
                f"the arguments of final_answer are no JSON ({error}), so they were not taken as the answer, and no "
                f"tool was called. They were: {truncate_content(utf8_text(arguments))}"
            )
            return


def _parse(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
