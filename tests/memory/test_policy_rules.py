"""Invariants of the rules of memory policies, over steps in any order, and caches that yield what fresh ones do."""

import copy
import random
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from smolagents import Model, ToolCallingAgent
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing, TokenUsage
from smolagents.utils import AgentMaxStepsError

from smolsessions.agents.memory import policies
from smolsessions.agents.memory.policies import PolicyFunction, RuleContext
from smolsessions.agents.memory.prompt_steps import PromptMemory, PromptStep, PromptTokens, Scale
from smolsessions.agents.memory.step_types import ESTIMATE, NoteStep, SummaryStep
from smolsessions.agents.memory.tokens import estimate_messages
from smolsessions.agents.smolagents_patches import SilentLogger, patch_agent
from smolsessions.core.policies import Policy, policy_of
from tests.support import agents, remembering
from tests.support.tiers import mostly_deep, repeated

SYSTEM = SystemPromptStep("You are an agent. " * 20)
TEXT = st.text("ab c", max_size=400)
OWN: dict[str, PolicyFunction] = {"tests:backwards": lambda steps: steps[::-1], "tests:shout": remembering.shout}


def action(observations: str | None, error: Any = None, usage: int | None = None) -> ActionStep:
    call = ToolCall("echo", {"text": "x"}, f"call_{id(object())}")
    return ActionStep(
        step_number=1,
        timing=Timing(0.0, 1.0),
        model_output="I call.",
        tool_calls=[call],
        observations=observations,
        error=error,
        token_usage=TokenUsage(usage, 1) if usage else None,
    )


def plan(text: str) -> PlanningStep:
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return PlanningStep(model_input_messages=[], model_output_message=message, plan=text, timing=Timing(0.0, 1.0))


ACTIONS = st.builds(action, TEXT, usage=st.none() | st.integers(1, 4000))
INSIDE = st.one_of(ACTIONS, ACTIONS, st.builds(plan, TEXT), st.builds(NoteStep, st.integers(1, 9), TEXT))
TURNS = st.builds(lambda task, rest: [TaskStep(task), *rest], TEXT, st.lists(INSIDE, max_size=5))
MEMORIES = st.builds(lambda turns: [step for turn in turns for step in turn], st.lists(TURNS, max_size=6))
PRUNED = [{"name": "prune_old_observations", "keep_last_n": 5}]
LAST = [{"name": "keep_last_n_steps", "n": 60}]
RULES = st.one_of(
    st.builds(lambda n: {"name": "keep_last_n_steps", "n": n}, st.integers(1, 8)),
    st.builds(
        lambda n, most: {"name": "prune_old_observations", "keep_last_n": n, "max_length": most},
        st.integers(0, 5),
        st.integers(0, 300),
    ),
    st.builds(lambda most: {"name": "token_budget", "max_tokens": most}, st.integers(1, 3000)),
    st.builds(lambda name: {"name": name}, st.sampled_from(["no_pruning", "tests:shout"])),
)


class Box(RuleContext):
    """Rules' context, with the prompt's view of each step that they were given or gave back."""

    @cached_property
    def known(self) -> dict[int, PromptStep]:
        return {}

    def of(self, steps: Sequence[MemoryStep]) -> list[PromptStep]:
        return [self.known.setdefault(id(step), PromptStep(step)) for step in steps]


def tools(memory: list[MemoryStep] | None = None) -> Box:
    agent = agents.make_scripted()
    agent.memory.steps = memory or []  # type: ignore[assignment]  # notes and summaries are steps, too
    agent.memory.system_prompt = SYSTEM
    return Box(OWN, PromptTokens(agent, PromptMemory(agent)))


def apply_policy(steps: Sequence[MemoryStep], policy: Policy, box: Box) -> list[MemoryStep]:
    shown = policies.apply_policy(box.of(steps), policy, box)
    box.known.update({id(one.step): one for one in shown})
    return [one.step for one in shown]


def places_of(shown: Sequence[MemoryStep], memory: Sequence[MemoryStep], box: Box) -> list[int]:
    at = {id(step): place for place, step in enumerate(memory)}
    return [at[id(one.origin.step)] for one in box.of(shown)]


def tokens_of(steps: Sequence[MemoryStep], box: Box) -> int:
    return sum(estimate_messages(one.messages) for one in box.of(steps))


@repeated(10)
@settings(max_examples=30, deadline=None)
@given(MEMORIES, st.lists(RULES, max_size=4))
def test_policies_keep_the_order_and_the_memory(_time: int, memory: list[MemoryStep], rules: list[Any]) -> None:
    box, before, same = tools(), copy.deepcopy(memory), list(memory)
    shown = apply_policy(memory, policy_of(rules), box)
    places = places_of(shown, same, box)
    assert places == sorted(set(places))
    assert memory == before
    assert all(one is other for one, other in zip(memory, same, strict=True))
    assert all(step.observations is not None for step in shown if isinstance(step, ActionStep))
    notes = [step for step in memory if isinstance(step, NoteStep)]
    assert [step for step in shown if isinstance(step, NoteStep)] == notes
    again = apply_policy(memory, policy_of(rules), box)
    assert again == shown
    assert all(one is other for one, other in zip(again, shown, strict=True)), "their messages would be built again"


@repeated(8)
@settings(max_examples=30, deadline=None)
@given(MEMORIES, RULES)
def test_rules_are_idempotent(_time: int, memory: list[MemoryStep], rule: Any) -> None:
    box, policy = tools(memory), policy_of(rule)
    shown = apply_policy(memory, policy, box)
    assert apply_policy(shown, policy, box) == shown


@repeated(10)
@settings(max_examples=30, deadline=None)
@given(MEMORIES, st.integers(1, 3000))
def test_a_budget_holds_if_possible_and_shows_whole_turns(_time: int, memory: list[MemoryStep], most: int) -> None:
    box = tools(memory)
    shown = apply_policy(memory, policy_of({"name": "token_budget", "max_tokens": most}), box)
    if not memory:
        return
    last = max(place for place, step in enumerate(memory) if isinstance(step, TaskStep))
    always = {last, len(memory) - 1} | {place for place, step in enumerate(memory) if isinstance(step, NoteStep)}
    places = set(places_of(shown, memory, box))
    assert always <= places
    factor = box.tokens.scale().factor
    weight = (box.tokens.before + tokens_of(shown, box)) * factor
    assert weight <= most + 1e-6 or places == always
    starts = [place for place, step in enumerate(memory) if isinstance(step, TaskStep)]
    for start, end in pairwise(starts):
        turn = set(range(start, end)) - always
        assert turn <= places or not turn & places
    if places != set(range(len(memory))):  # an omitted step would not have fitted
        newest = max(set(range(len(memory))) - places)
        turn_of = max([start for start in starts if start <= newest])
        more = {newest} if turn_of == last else set(range(turn_of, last)) - places
        assert weight + tokens_of([memory[place] for place in more], box) * factor > most - 1e-6


@repeated(5)
@settings(max_examples=30, deadline=None)
@given(MEMORIES, MEMORIES, st.integers(0, 9))
def test_notes_recent_steps_and_task_follow_a_summary(
    _time: int, before: list[MemoryStep], after: list[MemoryStep], recent: int
) -> None:
    summary = SummaryStep("short", min(recent, len(before)))
    memory = [*before, summary, *after]
    shown = apply_policy(memory, policy_of({"name": "summarize", "after_tokens": 1}), tools())
    assert shown[0] is summary
    covered = before[: len(before) - summary.recent]
    rest = [*before[len(covered) :], *after]
    assert list(shown[len(shown) - len(rest) :]) == rest
    kept = shown[1 : len(shown) - len(rest)]
    assert [step for step in kept if isinstance(step, NoteStep)] == [s for s in covered if isinstance(s, NoteStep)]
    tasks = [step for step in memory if isinstance(step, TaskStep)]
    assert not tasks or any(step is tasks[-1] for step in shown)


@repeated(5)
@settings(max_examples=30, deadline=None)
@given(MEMORIES, MEMORIES, st.integers(1, 9), st.integers(1, 3000))
def test_rules_ignore_a_summary_before_them(
    _time: int, before: list[MemoryStep], after: list[MemoryStep], n: int, most: int
) -> None:
    summary = SummaryStep("short", 0)
    memory = [*before, summary, *after]
    summarize = {"name": "summarize", "after_tokens": 1}
    rest = apply_policy(memory, policy_of(summarize), tools())[1:]
    room = most - tokens_of([summary], tools())
    for rule, bare in (
        ({"name": "keep_last_n_steps", "n": n}, {"name": "keep_last_n_steps", "n": n}),
        ({"name": "token_budget", "max_tokens": most}, {"name": "token_budget", "max_tokens": max(1, room)}),
    ):
        shown = apply_policy(memory, policy_of([summarize, rule]), tools())
        assert shown[0] is summary
        if any(isinstance(step, TaskStep) for step in rest):
            assert list(shown[1:]) == list(apply_policy(rest, policy_of(bare), tools()))


# Reported tokens


@pytest.mark.parametrize("counts", mostly_deep([0.7, 1, 2.5], fast=[2.5]), ids="counts {}".format)
@pytest.mark.parametrize("unseen", mostly_deep([0, 3000], fast=[3000]), ids="{} of tools".format)
@pytest.mark.parametrize("before", [[], PRUNED, LAST], ids=lambda rules: rules[0]["name"] if rules else "alone")
def test_a_budget_is_measured_in_the_tokens_of_the_model(before: list[Any], unseen: int, counts: float) -> None:
    """The model's count differs from the estimate, and includes tools that the service does not see."""
    agent, budget, prompts = agents.make_scripted(), 12_000, []
    builder = patch_agent(agent, {})
    agent.memory.system_prompt = SYSTEM
    assert builder
    builder.begin_turn(policy_of([*before, {"name": "token_budget", "max_tokens": budget}]))
    chance = random.Random(str((before, unseen, counts)))
    for number in range(200):
        if number % 3 == 0:
            agent.memory.steps.append(TaskStep("please do this or that " * chance.randint(1, 30)))
        prompts.append(unseen + round(counts * estimate_messages(agent.write_memory_to_messages())))
        step = action("we saw that " * chance.randint(1, 150), usage=prompts[-1])
        builder.record_estimate(step)
        agent.memory.steps.append(step)
    assert max(prompts) <= budget * 1.01
    assert max(prompts) > budget * 0.9, "and is made use of"


def conversation(turns: int, unseen: int = 300, *, is_noted: bool = False) -> list[MemoryStep]:
    """Return turns of one answer each, whose model counts a quarter more tokens than the estimate."""
    memory: list[MemoryStep] = []
    before = tools().tokens.before
    for number in range(turns):
        memory.append(TaskStep(f"question {number} " + "why " * 30))
        shown = tokens_of(memory, tools())
        memory.append(action(f"answer {number} " + "so " * 60, usage=round(1.25 * (before + shown + unseen))))
        if is_noted:
            setattr(memory[-1], ESTIMATE, shown)
    return memory


@pytest.mark.parametrize("is_noted", [True, False])
def test_the_scale_comes_from_the_last_prompt(is_noted: bool) -> None:
    memory = conversation(5, unseen=0, is_noted=is_noted)
    scale = tools(memory).tokens.scale()
    assert (round(scale.factor, 2), scale.is_reported) == (1.25, True)
    memory += [TaskStep("more"), action("was not counted")]
    assert tools(memory).tokens.scale() == scale
    for step in memory:
        if isinstance(step, ActionStep):
            step.token_usage = None
    assert tools(memory).tokens.scale() == Scale(1.0, is_reported=False)


def test_a_recorded_estimate_outweighs_the_present_memory() -> None:
    memory = conversation(6, unseen=0, is_noted=True)
    assert round(tools(memory[6:]).tokens.scale().factor, 2) == 1.25, "the first turns were pruned since"
    assert tools(conversation(9, unseen=0)[12:]).tokens.scale().factor == 2, "no more is believed without such a note"


def test_a_count_that_is_too_small_too_large_or_too_old_is_bounded() -> None:
    memory: Any = conversation(3, is_noted=True)
    uncounted = [action("not counted") for _ in range(20)]
    assert tools([*memory, *uncounted[1:]]).tokens.scale().is_reported
    assert tools([*memory, *uncounted]).tokens.scale() == Scale()
    memory[-1].token_usage = TokenUsage(10, 1)
    assert tools(memory).tokens.scale() == Scale(), "some models leave out cached tokens"
    memory[-1].token_usage = TokenUsage(10**6, 1)
    assert tools(memory).tokens.scale() == Scale(8, is_reported=True)


def test_a_forced_answer_does_not_affect_the_scale() -> None:
    memory = conversation(3, is_noted=True)
    expected = tools(memory).tokens.scale()
    forced = action("at the end of the steps", AgentMaxStepsError("no more", SilentLogger()), usage=10)
    setattr(forced, ESTIMATE, 10_000)
    assert tools([*memory, forced]).tokens.scale() == expected


# Built once


POLICIES: dict[str, Any] = {
    "no_pruning": "no_pruning",
    "keep_last_n_steps": {"name": "keep_last_n_steps", "n": 7},
    "prune_old_observations": {"name": "prune_old_observations", "keep_last_n": 2},
    "token_budget": {"name": "token_budget", "max_tokens": 4000},
    "summarize": {"name": "summarize", "after_tokens": 10},
    "cut twice": [{"name": "prune_old_observations", "keep_last_n": n, "max_length": 40 * n} for n in (5, 1)],
    "chain": [
        {"name": "prune_old_observations", "keep_last_n": 4, "max_length": 200},
        {"name": "token_budget", "max_tokens": 5000},
        {"name": "keep_last_n_steps", "n": 12},
    ],
}


def agent_of(**more: Any) -> ToolCallingAgent:
    agent = ToolCallingAgent(tools=[], model=Model(), **more)
    agent.memory.system_prompt = SystemPromptStep("system " * 200)
    return agent


def toolbox_of(agent: Any) -> tuple[PromptMemory, RuleContext]:
    memory = PromptMemory(agent)
    return memory, RuleContext({}, PromptTokens(agent, memory))


def some_step(number: int, chance: random.Random) -> Any:
    kind = chance.choices(["task", "note", "summary", "action"], [25, 8, 3, 64])[0]
    if kind == "task":
        return TaskStep("a task " * chance.randint(1, 20))
    if kind == "note":
        return NoteStep(number, "a note", chance.choice([None, max(1, number - 9)]))
    if kind == "summary":
        return SummaryStep("a summary", chance.randint(0, 3))
    step = ActionStep(
        step_number=number,
        timing=Timing(0, 1),
        tool_calls=[ToolCall("a_tool", {}, f"call_{number}")],
        observations="seen " * chance.randint(1, 300),
        token_usage=TokenUsage(1000 + 200 * number, 5),
    )
    if chance.random() < 0.1:
        step.observations_images = [Image.new("RGB", (2, 2))]
    return step


def as_shown(steps: Sequence[PromptStep]) -> list[Any]:
    return [(id(one.origin.step), [message.content for message in one.messages]) for one in steps]


def sizes_of(steps: Sequence[PromptStep]) -> list[tuple[int, int, bool]]:
    return [(one.characters, one.estimate, one.is_copy) for one in steps]


@repeated(5)
@pytest.mark.parametrize("name", POLICIES)
def test_a_growing_memory_yields_the_same_prompt_as_a_fresh_cache(_time: int, name: str) -> None:
    policy: Policy = policy_of(POLICIES[name])
    chance = random.Random(f"{name}{_time}")
    for _ in range(4):
        agent = agent_of()
        steps: list[Any] = agent.memory.steps
        memory, kept = toolbox_of(agent)
        while len(steps) < 90:
            steps += [some_step(len(steps) + more, chance) for more in range(chance.randint(1, 9))]
            fresh_memory, afresh = toolbox_of(agent)
            expected = policies.apply_policy(fresh_memory.steps(), policy, afresh)
            found = policies.apply_policy(memory.steps(), policy, kept)
            assert as_shown(found) == as_shown(expected)
            assert sizes_of(found) == sizes_of(expected)
            assert (kept.tokens.scale(), kept.tokens.before) == (afresh.tokens.scale(), afresh.tokens.before)


def test_a_change_of_policy_does_not_reuse_results() -> None:
    chance = random.Random(1)
    agent = agent_of()
    agent.memory.steps = [some_step(number, chance) for number in range(60)]
    memory, kept = toolbox_of(agent)
    for name in [*POLICIES, *reversed(POLICIES)]:
        policy, (fresh_memory, afresh) = policy_of(POLICIES[name]), toolbox_of(agent)
        expected = policies.apply_policy(fresh_memory.steps(), policy, afresh)
        assert as_shown(policies.apply_policy(memory.steps(), policy, kept)) == as_shown(expected), name


def test_a_replaced_list_of_steps_is_examined_from_its_start() -> None:
    chance = random.Random(2)
    agent = agent_of()
    agent.memory.steps = [some_step(number, chance) for number in range(40)]
    memory = PromptMemory(agent)
    memory.call_ids()
    agent.memory.steps[-1] = TaskStep("a replay replaces the last step")
    assert memory.steps()[-1].step is agent.memory.steps[-1]
    agent.memory.steps = [some_step(number, chance) for number in range(100, 150)]
    expected = {call.id for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()}
    assert set(memory.call_ids()) == expected
    assert expected


def test_an_old_step_changed_by_a_callback_that_was_registered_late_is_shown_changed() -> None:
    agent = agent_of()
    shown = patch_agent(agent, {})
    assert shown
    shown.begin_turn(())
    old = ActionStep(step_number=1, timing=Timing(0, 1), observations="secret")
    agent.memory.steps = [TaskStep("a task"), old]
    assert "secret" in str(shown())
    assert all(one is other for one, other in zip(shown()[1:], shown()[1:], strict=True)), "each is built once"
    agent.step_callbacks.register(ActionStep, lambda _: setattr(old, "observations", "censored"))
    agent.step_callbacks.callback(ActionStep(step_number=2, timing=Timing(0, 1)), agent=agent)
    shown.begin_turn(())
    assert "censored" in str(shown())
    old.observations = "censored again"
    assert "censored again" in str(shown())
