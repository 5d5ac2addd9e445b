"""Memory policies at work: which steps the model is shown. What is left out stays in the memory, and on record."""

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
from smolsessions.core.errors import ConflictError, InvalidRequestError
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
    from smolsessions.agents.memory.step_weights import StepCache
    from smolsessions.agents.memory.token_scale import PromptTokens
    from smolsessions.core.policies import Policy, Rule

log = logging.getLogger(__name__)

Steps = Sequence[MemoryStep]
PolicyFunction = Callable[[list[MemoryStep]], Sequence[MemoryStep]]
CUT_SENTENCE = "… ({left} more characters were left out)"
WORTH_CUTTING = 100  # characters: about as long as the words of what was left out
_ALWAYS = (TaskStep, NoteStep)
IMAGES_SENTENCE = "({count} images of this step were left out)"


class PolicyFailedError(ConflictError):
    """The agent's own memory policy failed; the service's log says how."""

    code = "agent_error"


@dataclass(frozen=True)
class RuleContext:
    """What rules need to know of an agent: what its steps weigh, what older ones were made to, its own functions."""

    weights: StepCache
    own: Mapping[str, PolicyFunction]
    """By import string."""
    older: RuleCache
    prompts: PromptTokens


def apply_policy(steps: Steps, policy: Policy, tools: RuleContext) -> Steps:
    """Give what the model is shown of the steps, in their order; a step that is shown cut is a copy.

    Notes are always shown, but those that another one replaces. Raises `PolicyFailedError`.
    """
    for place, rule in enumerate(policy):
        steps = _RULES[type(rule)](steps, rule, tools, place)
    return steps


def turn_start(steps: Steps, end: int | None = None) -> int:
    """Give the place where the newest turn begins, of the steps before `end`."""
    places = range(len(steps) if end is None else end)
    return next((place for place in reversed(places) if isinstance(steps[place], TaskStep)), 0)


def check_own_rules(policy: Policy, own: dict[str, PolicyFunction], pointer: str) -> None:
    """Refuse a policy that names a function which the agent does not list: it would run whatever a client names."""
    for place, rule in enumerate(policy):
        if isinstance(rule, OwnRule) and rule.name not in own:
            listed = ", ".join(own) or "none"
            raise InvalidRequestError.at(
                f"{pointer}/{place}/name", f"is no policy of this agent's own (its own_policies: {listed})"
            )


def _all(steps: Steps, _rule: Rule, _tools: RuleContext, _place: int) -> Steps:
    return steps


def _last_steps(steps: Steps, rule: Any, tools: RuleContext, place: int) -> Steps:
    summary = _summary_of(steps)
    left, start = rule.n, len(steps)
    while start > len(summary) and left:
        start -= 1
        left -= not isinstance(steps[start], _ALWAYS)
    kept = tools.older.made(place, steps, start, lambda step: step if isinstance(step, _ALWAYS) else None)
    return [*summary, *kept, *steps[start:]] if len(summary) + len(kept) < start else steps


def _cut_observations(steps: Steps, rule: Any, tools: RuleContext, place: int) -> Steps:
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


def _within_budget(steps: Steps, rule: Any, tools: RuleContext, place: int) -> Steps:
    """Keep a summary, notes, the newest turn's task and its last step, whatever they weigh; then the newest turns."""
    if not steps:
        return steps
    weight, turn = tools.weights.estimate, turn_start(steps)
    notes, summary = tools.older.notes(place, steps, turn), _summary_of(steps) if turn else ()
    kept = {at for at in range(turn, len(steps)) if isinstance(steps[at], NoteStep)} | {turn, len(steps) - 1}
    left = rule.max_tokens / tools.prompts.scale().factor - tools.prompts.before
    left -= sum(weight(steps[at]) for at in kept) + sum(map(weight, [*summary, *notes]))
    for at in reversed(range(turn, len(steps))):  # of the turn that is played: the newest steps that fit
        if at not in kept:
            left -= weight(steps[at])
            if left < 0:
                break
            kept.add(at)
    start = at = turn
    first = len(summary)
    while left >= 0 and at > first:  # whole turns: a step without its task makes no sense to a model
        at -= 1
        left -= 0 if isinstance(steps[at], NoteStep) else weight(steps[at])
        if left >= 0 and (isinstance(steps[at], TaskStep) or at == first):
            start = at
    if start == first and len(kept) == len(steps) - turn:
        return steps
    older = len(notes) - sum(isinstance(step, NoteStep) for step in steps[start:turn])
    return [*summary, *notes[:older], *steps[start:turn], *(steps[at] for at in sorted(kept))]


def _summary_of(steps: Steps) -> Steps:
    """Give the summary that a rule before put in the place of what was first."""
    return steps[:1] if steps and isinstance(steps[0], SummaryStep) else ()


def _summed_up(steps: Steps, _rule: Rule, tools: RuleContext, place: int) -> Steps:
    """Give what is shown beside the newest summary: notes, the task that is played, and what it does not cover."""
    newest = next((at for at in reversed(range(len(steps))) if isinstance(steps[at], SummaryStep)), None)
    if newest is None:
        return steps
    summary: Any = steps[newest]
    covered = max(0, newest - summary.recent)
    recent = [step for step in steps[covered:] if not isinstance(step, SummaryStep)]
    kept: list[MemoryStep] = [*tools.older.notes(place, steps, covered)]
    if covered and not any(isinstance(step, TaskStep) for step in recent):  # the turn that is played began before
        began = turn_start(steps, covered)
        kept += [steps[began]] if isinstance(steps[began], TaskStep) else []
    return [summary, *kept, *recent]


def _own(steps: Steps, rule: Any, tools: RuleContext, _place: int) -> Steps:
    """Call the operator's function with copies: what it changes in them is shown changed, and kept as it was."""
    name, weights = rule.name, tools.weights
    function = tools.own.get(name)
    if function is None:
        raise PolicyFailedError(f"The memory policy {name} is none of this agent's own_policies any more.")
    copies = [weights.copy_of(step, name, partial(_copied, step)) for step in steps]
    try:
        given = list(function(list(copies)))
    except (Exception, SystemExit) as error:
        log.exception("the memory policy %s failed", name, extra={"action": "policy.failed"})
        raise PolicyFailedError(f"The memory policy {name} failed ({type(error).__name__}).") from error
    foreign = next((one for one in given if not isinstance(one, MemoryStep)), None)
    if foreign is not None:
        raise PolicyFailedError(f"The memory policy {name} gave {type(foreign).__name__} among the steps.")
    left = {id(one): weights.changed(step, name) for one, step in zip(copies, steps, strict=True)}
    made_of = {key: step for step in steps if (key := _key(step)) is not None}
    for one in given:
        if id(one) not in left and (step := made_of.get(_key(one))):
            weights.note_origin(one, step)
    shown = [left.get(id(one), one) for one in given]
    there = {step.number for step in shown if isinstance(step, NoteStep)}
    lost = [step for step in steps if isinstance(step, NoteStep) and step.number not in there]
    _check_whole(shown, steps, rule, tools)
    return [*lost, *shown]


def _key(step: MemoryStep) -> object:
    """Give what a step and another one that was made of it (by `dataclasses.replace`, say) have in common."""
    if isinstance(step, TaskStep):
        return step.task
    timing = getattr(step, "timing", None)
    return None if timing is None else (type(step), timing.start_time, timing.end_time)


def _copied(step: MemoryStep) -> MemoryStep:
    """Copy a step with its lists and calls; images and errors are the same."""
    copied = copy.copy(step)
    for name, value in vars(step).items():
        if name == "tool_calls":
            setattr(copied, name, copy.deepcopy(value))
        elif isinstance(value, list):
            setattr(copied, name, list(value))
    return copied


def _check_whole(shown: Steps, steps: Steps, rule: Any, tools: RuleContext) -> None:
    """A call without its result, or the same call twice, is what providers refuse."""
    as_they_were = {id(step) for step in steps}
    for step in shown:
        if id(step) in as_they_were or not isinstance(step, ActionStep):
            continue
        origin: Any = tools.weights.origin(step)
        has_result = step.observations is not None or step.error is not None
        if (step.tool_calls and not has_result) or (origin.tool_calls and not step.tool_calls and has_result):
            raise PolicyFailedError(f"The memory policy {rule.name} tore a tool call and its result apart.")
    before = _ids(steps)
    if any(count > max(1, before[call_id]) for call_id, count in _ids(shown).items()):
        raise PolicyFailedError(f"The memory policy {rule.name} shows the same tool call twice.")


def _ids(steps: Steps) -> Counter[str]:
    """Count the ids of calls; some providers give them again, which is no policy's doing."""
    return Counter(call.id for step in steps if isinstance(step, ActionStep) for call in step.tool_calls or ())


_RULES: dict[type, Callable[[Steps, Any, RuleContext, int], Steps]] = {
    NoPruning: _all,
    KeepLastNSteps: _last_steps,
    PruneOldObservations: _cut_observations,
    TokenBudget: _within_budget,
    Summarize: _summed_up,
    OwnRule: _own,
}
