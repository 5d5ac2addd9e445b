"""The demo agents answer by rules, from the messages of their prompt."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smolagents import ChatMessage, CodeAgent, MessageRole, ToolCallingAgent
from smolagents.memory import TaskStep
from smolagents.models import agglomerate_stream_deltas

from smolsessions.agents.demo.agents import RuleModel, make_demo, make_demo_code

Agent = ToolCallingAgent | CodeAgent


@pytest.fixture(params=[make_demo, make_demo_code])
def make(request: pytest.FixtureRequest) -> Callable[[], Agent]:
    made: Callable[[], Agent] = request.param
    return made


@pytest.fixture
def agent(make: Callable[[], Agent]) -> Agent:
    return make()


def ask(agent: Agent, message: str, **options: Any) -> str:
    return str(agent.run(message, reset=False, **options))


def call(tool: str, text: str) -> str:
    return str(make_demo().tools[tool](text))


def shown(task: str, *responses: str) -> list[ChatMessage]:
    texts = [(MessageRole.USER, f"New task:\n{task}"), *((MessageRole.TOOL_RESPONSE, text) for text in responses)]
    return [ChatMessage(role=role, content=[{"type": "text", "text": text}]) for role, text in texts]


def test_it_states_that_it_is_no_language_model(agent: Agent) -> None:
    assert "no language model" in ask(agent, "Who are you?")
    assert ask(agent, "Sing me a song").startswith("I did not understand that. I am a small set of rules")
    assert ask(agent, "May I ask my question").startswith("I did not understand that.")
    assert "no LLM" in str(agent.description)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 12 * 7?", "12 * 7 = 84."),
        ("calculate (1.5 + 2) × 4", "(1.5 + 2) * 4 = 14."),  # noqa: RUF001
        ("Compute +5 - -1", "+5 - -1 = 6."),
        ("12 * 7 等于多少？", "12 * 7 = 84."),  # noqa: RUF001
        ("Hello, what is 50,000 / 4?", "50000 / 4 = 12500."),
    ],
)
def test_it_calculates(agent: Agent, question: str, answer: str) -> None:
    assert ask(agent, question) == answer


@pytest.mark.parametrize("expression", ["9**9**9", "(10**299)**9", "1/0", "0**-1", "(-8)**0.5", "1e999", "1e200*1e200"])
def test_an_impossible_calculation_is_a_value_error(expression: str) -> None:
    with pytest.raises(ValueError, match=r"too large|zero|real number"):
        call("calculator", expression)


@pytest.mark.parametrize("expression", ["", "1 +", "'a' * 3", "__import__('os')", "(" * 99, "1" * 201, "-" * 199])
def test_an_invalid_expression_is_a_value_error(expression: str) -> None:
    with pytest.raises(ValueError, match=r"expression|Only numbers"):
        call("calculator", expression)


def test_it_answers_from_earlier_turns(agent: Agent) -> None:
    ask(agent, "What is 12 * 7?")
    ask(agent, "你好")
    assert "“What is 12 * 7?”" in ask(agent, "What did I ask first?")
    assert "“What did I ask first?”" in ask(agent, "What did I ask last?")
    assert "4 earlier messages" in ask(agent, "How many questions did I ask?")


@pytest.mark.parametrize("task", ["What is 12 * 7 and what time is it?", "你好", "text stats: " + "a  b\n" * 10_000])
def test_the_joined_stream_is_the_generated_message(agent: Agent, task: str) -> None:
    agent.memory.steps.append(TaskStep(task))
    messages = agent.write_memory_to_messages()
    tools = list(agent.tools.values()) if isinstance(agent, ToolCallingAgent) else None
    options: dict[str, Any] = {"stop_sequences": ["Observation:"], "tools_to_call_from": tools}
    deltas = list(RuleModel().generate_stream(messages, **options))
    assert agglomerate_stream_deltas(deltas) == RuleModel().generate(messages, **options)
    assert 5 < len(deltas) < 250


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.one_of(st.sampled_from(["what is ", "1 / 0", " and ", "note ", "time", "\ud800"]), st.text())))
def test_it_accepts_any_message(pieces: list[str]) -> None:
    messages = shown("".join(pieces))
    for stops in (None, ["Observation:"]):
        assert RuleModel().generate(messages, stop_sequences=stops).content
    assert RuleModel().generate(messages, tools_to_call_from=list(make_demo().tools.values())).tool_calls


@pytest.mark.parametrize("text", ["a" + " " * 90_000 + "b", "note " + "a" * 90_000, "count words" + " " * 90_000 + "x"])
def test_a_long_message_costs_no_more_than_its_length(text: str) -> None:
    began = time.process_time()
    ask(make_demo(), text)
    assert time.process_time() - began < 1
