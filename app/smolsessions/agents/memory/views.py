"""JSON views of a conversation's memory: its steps, the next prompt and the effect of a prune."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from smolagents import MultiStepAgent
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, SystemPromptStep, TaskStep
from smolagents.models import ChatMessage

from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.memory.step_types import NoteStep, SummaryStep
from smolsessions.agents.memory.steps import Step
from smolsessions.agents.memory.tokens import estimate_messages
from smolsessions.agents.smolagents_patches import patch_agent
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_form
from smolsessions.agents.values.media import attached_files, media_in, stored_files
from smolsessions.core.attachments import File
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.memories import PrunePreview
from smolsessions.core.policies import Policy
from smolsessions.core.records import LeftOut

if TYPE_CHECKING:
    import PIL.Image


def describe_step(step: MemoryStep) -> dict[str, Any]:
    if isinstance(step, TaskStep):
        held = _files(attached_files(step))
        return {"task": json_form(step.task), "images": _images(step.task_images), "files": held}
    if isinstance(step, PlanningStep):
        return {"plan": json_form(step.plan), **_cost(step)}
    if isinstance(step, NoteStep):
        return {"number": step.number, "text": json_form(step.text), "replaces": step.replaces}
    if isinstance(step, SummaryStep):
        return {"text": json_form(step.text), "recent": step.recent}
    assert isinstance(step, ActionStep)
    media = media_in(step.action_output)
    images = (one for one in media if not isinstance(one, File))
    return {
        "step": step.step_number,
        "model_output": json_form(step.model_output),
        "code": json_form(step.code_action),
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": json_form(call.arguments)} for call in step.tool_calls or ()
        ],
        "observations": json_form(step.observations),
        "images": _images((*(step.observations_images or ()), *images)),
        "files": _files(one for one in media if isinstance(one, File)),
        "output": json_form(step.action_output),
        "error": json_form(step.error.dict()) if step.error else None,
        "is_final_answer": step.is_final_answer,
        **_cost(step),
    }


class PromptPreview:
    """Idle agent with a conversation's memory."""

    def __init__(
        self, agent: MultiStepAgent, steps: Sequence[Step], policy: Policy, own_policies: Mapping[str, PolicyFunction]
    ) -> None:
        self._agent = agent
        self._policy = policy
        agent.memory.steps = list(steps)  # type: ignore[arg-type]  # notes and summaries are steps, too
        self._builder = patch_agent(agent, own_policies)
        agent.memory.system_prompt = SystemPromptStep(system_prompt=agent.initialize_system_prompt())  # as `run` does

    def messages(self, *, summary_mode: bool) -> tuple[list[dict[str, Any]], LeftOut | None]:
        """Return the next prompt without the next task, and the omissions of the policy."""
        if self._builder is None:
            messages, left_out = self._agent.write_memory_to_messages(summary_mode=summary_mode), None
        else:
            self._builder.policy = self._policy
            messages = self._builder.preview(summary_mode=summary_mode)
            left_out = self._builder.left_out()
        return [_message(message) for message in messages], left_out

    def weigh(self) -> PrunePreview:
        """Return the size of the prompt before and after a prune."""
        if self._builder is None:
            raise InvalidRequestError.at("/policy", "this agent's class builds its messages itself, past any policy")
        return self._builder.weigh(self._policy)


def _message(message: ChatMessage) -> dict[str, Any]:
    content: Any = message.content
    if isinstance(content, list):
        content = [_part(part) for part in content]
    role = str(getattr(message.role, "value", message.role))
    return {"role": role, "content": content, "tokens": estimate_messages([message])}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image":
        return {"type": "text", "text": json_form(part.get("text", ""))}
    return {"type": "image", **_images([part["image"]])[0]}


def _images(images: Sequence[PIL.Image.Image] | None) -> list[dict[str, Any]]:
    found = dict.fromkeys(stored_images(images))  # without duplicates: an output may repeat an observed image
    return [{"name": image.name, "width": image.width, "height": image.height} for image in found]


def _files(files: Iterable[File]) -> list[dict[str, Any]]:
    return [asdict(file) for file in stored_files(files)]


def _cost(step: ActionStep | PlanningStep) -> dict[str, Any]:
    usage = step.token_usage
    duration = step.timing.duration
    return {
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens} if usage else None,
        "duration_ms": round(duration * 1000, 3) if duration is not None else None,
    }
