"""Model proxy: each call is an effect of the turn, emitted while it runs and journaled before the agent acts on it."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import httpx2
from smolagents import Model, ToolCallingAgent
from smolagents.models import ChatMessage
from smolagents.utils import truncate_content

from smolsessions.agent_options import options_of
from smolsessions.agents.compatibility import PLAN_END
from smolsessions.agents.models.keys import keys_of, without_secrets
from smolsessions.agents.models.providers import with_fallbacks
from smolsessions.agents.run.agent_state import AgentNode
from smolsessions.agents.run.effects import decode_message, encode_message, encode_raised
from smolsessions.agents.run.failures import attribute, causes, classify_call
from smolsessions.agents.run.model_connections import ModelCall
from smolsessions.agents.run.model_stream import DeltaEmitter, request_message
from smolsessions.agents.run.partial_texts import CodeSplitter, PartialJson
from smolsessions.agents.run.proxy import Proxy, unproxied
from smolsessions.agents.run.tool_proxy import proxy_tools
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.agents.values.results import error_text
from smolsessions.core.events import MessageChannel
from smolsessions.core.journal_keys import CallKey

log = logging.getLogger(__name__)

BACK_OFF_S = 0.5  # before the first retry, doubled for each further one
MAX_BACK_OFF_S = 8.0
MAX_RETRY_AFTER_S = 60.0
"""Longest wait that a provider may ask for. Beyond it, or beyond the turn's deadline, the call is not repeated."""
_BEGINS_JSON = ("{", "[", '"')


class GarbledAnswerError(ValueError):
    """The arguments of an answer are no JSON. smolagents would return their text, which may be cut, as the answer."""


class ModelProxy(Proxy):
    _real: Model
    _node: AgentNode
    __slots__ = ()

    @property
    def model_id(self) -> Any:
        return attribute(self._real, "model_id")  # an author's property may fail

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
        node, agent_run = self._node, self._node.agent_run
        if agent_run is None:
            return self._real.generate(messages, stop_sequences, response_format, tools_to_call_from, **options)
        proxy_tools(node)
        agent_run.before_model_call()
        is_plan, is_between_steps = stop_sequences == PLAN_END, agent_run.where is None
        where, call_id = agent_run.model_call("planning" if is_plan else "action")
        channel: MessageChannel = "plan" if is_plan else "thought"
        new_reader: Callable[[], CodeSplitter | PartialJson] | None = None
        if stop_sequences is None and tools_to_call_from is None:
            # The answer that smolagents forces after the last step. Within a step, a call of the agent's own code.
            channel = "answer" if is_between_steps else "thought"
        elif not is_plan and (tags := getattr(node.agent, "code_block_tags", None)):
            new_reader = partial(PartialJson, "thought", "code") if response_format else partial(CodeSplitter, *tags)
        emitter = DeltaEmitter(agent_run.turn_run, where, call_id, channel, new_reader)
        # Without arguments that the agent left out: a model need not accept them.
        if stop_sequences is not None:
            options["stop_sequences"] = stop_sequences
        if response_format is not None:
            options["response_format"] = response_format
        if tools_to_call_from is not None:
            options["tools_to_call_from"] = list(map(unproxied, tools_to_call_from))

        def request(model: Model) -> ChatMessage:
            message = request_message(model, messages, options, emitter)
            if node.author_streams and message.content is None:
                message.content = ""  # as smolagents joins a stream
            return message

        message = self._call(emitter, self._real, request, partial(agent_run.may_follow, call_id))
        if is_plan:
            agent_run.plan_usage = message.token_usage
        if tools_to_call_from and type(node.agent)._step_stream is ToolCallingAgent._step_stream:  # noqa: SLF001
            _refuse_garbled_answers(message)
        if message.tool_calls:
            functions = [call.function for call in message.tool_calls]
            agent_run.expect_calls([(function.name, _parsed(function.arguments)) for function in functions])
        return message

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        """Parse calls out of a text. Raises `GarbledAnswerError` if the message had calls that cannot be read."""
        if isinstance(message.raw, GarbledAnswerError):
            raise message.raw
        return self._real.parse_tool_calls(message)

    def side_call(self, messages: list[ChatMessage], model: Model | None) -> ChatMessage:
        """Call this model, or another one, outside the agent's steps: an effect without events. Raises its error."""
        agent_run, model = self._node.agent_run, model or self._real
        if agent_run is None:
            answer: ChatMessage = model.generate(messages)
            return answer
        emitter = DeltaEmitter(agent_run.turn_run, None, f"side{next(agent_run.turn_run.side_calls)}")
        request = partial(request_message, messages=messages, options={}, emitter=emitter)
        return self._call(emitter, model, request, lambda _: True)

    def _call(
        self,
        emitter: DeltaEmitter,
        model: Model,
        request: Callable[[Model], ChatMessage],
        may_follow: Callable[[str], bool],
    ) -> ChatMessage:
        """Return the journal's answer, or that of the model once it is journaled."""
        key, turn_run, agent_run = CallKey("model", emitter.call_id), emitter.turn_run, self._node.agent_run
        journal = turn_run.journal
        known = journal.take(key, may_follow)
        if known and not known.is_opaque:
            if agent_run:
                agent_run.count_replayed(emitter.call_id, known)
            message = decode_message(known)
            emitter.add_message(message)
            turn_run.note_usage(message.token_usage)
            return message
        if turn_run.attempt > 1:
            emitter.restart()
        if turn_run.bridge.is_late:  # otherwise the call may overlap with earlier writes
            turn_run.bridge.flush()
        since = time.perf_counter()
        try:
            message, answering = self._first_answer(emitter, model, request)
        except Exception as error:  # of any provider
            effect = encode_raised(error)
            effect.duration_ms = _ms_since(since)
            keys = [key for each in with_fallbacks(model) for key in keys_of(each)]
            base = attribute(attribute(model, "client"), "base_url") or attribute(model, "api_base")
            place = re.sub("//[^/@]*@", "//", f" at {base}") if base else ""
            # Its own text may hold a secret that is unknown here. That of a broken connection does not.
            transport = next((str(one) for one in causes(error) if isinstance(one, httpx2.TransportError)), "")
            said = f"{classify_call(error).message} {transport}".strip()
            log.warning("model %s%s: %s", attribute(model, "model_id"), place, said, extra={"action": "model.failed"})
            texts = [error_text(each) for each in causes(error)]
            if texts == [without_secrets(text, keys) for text in texts]:
                journal.write(key, effect)
                raise
            # Some providers echo the key.
            effect.raised = [without_secrets(part, keys) for part in effect.raised]
            effect.marks = {name: without_secrets(mark, keys) for name, mark in effect.marks.items()}
            journal.write(key, effect)
            raise effect.error from None
        # smolagents drops calls that share an id, and sorts the ids. A memory policy may hide some, which a model that
        # counts the visible ones repeats.
        taken = set(getattr(self._node.agent.write_memory_to_messages, "call_ids", ()))
        for number, call in enumerate(message.tool_calls or (), 1):
            call.id = own = call.id or f"call_{number:04}"
            again = itertools.count(2)  # and no suffix to each suffix: the model reads all ids
            while call.id in taken:
                call.id = f"{own}_{next(again):04}"
            taken.add(call.id)
        effect, message = encode_message(message)
        if answering is not model:
            effect.model = utf8_text(str(answering.model_id))
        effect.duration_ms = _ms_since(since)
        journal.write(key, effect)
        turn_run.note_usage(message.token_usage)
        return message

    def _first_answer(
        self, emitter: DeltaEmitter, model: Model, request: Callable[[Model], ChatMessage]
    ) -> tuple[ChatMessage, Model]:
        """Return the first answer, and the model that gave it. Each model is tried again after transient failures."""
        place = retry = 0
        models: Sequence[Model] = (model,)
        wait_s: float | None = None
        turn_run, retries = emitter.turn_run, options_of(self._node.agent).model_retries
        while True:
            try:
                with ModelCall(turn_run.waits) as call:
                    turn_run.check()
                    if wait_s is not None:
                        emitter.restart(is_retry=True)
                        call.wait(wait_s)
                    return request(models[place]), models[place]
            except Exception as error:  # of any provider
                models = with_fallbacks(model)
                failure, has_fallback, wait_s = classify_call(error), place + 1 < len(models), None
                if retry < retries and failure.retryable:
                    left_s = turn_run.bridge.ends_at - time.monotonic()
                    wait_s = wait_before_retry(error, retry, left_s, has_fallback=has_fallback)
                retry += 1
                if wait_s is None:
                    if not has_fallback:
                        raise
                    place, retry, wait_s = place + 1, 0, 0.0
                    log.warning("a fallback replaces a model: %s", failure.message, extra={"action": "model.fallback"})


def _ms_since(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)


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


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def wait_before_retry(error: Exception, retry: int, left_s: float, *, has_fallback: bool) -> float | None:
    """Return the wait before the next retry, counted from 0. None: no retry, as it would come too late.

    A model with a fallback is not waited for longer than the usual back-off.
    """
    back_off_s = min(BACK_OFF_S * 2**retry, MAX_BACK_OFF_S) * random.uniform(0.5, 1)  # noqa: S311 - hides nothing
    wait_s = max(back_off_s, retry_after_s(error))
    longest_s = MAX_BACK_OFF_S if has_fallback else MAX_RETRY_AFTER_S
    return wait_s if wait_s <= longest_s and wait_s < left_s else None


def retry_after_s(error: BaseException) -> float:
    """Return how long the provider asks to wait, or 0."""
    held: list[Any] = []
    for link in causes(error):
        response = attribute(link, "response")
        held += [attribute(link, "litellm_response_headers"), attribute(response, "headers")]
        if isinstance(response, dict):  # of botocore
            held.append((response.get("ResponseMetadata") or {}).get("HTTPHeaders"))
    found = next((each for each in held if isinstance(each, Mapping) and each), {})
    headers = {str(name).lower(): value for name, value in found.items()}
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None and isinstance(text, str):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
    return max(0.0, seconds or 0.0)


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # of a header
    except (TypeError, ValueError):
        return None
    return number if number == number else None  # noqa: PLR0124 - not a number
