"""Managed agents that remember: their memory is that of a bare agent that is never reset, on any process."""

import json
from pathlib import Path
from typing import Any

import pytest

from smolsessions.agents.factories import check_factory
from smolsessions.core.errors import StartError
from tests.support import agents
from tests.support.service import Gate, Service, listed, shared_service
from tests.support.streaming import log_of
from tests.support.transfer import export, import_document
from tests.support.turns import DONE, ECHO, PROMPT, SHOWN, cancel, submit_turn, wait_for_end

Event = dict[str, Any]


service = shared_service({"AGENTS": listed("agents", "lead mentor"), "DEMO_AGENTS": "0"})


def helped(*scripts: list[Event], name: str = "helper") -> Event:
    return {"call": [[name, {"task": json.dumps(script)}] for script in scripts]}


def answers(service: Service, turn: Event, name: str = "helper") -> list[str]:
    ended = [each.data for each in log_of(service, turn) if each.event == "tool.result" and each.data["name"] == name]
    return [each["result"] for each in sorted(ended, key=lambda each: each["call_id"])]


def tasks(shown: str) -> list[str]:
    """Return what each task in a prompt had the helper say, except the last one."""
    texts = [text.removeprefix("New task:\n") for role, text in json.loads(shown) if text.startswith("New task:\n")]
    return [json.loads(text)[-1]["say"] for text in texts[:-1]]


def bare_digest(*scripts: list[Event]) -> str:
    """Return the digest of the last prompt of a bare helper that is never reset."""
    helper: Any = agents.make_remembering()
    return str([helper(json.dumps(script), reset=False) for script in scripts][-1])


def say(text: str) -> list[Event]:
    return [ECHO, {"say": text}]


def test_calls_of_a_conversation_share_a_memory_on_any_process(service: Service) -> None:
    turn = service.play(helped(say("a")), helped(say("b")), DONE, agent="lead")
    expected = [say("a"), say("b"), [ECHO, PROMPT]]
    assert answers(service, service.follow_up(turn, helped([ECHO, PROMPT]), DONE)) == [bare_digest(*expected)]
    service.kill()
    service.start()
    again = service.follow_up(turn, helped([ECHO, PROMPT]), DONE)
    assert answers(service, again) == [bare_digest(*expected, [ECHO, PROMPT])]
    assert tasks(answers(service, service.play(helped([SHOWN]), DONE, agent="lead"))[0]) == []


@pytest.mark.parametrize("agent", ["lead", "mentor"])
def test_a_call_continued_after_a_kill_remembers_those_before_it(service: Service, tmp_path: Path, agent: str) -> None:
    gate = Gate(tmp_path / "gate")
    before, during = say("a"), [ECHO, gate.script, PROMPT]
    script = [helped(before), helped(during)]
    if agent == "mentor":
        script = [{"code": f"helper({each['call'][0][1]['task']!r})"} for each in script]
    turn = submit_turn(service, *script, DONE, agent=agent)
    gate.reached()
    service.kill()
    gate.open()
    service.start()
    ended = wait_for_end(service, turn)
    assert (ended["status"], ended["attempts"]) == ("finished", 2), ended
    gated = [ECHO, {"call": [["wait_for", {"path": str(gate.path)}]]}, PROMPT]
    assert answers(service, turn)[-1] == bare_digest(before, gated)
    last = helped([SHOWN]) if agent == "lead" else {"code": f"final_answer(helper({json.dumps([SHOWN])!r}))"}
    assert answers(service, service.follow_up(turn, last, DONE))[-1].count("New task:") == 3


def test_a_stopped_call_leaves_nothing(service: Service, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    turn = submit_turn(service, helped(say("a")), helped([ECHO, gate.script]), DONE, agent="lead")
    gate.reached()
    cancel(service, turn)
    gate.open()
    wait_for_end(service, turn)
    for _ in range(2):
        later = service.follow_up(turn, helped([SHOWN]), {"raise": "an end"})
        assert json.loads(answers(service, later)[0])[0][1].endswith(json.dumps(say("a")))
        assert "wait_for" not in answers(service, later)[0]
        assert service.client.post(f"/conversations/{turn['conversation_id']}/rollback", json={"turn": 1}).is_success
        service.kill()
        service.start()


def test_parallel_calls_do_not_see_each_other_and_later_ones_see_both_in_order(service: Service) -> None:
    a, b, c = ([{"say": text}] for text in "abc")
    turn = service.play(helped(a), helped(b, [PROMPT], c), helped([SHOWN]), DONE, agent="lead")
    *_, seen_beside, _, seen_later = answers(service, turn)
    assert seen_beside == bare_digest(a, [PROMPT])
    texts = [text for _, text in json.loads(seen_later) if text.startswith("New task:")]
    assert texts == [f"New task:\n{json.dumps(task)}" for task in (a, b, [PROMPT], c, [SHOWN])]


def test_a_memory_follows_a_rollback_a_fork_a_reset_and_an_export(service: Service) -> None:
    turn = service.play(helped(say("a")), DONE, agent="lead")
    service.follow_up(turn, helped(say("b")), DONE)
    at = f"/conversations/{turn['conversation_id']}"
    forks = [service.post(f"{at}/fork", turn=number).json()["id"] for number in (1, 2)]
    document = export(service, turn["conversation_id"])
    assert [step["type"] for step in document["variables"]["helper"]["memory"]] == ["task", "action", "action"] * 2
    imported = import_document(service, document)["id"]
    assert export(service, imported)["variables"] == document["variables"]
    assert service.client.get(f"{at}/variables").json()["items"] == []
    assert service.post(f"{at}/rollback", turn=1).status_code == 200

    def seen(name: str, **body: Any) -> list[str]:
        script = [helped([SHOWN]), DONE]
        return tasks(answers(service, service.play(*script, agent="lead", conversation_id=name, **body))[0])

    assert [seen(n) for n in (*forks, imported, turn["conversation_id"])] == [["a"], ["a", "b"], ["a", "b"], ["a"]]
    assert seen(forks[1], reset=True) == []


def test_a_helper_s_policy_bounds_what_it_sees(service: Service) -> None:
    turn = service.play(helped(say("a"), name="brief"), helped([ECHO, SHOWN], name="brief"), DONE, agent="lead")
    shown = answers(service, turn, "brief")[-1]
    assert (shown.count("New task:"), shown.count("Observation:")) == (2, 1)


def test_a_memory_of_an_agent_that_keeps_none_is_not_imported(service: Service) -> None:
    document = export(service, service.play(helped(say("a")), DONE, agent="lead")["conversation_id"])
    memory = document["variables"]["helper"].pop("memory")
    for path, members, pointer in (
        ("", {"memory": memory}, "/variables//memory"),
        ("helper", {"memory": [{"type": "edit"}]}, "/variables/helper/memory/0/type"),
        ("helper", {"memory": [{"type": "task"}]}, "/variables/helper/memory/0/task"),
        ("helper", {"memory": [1]}, "/variables/helper/memory/0/type"),
        ("helper", {"memory": {}}, "/variables/helper/memory"),
    ):
        response = service.client.post("/imports", json=document | {"variables": {path: members}})
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer), response.text


def test_only_a_managed_agent_remembers() -> None:
    with pytest.raises(StartError, match="is for managed agents"):
        check_factory("helper", agents.make_remembering)
