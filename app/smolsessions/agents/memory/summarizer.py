"""Sums up older steps by a model of the agent's, where the memory policy asks for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from smolagents.memory import TaskStep
from smolagents.models import ChatMessage, MessageRole

from smolsessions.agents.memory.policies import turn_start
from smolsessions.agents.memory.step_types import NoteStep, SummaryStep
from smolsessions.agents.values.json_forms import utf8_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smolagents import Model, MultiStepAgent
    from smolagents.memory import MemoryStep

    from smolsessions.agents.memory.prompt_builder import PromptBuilder
    from smolsessions.agents.run.model_proxy import ModelProxy

log = logging.getLogger(__name__)

RECENT_SHARE = 0.5  # of the bound, up to which the turn that is played is left as it is
WORTH_SHARE = 0.1  # of the bound, that is to be summed up at least: a call of the model costs, too
AT_ONCE = 2  # times the bound: what one call of the model may be given to sum up
LEAST_AT_ONCE = 4000  # tokens
INSTRUCTION = (
    "You sum up a conversation between a user and an AI agent that calls tools, so that the agent can go on without "
    "the original. Keep what the user asked and was answered, names, numbers, decisions, results of tools that may be "
    "needed again, and what is still open. Write in the language of the conversation, as short as that allows. Give "
    "the summary alone."
)


class Summarizer:
    """Adds summaries to an agent's memory; a summary is a step of its own, made by an effect of the turn."""

    def __init__(self, agent: MultiStepAgent, shown: PromptBuilder, model: Model | None) -> None:
        """`model` is the agent's `summary_model`; without one its own is asked."""
        self._agent = agent
        self._shown = shown
        self._model = model
        self._failed_in = 0

    def __call__(self, steps: Sequence[MemoryStep], after_tokens: int) -> None:
        """Sum up where more than `after_tokens` are shown. Where the model fails all is shown, to the turn's end.

        Not where notes, and what the turn that is played must show, are nearly all of it: no summary would help.
        """
        if self._shown.tokens(steps) <= after_tokens:
            return
        memory: Any = self._agent.memory.steps
        turn = sum(isinstance(step, TaskStep) for step in memory)
        if turn == self._failed_in:
            return
        recent = memory[turn_start(memory) :]
        if self._shown.tokens(recent) > after_tokens * RECENT_SHARE:
            recent = memory[-1:]
        kept = {id(step) for step in recent}
        old = [step for step in steps if id(step) not in kept and not isinstance(step, NoteStep)]
        task = memory[turn_start(memory)]  # is shown all the same as long as its turn is played
        fresh = [step for step in old if not isinstance(step, SummaryStep) and step is not task]
        if self._shown.tokens(fresh) <= after_tokens * WORTH_SHARE:
            return
        try:
            memory.append(self._sum_up(old, after_tokens, len(recent)))
        except Exception as error:  # noqa: BLE001 - whatever a provider's library raises; the turn can go on
            self._failed_in = turn
            log.warning(
                "no summary could be made (%s); the whole is shown", type(error).__name__, extra={"action": "summary"}
            )

    def _sum_up(self, steps: Sequence[MemoryStep], after_tokens: int, recent: int) -> SummaryStep:
        model: ModelProxy = self._agent.model  # type: ignore[assignment]  # put there by `instrument`
        summary, used, known = "", [0, 0], True
        for part in self._parts(steps, max(AT_ONCE * after_tokens, LEAST_AT_ONCE)):
            before = f"Summary of what was before:\n{summary}\n\n" if summary else ""
            asked = [_message(MessageRole.SYSTEM, INSTRUCTION), _message(MessageRole.USER, before + part)]
            answer = model.side_call(asked, self._model)
            content: Any = answer.content
            if isinstance(content, list):
                content = "".join(str(piece.get("text", "")) for piece in content)
            summary = utf8_text(str(content or "")).strip()
            if not summary:
                raise ValueError("the summary is empty")
            if answer.token_usage:
                used = [used[0] + answer.token_usage.input_tokens, used[1] + answer.token_usage.output_tokens]
            else:
                known = False
        return SummaryStep(summary, recent, *(used if known else (None, None)))

    def _parts(self, steps: Sequence[MemoryStep], most: int) -> Iterator[str]:
        """Give the steps as texts that a model can read in one go."""
        part: list[str] = []
        weight = 0
        for step in steps:
            tokens = self._shown.tokens([step])
            if part and weight + tokens > most:
                yield "\n\n".join(part)
                part, weight = [], 0
            part.append(self._shown.step_text(step))
            weight += tokens
        if part:
            yield "\n\n".join(part)


def _message(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role=role, content=[{"type": "text", "text": text}])
