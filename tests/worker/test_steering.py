"""A message that joins the running turn (`on_busy: steer`): the agent reads it before its next model call."""

import json
import random
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from smolagents import MultiStepAgent
from smolagents.memory import ActionStep, FinalAnswerStep, TaskStep

from tests.support.answering import APPROVE, answer, ask, mail, read
from tests.support.approvals import TOOLS, make_plain
from tests.support.coders import make_coder
from tests.support.service import CODELESS, Gate, Service, shared_service, totals, wait_until
from tests.support.streaming import Event, check_numbers, effects, log_of, place, watching
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, ECHO, PROMPT, cancel, held_turn, png, submit_next, submit_turn, wait_for_end

pytestmark = pytest.mark.timeout(180)
NEVER: Event = {"text": "no turn plays this"}
streamed = shared_service(CODELESS)
steer = partial(submit_next, on_busy="steer")


def kinds(service: Service, turn: Event) -> list[str]:
    return [step["type"] for step in service.steps(turn)]


def steered(service: Service, turn: Event, into: Event) -> bool:
    ended = read(service, turn)
    error = ended["error"] or {}
    assert ended["status"] == "queued" or f"Turn {into['turn']} took" in error["message"], ended
    return error.get("code") == "steered"


def test_a_running_turn_takes_messages_in_order_and_their_turns_end(service: Service, tmp_path: Path) -> None:
    figure, before = 'smolsessions_turns_total{agent="scripted",code="steered",status="cancelled"}', totals(service)
    with held_turn(service, tmp_path / "gate") as turn:
        first, gone, last = (steer(service, turn, *script) for script in ([NEVER], [NEVER], [DONE]))
        assert cancel(service, gone).json()["status"] == "cancelled"
        with watching(service, first) as stream:
            stream.until("turn.queued")
            (tmp_path / "gate").touch()
            assert [(frame.event, frame.data["result"]["error"]["code"]) for frame in stream.rest()] == [
                ("turn.cancelled", "steered")
            ]
    assert wait_for_end(service, turn)["reply"] == "done"
    assert (steered(service, first, turn), steered(service, last, turn)) == (True, True)
    wait_until(lambda: totals(service).get(figure, 0) - before.get(figure, 0) == 2)
    assert read(service, gone)["error"] is None
    assert kinds(service, turn)[:5] == ["task", "action", "task", "task", "action"]
    told = [frame.data for frame in log_of(service, turn) if frame.event == "message.steered"]
    assert [(each["from_turn"], each["message"], each["attempt"]) for each in told] == [
        (2, json.dumps([NEVER]), 1),
        (4, json.dumps([DONE]), 1),
    ]


def test_a_turn_that_ends_first_leaves_the_message_to_the_next(service: Service, gate: Gate) -> None:
    turn = submit_turn(service, ECHO | {"forced": {"gate": str(gate.path)}}, max_steps=1)
    gate.reached()
    following = steer(service, turn, DONE)
    gate.open()
    assert (wait_for_end(service, turn)["reply"], wait_for_end(service, following)["reply"]) == ("it is there", "done")
    assert service.play(DONE, on_busy="steer")["reply"] == "done"  # none runs


@pytest.mark.parametrize(
    "more",
    [
        {"reset": True},
        {"max_steps": 3},
        {"approve": ["echo"]},
        {"additional_args": {"x": 1}},
        {"output_schema": {"type": "string"}},
        {"files": [{"name": "a.txt", "media_type": "text/plain", "data": "YQ=="}]},
    ],
)
def test_what_cannot_join_a_turn_is_refused(service: Service, more: Event) -> None:
    refused = service.post("/turn", message="[]", on_busy="steer", **more)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, f"/{next(iter(more))}")


def test_a_waiting_turn_takes_a_message_when_it_goes_on_and_again_in_each_replay(asking: Service) -> None:
    turn = ask(asking, {"call": [mail("steered")]}, NEVER)
    message = steer(asking, turn, {"call": [mail("again")]}, {"shown": True}, images=[png("red")])
    assert not steered(asking, message, turn)
    turn = answer(asking, turn, APPROVE, status=202)
    assert steered(asking, message, turn)
    listed = [(each["kind"], each["name"], each["step_id"], each["state"]) for each in effects(asking, turn)]
    assert listed[4:6] == [("message", "2", None, "done"), ("model", None, "2", "done")]
    ended = answer(asking, turn, APPROVE)
    assert (ended["attempts"], kinds(asking, turn)) == (3, ["task", "action", "task", "action", "action"])
    assert asking.steps(turn)[2]["images"] == read(asking, message)["images"] != []
    check_numbers(log_of(asking, turn))
    assert [frame.event for frame in log_of(asking, turn)].count("message.steered") == 1
    shown = [role for role, _ in json.loads(ended["reply"])]
    assert shown[:5] == ["user", "assistant", "tool-call", "tool-response", "user"]


def test_a_message_keeps_its_place_after_a_kill_a_fork_a_rollback_and_an_import(
    streamed: Service, tmp_path: Path
) -> None:
    gates = Gate(tmp_path / "first"), Gate(tmp_path / "second")
    turn = submit_turn(streamed, gates[0].script, NEVER, agent="streamed")
    gates[0].reached()
    message = steer(streamed, turn, {"stream": [{"gate": str(gates[1].path)}, "no call"]}, DONE)
    gates[0].open()
    gates[1].reached()  # the next model call
    streamed.kill()
    gates[1].open()
    streamed.start()
    ended = wait_for_end(streamed, turn)
    assert (ended["status"], ended["attempts"], ended["reply"]) == ("finished", 2, "done")
    assert steered(streamed, message, turn)
    assert kinds(streamed, turn) == ["task", "action", "task", "action", "action"]
    check_numbers(log_of(streamed, turn))
    assert [frame.event for frame in log_of(streamed, turn)].count("message.steered") == 1
    at = place(turn).rpartition("/turns/")[0]
    shown = streamed.get(f"{at}/prompt")["messages"]
    made = streamed.post("/imports", **streamed.get(f"{at}/export") | {"id": None})
    copies = [streamed.post(f"{at}/fork", turn=number).json()["id"] for number in (1, 2)] + [made.json()["id"]]
    assert [streamed.get(f"/conversations/{each}/prompt")["messages"] for each in copies] == [shown] * 3
    said = [streamed.play(PROMPT, agent="streamed", conversation_id=each)["reply"] for each in copies]
    assert len({streamed.play(PROMPT, agent="streamed", conversation_id=turn["conversation_id"])["reply"], *said}) == 1
    assert streamed.post(f"{at}/rollback", turn=1).status_code == 200
    assert streamed.get(f"{at}/prompt")["messages"] == shown


def bare_answer(agent: MultiStepAgent, message: str, late: Sequence[list[str]]) -> Any:
    """Run a bare agent, which gets each group of messages as tasks behind a step that waited."""
    answered, groups = None, iter(late)
    run: Any = agent.run(message, stream=True)
    for item in run:
        if isinstance(item, ActionStep) and "it is there" in (item.observations or ""):
            agent.memory.steps += map(TaskStep, next(groups))
        answered = item
    assert isinstance(answered, FinalAnswerStep)
    return answered.output


@pytest.mark.parametrize("seed", mostly_deep(range(24), range(2)))
@pytest.mark.parametrize(
    ("agent", "make"),
    [("plain", make_plain), ("wild", partial(make_coder, ("sqlite3",), tools=[*TOOLS]))],
)
def test_random_scripts_have_the_prompts_of_a_bare_agent(
    asking: Service, agent: str, make: Any, seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)

    def calls(tool: str, text: str) -> Event:
        name = "path" if tool == "wait_for" else "text"
        return {"code": f"print({tool}({text!r}))"} if agent == "wild" else {"call": [[tool, {name: text}]]}

    gates = [Gate(tmp_path / f"gate{number}") for number in range(draw.randint(1, 3))]
    scripts = [
        [
            *draw.choices([calls("echo", "a"), calls("echo", "b"), NEVER], k=draw.randint(0, 2)),
            *([calls("wait_for", str(gate.path)), NEVER] if gate else [PROMPT]),
        ]
        for gate in [*gates, None]
    ]
    first, *rest = map(json.dumps, scripts)
    late = [[*["[]"] * draw.randint(0, 1), message] for message in rest]
    turn = submit_turn(asking, *scripts[0], agent=agent)
    for gate, group in zip_longest(gates, late):
        gate.reached()
        for message in group:
            steer(asking, turn, *json.loads(message))
        gate.open()
    assert wait_for_end(asking, turn)["reply"] == bare_answer(make(), first, late)


@pytest.mark.parametrize("dialect", ["ag-ui", "ai-sdk"])
def test_a_stream_goes_on_after_a_message_that_joins(asking: Service, dialect: str, tmp_path: Path) -> None:
    gate, name = Gate(tmp_path / "gate"), secrets.token_hex(8)
    said = json.dumps([gate.script])
    message = {"id": "u1", "role": "user", "content": said, "parts": [{"type": "text", "text": said}]}
    body = {"id": name, "trigger": "submit-message", "threadId": name, "runId": "r1", "messages": [message]}
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(asking.client.post, f"/{dialect}/plain", json=body, timeout=60)
        gate.reached()
        turn: Any = asking.get(f"/conversations/{name}/turns/1")
        joins = submit_next(asking, turn, DONE, on_busy="steer")
        gate.open()
        ended = stream.result().text
    assert "RUN_FINISHED" in ended if dialect == "ag-ui" else "[DONE]" in ended
    assert wait_for_end(asking, joins)["error"]["code"] == "steered"
