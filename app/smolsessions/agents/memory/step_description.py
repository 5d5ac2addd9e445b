"""A step as JSON, for people and programs that look into a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, PlanningStep, TaskStep

from smolsessions.agents.memory.step_types import NoteStep, SummaryStep
from smolsessions.agents.values.images import images_in, stored_images
from smolsessions.agents.values.json_forms import json_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    import PIL.Image
    from smolagents.memory import MemoryStep


def describe(step: MemoryStep) -> dict[str, Any]:
    """Give what the step holds; images by name and size."""
    if isinstance(step, TaskStep):
        return {"task": json_form(step.task), "images": _images(step.task_images)}
    if isinstance(step, PlanningStep):
        return {"plan": json_form(step.plan), **_cost(step)}
    if isinstance(step, NoteStep):
        return {"number": step.number, "text": json_form(step.text), "replaces": step.replaces}
    if isinstance(step, SummaryStep):
        return {"text": json_form(step.text), "recent": step.recent}
    assert isinstance(step, ActionStep)
    return {
        "step": step.step_number,
        "model_output": json_form(step.model_output),
        "code": json_form(step.code_action),
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": json_form(call.arguments)} for call in step.tool_calls or ()
        ],
        "observations": json_form(step.observations),
        "images": _images((*(step.observations_images or ()), *images_in(step.action_output))),
        "output": json_form(step.action_output),
        "error": json_form(step.error.dict()) if step.error else None,
        "is_final_answer": step.is_final_answer,
        **_cost(step),
    }


def _cost(step: ActionStep | PlanningStep) -> dict[str, Any]:
    usage = step.token_usage
    duration = step.timing.duration
    return {
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens} if usage else None,
        "duration_ms": round(duration * 1000, 3) if duration is not None else None,
    }


def _images(images: Sequence[PIL.Image.Image] | None) -> list[dict[str, Any]]:
    found = dict.fromkeys(stored_images(images))  # an output may be what the step was shown
    return [{"name": image.name, "width": image.width, "height": image.height} for image in found]
