"""Summarizer of older steps, for memory policies that contain `summarize`."""

from __future__ import annotations

import logging
from typing import Any

from smolagents import Model, MultiStepAgent
from smolagents.memory import TaskStep
from smolagents.models import MessageRole

from smolsessions.agents.memory.policies import Steps, turn_start
from smolsessions.agents.memory.prompt_builder import PromptBuilder
from smolsessions.agents.memory.step_types import NoteStep, SummaryStep, text_in, text_message
from smolsessions.agents.run.model_proxy import ModelProxy
from smolsessions.agents.values.json_forms import utf8_text

log = logging.getLogger(__name__)

RECENT_SHARE = 0.5  # of the limit, up to which the current turn stays as it is
WORTH_SHARE = 0.1  # of the limit: a smaller summary is not worth a model call
MAX_CALL_SHARE = 2  # times the limit: the most that one model call summarizes
MIN_CALL_TOKENS = 4000
INSTRUCTION = (
    "You sum up a conversation between a user and an AI agent that calls tools, so that the agent can go on without "
    "the original. Keep what the user asked and was answered, names, numbers, decisions, results of tools that may be "
    "needed again, and what is still open. Write in the language of the conversation, as short as that allows. Give "
    "the summary alone."
)


class Summarizer:
    """Appends summaries to an agent's memory. A summary is a step, made by an effect of the turn."""

    def __init__(self, agent: MultiStepAgent, builder: PromptBuilder, model: Model | None) -> None:
        """`model` is the agent's `summary_model`, or None for its own model."""
        self._agent = agent
        self._builder = builder
        self._model = model
        self._failed_turn = 0

    def __call__(self, steps: Steps, after_tokens: int) -> None:
        """Summarize if the steps exceed `after_tokens`. After a failure the rest of the turn shows all steps.

        Notes and the current turn stay. If they are nearly all of the prompt, a summary would not help.
        """
        if self._builder.tokens(steps) <= after_tokens:
            return
        memory = self._builder.memory.steps()
        turn = sum(isinstance(one.step, TaskStep) for one in memory)
        if turn == self._failed_turn:
            return
        task = memory[turn_start(memory)]  # stays in the prompt during its turn
        recent = memory[turn_start(memory) :]
        if self._builder.tokens(recent) > after_tokens * RECENT_SHARE:
            recent = memory[-1:]
        kept = set(recent)
        old = [one for one in steps if one not in kept and not isinstance(one.step, NoteStep)]
        fresh = [one for one in old if not isinstance(one.step, SummaryStep) and one is not task]
        if self._builder.tokens(fresh) <= after_tokens * WORTH_SHARE:
            return
        try:
            summary: Any = self._summary(old, after_tokens, len(recent))
            self._agent.memory.steps.append(summary)
        except Exception as error:  # noqa: BLE001 - any exception of a provider's library; the turn can go on
            self._failed_turn = turn
            log.warning(
                "no summary could be made (%s); the whole is shown", type(error).__name__, extra={"action": "summary"}
            )

    def _summary(self, steps: Steps, after_tokens: int, recent: int) -> SummaryStep:
        """Summarize the steps in parts of a bounded size, except larger single steps. Each part continues the last."""
        model: ModelProxy = self._agent.model  # type: ignore[assignment]  # set by instrumentation
        max_tokens = max(MAX_CALL_SHARE * after_tokens, MIN_CALL_TOKENS)
        parts: list[list[str]] = []
        left = 0
        for step in steps:
            tokens = self._builder.tokens([step])
            if not parts or tokens > left:
                parts.append([])
                left = max_tokens
            parts[-1].append(step.text)
            left -= tokens
        summary, used, is_counted = "", [0, 0], True
        for part in parts:
            before = f"Summary of what was before:\n{summary}\n\n" if summary else ""
            text = before + "\n\n".join(part)
            prompt = [text_message(MessageRole.SYSTEM, INSTRUCTION), text_message(MessageRole.USER, text)]
            answer = model.side_call(prompt, self._model)
            summary = utf8_text(text_in(answer)).strip()
            if not summary:
                raise ValueError("the summary is empty")
            if answer.token_usage:
                used = [used[0] + answer.token_usage.input_tokens, used[1] + answer.token_usage.output_tokens]
            else:
                is_counted = False
        return SummaryStep(summary, recent, *(used if is_counted else (None, None)))
