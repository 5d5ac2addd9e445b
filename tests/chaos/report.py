"""Table of a run: the calm round beside the wild one, and the breached invariants."""

from collections.abc import Callable
from functools import partial

from tests.chaos.invariants import breaches
from tests.chaos.rounds import (
    Round,
    attempts,
    code_of,
    outcome_unknown,
    requests_of,
    steps_of,
    takeover_latencies_s,
    takeovers,
)

SHOWN = 6


def report(calm: Round, wild: Round, title: str) -> tuple[str, bool]:
    found = breaches(calm, wild)
    rows = _rows(calm, wild)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [title, ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", *_harm(wild), ""]
    for name, sentences in found.items():
        lines.append(f"{'FAILS' if sentences else 'holds'}  {name.replace('_', ' ')}")
        lines += [f"         {sentence}" for sentence in sentences[:SHOWN]]
        lines += [f"         … {len(sentences)} in all"] * (len(sentences) > SHOWN)
    return "\n".join(lines), not any(found.values())


def _rows(calm: Round, wild: Round) -> list[tuple[str, str, str]]:
    replies = {said.key: said.turn["reply"] for said in calm.said()}
    known = {talk.plan.name: talk for talk in calm.talks}

    def same_steps(round_: Round) -> int:
        numbers = [(talk, said.planned.number) for talk in round_.talks for said in talk.said]
        pairs = [zip(steps_of(known[talk.plan.name], n), steps_of(talk, n), strict=False) for talk, n in numbers]
        return sum(one == other for pair in pairs for one, other in pair)

    def calls(round_: Round, kind: str) -> int:
        return sum(lines[0].kind == kind for lines in round_.runs().values())

    def runs(round_: Round, kind: str) -> int:
        return sum(line.kind == kind and line.phase == "begun" for line in round_.lines)

    def ends(round_: Round, code: str) -> int:
        return sum(code_of(said) == code for said in round_.said())

    measures: dict[str, Callable[[Round], object]] = {"turns": lambda round_: len([*round_.said()])}
    for code in sorted({code_of(said) for round_ in (calm, wild) for said in round_.said()}):
        measures[f"  {code}"] = partial(ends, code=code)
    measures |= {
        "same replies": lambda round_: sum(said.turn["reply"] == replies.get(said.key) for said in round_.said()),
        "same steps": same_steps,
        "  outcome unknown, told so": lambda round_: sum(map(outcome_unknown, round_.said())),
    }
    for kind in ("model", "tool", "unsafe"):
        measures[f"{kind} calls"] = partial(calls, kind=kind)
        measures[f"  runs of {kind}"] = partial(runs, kind=kind)
    measures |= {
        "calls marked as repeated": lambda round_: sum(
            bool(call.get("repeated")) for said in round_.said() for call in said.turn["tool_calls"]
        ),
        "turns that waited for a person": lambda round_: sum(bool(requests_of(said)) for said in round_.said()),
        "  requests": lambda round_: sum(len(requests_of(said)) for said in round_.said()),
        "turns taken over or waiting": lambda round_: sum(attempts(said) > 1 for said in round_.said()),
        "takeovers": lambda round_: sum(len(takeovers(said)) for said in round_.said()),
        "most attempts of a turn": lambda round_: max(map(attempts, round_.said()), default=0),
        "seconds": lambda round_: f"{round_.took_s:.1f}",
    }
    rows = [(name, str(measure(calm)), str(measure(wild))) for name, measure in measures.items()]
    return [("", "without", "with chaos"), *rows]


def _harm(wild: Round) -> list[str]:
    done = ", ".join(f"{times} {kind}" for kind, times in sorted(wild.done.items()))
    lines = [f"done: {done}"]
    for kind in ("kill", "stop", "term"):
        if latencies := sorted(takeover_latencies_s(wild, kind)):
            p50, p99 = (latencies[min(len(latencies) - 1, int(len(latencies) * part))] for part in (0.5, 0.99))
            lines.append(f"from {kind} to takeover: p50 {p50:.2f} s, p99 {p99:.2f} s ({len(latencies)} turns)")
    return lines
