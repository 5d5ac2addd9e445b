"""Table of a run: the calm round beside the wild one, and the breached invariants."""

from collections import Counter

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
    """Return the text, and whether all invariants hold."""
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
    rows: list[tuple[str, object, object]] = [("", "without", "with chaos")]
    rows += [("turns", _turns(calm), _turns(wild))]
    ends = [Counter(code_of(said) for said in round_.said()) for round_ in (calm, wild)]
    rows += [(f"  {code}", ends[0][code], ends[1][code]) for code in sorted({*ends[0], *ends[1]})]
    rows += [
        ("same replies", _turns(calm), _same_replies(calm, wild)),
        ("same steps", _steps(calm), _same_steps(calm, wild)),
        ("  outcome unknown, told so", 0, sum(outcome_unknown(said) for said in wild.said())),
    ]
    for kind in ("model", "tool", "unsafe"):
        rows.append((f"{kind} calls", _calls(calm, kind), _calls(wild, kind)))
        rows.append(("  runs", _runs(calm, kind), _runs(wild, kind)))
        rows.append(("  repeated", _runs(calm, kind) - _calls(calm, kind), _runs(wild, kind) - _calls(wild, kind)))
    rows += [
        ("calls marked as repeated", _marked(calm), _marked(wild)),
        ("turns that waited for a person", _waited(calm), _waited(wild)),
        ("  requests", _requests(calm), _requests(wild)),
        ("turns taken over or waiting", 0, sum(attempts(said) > 1 for said in wild.said())),
        ("takeovers", 0, sum(len(takeovers(said)) for said in wild.said())),
        ("most attempts of a turn", 1, max((attempts(said) for said in wild.said()), default=0)),
        ("seconds", f"{calm.took_s:.1f}", f"{wild.took_s:.1f}"),
    ]
    return [(name, str(one), str(other)) for name, one, other in rows]


def _waited(round_: Round) -> int:
    return sum(bool(requests_of(said)) for said in round_.said())


def _requests(round_: Round) -> int:
    return sum(len(requests_of(said)) for said in round_.said())


def _harm(wild: Round) -> list[str]:
    done = ", ".join(f"{times} {kind}" for kind, times in sorted(wild.done.items()))
    lines = [f"done: {done}"]
    for kind in ("kill", "stop", "term"):
        if latencies := sorted(takeover_latencies_s(wild, kind)):
            p50, p99 = (latencies[min(len(latencies) - 1, int(len(latencies) * part))] for part in (0.5, 0.99))
            lines.append(f"from {kind} to takeover: p50 {p50:.2f} s, p99 {p99:.2f} s ({len(latencies)} turns)")
    return lines


def _marked(round_: Round) -> int:
    return sum(bool(call.get("repeated")) for said in round_.said() for call in said.turn["tool_calls"])


def _turns(round_: Round) -> int:
    return sum(1 for _ in round_.said())


def _steps(round_: Round) -> int:
    return sum(len(talk.steps) for talk in round_.talks)


def _same_replies(calm: Round, wild: Round) -> int:
    replies = {said.key: said.turn["reply"] for said in calm.said()}
    return sum(said.turn["reply"] == replies.get(said.key) for said in wild.said())


def _same_steps(calm: Round, wild: Round) -> int:
    known = {talk.plan.name: talk for talk in calm.talks}
    same = 0
    for talk in wild.talks:
        for said in talk.said:
            pairs = zip(
                steps_of(known[talk.plan.name], said.planned.number), steps_of(talk, said.planned.number), strict=False
            )
            same += sum(one == other for one, other in pairs)
    return same


def _calls(round_: Round, kind: str) -> int:
    return sum(lines[0].kind == kind for lines in round_.runs().values())


def _runs(round_: Round, kind: str) -> int:
    return sum(line.kind == kind and line.phase == "begun" for line in round_.lines)
