"""A look into a conversation's memory beside its turns: what the model is shown next, and what a prune would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolagents.memory import SystemPromptStep

from smolsessions.agents.smolagents_patches import patch_agent
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_form
from smolsessions.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smolagents import MultiStepAgent
    from smolagents.models import ChatMessage

    from smolsessions.agents.memory.policies import PolicyFunction
    from smolsessions.agents.memory.steps import Step
    from smolsessions.core.policies import Policy
    from smolsessions.core.records import LeftOut, PrunePreview


class PromptPreview:
    """An agent that plays nothing, with a conversation's memory."""

    def __init__(
        self, agent: MultiStepAgent, steps: Sequence[Step], policy: Policy, own_policies: dict[str, PolicyFunction]
    ) -> None:
        self._agent = agent
        self._policy = policy
        agent.memory.steps = list(steps)  # type: ignore[arg-type]  # notes and summaries are steps, too
        self._prompt_builder = patch_agent(agent, own_policies)
        # As `run` does before its first step.
        agent.memory.system_prompt = SystemPromptStep(system_prompt=agent.initialize_system_prompt())

    def messages(self, *, summary_mode: bool) -> tuple[list[dict[str, Any]], LeftOut | None]:
        """Give the messages that the model is shown next, but for the next task; and what the policy leaves out."""
        if self._prompt_builder is None:
            messages = self._agent.write_memory_to_messages(summary_mode=summary_mode)
            return [_message(message) for message in messages], None
        self._prompt_builder.policy = self._policy
        messages = self._prompt_builder.preview(summary_mode=summary_mode)
        return [_message(message) for message in messages], self._prompt_builder.left_out()

    def weigh(self) -> PrunePreview:
        """Weigh the prompt before and after a prune."""
        if self._prompt_builder is None:
            raise InvalidRequestError.at("/policy", "this agent's class builds its messages itself, past any policy")
        return self._prompt_builder.weigh(self._policy)


def _message(message: ChatMessage) -> dict[str, Any]:
    content: Any = message.content
    if isinstance(content, list):
        content = [_part(part) for part in content]
    return {"role": str(getattr(message.role, "value", message.role)), "content": content}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image":
        return {"type": "text", "text": json_form(part.get("text", ""))}
    (image,) = stored_images([part["image"]])
    return {"type": "image", "name": image.name, "width": image.width, "height": image.height}
