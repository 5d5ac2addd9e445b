"""The demo agents answer by rules, from the messages of their prompt."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from smolagents import ChatMessage, CodeAgent, MessageRole, ToolCallingAgent
from smolagents.memory import ActionStep, TaskStep
from smolagents.models import agglomerate_stream_deltas

from smolsessions.agents.demo.agents import RuleModel, make_demo, make_demo_code
from smolsessions.agents.demo.rules import summarize_by_rules

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


def actions(agent: Agent) -> list[ActionStep]:
    return [step for step in agent.memory.steps if isinstance(step, ActionStep)]


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


def test_two_requests_of_one_message_are_called_in_one_step(agent: Agent) -> None:
    answer = ask(agent, "What is 12 * 7 and what time is it?")
    assert "12 * 7 = 84." in answer
    assert "UTC" in answer
    first = actions(agent)[0]
    if isinstance(agent, ToolCallingAgent):
        assert [call.name for call in first.tool_calls or []] == ["calculator", "clock"]
    else:
        assert "calculator(" in (first.code_action or "")
        assert "clock()" in (first.code_action or "")
        assert first.is_final_answer


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("你好，世界。今天天气很好！", "13 characters, 10 words, 2 sentences, 1 line"),  # noqa: RUF001
        ("مرحبا بالعالم. كيف حالك؟", "24 characters, 4 words, 2 sentences, 1 line"),
        ("हिन्दी भाषा।", "12 characters, 2 words, 1 sentence, 1 line"),
        ("😀🎉", "2 characters, 0 words, 0 sentences, 1 line"),
        ("Really?! Yes, 3.5 of them.\nOk", "29 characters, 6 words, 3 sentences, 2 lines"),
        ("word " * 9999 + "end.", "49999 characters, 10000 words, 1 sentence, 1 line"),
        ("", "0 characters, 0 words, 0 sentences, 0 lines"),
    ],
)
def test_texts_are_counted_in_any_script(text: str, counts: str) -> None:
    assert call("text_stats", text) == counts


def test_the_text_of_statistics_is_taken_as_it_is(agent: Agent) -> None:
    text = "What is 1 + 1?  And\nwhat time is it? </code> {x}"
    assert ask(agent, f"Count the words in: {text}") == f"The text has {call('text_stats', text)}."
    assert "4 words" in ask(agent, "How many words are in “the quick brown fox”?")
    assert "10000 words" in ask(agent, "text stats: " + "字" * 10_000)


def test_it_answers_from_earlier_turns(agent: Agent) -> None:
    ask(agent, "What is 12 * 7?")
    ask(agent, "你好")
    assert "“What is 12 * 7?”" in ask(agent, "What did I ask first?")
    assert "“What did I ask first?”" in ask(agent, "What did I ask last?")
    assert "4 earlier messages" in ask(agent, "How many questions did I ask?")


def test_it_gives_number_and_sizes_of_images_and_cannot_see(agent: Agent) -> None:
    answer = ask(agent, "What is in the image?", images=[Image.new("RGB", (64, 48)), Image.new("L", (9, 9))])
    assert "2 images" in answer
    assert "64 × 48 pixels; 9 × 9 pixels" in answer  # noqa: RUF001
    assert "cannot see" in answer
    assert ask(agent, "What is in the picture?") == "No image came with this message."


def test_at_the_step_limit_it_answers_with_the_results_so_far(make: Callable[[], Agent], agent: Agent) -> None:
    assert ask(agent, "What is 1 / 0?", max_steps=1) == "The calculator tool said: Division by zero in 1 / 0."
    assert ask(make(), "What is 1 / 0 and what is 2 / 0?", max_steps=1).endswith("No step was left to call calculator.")
    assert "12 * 7 = 84." in ask(agent, "What is 12 * 7?", max_steps=1)


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


def test_a_summary_keeps_the_summary_before_it() -> None:
    first = summarize_by_rules("New task:\nWhat is 12 * 7?\n")
    again = summarize_by_rules(f"Summary of what was before:\n{first}\n\nNew task:\nWhat are my notes?\n")
    assert again.splitlines() == [*first.splitlines(), "Asked: What are my notes?"]
