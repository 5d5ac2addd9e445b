"""Agents whose models have an identity that is plain, hostile, or the caller's. PYTEST_DONT_REWRITE."""

from typing import Any

from smolagents import MultiStepAgent, ToolCallingAgent

import smolsessions
from tests.support import agents

KEY = "sk-of-the-identity"
AGENTS = ",".join(f"{n}=tests.support.identities:make_{n}" for n in ("plain", "raising", "managing", "personal"))


class Raising(agents.ScriptedModel):
    @property
    def model_id(self) -> str:
        raise OSError(KEY)

    @model_id.setter
    def model_id(self, value: str) -> None:
        pass


class Unprintable(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise OSError(KEY)


def make_plain(model: Any = None, **options: Any) -> ToolCallingAgent:
    agent = agents.make_scripted(**options)
    agent.model = model or agents.ScriptedModel(model_id="scripted-1")
    return agent


def make_raising() -> ToolCallingAgent:
    return make_plain(Raising())


def make_managing() -> ToolCallingAgent:
    return make_plain(managed_agents=[make_plain(Raising(), name="helper", description="Helps.")])


def make_personal(caller: smolsessions.Caller) -> MultiStepAgent:
    agent = make_plain(agents.ScriptedModel(model_id=f"model-of-{caller.owner or 'nobody'}{caller.claims or ''}"))
    agent.instructions = f"You serve {caller.owner or 'nobody'}."
    return agent


def make_own() -> ToolCallingAgent:
    plan = {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""}
    templates: Any = {"system_prompt": "You are {{tools | length}}.", "planning": plan}
    templates |= {
        "managed_agent": {"task": "", "report": ""},
        "final_answer": {"pre_messages": "", "post_messages": ""},
    }
    model = agents.ScriptedModel(model_id="scripted-1")
    return ToolCallingAgent(tools=[agents.echo], model=model, prompt_templates=templates, max_steps=6)
