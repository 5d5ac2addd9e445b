"""Agents that stream the pieces of the script in their message, and pause as it orders.

A message is a script: a JSON list with one entry for each model call of the turn.
    {"say": PIECES}                          final_answer, whose argument comes in pieces
    {"think": PIECES, "call": [["tool", {"argument": 1}], …]}   a thought, then tool calls
    {"write": PIECES}                        plain content: what a CodeAgent thinks and its code
    {"raise": "text"}                        the model fails
    {"fail_until": "path", …}                the model fails until that file exists
PIECES is a list of texts and of {"wait": "path"}, which waits until that file exists.
"""

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import PIL.Image
from smolagents import CodeAgent, Model, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageStreamDelta, agglomerate_stream_deltas
from smolagents.monitoring import TokenUsage

import smolsessions
from smolsessions.agents.run.model_connections import current_call
from tests.support import agents
from tests.support.streaming import delta
from tests.support.tools import tool
from tests.support.waiting import PATIENCE_S

NAMES = ("talker", "coder", "leader", "picky", "keeper")
AGENTS = ",".join(f"{name}=browser_tests.talker:make_{name}" for name in NAMES)
POLL_S = 0.005


class Talker(Model):
    """Plays the script in the last task of its prompt."""

    def generate(self, messages: list[ChatMessage], *_arguments: Any, **options: Any) -> ChatMessage:
        return agglomerate_stream_deltas([*self.generate_stream(messages, **options)])

    def generate_stream(self, messages: list[ChatMessage], **_options: Any) -> Iterator[ChatMessageStreamDelta]:
        task, done = agents.place_in(messages)
        script = self.script(task)
        yield from _play(script[min(done, len(script) - 1)], len(messages))
        if (reported := script[min(done, len(script) - 1)].get("usage")) and (call := current_call()):
            call.usage = reported  # as a provider's client would have it
        yield ChatMessageStreamDelta(token_usage=self.usage([agents.text_of(message) for message in messages]))

    def script(self, task: str) -> list[dict[str, Any]]:
        return agents.script_of(task)

    def usage(self, _texts: list[str]) -> TokenUsage:
        return TokenUsage(input_tokens=10, output_tokens=5)


def _play(entry: dict[str, Any], place: int) -> Iterator[ChatMessageStreamDelta]:
    if "fail_until" in entry and not Path(entry["fail_until"]).exists():
        raise RuntimeError("not yet")
    if "raise" in entry:
        raise RuntimeError(entry["raise"])
    for piece in _paced(entry.get("think") or entry.get("write") or ()):
        yield ChatMessageStreamDelta(content=piece)
    for index, (name, arguments) in enumerate(entry.get("call", ())):
        yield delta([index, json.dumps(arguments), name], place)
    if "say" in entry:
        yield delta([0, '{"answer": "', "final_answer"], place)
        for piece in _paced(entry["say"]):
            yield delta([0, json.dumps(piece, ensure_ascii=False)[1:-1]], place)
        yield delta([0, '"}'], place)


def _paced(pieces: Iterable[str | dict[str, str]]) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
            continue
        end = time.monotonic() + 2 * PATIENCE_S
        while not Path(piece["wait"]).exists():
            if time.monotonic() > end:
                raise TimeoutError(piece["wait"])
            yield ""  # a stop takes effect at any piece
            time.sleep(POLL_S)


@tool
def picture(width: int) -> Any:
    """Draw a picture."""
    return PIL.Image.new("RGB", (width, 120), (0, 128, 255))


picture.output_type = "image"
TOOLS = [agents.echo, agents.fail, picture]


def make_talker(**options: Any) -> ToolCallingAgent:
    own = {"model": Talker(), "tools": TOOLS, "description": "Says what the message says."}
    return agents.make_scripted(**(own | options))


def make_coder(**options: Any) -> CodeAgent:
    own = {"model": Talker(), "tools": TOOLS, "description": "Writes the code that the message says."}
    return agents.make_code(**(own | options))


def make_picky() -> ToolCallingAgent:
    checks = [lambda answer, _memory, **_: str(answer).endswith(".")]
    picky = make_talker(final_answer_checks=checks, description="Wants a full stop.")
    return smolsessions.options(picky, memory_policy=[{"name": "keep_last_n_steps", "n": 50}])


def make_keeper() -> ToolCallingAgent:
    return smolsessions.options(make_talker(description="Keeps files."), workspace={"editable": ["**"]})


def make_leader() -> ToolCallingAgent:
    helper = make_talker(name="helper", description="Helps.")
    return make_talker(managed_agents=[helper], description="Leads a helper.")
