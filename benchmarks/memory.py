"""First part of table M: the time and the prompt of a turn under each memory policy, as turns pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import server, store, store_pid
from benchmarks.cpu import cpu_ms
from benchmarks.rememberer import REMEMBERER, answer, article, order
from benchmarks.watching import Caller
from smolsessions.agents.memory.tokens import MESSAGE_TOKENS, estimate

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


def measure_policies(
    conversations: int, marks: tuple[int, ...], progress: Callable[[str], None]
) -> tuple[list[Bounded], int]:
    """Play conversations under each policy, which alternate after each turn. Count the steps missing at the end."""
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
        progress("memory: the record")
        return found, sum(_missing(one, each, marks[-1]) for those in ids.values() for each in those)


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
    messages = one.ask("GET", f"/conversations/{conversation}/prompt")["messages"]
    texts = ["".join(part["text"] for part in message["content"]) for message in messages]
    return len(texts), sum(map(len, texts)), sum(MESSAGE_TOKENS + estimate(text) for text in texts)


def _missing(one: Caller, conversation: str, turns: int) -> int:
    """Read all steps over HTTP. Return how many texts of the played steps are absent."""
    missing = {text for topic in range(1, turns + 1) for text in (order(topic), article(topic), answer(topic))}
    cursor = "0"
    while cursor:
        page = one.ask("GET", f"/conversations/{conversation}/steps?limit=100&cursor={cursor}&archived=true")
        missing -= {step.get("task") or step.get("observations") for step in page["items"]}
        cursor = page["next_cursor"]
    return len(missing)
