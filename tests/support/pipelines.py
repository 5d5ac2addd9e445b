"""Turns that docs/pipelines shows: agents, scripted answers of their model, and a record of the turn as it was played.

The model is a real HTTP server, the service a real process on a store of its own. The store's MONITOR shows the order
of all writes. A tool sends `ECHO` to the store when it runs, and so has its place in that order. PYTEST_DONT_REWRITE.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from redis import Redis
from smolagents import AgentLogger, CodeAgent, LogLevel, MultiStepAgent, OpenAIModel, ToolCallingAgent, tool

import smolsessions
from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.providers import add_fallbacks, make_model
from tests.support.llm import LLM
from tests.support.providers import Request
from tests.support.service import PATIENCE_S, ROOT, Service
from tests.support.store_server import StoreServer
from tests.support.streaming import Event

NAMES = ("basic", "shop", "coder", "planner", "manager", "short", "spared")
AGENTS = ",".join(f"{name}=tests.support.pipelines:make_{name}" for name in NAMES)
MODEL = "m"
ORDER = "Order A17: two lamps, sent on Monday."


class Entry(NamedTuple):
    kind: str
    name: str


@dataclass(frozen=True)
class Scenario:
    """A turn to play. `answers` are those of the model, in order.

    `data` are texts to look for, by their names. `whole` names messages that the page shows uncut, such as "system 1",
    each with the words at which the shown part begins, or with an empty text. `after` is the turn before it.
    `brief` shows the prompts after the first alone.
    """

    page: str
    title: str
    agent: str
    answers: tuple[tuple[Any, ...], ...]
    message: str = "Where is order A17?"
    data: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    after: "Scenario | None" = None
    brief: bool = False


@dataclass(frozen=True)
class Played:
    """A turn as it was played. `entries` are in the order in which the store wrote them."""

    scenario: Scenario
    events: list[Event]
    entries: list[Entry]
    requests: list[Request]
    steps: list[dict[str, Any]]


def _scenarios() -> tuple[Scenario, ...]:
    """Read the scenarios. `after` is the title of an earlier one."""
    found: dict[tuple[str, str], Scenario] = {}
    for table in yaml.safe_load((ROOT / "tests" / "data" / "pipelines.yaml").read_text("utf-8")):
        after = found.get((table["page"], table.pop("after", "")))
        scenario = Scenario(**table | {"answers": tuple(map(tuple, table["answers"])), "after": after})
        found[scenario.page, scenario.title] = scenario
    return tuple(found.values())


SCENARIOS = _scenarios()


class Player:
    def __init__(self, service: Service, store: StoreServer, provider: LLM) -> None:
        self._service, self._store, self._provider = service, store, provider

    def play(self, scenario: Scenario) -> Played:
        from tests.support.streaming import posting  # noqa: PLC0415 - imports pytest, for which the service has no use

        earlier = self.play(scenario.after).events[-1]["result"]["conversation_id"] if scenario.after else None
        self._provider.reset()
        for verb, *rest in scenario.answers:
            if verb == "call":
                self._provider.call((rest[0], rest[1]))
            elif verb == "say":
                self._provider.say(*rest)
            else:
                self._provider.fail(*rest, message="The words of the provider.")
        posted = posting(
            self._service,
            agent=scenario.agent,
            message=scenario.message,
            **{"conversation_id": earlier} if earlier else {},
        )
        with monitored(self._store) as lines, posted as stream:
            events = [frame.data for frame in stream]
        entries = [*_entries(lines), Entry("event", events[-1]["type"])]  # the commit packs the log with its last event
        result = events[-1]["result"]
        steps = [step for step in self._service.steps(result) if step["turn"] == result["turn"]]
        return Played(scenario, events, entries, list(self._provider.requests), steps)


@contextmanager
def monitored(store: StoreServer) -> Iterator[list[str]]:
    """Collect the store's commands. The list is whole after the block."""
    lines: list[str] = []
    client = store.client()
    with client.monitor() as monitor:

        def read() -> None:
            while (line := " ".join(_ARGUMENT.findall(monitor.connection.read_response().decode()))) != "ECHO end":
                lines.append(line)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        yield lines
        with store.client() as other:
            other.echo("end")
        reader.join(PATIENCE_S)
    client.close()
    assert not reader.is_alive(), "the store ended"


_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')  # redis-py's own takes an escaped backslash for an escaped quote
_LINE = re.compile(
    r"(LLEN|HSETNX|RPUSH|UNLINK|ECHO) (?:\{p\d+\}:run:\S+ )?(?:\{p\d+\}:(queue|log|journal|steps):\S+ ?)?([^\s\\]*)"
)
_WITH_EVENT = {
    "queue": "turn.queued",
    "started": "turn.started",
    "tool": "tool.result",
    "code": "tool.result",
    "step": "step.finished",
}
"""Records that are stored in one write with their event, and its type."""


def _entries(lines: list[str]) -> Iterator[Entry]:
    """Yield writes in the order in which the agent made them.

    `LLEN` of the log begins a write with events. Its record (a step or an effect) comes first there.
    """
    records: list[Entry] = []
    events: list[Entry] = []
    for match in filter(None, map(_LINE.match, lines)):
        command, kind, name = match.groups()
        if (command, kind) == ("RPUSH", "log"):
            events.append(Entry("event", name))
            continue
        entry = {
            ("ECHO", None): Entry("tool", name),
            ("RPUSH", "queue"): Entry("queue", "queue"),
            ("HSETNX", "journal"): Entry("journal", name),
            ("RPUSH", "steps"): Entry("step", "step"),
            ("UNLINK", "journal"): Entry("commit", ""),
        }.get((command, kind))
        if entry or (command, kind) == ("LLEN", "log"):
            if events or not entry:
                yield from _ordered(records, events)
                records, events = [], []
            if entry:
                records.append(entry)
    yield from _ordered(records, events)


def _ordered(records: list[Entry], events: list[Entry]) -> list[Entry]:
    """Return the entries of one write: its events, and its record before its own event or after all."""
    last = [each for each in records if events and _WITH_EVENT.get(each.name.split(":")[0]) == events[-1].name]
    return [*events[:-1], *last, *events[-1:], *(each for each in records if each not in last)]


class Settled(AgentLogger):  # type: ignore[misc, unused-ignore]
    """Logger that waits at each line until the store has all that the agent wrote.

    Without it the commit, which deletes the journal, would drop the last effects before or after they are stored.
    """

    agent: MultiStepAgent | None = None

    def log(self, *_: Any, **__: Any) -> None:
        node = getattr(self.agent and self.agent.model, "_node", None)
        if node and node.agent_run:
            node.agent_run.turn_run.bridge.flush()


@tool
def find_order(number: str) -> str:
    """Find an order of the shop.

    Args:
        number: number of the order, such as A17
    """
    with Redis(unix_socket_path=os.environ["PIPELINES_STORE"]) as store:
        store.echo("find_order")
    if number != "A17":
        raise LookupError(f"the shop has no order {number}")
    return ORDER


def make_basic(kind: type[ToolCallingAgent | CodeAgent] = ToolCallingAgent, **options: Any) -> MultiStepAgent:
    model = OpenAIModel(MODEL, api_base=os.environ["PIPELINES_MODEL"], api_key="none")
    logger = Settled(level=LogLevel.OFF)
    given: dict[str, Any] = {"tools": [], "model": model, "max_steps": 4, "logger": logger} | options
    logger.agent = kind(**given)
    return logger.agent


def make_shop(**options: Any) -> MultiStepAgent:
    return make_basic(tools=[find_order], **options)


def make_coder() -> MultiStepAgent:
    return make_shop(kind=CodeAgent, executor_kwargs={"timeout_seconds": None})


def make_planner() -> MultiStepAgent:
    return make_shop(planning_interval=1)


def make_manager() -> MultiStepAgent:
    return make_basic(managed_agents=[make_shop(name="clerk", description="Knows the orders.")])


def make_short() -> MultiStepAgent:
    return make_shop(max_steps=1)


def make_spared() -> MultiStepAgent:
    first, spare = (ModelTable(provider="openai", id=n, base=os.environ["PIPELINES_MODEL"]) for n in (MODEL, "spare"))
    agent = make_shop(model=add_fallbacks(make_model(first), make_model(spare)))
    return smolsessions.options(agent, model_retries=0)
