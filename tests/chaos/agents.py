"""Agents of the chaos run: models that play scripts with latency, and tools that count their runs.

They play the scripts of `tests.support.agents` and `tests.support.streaming`. Every entry has two more members:
    "key"       of the model call, which names it in the ledger          "wait_ms"   how long the model takes
Tools receive their keys as an argument. PYTEST_DONT_REWRITE.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from smolagents import CodeAgent, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageStreamDelta

import smolsessions
from tests.chaos import ledger, plans
from tests.support import agents, streaming
from tests.support.tools import tool

SETTING = ",".join(f"{name}={__name__}:make_{name.replace('-', '_')}" for name in plans.SHARES)
PAUSES = 4  # pauses of a model within one streamed message
_PLACE = re.compile(r'"key": "([^"/]+)/')


class Model(agents.ScriptedModel):
    """Returns the whole message after its latency."""

    def generate(
        self, messages: list[ChatMessage], stop_sequences: list[str] | None = None, *args: Any, **options: Any
    ) -> ChatMessage:
        key, wait_ms = _called(messages, stop_sequences)
        with ledger.counted("model", key):
            ledger.wait(wait_ms)
            return super().generate(messages, stop_sequences, *args, **options)


class Speaker(streaming.StreamedModel):
    """Streams the same message piece by piece."""

    def generate_stream(
        self, messages: list[ChatMessage], stop_sequences: list[str] | None = None, *args: Any, **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        key, wait_ms = _called(messages, stop_sequences)
        with ledger.counted("model", key):
            pieces = [*super().generate_stream(messages, stop_sequences, *args, **options)]
            often = max(1, len(pieces) // PAUSES)
            for number, piece in enumerate(pieces):
                if number % often == 0:
                    ledger.wait(wait_ms / (PAUSES + 1))
                yield piece


def _called(messages: list[ChatMessage], stop_sequences: list[str] | None) -> tuple[str, float]:
    """Return the key and the latency of a model call. Plans and forced answers are no entries of the script."""
    if stop_sequences == ["<end_plan>"]:
        texts = " ".join(agents.text_of(message) for message in messages)
        return f"{_PLACE.findall(texts.replace(chr(92), ''))[-1]}/plan{len(messages)}", 50
    entry = streaming.entry_of(messages)
    return entry["key"] + ("" if stop_sequences else ".forced"), entry["wait_ms"]


@tool
def work(key: str, ms: int, text: str) -> str:
    """Take a while and give the text back."""
    with ledger.counted("tool", key, text):
        ledger.wait(ms)
    return text


class Rest(Tool):
    """Does the same as `work` on the loop of asynchronous tools."""

    name = "rest"
    description = "Rest, and give the text back."
    inputs: dict[str, Any] = {  # noqa: RUF012 - smolagents' own form
        "key": {"type": "string", "description": "of this call."},
        "ms": {"type": "integer", "description": "how long."},
        "text": {"type": "string", "description": "any text."},
    }
    output_type = "string"

    async def forward(self, key: str, ms: int, text: str) -> str:
        with ledger.counted("tool", key, text):
            await asyncio.sleep(ledger.seconds(ms))
        return text


@tool
def charge(key: str, token: str) -> str:
    """Charge once: a repeat must use the same token."""
    with ledger.counted("tool", key, token):
        ledger.wait(30)
    return f"charged {token}"


@tool
def refuse(key: str, ms: int) -> str:
    """Fail after a while."""
    with ledger.counted("tool", key):
        ledger.wait(ms)
    raise ValueError("refused")


@tool
def transfer(key: str, ms: int) -> str:
    """Transfer once: this call is unsafe to repeat."""
    with ledger.counted("unsafe", key):
        ledger.wait(ms)
    return "transferred"


vars(transfer)["unsafe_to_repeat"] = True
TOOLS: list[Tool] = [work, Rest(), charge, refuse, transfer]  # type: ignore[no-untyped-call]


def make_caller(model: type[Model | Speaker] = Model, **options: Any) -> ToolCallingAgent:
    own = {"tools": TOOLS, "prompt_templates": agents.script_templates("toolcalling_agent.yaml"), "max_steps": 8}
    return agents.make_scripted(model=model(), **(own | options))


def make_speaker(**options: Any) -> ToolCallingAgent:
    return make_caller(Speaker, **options)


def make_planner() -> ToolCallingAgent:
    return make_speaker(planning_interval=2)


def make_coder(model: type[Model | Speaker] = Speaker, **options: Any) -> CodeAgent:
    own = {"tools": TOOLS, "prompt_templates": agents.script_templates("code_agent.yaml"), "max_steps": 8}
    return agents.make_code(model=model(), **(own | options))


def make_fast_coder() -> CodeAgent:
    return make_coder(Model)


def make_manager() -> ToolCallingAgent:
    return make_speaker(managed_agents=_helpers())


def make_boss() -> CodeAgent:
    return make_coder(Model, managed_agents=_helpers())


def _helpers() -> list[ToolCallingAgent | CodeAgent]:
    return [make_speaker(name="helper", description="Helps."), make_coder(name="coder", description="Codes.")]


def make_asker() -> ToolCallingAgent:
    return smolsessions.options(make_speaker(), approve=["charge"], ask_user=True)


def make_asking_coder() -> CodeAgent:
    return smolsessions.options(make_coder(), approve=["charge"], ask_user=True)


make_careful, make_careful_coder, make_steered = make_speaker, make_coder, make_speaker
