"""Invariants that hold under any harm to the processes and the store. Each check yields a sentence for each breach."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos.client import FINAL, Event, Said, Talk, answer_to
from tests.chaos.fleet import LEASE_S
from tests.chaos.ledger import Line
from tests.chaos.rounds import Round, attempts, call_records, code_of, outcome_unknown, requests_of, steps_of, told

WIDEST = 3  # parallel calls of a step at most
ASKING = {"turn.waiting", "input.answered"}  # a turn may wait often
NAMES = "tool_call_names"
COMPARED = ("status", "reply", "output", "outcome", "step_count", "usage", NAMES, "error", "dropped_variables")


def every_turn_ends_once(_calm: Round, wild: Round) -> Iterator[str]:
    for talk in wild.talks:
        yield from talk.complaints
        if len(talk.said) < len(talk.plan.turns):
            yield f"{talk.name}: only {len(talk.said)} of {len(talk.plan.turns)} turns were accepted and ended"
    for said in wild.said():
        finals = [event["type"] for event in said.log if event["type"] in FINAL]
        if len(finals) != 1 or said.log[-1]["type"] not in FINAL:
            yield f"{said.place}: its log holds the final events {finals}"
        if said.turn["status"] not in {"finished", "failed", "cancelled"}:
            yield f"{said.place}: is {said.turn['status']} at the end"
        for name, told_end in (("final event", said.log[-1].get("result")), ("answer", said.answer)):
            if told_end and any(told_end[member] != said.turn[member] for member in COMPARED if member != NAMES):
                yield f"{said.place}: its {name} tells another end than its record"


def steps_are_in_order(_calm: Round, wild: Round) -> Iterator[str]:
    for talk in wild.talks:
        places = [step["index"] for step in talk.steps]
        if places != list(range(len(places))):
            yield f"{talk.name}: its steps are numbered {places}"
        turns = [step["turn"] for step in talk.steps]
        if turns != sorted(turns):
            yield f"{talk.name}: its steps belong to the turns {turns}"
        for said in talk.said:
            yield from _steps_of_turn_in_order(talk, said)


def _steps_of_turn_in_order(talk: Talk, said: Said) -> Iterator[str]:
    steps = steps_of(talk, said.planned.number)
    numbers = [step["step"] for step in steps if step["type"] == "action"]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"{said.place}: its actions are numbered {numbers}"
    kinds = [step["type"] for step in steps]
    joined = [event["from_turn"] for event in said.log if event["type"] == "message.steered"]
    if kinds and (kinds[0] != "task" or kinds.count("task") != 1 + len(joined)):
        yield f"{said.place}: its steps are {kinds}"


def each_message_joins_once(_calm: Round, wild: Round) -> Iterator[str]:
    """A message that steers is read in the turn that took it, in one place, or played as a turn of its own."""
    for talk in wild.talks:
        events = [(said.planned.number, event) for said in talk.said for event in said.log]
        joined = [(event["from_turn"], into) for into, event in events if event["type"] == "message.steered"]
        ended = [said.planned.number for said in talk.said if code_of(said) == "steered"]
        if sorted(number for number, _ in joined) != ended:
            yield f"{talk.name}: the turns {ended} ended as steered, and the messages {joined} were read"
        for said in talk.said:
            number, read = (
                said.planned.number,
                [step["turn"] for step in talk.steps if step.get("task") == said.planned.message],
            )
            if said.body.get("on_busy") == "steer" and read != [dict(joined).get(number, number)]:
                yield f"{said.place}: its message is read in the turns {read}, of {joined}"


def shown_steps_are_kept(_calm: Round, wild: Round) -> Iterator[str]:
    """A step of the turn's own agent that a reader saw finish is stored, with the content that the reader saw."""
    for talk in wild.talks:
        for said in talk.said:
            kept = [step for step in steps_of(talk, said.planned.number) if step["type"] == "action"]
            shown = [event for _, event in said.seen if _is_action(event)]
            if len(kept) < len(shown):
                yield f"{said.place}: {len(shown)} steps were shown as finished, {len(kept)} are kept"
            for step, event in zip(kept, shown, strict=False):
                if event["observations"] is not None and event["observations"] != step["observations"]:
                    yield f"{said.place}: step {event['step_id']} was shown with other observations than are kept"


def logs_are_whole(_calm: Round, wild: Round) -> Iterator[str]:
    """Every reader gets every event once and in order. The final log holds the same events."""
    for said in wild.said():
        yield from said.complaints
        numbers = [event["seq"] for event in said.log]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{said.place}: its log is numbered {numbers}"
        for (_, seen), kept in zip(said.seen, said.log, strict=False):
            if seen != kept:
                yield f"{said.place}: event {seen['seq']} was seen as {seen} and is kept as {kept}"
                break
        if len(said.seen) != len(said.log):
            yield f"{said.place}: {len(said.seen)} events were seen, {len(said.log)} are kept"


def nothing_is_told_twice(_calm: Round, wild: Round) -> Iterator[str]:
    """A repeated call may be announced again if it is marked as repeated. Steps and results are announced once."""
    for said in wild.said():
        known: dict[tuple[str, str], int] = {}
        asked = {request["call_id"] for request in requests_of(said)}
        for event in said.log:
            what = (event["type"], event.get("call_id") or event.get("step_id") or str(event.get("from_turn", "")))
            if event["type"] in {"message.delta", "message.restarted", "turn.started", *ASKING}:
                continue
            is_again = event.get("repeated") or event.get("call_id") in asked
            again = event["type"] == "tool.call" and is_again and event["attempt"] > known.get(what, 0)
            if what in known and not again:
                yield f"{said.place}: {what} was told at attempt {known[what]} and again at {event['attempt']}"
            known[what] = event["attempt"]


def no_old_fence_writes(_calm: Round, wild: Round) -> Iterator[str]:
    """Attempts begin in order. Once an attempt has begun, no event of an earlier one enters the log."""
    lines = wild.lines_of()
    for said in wild.said():
        numbers = [event["attempt"] for event in said.log]
        if numbers != sorted(numbers):
            yield f"{said.place}: its events are of the attempts {numbers}"
        started = [event["attempt"] for event in said.log if event["type"] == "turn.started"]
        if started != list(range(1, len(started) + 1)):
            yield f"{said.place}: the attempts {started} began"
        if len(late := _late_lines(lines[said.key])) > WIDEST and attempts(said) == 2:
            yield f"{said.place}: a process went on after another had taken over: {[line.key for line in late]}"


def _late_lines(lines: list[Line]) -> list[Line]:
    begun = [line for line in lines if line.phase == "begun"]
    if len(begun) > 1 and begun[0].kind == "model" and begun[0].key == begun[1].key:
        del begun[0]  # this process lost the turn before its attempt was known, and may be the one that takes it over
    second = next((place for place, line in enumerate(begun) if line.pid != begun[0].pid), len(begun))
    return [line for line in begun[second:] if line.pid == begun[0].pid]


def no_effect_runs_twice(_calm: Round, wild: Round) -> Iterator[str]:
    """A call runs again only if its turn was taken over while the call was in flight. It is then marked as repeated."""
    runs = wild.runs_of()
    for said in wild.said():
        records = call_records(said)
        for key, lines in runs[said.key].items():
            if len(lines) == 1:
                continue
            most = attempts(said)
            if lines[0].kind == "model":  # a model call may go out before its attempt is known to have begun
                most = max(most, _claims(lines))
            if len(lines) > most:
                yield f"{said.place}: {key} ran {len(lines)} times in {attempts(said)} attempts"
            if lines[0].kind == "tool" and records[key] and not any(record.get("repeated") for record in records[key]):
                yield f"{said.place}: {key} ran {len(lines)} times and is not marked as repeated"

        if attempts(said) == 1 and any(record.get("repeated") for found in records.values() for record in found):
            yield f"{said.place}: has calls marked as repeated, and was played once"


def _claims(lines: list[Line]) -> int:
    """Return in how many claims a call ran: a process can claim a turn again once its own lease has run out."""
    pairs = itertools.pairwise(lines)
    return 1 + sum(later.pid != line.pid or later.at - line.at >= LEASE_S for line, later in pairs)


def each_request_is_asked_and_answered_once(_calm: Round, wild: Round) -> Iterator[str]:
    """A call runs as a person decided: not at all, or with the arguments that the person allowed."""
    runs = wild.runs_of()
    for said in wild.said():
        asked = [request["request_id"] for request in requests_of(said)]
        answered = [a["request_id"] for e in said.log if e["type"] == "input.answered" for a in e["answers"]]
        if len({*asked}) < len(asked) or sorted(asked) != sorted(answered):
            yield f"{said.place}: asked {asked}, answered {answered}"
        decided = {str((it["arguments"] or {}).get("key", it["request_id"])): answer_to(it) for it in requests_of(said)}
        for key, answer in decided.items():
            lines = runs[said.key].get(key, [])
            if answer.get("decision") == "reject" and lines:
                yield f"{said.place}: {key} was rejected and ran"
            if answer.get("decision") == "approve" and "text" not in answer and not lines:
                yield f"{said.place}: {key} was approved and did not run"
            if "arguments" in answer and any(line.given != answer["arguments"]["token"] for line in lines):
                yield f"{said.place}: {key} ran with other arguments than those of the person"


def no_unsafe_tool_runs_twice(_calm: Round, wild: Round) -> Iterator[str]:
    for key, lines in wild.runs().items():
        if lines[0].kind == "unsafe" and len(lines) > 1:
            yield f"{key} is unsafe to repeat and ran {len(lines)} times"


def what_was_shown_never_runs_again(_calm: Round, wild: Round) -> Iterator[str]:
    """A call that a reader saw complete does not begin again."""
    runs = wild.runs_of()
    for said in wild.said():
        keys = {event["call_id"]: event["arguments"]["key"] for event in said.log if _has_key(event)}
        shown = [(at, event) for at, event in said.seen if event["type"] == "tool.result" and event["call_id"] in keys]
        for at, event in shown:
            key = keys[event["call_id"]]
            for line in runs[said.key].get(key, ()):
                if line.at > at and not wild.thawed_before(line):
                    yield f"{said.place}: {key} was shown as done and began again {line.at - at:.3f} s later"
        yield from _shown_steps_run_again(wild, said, runs[said.key])


def _shown_steps_run_again(wild: Round, said: Said, runs: dict[str, list[Line]]) -> Iterator[str]:
    """Check the steps that were shown as finished. The own agent's actions follow the entries of its script."""
    shown = [(at, event) for at, event in said.seen if _is_action(event)]
    for number, (at, event) in enumerate(shown):
        place = f"{said.key}/{number}"
        for key, lines in runs.items():
            is_of_step = key == place or key.startswith((f"{place}.", f"{place}/"))
            if is_of_step and any(line.at > at and not wild.thawed_before(line) for line in lines):
                yield f"{said.place}: step {event['step_id']} was shown as finished, and {key} began later"


def _is_action(event: Event) -> bool:
    return event["type"] == "step.finished" and event["parent_call_id"] is None and event["kind"] == "action"


def _has_key(event: Event) -> bool:
    return event["type"] == "tool.call" and isinstance(event["arguments"], dict) and "key" in event["arguments"]


def a_repeated_call_asks_for_the_same(_calm: Round, wild: Round) -> Iterator[str]:
    """A repeated call has the random tokens and the set order of the first call."""
    for key, lines in wild.runs().items():
        if len(given := {line.given for line in lines}) > 1:
            yield f"{key} was called with {sorted(given)}"


def no_conversation_is_lost(_calm: Round, wild: Round) -> Iterator[str]:
    for sentence, times in wild.astray.items():
        yield f"{sentence} (seen {times} times)"
    if wild.left_over:
        yield f"{len(wild.left_over)} keys are left over: {wild.left_over[:8]}"


def processes_come_and_go_as_told(_calm: Round, wild: Round) -> Iterator[str]:
    yield from wild.complaints


def turns_end_as_without_chaos(calm: Round, wild: Round) -> Iterator[str]:
    """Replies and records equal those of the calm round."""
    for one, other in _pairs(calm, wild):
        for name in COMPARED:
            if name in {"usage", "dropped_variables"} and outcome_unknown(other):
                continue
            if (was := one.turn.get(name)) != (now := other.turn.get(name)):
                yield f"{other.place}: {name} is {_cut(now)}, without chaos {_cut(was)} ({code_of(other)})"
                break


def steps_are_as_without_chaos(calm: Round, wild: Round) -> Iterator[str]:
    by_name = {talk.plan.name: talk for talk in calm.talks}
    for talk in wild.talks:
        for said in talk.said:
            if outcome_unknown(said) or talk.plan.agent == "steered":
                continue
            was, now = (steps_of(each, said.planned.number) for each in (by_name[talk.plan.name], talk))
            if was != now:
                yield f"{said.place}: steps differ from those without chaos: {_first_difference(was, now)}"


def events_tell_what_they_tell_without_chaos(calm: Round, wild: Round) -> Iterator[str]:
    """Texts, calls, results and steps equal those of the calm round, without withdrawn texts."""
    for one, other in _pairs(calm, wild):
        was, now = told(one.log), told(other.log)
        if was != now and not outcome_unknown(other):
            keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
            first = keys[0]
            yield f"{other.place}: {first} tells {_cut(now.get(first))}, without chaos {_cut(was.get(first))}"


def tools_run_as_often_as_without_chaos(calm: Round, wild: Round) -> Iterator[str]:
    """The same calls run as in the calm round, except in turns with a call of unknown outcome."""
    before, after = calm.runs_of(), wild.runs_of()
    for said in wild.said():
        if outcome_unknown(said) or said.plan.agent == "steered":
            continue
        was, now = set(before[said.key]), set(after[said.key])
        if was != now:
            yield f"{said.place}: {sorted(was - now)[:3]} did not run, {sorted(now - was)[:3]} ran beyond"


def _pairs(calm: Round, wild: Round) -> Iterator[tuple[Said, Said]]:
    known = {said.key: said for said in calm.said()}
    for said in wild.said():
        if said.key in known and said.plan.agent != "steered":  # what a message finds differs between rounds
            yield known[said.key], said


def _first_difference(was: list[Event], now: list[Event]) -> str:
    if len(was) != len(now):
        return f"{len(now)} instead of {len(was)}"
    one, other = next((one, other) for one, other in zip(was, now, strict=True) if one != other)
    name = next(name for name in {**one, **other} if one.get(name) != other.get(name))
    return f"{name} of step {other.get('step')} is {_cut(other.get(name))}, was {_cut(one.get(name))}"


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}…"


Invariant = Callable[["Round", "Round"], "Iterator[str]"]
INVARIANTS: list[Invariant] = [
    check for name, check in [*globals().items()] if inspect.isgeneratorfunction(check) and not name.startswith("_")
]


def breaches(calm: Round, wild: Round) -> dict[str, list[str]]:
    """Check all invariants. Return the sentences by the name of their invariant."""
    return {check.__name__: [*_sentences(check, calm, wild)] for check in INVARIANTS}


def _sentences(check: Invariant, calm: Round, wild: Round) -> Iterator[str]:
    try:
        yield from check(calm, wild)
    except Exception as error:  # noqa: BLE001 - what is broken badly enough breaks a check; the others are to be heard
        yield f"cannot be checked: {error!r}"
