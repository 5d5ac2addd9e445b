"""Memory policies: selection of the steps for the prompt. The memory and the record keep the other steps."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any

from smolagents.memory import ActionStep, MemoryStep, TaskStep

from smolsessions.agents.memory.prompt_steps import PromptStep, PromptTokens
from smolsessions.agents.memory.step_types import NoteStep, SummaryStep, begins_turn
from smolsessions.core import policies as rules
from smolsessions.core.errors import ConflictError
from smolsessions.core.policies import Policy

log = logging.getLogger(__name__)

Steps = list[PromptStep]
PolicyFunction = Callable[[list[MemoryStep]], Sequence[MemoryStep]]
CUT_SENTENCE = "… ({left} more characters were left out)"
IMAGES_SENTENCE = "({count} images of this step were left out)"
MIN_CUT = 100  # characters: about the length of the sentence that replaces them


class PolicyFailedError(ConflictError, code="agent_error"):
    """The agent's own memory policy failed; the service's log says how."""


@dataclass(frozen=True)
class RuleContext:
    """Everything about an agent that rules use besides the steps."""

    own_policies: Mapping[str, PolicyFunction]
    """By import string."""
    tokens: PromptTokens


def apply_policy(steps: Steps, policy: Policy, context: RuleContext) -> Steps:
    """Return the steps for the prompt, in their order.

    A shortened step is a copy. Notes always stay. Raises `PolicyFailedError`.
    """
    for rule in policy:
        steps = _applied(rule, steps, context)
    return steps


@singledispatch
def _applied(_rule: Any, steps: Steps, _context: RuleContext) -> Steps:  # of `NoPruning`
    return steps


def turn_start(steps: Steps, end: int | None = None) -> int:
    """Return the place of the newest task among the steps before `end`."""
    places = range(len(steps) if end is None else end)
    return next((place for place in reversed(places) if begins_turn(steps[place].step)), 0)


@_applied.register
def _keep_last_steps(rule: rules.KeepLastNSteps, steps: Steps, _context: RuleContext) -> Steps:
    first = len(_leading_summary(steps))
    left, start = rule.n, len(steps)
    while start > first and left:
        start -= 1
        left -= not steps[start].is_always_shown
    return [*steps[:first], *(one for one in steps[first:start] if one.is_always_shown), *steps[start:]]


@_applied.register
def _cut_observations(rule: rules.PruneOldObservations, steps: Steps, _context: RuleContext) -> Steps:
    left, start = rule.keep_last_n, len(steps)
    while start and left:
        start -= 1
        left -= isinstance(steps[start].step, ActionStep)
    longest = rule.max_length + MIN_CUT

    def cut(step: ActionStep) -> ActionStep:
        short, text = copy.copy(step), step.observations or ""
        if len(text) > longest:
            text = text[: rule.max_length] + CUT_SENTENCE.format(left=len(text) - rule.max_length)
        if step.observations_images:
            text = f"{text}\n{IMAGES_SENTENCE.format(count=len(step.observations_images))}".strip()
            short.observations_images = None
        short.observations = text
        return short

    def shorten(one: PromptStep) -> PromptStep:
        step = one.step
        if not isinstance(step, ActionStep) or not (step.observations_images or len(step.observations or "") > longest):
            return one
        return one.copy(rule.max_length, partial(cut, step))

    return [*map(shorten, steps[:start]), *steps[start:]]


@_applied.register
def _within_budget(rule: rules.TokenBudget, steps: Steps, context: RuleContext) -> Steps:
    """Keep a summary, all notes, the newest task and the last step in any case, then the newest turns that fit."""
    if not steps:
        return steps
    turn = turn_start(steps)
    summary = _leading_summary(steps) if turn else []
    notes = _notes(steps[:turn])
    kept = {at for at in range(turn, len(steps)) if isinstance(steps[at].step, NoteStep)} | {turn, len(steps) - 1}
    left = rule.max_tokens / context.tokens.scale().factor - context.tokens.before
    left -= sum(one.estimate for one in (*summary, *notes, *(steps[at] for at in kept)))
    for at in reversed(range(turn, len(steps))):  # the newest steps of the current turn
        if at not in kept:
            left -= steps[at].estimate
            if left < 0:
                break
            kept.add(at)
    start = at = turn
    while left >= 0 and at > len(summary):  # older turns, each as a whole: a step without its task makes no sense
        at -= 1
        left -= 0 if isinstance(steps[at].step, NoteStep) else steps[at].estimate
        if left >= 0 and (begins_turn(steps[at].step) or at == len(summary)):
            start = at
    older = len(notes) - len(_notes(steps[start:turn]))
    return [*summary, *notes[:older], *steps[start:turn], *(steps[at] for at in sorted(kept))]


def _leading_summary(steps: Steps) -> Steps:
    """Return the summary that an earlier rule put first, if any."""
    return steps[:1] if steps and isinstance(steps[0].step, SummaryStep) else []


def _notes(steps: Steps) -> Steps:
    return [one for one in steps if isinstance(one.step, NoteStep)]


@_applied.register
def _apply_summary(_rule: rules.Summarize, steps: Steps, _context: RuleContext) -> Steps:
    """Replace the steps that the newest summary covers, except notes and the current task."""
    newest = next((at for at in reversed(range(len(steps))) if isinstance(steps[at].step, SummaryStep)), None)
    if newest is None:
        return steps
    summary: Any = steps[newest].step
    covered = max(0, newest - summary.recent)
    recent = [one for one in steps[covered:] if not isinstance(one.step, SummaryStep)]
    kept = _notes(steps[:covered])
    if covered and not any(begins_turn(one.step) for one in recent):
        task = steps[turn_start(steps, covered)]
        kept += [task] if isinstance(task.step, TaskStep) else []
    return [steps[newest], *kept, *recent]


@_applied.register
def _apply_own(rule: rules.OwnRule, steps: Steps, context: RuleContext) -> Steps:
    """Call the author's function with copies, so that the memory keeps the original steps."""
    name, function = rule.name, context.own_policies.get(rule.name)
    if function is None:
        raise PolicyFailedError(f"The memory policy {name} is none of this agent's own_policies any more.")
    copies = []
    for one in steps:  # images and errors are shared
        copied = copy.copy(one.step)
        for field, value in vars(one.step).items():
            if field == "tool_calls":
                setattr(copied, field, copy.deepcopy(value))
            elif isinstance(value, list):
                setattr(copied, field, list(value))
        copies.append(copied)
    try:
        returned = list(function(list(copies)))
    except (Exception, SystemExit) as error:  # of an author
        log.exception("the memory policy %s failed", name, extra={"action": "policy.failed"})
        raise PolicyFailedError(f"The memory policy {name} failed ({type(error).__name__}).") from error
    foreign = next((one for one in returned if not isinstance(one, MemoryStep)), None)
    if foreign is not None:
        raise PolicyFailedError(f"The memory policy {name} gave {type(foreign).__name__} among the steps.")
    shown_as = {id(copied): one.as_changed(name, copied) for copied, one in zip(copies, steps, strict=True)}
    originals = {key: one for one in steps if (key := _identity(one.step)) is not None}
    shown = [shown_as.get(id(step)) or PromptStep(step, originals.get(_identity(step))) for step in returned]
    numbers = {one.step.number for one in shown if isinstance(one.step, NoteStep)}
    lost_notes = [one for one in steps if isinstance(one.step, NoteStep) and one.step.number not in numbers]
    _check_calls(shown, steps, name)
    return [*lost_notes, *shown]


def _identity(step: MemoryStep) -> object:
    """Return a key that a step shares with a modified one, such as a result of `dataclasses.replace`."""
    if isinstance(step, TaskStep):
        return step.task
    timing = getattr(step, "timing", None)
    return None if timing is None else (type(step), timing.start_time, timing.end_time)


def _check_calls(shown: Steps, steps: Steps, name: str) -> None:
    """Refuse a call without its result and a duplicate call: providers reject such prompts."""
    unchanged = set(steps)
    for one in shown:
        if one in unchanged or not isinstance(one.step, ActionStep):
            continue
        has_result = one.step.observations is not None or one.step.error is not None
        if (one.call_ids and not has_result) or (one.origin.call_ids and not one.call_ids and has_result):
            raise PolicyFailedError(f"The memory policy {name} tore a tool call and its result apart.")
    before, after = (Counter(call_id for one in each for call_id in one.call_ids) for each in (steps, shown))
    if any(count > max(1, before[call_id]) for call_id, count in after.items()):  # some providers repeat an id
        raise PolicyFailedError(f"The memory policy {name} shows the same tool call twice.")
