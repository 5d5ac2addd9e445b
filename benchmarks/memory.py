"""First part of table M: the time and the prompt of a turn under each memory policy, as turns pass."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import server, store, store_pid
from benchmarks.cpu import cpu_ms
from benchmarks.rememberer import REMEMBERER, answer, article, order
from benchmarks.watching import Caller
from smolsessions.agents.memory.tokens import MESSAGE_TOKENS, estimate

if TYPE_CHECKING:
    from collections.abc import Callable


Policy = list[dict[str, Any]]

POLICIES: dict[str, Policy] = {
    "no_pruning": [{"name": "no_pruning"}],
    "keep_last_n_steps": [{"name": "keep_last_n_steps", "n": 20}],
    "prune_old_observations": [{"name": "prune_old_observations", "keep_last_n": 10}],
    "token_budget": [{"name": "token_budget", "max_tokens": 8000}],
    "summarize": [{"name": "summarize", "after_tokens": 8000}],
    "a chain of three": [
        {"name": "prune_old_observations", "keep_last_n": 5},
        {"name": "keep_last_n_steps", "n": 100},
        {"name": "token_budget", "max_tokens": 8000},
    ],
}
STEPS = {"task": 1, "action": 2}  # of a turn; the actions are an article and the answer
LONG_MARKS = (5, 10, 50, 100, 200, 500, 1000)
WINDOW = 5  # a mark's time is the mean of so many turns up to it


@dataclass(frozen=True)
class Bounded:
    """Conversations of a policy up to a turn: the mean of the last few turns, and the size of the next prompt."""

    policy: str
    turn: int
    ms: float
    cpu_ms: float
    store_ms: float
    messages: int
    characters: int
    tokens: int
    """Estimated, without the descriptions of tools."""
    left_out: int
    """Steps that the turn's last prompt omitted."""


@dataclass(frozen=True)
class Record:
    """Steps in `…/steps` of a policy's conversations at the end."""

    policy: str
    turns: int
    steps: int
    missing: int
    """Steps that were taken, but are absent or changed."""
    summaries: int


def measure_policies(
    conversations: int, marks: tuple[int, ...], progress: Callable[[str], None]
) -> tuple[list[Bounded], list[Record]]:
    """Play conversations under each policy up to the last mark. The policies alternate after each turn."""
    with store() as socket_path, server("service", socket_path, REMEMBERER) as running, closing(Caller(running)) as one:
        pids = (running.pid, store_pid(socket_path))
        ids = {name: [_begun(one, policy) for _ in range(conversations)] for name, policy in POLICIES.items()}
        spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in POLICIES}
        found, left_out = [], dict[str, int]()
        for turn in range(1, marks[-1] + 1):
            if turn % 10 == 0:
                progress(f"memory: turn {turn} of {marks[-1]} under each of {len(POLICIES)} policies")
            for name, those in ids.items():
                before = _now(pids)
                for each in those:
                    left_out[name] = (_played(one, each, turn)["left_out"] or {"steps": 0})["steps"]
                spent[name].append(tuple(now - at for now, at in zip(_now(pids), before, strict=True)))
            if turn in marks:
                for name, those in ids.items():
                    last = spent[name][-WINDOW:]
                    ms, cpu, stored = (sum(each) / len(last) / conversations for each in zip(*last, strict=True))
                    found.append(Bounded(name, turn, ms, cpu, stored, *_prompt(one, those[0]), left_out[name]))
        return found, [_record(one, name, those, marks[-1], progress) for name, those in ids.items()]


def _begun(one: Caller, policy: Policy) -> str:
    return str(one.ask("POST", "/conversations", {"policy": policy})["id"])


def _played(one: Caller, conversation: str, topic: int) -> dict[str, Any]:
    """Play a turn and check its answer."""
    turn: dict[str, Any] = one.ask("POST", "/turn", {"conversation_id": conversation, "message": order(topic)})
    if turn["reply"] != answer(topic):
        raise RuntimeError(f"turn {topic} was answered with {turn}")
    return turn


def _now(pids: tuple[int, ...]) -> tuple[float, ...]:
    return (time.perf_counter() * 1000, *map(cpu_ms, pids))


def _prompt(one: Caller, conversation: str) -> tuple[int, int, int]:
    messages = one.ask("GET", f"/conversations/{conversation}/messages")["messages"]
    texts = ["".join(part["text"] for part in message["content"]) for message in messages]
    return len(texts), sum(map(len, texts)), sum(MESSAGE_TOKENS + estimate(text) for text in texts)


def _record(one: Caller, name: str, those: list[str], turns: int, progress: Callable[[str], None]) -> Record:
    """Read all steps over HTTP and look for each that was taken."""
    progress(f"memory: the record of {name}")
    steps = missing = summaries = 0
    for each in those:
        there: Counter[tuple[int, str]] = Counter()
        cursor = "0"
        while cursor:
            page = one.ask("GET", f"/conversations/{each}/steps?limit=100&cursor={cursor}&archived=true")
            there.update((step["turn"], step["type"]) for step in page["items"] if _is_whole(step))
            steps += len(page["items"])
            cursor = page["next_cursor"]
        summaries += sum(count for (_, kind), count in there.items() if kind == "summary")
        taken = {(turn, kind): count for turn in range(1, turns + 1) for kind, count in STEPS.items()}
        missing += sum(max(0, count - there[key]) for key, count in taken.items())
    return Record(name, turns, steps, missing, summaries)


def _is_whole(step: dict[str, Any]) -> bool:
    """Return true if a step still has its original text."""
    if step["type"] == "task":
        return bool(step["task"] == order(step["turn"]))
    if step["type"] == "action":
        said = article(step["turn"]), answer(step["turn"])
        return any(text in (step["observations"] or "") for text in said)
    return True
