"""The message of a turn that ended before its first step was finished stays in the memory, as in smolagents."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smolagents import MultiStepAgent
from smolagents.utils import AgentError

from tests.support import agents
from tests.support.service import Service
from tests.support.streaming import Event, posting
from tests.support.turns import ECHO, ENDLESS, PROMPT, cancel, pages, pixel, submit_next, wait_for_end

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
    unanswered = [(number, number in marked) for number in range(1, last + 1)]
    assert tasks(service, turn) == unanswered
    counts = service.get(f"/conversations/{turn['conversation_id']}")["step_counts"]
    assert counts["task"] == last
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
    used = service.follow_up(turn, use, {"say": "x"})
    assert used["reply"] == expected[0]
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
    kept = service.steps(turn)
    assert kept[0]["task"] == json.dumps([ENDLESS])
    assert tasks(service, turn)[0] == (1, agent != "streamed-planner")
    prompt = json.loads(service.follow_up(turn, {"shown": True})["reply"])
    assert prompt[0] == ["user", f"New task:\n{json.dumps([ENDLESS])}"]
    assert "on and on" not in json.dumps(prompt[1:-1])


def test_pages_forks_exports_and_rollbacks_keep_it(service: Service) -> None:
    first = service.play({"say": "sim"})
    turn = service.follow_up(first, BROKEN)
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
