"""Agents that differ by caller, and tools that ask for the caller in all kinds of threads. PYTEST_DONT_REWRITE."""

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, LogLevel, Tool, ToolCallingAgent
from smolagents.models import ChatMessage

import smolsessions
from smolsessions import Caller
from tests.support import agents, coders
from tests.support.tools import tool

NAMES = ("tenant", "plain", "lead", "coder", "threaded", "fickle", "ruled")
AGENTS = ",".join(f"{name}=tests.support.tenants:make_{name}" for name in NAMES)


def described(caller: Caller) -> str:
    return json.dumps([caller.owner, caller.conversation_id, caller.claims, caller.metadata()], sort_keys=True)


@tool
def whose(pause_s: float | None = None) -> str:
    """Tell the caller."""
    time.sleep(pause_s or 0)
    return asked()


@tool
def me() -> Any:
    """Return the caller itself, which a tool should not do."""
    return smolsessions.current_caller()


@tool
def block(path: str) -> str:
    """Wait until a file is there, the first time."""
    if not Path(f"{path}.started").exists():
        agents.wait_for(path)
    return asked()


class Gold(Tool):  # type: ignore[misc, unused-ignore]
    name = "gold"
    description = "For the plan pro alone. It holds its caller, as a tool with a client for each tenant does."
    inputs: dict[str, Any] = {}  # noqa: RUF012
    output_type = "string"

    def __init__(self, caller: Caller) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.caller, self.claims = caller, caller.claims

    def forward(self) -> str:
        return f"gold of {self.caller.owner}, {self.claims['plan']}"


@tool
def threads() -> str:
    """Ask for the caller in own threads: with a copy of the context, without, and in a coroutine's."""
    with ThreadPoolExecutor() as pool:
        copied = pool.submit(copy_context().run, asked)
        return "\n".join([copied.result(), pool.submit(asked).result(), asyncio.run(asyncio.to_thread(asked))])


def asked() -> str:
    try:
        return described(smolsessions.current_caller())
    except LookupError as error:
        return str(error)


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
    gold = [Gold(caller)] if caller.claims.get("plan") == "pro" else []
    return ToolCallingAgent(
        tools=[whose, block, Made(), *gold],
        model=AskingModel(),
        instructions=f"Plan {caller.claims.get('plan')} of {caller.owner}, team {caller.metadata().get('team')}.",
        verbosity_level=LogLevel.OFF,
        max_steps=6,
        **options,
    )


def make_plain() -> ToolCallingAgent:
    """Make an agent whose factory takes no caller, and whose tool asks all the same."""
    agent = agents.make_scripted()
    agent.tools |= {each.name: each for each in (whose, Made(), threads, me)}
    return agent


@smolsessions.agent(
    "ruled", own_policies=["tests.support.tenants:policy"], memory_policy="tests.support.tenants:policy"
)
def make_ruled(caller: Caller) -> ToolCallingAgent:
    """Make an agent whose memory policy asks for the caller."""
    return make_tenant(caller=caller)


def policy(steps: list[Any]) -> list[Any]:
    return steps if smolsessions.current_caller().claims.get("plan") == "pro" else steps[-1:]


def make_fickle(caller: Caller) -> ToolCallingAgent:
    """Make an agent that differs for the plan pro once the environment has been changed."""
    agent = make_tenant(caller=caller)
    agent.instructions = os.environ.get("TENANT_INSTRUCTIONS", "") if caller.claims else "Be brief."
    return agent


def make_lead(caller: Caller) -> ToolCallingAgent:
    own = agents.script_templates("toolcalling_agent.yaml")
    helper = make_tenant(caller=caller, name="helper", description="Helps.", prompt_templates=own)
    return make_tenant(caller=caller, managed_agents=[helper])


def make_coder() -> CodeAgent:
    return coders.make_coder(imports=("smolsessions",), tools=[whose, me])


def make_threaded() -> CodeAgent:
    return smolsessions.options(coders.make_coder(tools=[whose, me]), executor="thread")
