"""JSON views of a conversation's memory: its steps, the next prompt and the effect of a prune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from smolagents import MultiStepAgent
from smolagents.memory import SystemPromptStep

from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.memory.step_data import Data, StepDecoder
from smolsessions.agents.memory.step_types import Step
from smolsessions.agents.memory.tokens import estimate_messages
from smolsessions.agents.models.token_usage import DETAILS
from smolsessions.agents.smolagents_patches import patch_agent
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_form
from smolsessions.agents.values.media import media_in, stored_files
from smolsessions.core.attachments import File
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.events import StepError
from smolsessions.core.memories import PrunePreview
from smolsessions.core.policies import Policy
from smolsessions.core.records import LeftOut


def describe_step(data: Data, decoder: StepDecoder) -> dict[str, Any]:
    match data["type"]:
        case "task":
            shown, files = (map(decoder.medium, data[name] or ()) for name in ("task_images", "task_files"))
            return {"task": json_form(data["task"]), "images": stored_images(shown), "files": stored_files(files)}
        case "note":
            return {"number": data["number"], "text": json_form(data["text"]), "replaces": data["replaces"]}
        case "summary":
            return {"text": json_form(data["text"]), "recent": data["recent"]}
    start, end = data["timing"]["start_time"], data["timing"]["end_time"]
    usage = data["token_usage"] and dict.fromkeys(DETAILS) | data["token_usage"]
    cost = {"usage": usage, "duration_ms": round((end - start) * 1000, 3) if end is not None else None}
    if data["type"] == "planning":
        return {"plan": json_form(data["plan"]), **cost}
    output = decoder.output(data)
    observed, media = map(decoder.medium, data["observations_images"] or ()), media_in(output)
    # Without duplicates: an output may repeat an observed image.
    images = (*observed, *(each for each in media if not isinstance(each, File)))
    return {
        "step": data["step_number"],
        "model_output": json_form(decoder.value(data["model_output"])),
        "code": json_form(data["code_action"]),
        "tool_calls": [
            {"id": call["id"], "name": call["name"], "arguments": json_form(decoder.value(call["arguments"]))}
            for call in data["tool_calls"] or ()
        ],
        "observations": json_form(data["observations"]),
        "images": tuple(dict.fromkeys(stored_images(images))),
        "files": stored_files(each for each in media if isinstance(each, File)),
        "output": json_form(output),
        "error": data["error"] and asdict(StepError(**json_form(data["error"])).failure),
        "is_final_answer": data["is_final_answer"],
        **cost,
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
        if self._builder is None:
            messages, left_out = self._agent.write_memory_to_messages(summary_mode=summary_mode), None
        else:
            self._builder.policy = self._policy
            messages = self._builder.preview(summary_mode=summary_mode)
            left_out = self._builder.left_out()
        views = []
        for message in messages:
            content: Any = message.content
            if isinstance(content, list):
                content = [
                    {"type": "image", "image": stored_images([part["image"]])[0]}
                    if part.get("type") == "image"
                    else {"type": "text", "text": json_form(part.get("text", ""))}
                    for part in content
                ]
            role = str(getattr(message.role, "value", message.role))
            views.append({"role": role, "content": content, "tokens": estimate_messages([message])})
        return views, left_out

    def weigh(self) -> PrunePreview:
        if self._builder is None:
            raise InvalidRequestError.at("/policy", "this agent's class builds its messages itself, past any policy")
        return self._builder.weigh(self._policy)
