"""Prompts after a turn that went badly: its events, what the user saw, an unanswered message, nothing half done."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smolagents import MultiStepAgent
from smolagents.utils import AgentError

from tests.support import agents
from tests.support.service import Service, wait_until
from tests.support.streaming import Event, place, posting
from tests.support.streaming import spoken as pieces
from tests.support.tiers import deep
from tests.support.turns import ECHO, ENDLESS, PROMPT, SHOWN, cancel, delegate, pages, pixel, submit_next, wait_for_end

ENDS: Event = {"say": "вот"}
CODE: Event = {"code": "print(echo(text='ü'))"}
ANSWER = "É o que sei: 你好."
HALF = '{"answer": "It is 4'
GARBLED: Event = {"stream": ["I answer. ", [0, '{"answer": "It', "final_answer"], [0, " is 4"]]}
AGENTS = [
    ("scripted", ECHO),
    ("code", CODE),
    pytest.param("streamed", ECHO, marks=deep),
    pytest.param("streamed-code", CODE, marks=deep),
]
OUT_OF_STEPS = "Error:\nReached max steps."
WORDS = ("Reached max", "retry", "Error", "kaputt")


def shown_next(service: Service, turn: Event) -> list[tuple[str, str]]:
    """Play a turn that answers with its prompt. Return role and text of messages between system prompt and task."""
    prompt = json.loads(service.follow_up(turn, SHOWN)["reply"])
    assert prompt[-1] == ["user", f"New task:\n{json.dumps([SHOWN])}"]
    return [(role, text) for role, text in prompt[:-1]]


def roles(prompt: list[tuple[str, str]]) -> list[str]:
    return [role for role, _ in prompt]


def task(*script: Event) -> tuple[str, str]:
    return ("user", f"New task:\n{json.dumps(script)}")


def test_an_answer_without_an_end_fails_its_turn(service: Service) -> None:
    turn = service.play({"endless": "x" * 99_000}, agent="streamed")
    error = turn["error"]
    assert (turn["status"], error["code"], "AnswerTooLongError" in error["message"]) == ("failed", "model_error", True)


@pytest.mark.parametrize(("agent", "entry"), AGENTS)
def test_a_turn_that_ran_out_of_steps_is_shown_as_smolagents_does(service: Service, agent: str, entry: Event) -> None:
    script = [entry, entry | {"forced": ANSWER}]
    turn = service.play(*script, agent=agent, max_steps=2)
    assert (turn["status"], turn["outcome"], turn["reply"]) == ("finished", "max_steps_error", ANSWER)
    prompt = shown_next(service, turn)
    step = ["assistant", "tool-call", "tool-response"]
    assert (prompt[0], roles(prompt)) == (task(*script), ["user", *step, *step, "tool-response"])
    assert prompt[-1][1].startswith(OUT_OF_STEPS)
    assert service.steps(turn)[3]["error"]["message"] == "Reached max steps."  # the record is whole


def test_a_step_that_is_too_large_to_be_kept_leaves_its_task(service: Service) -> None:
    turn = service.play({"call": [["make", {"what": "long"}]]}, {"say": "never"})
    assert (turn["status"], turn["error"]["code"]) == ("failed", "agent_error")
    assert "larger" in turn["error"]["message"]
    assert [(step["type"], step["unanswered"]) for step in service.steps(turn)] == [("task", True)]
    assert roles(shown_next(service, turn)) == ["user"]


@pytest.mark.parametrize(("agent", "entry"), AGENTS)
def test_a_turn_that_failed_later_leaves_its_finished_steps(service: Service, agent: str, entry: Event) -> None:
    script = [entry, {"raise": "kaputt"}]
    turn = service.play(*script, agent=agent)
    assert (turn["status"], turn["step_count"]) == ("failed", 1)
    prompt = shown_next(service, turn)
    assert (prompt[0], roles(prompt)) == (task(*script), ["user", "assistant", "tool-call", "tool-response"])
    assert not any(word in text for _, text in prompt[1:] for word in WORDS)


@pytest.mark.parametrize(("agent", "entry"), [("streamed", ECHO), ("streamed-code", CODE)])
def test_a_turn_stopped_amid_a_step_leaves_the_steps_before_it(service: Service, agent: str, entry: Event) -> None:
    script = [entry, ENDLESS]
    with posting(service, *script, agent=agent) as stream:
        stream.until("message.delta", step=2)
        cancel(service, stream.seen[0].data)
        turn = stream.rest()[-1].data["result"]
    assert turn["status"] == "cancelled"
    prompt = shown_next(service, turn)
    assert (prompt[0], roles(prompt)) == (task(*script), ["user", "assistant", "tool-call", "tool-response"])
    assert not any(word in text for _, text in prompt[1:] for word in (*WORDS, "on and on"))


def test_a_turn_that_was_stopped_while_an_answer_was_forced_leaves_its_steps(service: Service, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = [ECHO | {"forced": {"gate": str(gate)}}]
    with posting(service, *script, agent="streamed", max_steps=1) as stream:
        stream.until("step.finished", step=1)
        wait_until(gate.with_name("gate.started").exists)
        cancel(service, stream.seen[0].data)
        gate.touch()
        turn = stream.rest()[-1].data["result"]
    assert (turn["status"], turn["step_count"]) == ("cancelled", 1)
    assert roles(shown_next(service, turn)) == ["user", "assistant", "tool-call", "tool-response"]


def test_a_managed_agent_that_ran_out_of_steps_reports_what_it_knew(service: Service) -> None:
    turn = service.play({"call": [delegate("lead", ECHO | {"forced": ANSWER})]}, ENDS, agent="family")
    assert (turn["status"], turn["outcome"]) == ("finished", "success")
    prompt = shown_next(service, turn)
    assert ("tool-response", f"Observation:\n{ANSWER}") in prompt
    assert not any("Reached max" in text or "retry" in text for _, text in prompt)


def test_an_answer_whose_arguments_are_no_json_is_no_answer(service: Service) -> None:
    """The text that was shown of it remains. The step that follows says that it was no answer."""
    script = [GARBLED, {"say": "It is 42."}]
    with posting(service, *script, agent="streamed") as stream:
        events = [frame.data for frame in stream]
    turn = events[-1]["result"]
    assert (turn["status"], turn["reply"], turn["step_count"]) == ("finished", "It is 42.", 2)
    calls = service.get(place(turn), include_internal_tools=True)["tool_calls"]
    assert [(call["name"], call["step_id"], call["ok"]) for call in calls] == [("final_answer", "2", True)]
    first, second = (event for event in events if event["type"] == "step.finished")
    assert (first["error"]["code"], first["is_final_answer"]) == ("parsing_error", False)
    assert (second["error"], second["is_final_answer"]) == (None, True)
    assert pieces(events, "answer", step=1) == "It is 4"
    assert pieces(events, "answer", step=2) == "It is 42."
    assert not [event for event in events if event["type"] == "message.restarted"]
    told = service.steps(turn)[1]["error"]["message"]
    assert "arguments of final_answer are no JSON" in told
    assert HALF in told
    prompt = shown_next(service, turn)
    assert roles(prompt) == ["user", "assistant", "tool-response", "assistant", "tool-call", "tool-response"]
    assert told in prompt[2][1]


UNREADABLE = [
    ("scripted", {"call": [["final_answer", HALF]]}),
    ("streamed", {"stream": [[0, '["It is 4', "final_answer"]]}),
    ("careful", {"stream": [[0, '{"answer": "a line\nbreak"}', "final_answer"]]}),
    ("planner", {"call": [["final_answer", '{"answer": 1}}']]}),
    ("family", {"stream": [[0, HALF, "final_answer"]]}),
    ("scripted", {"call": [["echo", {"text": "x"}], ["final_answer", HALF]]}),
    ("scripted", {"call": [["final_answer", '{"answer": "' + "x" * 80_000]]}),
]


@pytest.mark.parametrize(("agent", "entry"), UNREADABLE)
def test_the_model_can_answer_again_and_no_tool_is_called_beside(service: Service, agent: str, entry: Event) -> None:
    again = {"call": [["final_answer", {"sources": [], "answer": "агат"}]]} if agent == "careful" else {"say": "агат"}
    turn = service.play(entry, again, agent=agent)
    assert (turn["status"], turn["reply"], turn["tool_call_names"]) == ("finished", "агат", [])
    failed = [step["error"]["message"] for step in service.steps(turn) if step.get("error")]
    assert ["are no JSON" in message for message in failed] == [True]
    assert len(failed[0]) < 30_000


def test_who_never_gets_it_right_is_asked_for_an_answer_in_the_end(service: Service) -> None:
    turn = service.play({"call": [["final_answer", HALF]], "forced": ANSWER}, max_steps=2)
    assert (turn["outcome"], turn["reply"]) == ("max_steps_error", ANSWER)
    turn = service.play({"call": [delegate("lead", GARBLED, {"say": "вот 42"})]}, ENDS, agent="family")
    assert (turn["reply"], service.steps(turn)[1]["observations"]) == ("вот", "вот 42")


def test_what_can_be_read_is_an_answer(service: Service) -> None:
    for entry, reply in (
        ({"call": [["final_answer", {"answer": HALF}]]}, HALF),
        ({"call": [["final_answer", json.dumps({"answer": HALF})]]}, HALF),
        ({"call": [["final_answer", json.dumps("{just} a text")]]}, "{just} a text"),
        ({"call": [["final_answer", "42"]]}, "42"),
        ({"call": [["final_answer", "The cat."]]}, "The cat."),
        ({"call": [["final_answer", '{"answer": NaN}']]}, "nan"),
        ({"text": '{"name": "final_answer", "arguments": {"answer": "from a text"}}'}, "from a text"),
        ({"text": '{"name": "final_answer", "arguments": "words alone"}'}, "words alone"),
    ):
        turn = service.play(entry)
        assert (turn["status"], turn["reply"], turn["step_count"]) == ("finished", reply, 1)


def test_a_code_agent_answers_in_code_and_whatever_its_model_calls_beside_it_is_nothing(service: Service) -> None:
    stream = ["<code>\nfinal_answer('aus Code')\n</code>", [0, HALF, "final_answer"]]
    turn = service.play({"stream": stream}, agent="streamed-code")
    assert (turn["status"], turn["reply"], turn["step_count"]) == ("finished", "aus Code", 1)


BROKEN: Event = {"raise": "kaputt"}
FACTORIES: dict[str, Callable[[], MultiStepAgent]] = {
    "scripted": agents.make_scripted,
    "code": agents.make_code,
    "planner": agents.make_planner,
}


def bare_run(agent: MultiStepAgent, *script: Event, **options: Any) -> Any:
    try:
        return agent.run(json.dumps(script), reset=False, **options)
    except AgentError:
        return None


def tasks(service: Service, turn: Event, **query: Any) -> list[tuple[int, bool]]:
    page = service.get(f"/conversations/{turn['conversation_id']}/steps", type="task", limit=100, **query)
    return [(step["turn"], step["unanswered"]) for step in page["items"]]


@pytest.mark.parametrize(("agent", "before"), [("scripted", [ECHO, BROKEN]), ("code", []), ("planner", [{"say": "x"}])])
def test_the_next_model_is_shown_what_a_bare_agent_is_shown(service: Service, agent: str, before: list[Event]) -> None:
    bare, turn = FACTORIES[agent](), None
    scripts: list[list[Event]] = [*([before] if before and agent != "code" else []), [BROKEN], [BROKEN], [PROMPT]]
    for script in scripts:
        expected = bare_run(bare, *script)
        turn = service.follow_up(turn, *script) if turn else service.play(*script, agent=agent)
    assert turn
    assert turn["reply"] == expected
    last = len(scripts)
    marked = set() if agent == "planner" else {last - 2, last - 1}  # a plan is a finished step
    assert tasks(service, turn) == [(number, number in marked) for number in range(1, last + 1)]
    assert service.get(f"/conversations/{turn['conversation_id']}")["step_counts"]["task"] == last
    if agent != "code":  # smolagents counts half steps in the ids of code calls
        assert service.follow_up(turn, PROMPT)["reply"] == bare_run(bare, PROMPT)


def test_arguments_of_a_turn_that_failed_are_there_in_the_next(service: Service) -> None:
    bare = agents.make_code()
    args = {"city": "Kyōto", "n": 3}
    bare_run(bare, BROKEN, additional_args=args)
    use: Event = {"code": "print(city * n)"}
    expected = bare_run(bare, use, {"say": "x"}), bare_run(bare, PROMPT)
    turn = service.play(BROKEN, agent="code", additional_args=args)
    assert turn["status"] == "failed"
    assert service.follow_up(turn, use, {"say": "x"})["reply"] == expected[0]
    assert "KyōtoKyōtoKyōto" in service.steps(turn)[2]["observations"]
    assert service.steps(turn)[0]["task"] == bare.memory.steps[0].task  # type: ignore[union-attr]


@pytest.mark.parametrize("agent", ["streamed", "streamed-code", "streamed-planner"])
def test_a_turn_that_is_stopped_in_its_first_step_keeps_its_task(service: Service, agent: str) -> None:
    with posting(service, ENDLESS, agent=agent) as stream:
        stream.until("step.finished" if agent == "streamed-planner" else "message.delta")  # a plan is a step
        if agent == "streamed-code":
            submit_next(service, stream.seen[0].data | {"agent": {"name": agent}}, {"say": "on"}, on_busy="interrupt")
        else:
            cancel(service, stream.seen[0].data)
        turn = stream.rest()[-1].data["result"]
    assert turn["status"] == "cancelled"
    if agent == "streamed-code":
        wait_for_end(service, turn | {"turn": 2})
    assert service.steps(turn)[0]["task"] == json.dumps([ENDLESS])
    assert tasks(service, turn)[0] == (1, agent != "streamed-planner")
    prompt = json.loads(service.follow_up(turn, {"shown": True})["reply"])
    assert prompt[0] == ["user", f"New task:\n{json.dumps([ENDLESS])}"]
    assert "on and on" not in json.dumps(prompt[1:-1])


def test_pages_forks_exports_and_rollbacks_keep_it(service: Service) -> None:
    turn = service.follow_up(service.play({"say": "sim"}), BROKEN)
    at = f"/conversations/{turn['conversation_id']}"
    assert [step.get("unanswered") for (step,) in pages(service, f"{at}/steps", limit=1)] == [False, None, True]
    fork = service.post(f"{at}/fork").json()["id"]
    brought = service.post("/imports?id=brought-in-unanswered", **service.get(f"{at}/export")).json()["id"]
    expected = service.follow_up(turn, PROMPT)["reply"]
    service.post(f"{at}/rollback", turn=2)
    for conversation in (fork, brought, turn["conversation_id"]):
        assert tasks(service, {"conversation_id": conversation}) == [(1, False), (2, True)]
        assert service.follow_up(turn | {"conversation_id": conversation}, PROMPT)["reply"] == expected
    assert service.post(f"{at}/rollback", turn=1).status_code == 200
    assert tasks(service, turn) == [(1, False)]


def test_policies_take_it_for_a_turn(service: Service) -> None:
    for policy in ({"name": "keep_last_n_steps", "n": 1}, {"name": "token_budget", "max_tokens": 9000}):
        made = service.post("/conversations", agent="scripted", policy=[policy]).json()
        turn = service.play({"say": "a"}, conversation_id=made["id"])
        for script in ([BROKEN], [{"say": "b"}]):
            turn = service.follow_up(turn, *script)
        prompt = json.loads(service.follow_up(turn, {"shown": True})["reply"])
        said = [f"New task:\n{json.dumps(script)}" for script in ([{"say": "a"}], [BROKEN], [{"say": "b"}])]
        assert [text for _, text in prompt if text in said] == said


def test_an_agent_that_cannot_be_made_loses_no_message(tmp_path: Path) -> None:
    with Service(tmp_path, {"AGENTS": "fickle=tests.support.agents:make_fickle", "DEMO_AGENTS": "0"}) as service:
        turn = service.play({"say": "never"}, agent="fickle", images=[pixel()], additional_args={"a": [1, "x"]})
        assert (turn["status"], turn["error"]["code"], turn["step_count"]) == ("failed", "agent_error", 0)
        assert "hunter2" not in json.dumps(turn), "the error of the factory"
        (step,) = service.steps(turn)
        assert service.follow_up(turn, {"say": "second"})["reply"] == "second"
    bare = agents.make_scripted()
    bare_run(bare, {"say": "never"}, additional_args={"a": [1, "x"]})
    assert step["task"] == bare.memory.steps[0].task  # type: ignore[union-attr]
    assert (step["unanswered"], len(step["images"])) == (True, 1)
