"""Trains the compression dictionary of a seal format from what turns of the demo agents leave behind.

Run it once for a new format (`python tools/make_dictionary.py seal-2.zdict`). A dictionary in use
never changes.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard
from smolagents.memory import PlanningStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.demo.agents import make_demo, make_demo_code
from smolsessions.agents.memory.memory_edits import Overlay
from smolsessions.agents.memory.steps import pack
from smolsessions.agents.run.session import AgentSession
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.core.callers import DUMMY
from smolsessions.core.events import MessageDelta, TurnQueued, TurnStarted
from smolsessions.core.memories import Head, PackedStep
from smolsessions.core.records import (
    AgentName,
    AgentVersion,
    ModelIdentity,
    Outcome,
    Owner,
    Ref,
    Turn,
    TurnInput,
    TurnOptions,
)
from smolsessions.core.records import Timing as TurnTiming
from smolsessions.store import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smolsessions.core.events import Event, StepEvent

SIZE_BYTES = 16 * 1024
WORDS = "order invoice Berlin weather report user total flight search ticket status price query result page".split()


def messages() -> Iterator[str]:
    for number, (word, other) in enumerate(itertools.product(WORDS, WORDS[:5])):
        yield f"What is {number * 37} * {len(word) + number}?"
        yield f"Note that the {word} of the {other} is number {number}."
        yield f"What time is it, and what is {number} + {number * 7}?"
        yield f"Count the words in: the {word} {other} was found, {number} of them"
        yield f"What is {number} / 0?"
        yield "What did I ask first?"


class Heard:
    """Event bridge that keeps events and steps."""

    ends_at = math.inf
    stop_requested = pause_requested = is_late = hands_over = False

    def __init__(self) -> None:
        self.events: list[StepEvent] = []
        self.steps: list[PackedStep] = []

    def emit(
        self, event: StepEvent | None, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None
    ) -> None:
        assert effect is None or effect[0]
        self.events += [event] if event else []
        self.steps += [step] if step else []

    def flush(self, effect: tuple[str, bytes] | None = None) -> None:
        self.emit(None, None, effect)


def samples() -> Iterator[bytes]:
    fork_client = ForkClient([])
    for make, name in ((make_demo, "demo"), (make_demo_code, "demo-code")):
        kind = "ToolCallingAgent" if make is make_demo else "CodeAgent"
        version = AgentVersion(AgentName(name), kind, "1.26.0", ModelIdentity("RuleModel", "rules"), "8d1f6a0c37be94e2")
        session = AgentSession(make(), Overlay(), {}, (), fork_client, made_for=DUMMY, version=version)
        for number, message in enumerate(messages(), 1):
            if number % 12 == 1:
                session = AgentSession(make(), Overlay(), {}, (), fork_client, made_for=DUMMY, version=version)
            turn = Turn(Ref(Owner("local"), "c"), number, version, message, TurnOptions(), TurnTiming(time.time()))
            yield codec.encode_turn(turn)
            turn = codec.started(turn, time.time(), 1)
            heard = Heard()
            outcome = session.run_turn(turn, TurnInput(), DUMMY, heard)
            assert isinstance(outcome, Outcome)
            steps = [*heard.steps, *([pack(_plan(message), number)] if number % 10 == 0 else [])]
            joined = [TurnQueued(), TurnStarted(1, time.time()), *_joined(heard.events)]
            timing = replace(turn.timing, finished_at=time.time())
            yield codec.encode_turn(replace(turn, outcome=outcome, timing=timing, last_seq=len(joined) + 1))
            yield codec.pack_events(_encoded(joined))
            if number % 5 == 0:
                yield from (data for _, data in _encoded(joined))
            if number % 6 == 0:  # a reader watched
                yield codec.pack_events(_encoded([*joined[:2], *heard.events]))
            yield codec.encode_head(Head(0, number * 3, b"\1" * 16, 0, b"", {"task": number, "action": number * 2}))
            # Twice: most of the lasting bytes are steps.
            yield from (codec.encode_step(step) for step in (*steps, *steps))


def _joined(events: Iterable[StepEvent]) -> Iterator[StepEvent]:
    """Join the deltas of each message, as the event bridge of a turn without watchers does."""
    for delta, group in itertools.groupby(
        events, lambda event: replace(event, text="") if isinstance(event, MessageDelta) else event
    ):
        if isinstance(delta, MessageDelta):
            yield replace(delta, text="".join(event.text for event in group if isinstance(event, MessageDelta)))
        else:
            yield delta


def _encoded(events: Iterable[Event]) -> list[tuple[str, bytes]]:
    return [(event.type, codec.encode_event(event)) for event in events]


def _plan(message: str) -> PlanningStep:
    text = f"## 1. Facts survey\n### 1.1. Facts given in the task\n{message}\n## 2. Plan\n1. Call the tool.\n2. Answer."
    plan = f"Here are the facts I know and the plan of action that I will follow to solve the task:\n```\n{text}\n```"
    now = time.time()
    usage = TokenUsage(input_tokens=120, output_tokens=40)
    return PlanningStep([], ChatMessage(MessageRole.ASSISTANT, text), plan, Timing(now, now + 1), usage)


def main() -> None:
    found: list[bytes | bytearray | memoryview] = [sample for sample in samples() if sample]
    data = zstandard.train_dictionary(SIZE_BYTES, found, level=3).as_bytes()
    Path(sys.argv[1]).write_bytes(data)
    compressor = zstandard.ZstdCompressor(level=5, dict_data=zstandard.ZstdCompressionDict(data))
    packed = sum(len(compressor.compress(sample)) for sample in found)
    print(f"{len(data)} bytes from {len(found)} samples: {sum(map(len, found))} → {packed} bytes")


if __name__ == "__main__":
    main()
