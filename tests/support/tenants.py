"""Agents that differ by caller, and tools that ask for the caller in every thread that they may run in.

PYTEST_DONT_REWRITE: the service, which is another process, imports this too.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent, LogLevel, Tool, ToolCallingAgent

import smolsessions
from tests.support import agents, coders

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolagents.models import ChatMessage

    from smolsessions import Caller

AGENTS = ",".join(
    f"{name}=tests.support.tenants:make_{name}" for name in ("tenant", "plain", "lead", "coder", "threaded", "fickle")
)


def described(caller: Caller) -> str:
    return json.dumps([caller.owner, caller.conversation_id, caller.claims, caller.metadata()], sort_keys=True)


class Whose(Tool):  # type: ignore[misc, unused-ignore]
    name = "whose"
    description = "Tells the caller."
    inputs = {"pause_s": {"type": "number", "description": "A pause before it.", "nullable": True}}  # noqa: RUF012
    output_type = "string"

    def forward(self, pause_s: float | None = None) -> str:
        time.sleep(pause_s or 0)
        return described(smolsessions.current_caller())


class Block(Tool):  # type: ignore[misc, unused-ignore]
    name = "block"
    description = "Waits until its file is there, the first time."
    inputs = {"path": {"type": "string", "description": "The file."}}  # noqa: RUF012
    output_type = "string"

    def forward(self, path: str) -> str:
        started = Path(f"{path}.started")
        if not started.exists():
            started.touch()
            while not Path(path).exists():
                time.sleep(0.02)
        return described(smolsessions.current_caller())


class Gold(Tool):  # type: ignore[misc, unused-ignore]
    name = "gold"
    description = "For the plan pro alone."
    inputs: dict[str, Any] = {}  # noqa: RUF012
    output_type = "string"

    def forward(self) -> str:
        return "gold"


class Made(Tool):  # type: ignore[misc, unused-ignore]
    name = "made"
    description = "Tells the number of its agent, which another build does not have."
    inputs: dict[str, Any] = {}  # noqa: RUF012
    output_type = "integer"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.number = next(_BUILT)

    def forward(self) -> int:
        return self.number


class AskingModel(agents.ScriptedModel):
    """Asks for the caller in every call, as a model with a key for each tenant does."""

    def generate(self, messages: list[ChatMessage], *rest: Any, **named: Any) -> ChatMessage:
        smolsessions.current_caller()
        return super().generate(messages, *rest, **named)


_BUILT = iter(range(1_000_000))


def make_tenant(*, caller: Caller, **options: Any) -> ToolCallingAgent:
    """Make an agent whose tools and instructions depend on the caller."""
    gold = [new(Gold)] if caller.claims.get("plan") == "pro" else []
    return ToolCallingAgent(
        tools=[new(Whose), new(Block), Made(), *gold],
        model=AskingModel(),
        instructions=f"Plan {caller.claims.get('plan')} of {caller.owner}, team {caller.metadata().get('team')}.",
        verbosity_level=LogLevel.OFF,
        max_steps=6,
        **options,
    )


def new(kind: Callable[[], Tool]) -> Tool:
    return kind()


def make_plain() -> ToolCallingAgent:
    """Make an agent whose factory takes no caller, and whose tool asks all the same."""
    agent = agents.make_scripted()
    agent.tools["whose"] = new(Whose)
    return agent


def make_fickle(caller: Caller) -> ToolCallingAgent:
    """Make an agent that differs for the plan pro once the environment has been changed."""
    agent = make_tenant(caller=caller)
    agent.instructions = os.environ.get("TENANT_INSTRUCTIONS", "") if caller.claims else "Be brief."
    return agent


def make_lead(caller: Caller) -> ToolCallingAgent:
    helper = make_tenant(caller=caller, name="helper", description="Helps.")
    helper.prompt_templates = {**helper.prompt_templates, "managed_agent": coders.SCRIPTED_TASK}  # type: ignore[typeddict-item]
    return make_tenant(caller=caller, managed_agents=[helper])


def make_coder() -> CodeAgent:
    return coders.make_coder(tools=[new(Whose)])


def make_threaded() -> CodeAgent:
    return smolsessions.options(coders.make_coder(tools=[new(Whose)]), executor="thread")
