"""Caches over a growing memory yield the same as fresh ones."""

import random
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pytest
from PIL import Image
from smolagents import Model, ToolCallingAgent
from smolagents.memory import ActionStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.memory.policies import RuleContext, apply_policy
from smolsessions.agents.memory.prompt_steps import FlatMap, PromptMemory, PromptStep, PromptTokens
from smolsessions.agents.memory.step_types import NoteStep, SummaryStep
from smolsessions.agents.smolagents_patches import patch_agent
from smolsessions.core.policies import Policy, policy_of
from tests.support.tiers import repeated

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
    return memory, RuleContext({}, PromptTokens(agent, memory), defaultdict(FlatMap))


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
        joined = FlatMap()
        while len(steps) < 90:
            steps += [some_step(len(steps) + more, chance) for more in range(chance.randint(1, 9))]
            fresh_memory, afresh = toolbox_of(agent)
            expected = apply_policy(fresh_memory.steps(), policy, afresh)
            found = apply_policy(memory.steps(), policy, kept)
            assert as_shown(found) == as_shown(expected)
            assert sizes_of(found) == sizes_of(expected)
            assert joined.of(found, attrgetter("messages")) == [m for one in expected for m in one.messages]
            assert (kept.tokens.scale(), kept.tokens.before) == (afresh.tokens.scale(), afresh.tokens.before)


def test_a_change_of_policy_does_not_reuse_results() -> None:
    chance = random.Random(1)
    agent = agent_of()
    agent.memory.steps = [some_step(number, chance) for number in range(60)]
    memory, kept = toolbox_of(agent)
    for name in [*POLICIES, *reversed(POLICIES)]:
        policy, (fresh_memory, afresh) = policy_of(POLICIES[name]), toolbox_of(agent)
        expected = apply_policy(fresh_memory.steps(), policy, afresh)
        assert as_shown(apply_policy(memory.steps(), policy, kept)) == as_shown(expected), name


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
