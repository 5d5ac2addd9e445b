"""Model proxy: each call is an effect of the turn, emitted while it runs and journaled before the agent acts on it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from smolagents import Model, ToolCallingAgent
from smolagents.models import ChatMessage
from smolagents.utils import truncate_content

from smolsessions.agents.compatibility import PLAN_END
from smolsessions.agents.identity import model_id_of
from smolsessions.agents.models.keys import keys_of, shows_secret, without_secrets
from smolsessions.agents.models.providers import with_fallbacks
from smolsessions.agents.run.agent_run import AgentRun
from smolsessions.agents.run.effects import MODEL_KEY, decode_message, encode_message, encode_raised, error_text
from smolsessions.agents.run.failures import causes, classify_call
from smolsessions.agents.run.model_retries import wait_before_retry
from smolsessions.agents.run.model_stream import DeltaEmitter, request_message
from smolsessions.agents.run.partial_texts import CodeSplitter, PartialJson
from smolsessions.agents.run.tool_proxy import Proxy, proxy_tools, unproxied
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.events import MessageChannel
from smolsessions.options import options_of

log = logging.getLogger(__name__)

_FALLBACK = {"action": "model.fallback"}
_BEGINS_JSON = ("{", "[", '"')


class GarbledAnswerError(ValueError):
    """The arguments of an answer are no JSON. smolagents would return their text, which may be cut, as the answer."""


class ModelProxy(Proxy):
    _real: Model
    __slots__ = ()

    @property
    def model_id(self) -> Any:  # smolagents reads it twice at each run, and `__getattr__` raises and drops an error
        return model_id_of(self._real)  # an author's property may fail or hang

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
        agent_run = self._node.agent_run
        if agent_run is None:
            return self._real.generate(messages, stop_sequences, response_format, tools_to_call_from, **options)
        proxy_tools(self._node)
        agent_run.before_model_call()
        emitter = self._new_emitter(agent_run, stop_sequences, response_format, tools_to_call_from)
        # Without arguments that the agent left out: a model need not accept them.
        if stop_sequences is not None:
            options["stop_sequences"] = stop_sequences
        if response_format is not None:
            options["response_format"] = response_format
        if tools_to_call_from is not None:
            options["tools_to_call_from"] = list(map(unproxied, tools_to_call_from))
        message = self._run_once(
            emitter,
            self._real,
            partial(self._request, messages, options, emitter),
            partial(agent_run.explains, emitter.call_id),
        )
        if tools_to_call_from and type(self._node.agent)._step_stream is ToolCallingAgent._step_stream:  # noqa: SLF001
            _refuse_garbled_answers(message)
        if message.tool_calls:
            functions = [call.function for call in message.tool_calls]
            agent_run.expect_calls([(function.name, _parse(function.arguments)) for function in functions])
        return message

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Parse calls out of a text. Raises `GarbledAnswerError` if the message had calls that cannot be read."""
        if isinstance(message.raw, GarbledAnswerError):
            raise message.raw
        return self._real.parse_tool_calls(message)

    def side_call(self, messages: list[ChatMessage], model: Model | None = None) -> ChatMessage:
        """Call this model, or another one, outside the agent's steps: an effect without events. Raises its error."""
        agent_run, model = self._node.agent_run, model or self._real
        if agent_run is None:
            answer: ChatMessage = model.generate(messages)
            return answer
        emitter = DeltaEmitter(agent_run.recorder, None, f"side{next(agent_run.recorder.side_calls)}")

        def request(model: Model) -> ChatMessage:
            return request_message(model, messages, {}, emitter)

        return self._run_once(emitter, model, request, lambda _: True)

    def _new_emitter(
        self, agent_run: AgentRun, stop_sequences: object, response_format: object, tools: object
    ) -> DeltaEmitter:
        is_plan, is_between_steps = stop_sequences == PLAN_END, agent_run.where is None
        where, call_id = agent_run.model_call("planning" if is_plan else "action")
        channel: MessageChannel = "plan" if is_plan else "thought"
        new_reader: Callable[[], CodeSplitter | PartialJson] | None = None
        if stop_sequences is None and tools is None:
            # The answer that smolagents forces after the last step. Within a step, a call of the agent's own code.
            channel = "answer" if is_between_steps else "thought"
        elif not is_plan and (tags := getattr(self._node.agent, "code_block_tags", None)):
            new_reader = partial(PartialJson, "thought", "code") if response_format else partial(CodeSplitter, *tags)
        return DeltaEmitter(agent_run.recorder, where, call_id, channel, new_reader)

    def _request(
        self, messages: list[ChatMessage], options: dict[str, Any], emitter: DeltaEmitter, model: Model
    ) -> ChatMessage:
        message = request_message(model, messages, options, emitter)
        if self._node.author_streams and message.content is None:
            message.content = ""  # as smolagents joins a stream
        return message

    def _run_once(
        self,
        emitter: DeltaEmitter,
        model: Model,
        request: Callable[[Model], ChatMessage],
        explains: Callable[[str], bool],
    ) -> ChatMessage:
        key, recorder = MODEL_KEY + emitter.call_id, emitter.recorder
        known = recorder.journal.take(key, explains)
        if known and not known.is_opaque:
            if agent_run := self._node.agent_run:
                agent_run.count_replayed(emitter.call_id, known)
            message = decode_message(known)
            emitter.add_message(message)
        else:
            if recorder.is_replay:
                emitter.restart()
            if recorder.bridge.is_late:  # otherwise the call may overlap with earlier writes
                recorder.bridge.flush()
            message = self._request_and_journal(key, emitter, model, request)
        recorder.note_usage(message.token_usage)
        return message

    def _request_and_journal(
        self, key: str, emitter: DeltaEmitter, model: Model, request: Callable[[Model], ChatMessage]
    ) -> ChatMessage:
        journal, since = emitter.recorder.journal, time.perf_counter()
        try:
            message, answering = self._request_of_any(emitter, model, request)
        except Exception as error:
            effect = encode_raised(error)
            effect.duration_ms = _ms_since(since)
            keys = [key for each in with_fallbacks(model) for key in keys_of(each)]
            if not any(map(partial(shows_secret, keys=keys), map(error_text, causes(error)))):
                journal.write(key, effect)
                raise
            # Some providers echo the key.
            effect.raised = [without_secrets(part, keys) for part in effect.raised]
            effect.marks = {name: without_secrets(mark, keys) for name, mark in effect.marks.items()}
            journal.write(key, effect)
            raise effect.error from None
        _make_ids_unique(message, getattr(self._node.agent.write_memory_to_messages, "call_ids", frozenset()))
        effect, message = encode_message(message)
        if answering is not model:
            effect.model = utf8_text(str(answering.model_id))
        effect.duration_ms = _ms_since(since)
        journal.write(key, effect)
        return message

    def _request_of_any(
        self, emitter: DeltaEmitter, model: Model, request: Callable[[Model], ChatMessage]
    ) -> tuple[ChatMessage, Model]:
        """Return the first answer, and the model that gave it. Each model is tried again after transient failures."""
        place = retry = 0
        models: Sequence[Model] = (model,)
        wait_s: float | None = None
        while True:
            try:
                with emitter.recorder.model_call() as call:
                    emitter.recorder.check()
                    if wait_s is not None:
                        emitter.restart(is_retry=True)
                        call.wait(wait_s)
                    return request(models[place]), models[place]
            except Exception as error:
                models = with_fallbacks(model)
                has_fallback = place + 1 < len(models)
                wait_s = self._wait_before_retry(emitter, error, retry, has_fallback=has_fallback)
                retry += 1
                if wait_s is None:
                    if not has_fallback:
                        raise
                    place, retry, wait_s = place + 1, 0, 0.0
                    log.warning("a fallback replaces a model: %s", classify_call(error).message, extra=_FALLBACK)

    def _wait_before_retry(
        self, emitter: DeltaEmitter, error: Exception, retry: int, *, has_fallback: bool
    ) -> float | None:
        """Return the wait before the next retry, at most `agent.model_retries`. None: no retry."""
        if retry >= options_of(self._node.agent).model_retries or not classify_call(error).retryable:
            return None
        left_s = emitter.recorder.bridge.ends_at - time.monotonic()
        return wait_before_retry(error, retry, left_s, has_fallback=has_fallback)


def _ms_since(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)


def _make_ids_unique(message: ChatMessage, taken: Collection[str]) -> None:
    """Make the ids of a message's calls unique texts: smolagents drops calls that share an id, and sorts the ids.

    `taken` holds the ids of calls that a memory policy hides: a model that counts the visible ones repeats them.
    """
    seen: set[str] = set()
    for number, call in enumerate(message.tool_calls or (), 1):
        if not call.id:
            call.id = f"call_{number:04}"
        while call.id in seen or call.id in taken:
            call.id = f"{call.id}_{number}"
        seen.add(call.id)


def _refuse_garbled_answers(message: ChatMessage) -> None:
    """Remove all calls of a message if one is an answer of incomplete JSON, and store the error in `raw`.

    smolagents then parses the text for calls. `parse_tool_calls` raises the error there, and the model reads it.
    """
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        if call.function.name != "final_answer" or not isinstance(arguments, str) or not arguments:
            continue
        try:
            json.loads(arguments)
        except (ValueError, RecursionError) as error:
            if not arguments.lstrip().startswith(_BEGINS_JSON):
                continue  # a plain text is an answer, as in smolagents
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
