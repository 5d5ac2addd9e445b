"""Memory policies at work: which steps the model is shown. What is left out stays in the memory, and on record."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, MemoryStep, TaskStep

from app.agents.own_steps import NoteStep, SummaryStep
from app.agents.weights import mark_of
from app.errors import InvalidRequestError, ServiceError
from app.policies import KeepLastNSteps, NoPruning, OwnRule, PruneOldObservations, Summarize, TokenBudget

if TYPE_CHECKING:
    from app.agents.grown import Older
    from app.agents.weights import Weights
    from app.policies import Policy, Rule

log = logging.getLogger(__name__)

Steps = Sequence[MemoryStep]
Function = Callable[[list[MemoryStep]], Sequence[MemoryStep]]
CUT_SENTENCE = "… ({left} more characters were left out)"
_ALWAYS = (TaskStep, NoteStep)
WORTH_CUTTING = 50  # characters: about as long as the word of what was left out
IMAGES_SENTENCE = "({count} images of this step were left out)"


class PolicyFailedError(ServiceError):
    """The agent's own memory policy failed; the service's log says how."""

    code = "agent_error"


@dataclass(frozen=True)
class Toolbox:
    """What rules need to know of an agent: what its steps weigh, what older ones were made to, its own functions."""

    weights: Weights
    own: dict[str, Function]
    """By import string."""
    older: Older


def bounded(steps: Steps, policy: Policy, tools: Toolbox) -> Steps:
    """Give what the model is shown of the steps, in their order; a step that is shown cut is a copy.

    Notes are always shown, but those that another one replaces. Raises `PolicyFailedError`.
    """
    for place, rule in enumerate(policy):
        steps = _RULES[type(rule)](steps, rule, tools, place)
    return steps


def begins_turn(steps: Steps, end: int | None = None) -> int:
    """Give the place where the newest turn begins, of the steps before `end`."""
    places = range(len(steps) if end is None else end)
    return next((place for place in reversed(places) if isinstance(steps[place], TaskStep)), 0)


def check_own(policy: Policy, own: dict[str, Function], pointer: str) -> None:
    """Refuse a policy that names a function which the agent does not list: it would run whatever a client names."""
    for place, rule in enumerate(policy):
        if isinstance(rule, OwnRule) and rule.name not in own:
            listed = ", ".join(own) or "none"
            raise InvalidRequestError.at(
                f"{pointer}/{place}/name", f"is no policy of this agent's own (its own_policies: {listed})"
            )


def _all(steps: Steps, _rule: Rule, _tools: Toolbox, _place: int) -> Steps:
    return steps


def _last_steps(steps: Steps, rule: Any, tools: Toolbox, place: int) -> Steps:
    left, start = rule.n, len(steps)
    while start and left:
        start -= 1
        left -= not isinstance(steps[start], _ALWAYS)
    kept = tools.older.made(place, steps, start, lambda step: step if isinstance(step, _ALWAYS) else None)
    return [*kept, *steps[start:]] if len(kept) < start else steps


def _cut_observations(steps: Steps, rule: Any, tools: Toolbox, place: int) -> Steps:
    left, start = rule.keep_last_n, len(steps)
    while start and left:
        start -= 1
        left -= isinstance(steps[start], ActionStep)

    def short(step: MemoryStep) -> MemoryStep:
        if not isinstance(step, ActionStep):
            return step
        if len(step.observations or "") <= rule.max_length + WORTH_CUTTING and not step.observations_images:
            return step
        return tools.weights.copy_of(step, rule.max_length, partial(_cut, step, rule.max_length))

    return [*tools.older.made((place, rule), steps, start, short, at_contents=True), *steps[start:]]


def _cut(step: ActionStep, max_length: int) -> ActionStep:
    short = copy.copy(step)
    text = step.observations or ""
    if len(text) > max_length + WORTH_CUTTING:
        text = text[:max_length] + CUT_SENTENCE.format(left=len(text) - max_length)
    if step.observations_images:
        text = f"{text}\n{IMAGES_SENTENCE.format(count=len(step.observations_images))}".strip()
        short.observations_images = None
    short.observations = text
    return short


def _within_budget(steps: Steps, rule: Any, tools: Toolbox, place: int) -> Steps:
    """Keep notes, the newest turn's task and its last step, whatever they weigh; then turns, the newest first.

    What is too old to fit is not looked at: a long conversation's turn costs what a short one's does.
    """
    if not steps:
        return steps

    def tokens(at: int) -> int:
        return tools.weights.one(steps[at], steps[at + 1] if at + 1 < len(steps) else None)

    def is_note(at: int) -> bool:
        return isinstance(steps[at], NoteStep)

    turn = begins_turn(steps)
    notes = tools.older.notes(place, steps, turn)
    kept = {at for at in range(turn, len(steps)) if is_note(at)} | {turn, len(steps) - 1}
    weight = tools.weights.base(steps) + sum(map(tokens, kept)) + sum(tools.weights.one(note, None) for note in notes)
    left = rule.max_tokens - weight
    for at in reversed(range(turn, len(steps))):  # of the turn that is played: the newest steps that fit
        if at not in kept:
            left -= tokens(at)
            if left < 0:
                break
            kept.add(at)
    start = end = turn
    while left >= 0 and end > 0:  # whole turns: a step without its task makes no sense to a model
        begin = begins_turn(steps, end)
        left -= sum(tokens(at) for at in range(begin, end) if not is_note(at))
        start, end = (begin if left >= 0 else start), begin
    if not start and len(kept) == len(steps) - turn:
        return steps
    older = len(notes) - sum(map(is_note, range(start, turn)))
    return [*notes[:older], *steps[start:turn], *(steps[at] for at in sorted(kept))]


def _summed_up(steps: Steps, _rule: Rule, tools: Toolbox, place: int) -> Steps:
    """Give what is shown beside the newest summary: notes, the task that is played, and what it does not cover."""
    newest = next((at for at in reversed(range(len(steps))) if isinstance(steps[at], SummaryStep)), None)
    if newest is None:
        return steps
    summary: Any = steps[newest]
    covered = max(0, newest - summary.recent)
    recent = [step for step in steps[covered:] if not isinstance(step, SummaryStep)]
    kept: list[MemoryStep] = [*tools.older.notes(place, steps, covered)]
    if covered and not any(isinstance(step, TaskStep) for step in recent):  # the turn that is played began before
        began = begins_turn(steps, covered)
        kept += [steps[began]] if isinstance(steps[began], TaskStep) else []
    return [summary, *kept, *recent]


def _own(steps: Steps, rule: Any, tools: Toolbox, _place: int) -> Steps:
    """Call the operator's function with copies: what it changes in them is shown changed, and kept as it was."""
    name = rule.name
    copies = [tools.weights.copy_of(step, name, partial(copy.copy, step)) for step in steps]
    origin = {id(one): step for one, step in zip(copies, steps, strict=True)}
    try:
        given = list(tools.own[name](copies))
    except Exception as error:
        log.exception("the memory policy %s failed", name, extra={"action": "policy.failed"})
        raise PolicyFailedError(f"The memory policy {name} failed ({type(error).__name__}).") from error
    shown: list[MemoryStep] = []
    for step in given:
        if not isinstance(step, MemoryStep):
            raise PolicyFailedError(f"The memory policy {name} gave {type(step).__name__} among the steps.")
        own = origin.get(id(step))
        if own is not None and mark_of(own) == mark_of(step):
            step = own  # noqa: PLW2901 - its messages are built already
        elif own is not None:
            tools.weights.forget_copy(own, name)
        shown.append(step)
    there = {step.number for step in shown if isinstance(step, NoteStep)}
    lost = [step for step in steps if isinstance(step, NoteStep) and step.number not in there]
    _check_whole(shown, name)
    return [*lost, *shown]


def _check_whole(steps: Steps, name: str) -> None:
    """A call without its result, or the same call twice, is what providers refuse."""
    seen: set[str] = set()
    for step in steps:
        if not isinstance(step, ActionStep) or not step.tool_calls:
            continue
        if step.observations is None and step.error is None:
            raise PolicyFailedError(f"The memory policy {name} tore a tool call and its result apart.")
        ids = {call.id for call in step.tool_calls}
        if ids & seen:
            raise PolicyFailedError(f"The memory policy {name} shows the same tool call twice.")
        seen |= ids


_RULES: dict[type, Callable[[Steps, Any, Toolbox, int], Steps]] = {
    NoPruning: _all,
    KeepLastNSteps: _last_steps,
    PruneOldObservations: _cut_observations,
    TokenBudget: _within_budget,
    Summarize: _summed_up,
    OwnRule: _own,
}
