"""Agents whose models and tools record every call, and block at chosen ones so that a test can kill them.

A ledger is a folder. Its path is in the turn's message and in the arguments of the tools. `calls` in it has a line for
each call that was made, and `ends` one for each call that ended. A call whose number is in `at` writes `reached` and
waits for its release. Numbers count the calls of all processes, so a call that is made again does not block again.

PYTEST_DONT_REWRITE: other processes import this, too.
"""

import os
import re
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import PIL.Image
from smolagents import CodeAgent, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageStreamDelta

import smolsessions
from tests.support import agents, coders, streaming
from tests.support.tools import tool
from tests.support.waiting import PATIENCE_S

PATH = re.compile(r"/[\w/.-]+\.ledger")
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Ledger:
    path: Path

    @classmethod
    def at(cls, path: Path, *numbers: int) -> "Ledger":
        path.mkdir(parents=True)
        (path / "at").write_text(" ".join(map(str, numbers)))
        (path / "reached").write_text("0")
        (path / "calls").touch()
        (path / "ends").touch()
        return cls(path)

    @property
    def calls(self) -> list[str]:
        return (self.path / "calls").read_text().splitlines()

    @property
    def ends(self) -> list[str]:
        return (self.path / "ends").read_text().splitlines()

    @property
    def reached(self) -> int:
        """Number of the call that is blocked, or was blocked last. It is 0 if none was."""
        return int((self.path / "reached").read_text())

    @property
    def stands(self) -> bool:
        return bool(self.reached) and not (self.path / f"go.{self.reached}").exists()

    def go(self) -> None:
        (self.path / f"go.{self.reached}").touch()

    def enter(self, label: str) -> None:
        with _LOCK:
            with (self.path / "calls").open("a") as calls:
                calls.write(f"{label}\n")
            number = len(self.calls)
        if str(number) in (self.path / "at").read_text().split():
            (self.path / "new").write_text(str(number))
            (self.path / "new").replace(self.path / "reached")
            end = time.monotonic() + 2 * PATIENCE_S
            while not (self.path / f"go.{number}").exists():
                if time.monotonic() > end:
                    raise TimeoutError("nobody let it go")
                time.sleep(0.005)

    def leave(self, label: str) -> None:
        with _LOCK, (self.path / "ends").open("a") as ends:
            ends.write(f"{label}\n")


def made(ledger: str, label: str) -> None:
    Ledger(Path(ledger)).enter(label)
    Ledger(Path(ledger)).leave(label)


class LedgerModel(streaming.StreamedModel):
    """Plays scripts piece by piece, and records the digest of each prompt. It blocks after the first piece.

    An entry with `same_ids` gives all its tool calls one id, as some providers do.
    """

    def generate_stream(
        self, messages: list[ChatMessage], *args: Any, **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        text = "\n".join(agents.text_of(message) for message in messages)
        ledger = Ledger(Path(PATH.findall(text)[-1]))
        same_ids = agents.TASK in text and "same_ids" in streaming.entry_of(messages)
        label = f"model {agents.digest(messages)[:8]}"
        entered = False
        try:
            for piece in super().generate_stream(messages, *args, **options):
                for call in (same_ids and piece.tool_calls) or ():
                    call.id = call.id and "call_0"
                yield piece
                if not entered:
                    entered = True
                    ledger.enter(label)
        except RuntimeError:
            ledger.enter(label)
            ledger.leave(label)
            raise
        ledger.leave(label)


class DeclinedError(ValueError):
    """A user's error that no pickle restores: its constructor needs more than a message."""

    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)
        self.response = response


@tool
def note(what: str, ledger: str) -> str:
    """Write something down."""
    made(ledger, f"note {what}")
    return f"noted {what}"


@tool
def decline(what: str, ledger: str) -> str:
    """Write something down and fail."""
    made(ledger, f"decline {what}")
    raise DeclinedError(f"{what} is declined", response=object())


@tool
def charge(what: str, ledger: str) -> str:
    """Charge once, unsafe to repeat."""
    made(ledger, f"charge {what}")
    return f"charged {what}"


vars(charge)["unsafe_to_repeat"] = True


@tool
def crash(ledger: str) -> str:
    """End the process."""
    Ledger(Path(ledger)).enter("crash")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool
def bring(what: str, ledger: str) -> Any:
    """Bring a value of some kind."""
    made(ledger, f"bring {what}")
    if what == "image":
        return PIL.Image.new("RGB", (5, 4), (10, 20, 30))
    return OrderedDict(b=1, a=2) if what == "ordered" else agents.make(what)


class Notebook(Tool):  # type: ignore[misc, unused-ignore]
    """Keeps the words that it receives. Its kind decides whether it can save them."""

    name = "notebook"
    description = "Keeps words."
    inputs = {  # noqa: RUF012 - smolagents' way
        "word": {"type": "string", "description": "a word to keep"},
        "ledger": {"type": "string", "description": "where that is written down"},
    }
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.words: list[str] = []

    def forward(self, word: str, ledger: str) -> str:
        made(ledger, f"notebook {word}")
        self.words.append(word)
        return " ".join(self.words)


class LastingNotebook(Notebook):
    """Saves its words, and restores them."""

    name = "lasting"

    def get_state(self) -> list[str]:
        return list(self.words)

    def set_state(self, state: list[str]) -> None:
        self.words = list(state)


class Counter(Tool):  # type: ignore[misc, unused-ignore]
    name = "count"
    description = "Counts."
    inputs = {"ledger": {"type": "string", "description": "where that is written down"}}  # noqa: RUF012
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.state: dict[str, Any] = {}

    def forward(self, ledger: str) -> str:
        made(ledger, "count")
        count = self.state["count"] = self.state.get("count", 0) + 1
        told = " once" if self.state.pop("once", False) else ""
        if count == 1:
            self.state["once"] = True
        return f"count {count}{told}"


TOOLS: list[Tool] = [note, decline, charge, crash, bring]


def make_teller(*, tools: tuple[Tool, ...] = (), **options: Any) -> ToolCallingAgent:
    own = {"tools": [*TOOLS, agents.echo, agents.wait_for, *tools], "model": LedgerModel(), "max_steps": 12}
    templates = agents.script_templates("toolcalling_agent.yaml")
    return agents.make_scripted(**(own | {"prompt_templates": templates} | options))


def make_writer(**options: Any) -> CodeAgent:
    agent = coders.make_coder(
        ("time", "uuid", "random", "secrets"), tools=[*TOOLS, agents.echo, agents.wait_for], **options
    )
    agent.model = LedgerModel()
    return agent


def make_boss() -> ToolCallingAgent:
    helper = make_teller(name="helper", description="Helps.")
    writer = make_writer(name="writer", description="Writes code.")
    lead = make_teller(
        name="lead", description="Leads.", managed_agents=[make_teller(name="deputy", description="Helps the lead.")]
    )
    return make_teller(managed_agents=[helper, writer, lead])


def make_author() -> CodeAgent:
    return make_writer(managed_agents=[make_teller(name="helper", description="Helps.", planning_interval=1)])


def make_planner() -> ToolCallingAgent:
    return make_teller(planning_interval=2)


def make_chief() -> ToolCallingAgent:
    return make_teller(managed_agents=[make_teller(name="helper", description="Helps.")])


def make_threaded() -> CodeAgent:
    return smolsessions.options(make_writer(), executor="thread")


def make_keeper() -> ToolCallingAgent:
    counter = Counter()
    agent = make_teller(tools=(Notebook(), LastingNotebook(), counter))
    counter.state = agent.state
    return agent


def make_caller() -> ToolCallingAgent:
    return coders.keeping(make_teller())


def make_wary() -> ToolCallingAgent:
    return smolsessions.options(make_teller(), unsafe_to_repeat=["note"])


def make_judged() -> ToolCallingAgent:
    """Make an agent whose answers are checked. Each check is recorded."""
    return make_teller(final_answer_checks=[_judge])


def _judge(answer: Any, memory: Any, **_: Any) -> bool:
    made(PATH.findall(memory.steps[0].task)[-1], f"check {answer}")
    return str(answer).endswith(".")


def make_changing() -> ToolCallingAgent:
    """Make an agent whose instructions come from the environment of its process."""
    return make_teller(instructions=os.environ.get("LEDGER_INSTRUCTIONS", "Be brief."))


CODERS = "writer boss author threaded".split()
OTHERS = "teller chief planner keeper caller wary judged changing".split()
AGENTS, CODELESS = (
    ",".join(f"{name}=tests.support.ledgers:make_{name}" for name in names) for names in ([*CODERS, *OTHERS], OTHERS)
)
