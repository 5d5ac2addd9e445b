"""A finished step as the next model call is shown it, where that is not what smolagents makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentMaxStepsError

from smolsessions.agents.run.effects import as_text
from smolsessions.agents.values.json_forms import joined_text, utf8_text

if TYPE_CHECKING:
    from smolagents.memory import MemoryStep


def messages_of(step: MemoryStep, *, summary_mode: bool = False) -> list[ChatMessage]:
    """Give a step's messages.

    Where the steps were used up, the answer that was forced then is what the user saw. smolagents shows "Reached max
    steps. Now let's retry" in its place. Where no answer came of it either, the step says nothing. What a model says in
    parts is shown as their texts.
    """
    if isinstance(step, ActionStep) and isinstance(step.error, AgentMaxStepsError):
        return _forced(step)
    if isinstance(step, ActionStep) and isinstance(step.model_output, list):  # which smolagents' own fails at
        step = replace(step, model_output=joined_text(step.model_output))
    return step.to_messages(summary_mode=summary_mode)


def _forced(step: ActionStep) -> list[ChatMessage]:
    output = step.action_output
    text = "" if output is None else utf8_text(joined_text(output) or as_text(output)).strip()
    return [ChatMessage(role=MessageRole.ASSISTANT, content=[{"type": "text", "text": text}])] if text else []
