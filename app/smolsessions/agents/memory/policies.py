"""Memory policies: selection of the steps for the prompt. The memory and the record keep the other steps."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, MemoryStep, TaskStep

from smolsessions.agents.memory.step_types import NoteStep, SummaryStep
from smolsessions.core.errors import ConflictError
from smolsessions.core.policies import (
    KeepLastNSteps,
    NoPruning,
    OwnRule,
    PruneOldObservations,
    Summarize,
    TokenBudget,
)

if TYPE_CHECKING:
    from smolsessions.agents.memory.prompt_cache import RuleCache
    from smolsessions.agents.memory.step_cache import StepCache
    from smolsessions.agents.memory.tokens import PromptTokens
    from smolsessions.core.policies import Policy, Rule

log = logging.getLogger(__name__)

Steps = Sequence[MemoryStep]
PolicyFunction = Callable[[list[MemoryStep]], Sequence[MemoryStep]]
CUT_SENTENCE = "… ({left} more characters were left out)"
IMAGES_SENTENCE = "({count} images of this step were left out)"
MIN_CUT = 100  # characters: about the length of the sentence that replaces them
_ALWAYS_SHOWN = (TaskStep, NoteStep)


class PolicyFailedError(ConflictError, code="agent_error"):
    """The agent's own memory policy failed; the service's log says how."""


@dataclass(frozen=True)
class RuleContext:
    """Everything about an agent that rules use besides the steps."""

    cache: StepCache
    own_policies: Mapping[str, PolicyFunction]
    """By import string."""
    results: RuleCache
    tokens: PromptTokens


def apply_policy(steps: Steps, policy: Policy, context: RuleContext) -> Steps:
    """Return the steps for the prompt, in their order.

    A shortened step is a copy. Notes always stay. Raises `PolicyFailedError`.
    """
    for place, rule in enumerate(policy):
        steps = _RULES[type(rule)](steps, rule, context, place)
    return steps


def turn_start(steps: Steps, end: int | None = None) -> int:
    """Return the place of the newest task among the steps before `end`."""
    places = range(len(steps) if end is None else end)
    return next((place for place in reversed(places) if isinstance(steps[place], TaskStep)), 0)


def _keep_all(steps: Steps, _rule: Rule, _context: RuleContext, _place: int) -> Steps:
    return steps


def _keep_last_steps(steps: Steps, rule: Any, context: RuleContext, place: int) -> Steps:
    summary = _leading_summary(steps)
    left, start = rule.n, len(steps)
    while start > len(summary) and left:
        start -= 1
        left -= not isinstance(steps[start], _ALWAYS_SHOWN)
    kept = context.results.apply(place, steps, start, lambda step: step if isinstance(step, _ALWAYS_SHOWN) else None)
    return [*summary, *kept, *steps[start:]] if len(summary) + len(kept) < start else steps


def _cut_observations(steps: Steps, rule: Any, context: RuleContext, place: int) -> Steps:
    left, start = rule.keep_last_n, len(steps)
    while start and left:
        start -= 1
        left -= isinstance(steps[start], ActionStep)

    def shorten(step: MemoryStep) -> MemoryStep:
        if not isinstance(step, ActionStep):
            return step
        if len(step.observations or "") <= rule.max_length + MIN_CUT and not step.observations_images:
            return step
        return context.cache.copy_of(step, rule.max_length, partial(_cut, step, rule.max_length))

    return [*context.results.apply((place, rule), steps, start, shorten, compare_contents=True), *steps[start:]]


def _cut(step: ActionStep, max_length: int) -> ActionStep:
    short = copy.copy(step)
    text = step.observations or ""
    if len(text) > max_length + MIN_CUT:
        text = text[:max_length] + CUT_SENTENCE.format(left=len(text) - max_length)
    if step.observations_images:
        text = f"{text}\n{IMAGES_SENTENCE.format(count=len(step.observations_images))}".strip()
        short.observations_images = None
    short.observations = text
    return short


def _within_budget(steps: Steps, rule: Any, context: RuleContext, place: int) -> Steps:
    """Keep a summary, all notes, the newest task and the last step in any case, then the newest turns that fit."""
    if not steps:
        return steps
    weight, turn = context.cache.estimate, turn_start(steps)
    notes, summary = context.results.notes(place, steps, turn), _leading_summary(steps) if turn else ()
    kept = {at for at in range(turn, len(steps)) if isinstance(steps[at], NoteStep)} | {turn, len(steps) - 1}
    left = rule.max_tokens / context.tokens.scale().factor - context.tokens.before
    left -= sum(weight(steps[at]) for at in kept) + sum(map(weight, [*summary, *notes]))
    for at in reversed(range(turn, len(steps))):  # the newest steps of the current turn
        if at not in kept:
            left -= weight(steps[at])
            if left < 0:
                break
            kept.add(at)
    start, first = _oldest_turn(steps, turn, len(summary), left, weight), len(summary)
    if start == first and len(kept) == len(steps) - turn:
        return steps
    older = len(notes) - sum(isinstance(step, NoteStep) for step in steps[start:turn])
    return [*summary, *notes[:older], *steps[start:turn], *(steps[at] for at in sorted(kept))]


def _oldest_turn(steps: Steps, turn: int, first: int, left: float, weight: Callable[[MemoryStep], int]) -> int:
    """Return the start of the oldest turn that fits. A step without its task makes no sense to a model."""
    start = at = turn
    while left >= 0 and at > first:
        at -= 1
        left -= 0 if isinstance(steps[at], NoteStep) else weight(steps[at])
        if left >= 0 and (isinstance(steps[at], TaskStep) or at == first):
            start = at
    return start


def _leading_summary(steps: Steps) -> Steps:
    """Return the summary that an earlier rule put first, if any."""
    return steps[:1] if steps and isinstance(steps[0], SummaryStep) else ()


def _apply_summary(steps: Steps, _rule: Rule, context: RuleContext, place: int) -> Steps:
    """Replace the steps that the newest summary covers, except notes and the current task."""
    newest = next((at for at in reversed(range(len(steps))) if isinstance(steps[at], SummaryStep)), None)
    if newest is None:
        return steps
    summary: Any = steps[newest]
    covered = max(0, newest - summary.recent)
    recent = [step for step in steps[covered:] if not isinstance(step, SummaryStep)]
    kept: list[MemoryStep] = [*context.results.notes(place, steps, covered)]
    if covered and not any(isinstance(step, TaskStep) for step in recent):
        task = steps[turn_start(steps, covered)]
        kept += [task] if isinstance(task, TaskStep) else []
    return [summary, *kept, *recent]


def _apply_own(steps: Steps, rule: Any, context: RuleContext, _place: int) -> Steps:
    """Call the author's function with copies, so that the memory keeps the original steps."""
    name, cache = rule.name, context.cache
    copies = [cache.copy_of(step, name, partial(_copy_step, step)) for step in steps]
    returned = _call_own(name, context.own_policies.get(name), copies)
    shown_as = {id(one): cache.commit_copy(step, name) for one, step in zip(copies, steps, strict=True)}
    originals = {key: step for step in steps if (key := _identity(step)) is not None}
    for one in returned:
        if id(one) not in shown_as and (step := originals.get(_identity(one))):
            cache.set_origin(one, step)
    shown = [shown_as.get(id(one), one) for one in returned]
    numbers = {step.number for step in shown if isinstance(step, NoteStep)}
    lost_notes = [step for step in steps if isinstance(step, NoteStep) and step.number not in numbers]
    _check_calls(shown, steps, name, cache)
    return [*lost_notes, *shown]


def _call_own(name: str, function: PolicyFunction | None, steps: list[MemoryStep]) -> list[MemoryStep]:
    if function is None:
        raise PolicyFailedError(f"The memory policy {name} is none of this agent's own_policies any more.")
    try:
        returned = list(function(list(steps)))
    except (Exception, SystemExit) as error:
        log.exception("the memory policy %s failed", name, extra={"action": "policy.failed"})
        raise PolicyFailedError(f"The memory policy {name} failed ({type(error).__name__}).") from error
    foreign = next((one for one in returned if not isinstance(one, MemoryStep)), None)
    if foreign is not None:
        raise PolicyFailedError(f"The memory policy {name} gave {type(foreign).__name__} among the steps.")
    return returned


def _identity(step: MemoryStep) -> object:
    """Return a key that a step shares with a modified one, such as a result of `dataclasses.replace`."""
    if isinstance(step, TaskStep):
        return step.task
    timing = getattr(step, "timing", None)
    return None if timing is None else (type(step), timing.start_time, timing.end_time)


def _copy_step(step: MemoryStep) -> MemoryStep:
    """Copy a step with its lists and calls. Images and errors are shared."""
    copied = copy.copy(step)
    for name, value in vars(step).items():
        if name == "tool_calls":
            setattr(copied, name, copy.deepcopy(value))
        elif isinstance(value, list):
            setattr(copied, name, list(value))
    return copied


def _check_calls(shown: Steps, steps: Steps, name: str, cache: StepCache) -> None:
    """Refuse a call without its result and a duplicate call: providers reject such prompts."""
    unchanged = {id(step) for step in steps}
    for step in shown:
        if id(step) in unchanged or not isinstance(step, ActionStep):
            continue
        origin: Any = cache.origin(step)
        has_result = step.observations is not None or step.error is not None
        if (step.tool_calls and not has_result) or (origin.tool_calls and not step.tool_calls and has_result):
            raise PolicyFailedError(f"The memory policy {name} tore a tool call and its result apart.")
    before = _call_counts(steps)
    if any(count > max(1, before[call_id]) for call_id, count in _call_counts(shown).items()):
        raise PolicyFailedError(f"The memory policy {name} shows the same tool call twice.")


def _call_counts(steps: Steps) -> Counter[str]:
    """Count the ids of calls. Some providers repeat an id."""
    return Counter(call.id for step in steps if isinstance(step, ActionStep) for call in step.tool_calls or ())


_RULES: dict[type, Callable[[Steps, Any, RuleContext, int], Steps]] = {
    NoPruning: _keep_all,
    KeepLastNSteps: _keep_last_steps,
    PruneOldObservations: _cut_observations,
    TokenBudget: _within_budget,
    Summarize: _apply_summary,
    OwnRule: _apply_own,
}
