"""Calls that wait for a person's approval, in agents that call tools and in those that write code."""

import json
import re

import pytest

from tests.support.answering import APPROVE, REJECT, answer, ask, decisions, mail, observed, read, sent
from tests.support.service import Service
from tests.support.streaming import Event, log_of, place
from tests.support.turns import DONE, delegate, error_code

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def service(asking: Service) -> Service:
    return asking


def loop(*receivers: str, before: str = "", text: str = "'hi'") -> Event:
    return {"code": f"{before}\nfor to in {[*receivers]!r}:\n    print(send_email(to, {text}))"}


def test_a_call_waits_and_its_request_names_all_that_will_happen(service: Service) -> None:
    turn = ask(service, {"call": [mail("ann@one")]}, DONE)
    (request,) = turn["requests"]
    assert "ann@one: hi" not in sent(service)
    assert request["request_id"] == f"{turn['conversation_id']}:1:1.1"
    assert [request[name] for name in ("kind", "tool", "arguments", "agent", "step_id", "call_id")] == [
        *("approval", "send_email", {"to": "ann@one", "text": "hi"}, "mailer", "1", "1.1")
    ]
    assert request["parameters"]["required"] == ["to", "text"]
    assert [request[name] for name in ("question", "choices", "replaces")] == [None, None, None]
    assert read(service, turn)["requests"] == turn["requests"]
    event = next(frame.data for frame in log_of(service, turn, until="waiting") if frame.event == "turn.waiting")
    assert event["requests"] == turn["requests"]
    ended = answer(service, turn, APPROVE | {"reason": "fine"})
    assert sent(service).count("ann@one: hi") == 1
    approval = ended["tool_calls"][0]["approval"]
    assert (approval["decision"], approval["reason"]) == ("approved", "fine")
    assert approval["by"] == {"owner": "local", "key": None}
    assert request["asked_at"] < approval["at"] < ended["timing"]["finished_at"]
    assert ended["requests"] == []
    assert ended["tool_calls"][0]["repeated"] is False


def test_parallel_calls_without_a_rule_run_and_then_all_others_are_asked_at_once(service: Service) -> None:
    turn = ask(service, {"call": [mail("p1"), ["echo", {"text": "free"}], mail("p2"), ["echo", {"text": "too"}]]}, DONE)
    assert [request["call_id"] for request in turn["requests"]] == ["1.1", "1.3"]
    results = [frame.data for frame in log_of(service, turn, until="waiting") if frame.event == "tool.result"]
    assert sorted(result["result"] for result in results) == ["free", "too"]
    ended = answer(service, turn, APPROVE, APPROVE)
    assert decisions(ended) == [("send_email", "approved"), ("echo", None), ("send_email", "approved"), ("echo", None)]
    assert observed(service, turn)[0] == "sent to p1\nfree\nsent to p2\ntoo"
    assert [call["repeated"] for call in ended["tool_calls"]] == [False] * 4


def test_parallel_calls_open_a_hundred_requests_at_most(service: Service) -> None:
    turn = ask(service, {"call": [mail(f"many{number}") for number in range(110)]}, DONE)
    assert len(turn["requests"]) == 100
    rest = answer(service, turn, *[REJECT] * 100, status=202)
    assert len(rest["requests"]) == 10
    assert answer(service, rest, *[REJECT] * 10)["status"] == "finished"


def test_calls_with_large_schemas_are_asked_in_parts(service: Service) -> None:
    calls = [["wordy", {"text": str(number)}] for number in range(40)]
    turn = ask(service, {"call": calls}, DONE, agent="wordy")
    assert 30 < len(turn["requests"]) < 40
    rest = answer(service, turn, *[APPROVE] * len(turn["requests"]), status=202)
    assert len(rest["requests"]) == 40 - len(turn["requests"])
    assert decisions(answer(service, rest, *[APPROVE] * len(rest["requests"]))) == [("wordy", "approved")] * 40


def test_the_model_reads_that_a_person_rejected_its_call_and_why(service: Service) -> None:
    turn = ask(service, {"call": [mail("rejected@one"), ["echo", {"text": "x"}]]}, DONE)
    ended = answer(service, turn, REJECT | {"reason": "not today"})
    assert (ended["status"], ended["reply"]) == ("finished", "done")
    sentence = "[rejected] A person rejected this call of send_email. It was not made. Reason: not today"
    assert observed(service, turn)[0] == f"{sentence}\nx"
    assert ended["tool_call_names"] == ["echo"]
    assert [call["ok"] for call in ended["tool_calls"]] == [False, True]
    result = next(frame.data for frame in log_of(service, turn) if sentence in str(frame.data.get("error")))
    assert (result["ok"], result["result"]) == (False, None)
    assert "rejected@one: hi" not in sent(service)


def test_a_person_may_change_the_arguments_and_the_model_is_told(service: Service) -> None:
    turn = ask(service, {"call": [mail("wrong@one", "hi"), mail("same@one")]}, DONE)
    new, same = {"to": "right@one", "text": "hello"}, turn["requests"][1]["arguments"]
    ended = answer(service, turn, APPROVE | {"arguments": new}, APPROVE | {"arguments": same})
    assert decisions(ended) == [("send_email", "edited"), ("send_email", "approved")]
    assert ended["tool_calls"][0]["arguments"] == new
    assert [line for line in sent(service) if "@one: hello" in line] == ["right@one: hello"]
    assert "wrong@one: hi" not in sent(service)
    said = f"A person changed the arguments of send_email to {json.dumps(new, separators=(',', ':'))}."
    assert observed(service, turn)[0] == f"sent to right@one\nsent to same@one\n{said}"


def test_a_loop_over_approvals_within_one_block_is_answered_one_by_one(service: Service) -> None:
    block = loop(*"vwxyz", before="import random\nchance = random.random()\necho('once')", text="str(chance)")
    turn = ask(service, block, {"code": "print(chance)"}, DONE, agent="code-mailer")
    texts = set()
    for number, to in enumerate("vwxyz", 1):
        (request,) = turn["requests"]
        assert (request["arguments"]["to"], request["call_id"]) == (to, f"1.{number + 2}")
        texts.add(request["arguments"]["text"])
        turn = answer(service, turn, APPROVE, status=200 if to == "z" else 202)
        assert turn["attempts"] == number + 1
    assert len(texts) == 1  # the block draws the same numbers each time
    text = texts.pop()
    assert [line for line in sent(service) if line.endswith(text)] == [f"{to}: {text}" for to in "vwxyz"]
    assert observed(service, turn)[1].startswith(f"Execution logs:\n{text}\n")
    assert decisions(turn) == [("echo", None), *[("send_email", "approved")] * 5]
    assert not any(call["repeated"] for call in turn["tool_calls"])


def test_code_reads_a_rejection_as_the_result_and_its_model_too(service: Service) -> None:
    block = {"code": "said = send_email('silent', 'hi')\nx = 1"}
    turn = ask(service, block, {"code": "print(said)"}, DONE, agent="code-mailer")
    ended = answer(service, turn, REJECT | {"reason": "no"})
    sentence = "[rejected] A person rejected this call of send_email. It was not made. Reason: no"
    seen = observed(service, turn)
    assert sentence in seen[0]  # although the code printed nothing
    assert sentence in seen[1]
    assert decisions(ended) == [("send_email", "rejected")]


def test_code_cannot_swallow_a_wait(service: Service) -> None:
    code = "try:\n    send_email('swallowed', 'hi')\nexcept BaseException:\n    pass\nfinally:\n    echo('in vain')"
    turn = ask(service, {"code": code}, DONE, agent="code-mailer")
    assert turn["requests"][0]["arguments"]["to"] == "swallowed"
    ended = answer(service, turn, APPROVE)
    assert sent(service).count("swallowed: hi") == 1
    assert [call["name"] for call in ended["tool_calls"]] == ["send_email", "echo"]


def test_a_block_waits_as_a_whole_and_a_person_may_change_its_code(service: Service) -> None:
    turn = ask(service, {"code": "print(send_email('block', 'hi'))"}, {"say": "end"}, agent="code-reader")
    (request,) = turn["requests"]
    assert (request["tool"], request["arguments"]) == (
        "python_interpreter",
        {"code": "print(send_email('block', 'hi'))"},
    )
    assert request["parameters"]["required"] == ["code"]
    turn = answer(service, turn, APPROVE | {"arguments": {"code": "print(6 * 7)"}}, status=202)
    assert "block: hi" not in sent(service)
    assert turn["requests"][0]["arguments"]["code"].startswith("final_answer(")
    assert answer(service, turn, APPROVE)["reply"] == "end"
    said = 'A person changed the arguments of python_interpreter to {"code":"print(6 * 7)"}.'
    assert re.search(rf"42\n.*{re.escape(said)}", observed(service, turn)[0], re.DOTALL)


def test_a_rejected_block_does_not_run_and_the_model_reads_it(service: Service) -> None:
    turn = ask(service, {"code": "echo('never')"}, {"say": "end"}, agent="code-reader")
    turn = answer(service, turn, REJECT | {"reason": "too long"}, status=202)
    ended = answer(service, turn, APPROVE)
    sentence = "[rejected] A person rejected this call of python_interpreter. It was not made. Reason: too long"
    assert sentence in observed(service, turn)[0]
    assert (ended["status"], ended["tool_call_names"]) == ("finished", [])


def test_a_rule_of_the_manager_holds_for_agents_at_any_depth(service: Service) -> None:
    script = [{"call": [delegate("lead", {"call": [delegate("deputy", {"call": [mail("deep")]}, DONE)]}, DONE)]}, DONE]
    turn = ask(service, *script, agent="office")
    assert turn["requests"][0]["tool"] == "lead"  # an agent is approved like a tool
    turn = answer(service, turn, APPROVE, status=202)
    (request,) = turn["requests"]
    assert (request["agent"], request["call_id"], request["tool"]) == (
        *("office/lead/deputy", "1.1/1.1/1.1", "send_email"),
    )
    ended = answer(service, turn, APPROVE)
    assert ended["status"] == "finished", ended["error"]
    assert sent(service).count("deep: hi") == 1
    assert [each for each in decisions(ended) if each[1]] == [("lead", "approved"), ("send_email", "approved")]


def test_code_of_a_managed_agent_waits_in_the_middle_of_its_block(service: Service) -> None:
    script = [loop("c1", "c2"), {"say": "sent"}]
    turn = ask(service, {"call": [delegate("clerk", *script), mail("beside")]}, DONE, agent="office")
    assert {request["agent"] for request in turn["requests"]} == {"office/clerk", "office"}
    turn = answer(service, turn, APPROVE, APPROVE, status=202)
    assert [request["arguments"]["to"] for request in turn["requests"]] == ["c2"]
    ended = answer(service, turn, APPROVE)
    assert ended["status"] == "finished", ended["error"]
    assert {to: sent(service).count(f"{to}: hi") for to in ("c1", "c2", "beside")} == {"c1": 1, "c2": 1, "beside": 1}


def test_a_predicate_is_asked_once_for_each_call_and_asks_a_person_if_it_raises(service: Service) -> None:
    inside = service.post("/turn", agent="judging", message=json.dumps([{"call": [mail("ann@here")]}, DONE]))
    assert (inside.status_code, decisions(inside.json())) == (200, [("send_email", None)])
    turn = ask(service, {"call": [mail("bob@there"), mail("nobody"), mail("eve@here")]}, DONE, agent="judging")
    assert [request["arguments"]["to"] for request in turn["requests"]] == ["bob@there", "nobody"]
    ended = answer(service, turn, APPROVE, REJECT)
    assert [decision for _, decision in decisions(ended)] == ["approved", "rejected", None]


def test_the_rules_of_all_managers_hold_for_an_agent_below_them(service: Service) -> None:
    inner = delegate("deputy", {"call": [mail("inner@there")]}, DONE)
    script = {"call": [delegate("lead", {"call": [inner]}, {"call": [mail("outer@there")]}, DONE)]}
    turn = ask(service, script, DONE, agent="chain")
    assert [request["agent"] for request in turn["requests"]] == ["chain/lead/deputy"]
    turn = answer(service, turn, APPROVE, status=202)
    assert [request["agent"] for request in turn["requests"]] == ["chain/lead"]
    ended = answer(service, turn, REJECT)
    assert [each for each in decisions(ended) if each[1]] == [("send_email", "approved"), ("send_email", "rejected")]


def test_an_agent_that_is_made_for_each_caller_takes_an_answer(service: Service) -> None:
    ended = answer(service, ask(service, {"call": [mail("personal")]}, DONE, agent="personal"), APPROVE)
    assert (ended["status"], decisions(ended)) == ("finished", [("send_email", "approved")]), ended["error"]


def test_a_question_gets_a_text(service: Service) -> None:
    turn = ask(service, {"call": [["ask_user", {"question": "How many?"}]]}, DONE)
    (request,) = turn["requests"]
    assert (request["kind"], request["question"], request["choices"]) == ("question", "How many?", None)
    assert (request["arguments"], request["parameters"]) == (None, None)
    ended = answer(service, turn, {"text": "  three, ü "})
    assert observed(service, turn)[0] == "three, ü"
    assert ended["tool_call_names"] == ["ask_user"]
    assert decisions(ended) == [("ask_user", None)]


def test_a_question_with_choices_takes_one_of_them(service: Service) -> None:
    question = {"question": "Which?", "choices": ["red", "green"]}
    turn = ask(service, {"code": f"print(ask_user(**{question!r}) + '!')"}, DONE, agent="code-mailer")
    assert turn["requests"][0]["choices"] == ["red", "green"]
    answer(service, turn, {"text": "blue"}, status=422)
    answer(service, turn, {"text": "green"})
    assert "green!" in observed(service, turn)[0]


@pytest.mark.parametrize("question", [{"question": " "}, {"question": "?", "choices": ["one"]}, {"question": 7}])
def test_a_question_that_is_none_is_an_error_for_the_model(service: Service, question: Event) -> None:
    response = service.post("/turn", agent="mailer", message=json.dumps([{"call": [["ask_user", question]]}, DONE]))
    turn = response.json()
    assert (response.status_code, turn["status"]) == (200, "finished")
    assert turn["tool_calls"][0]["ok"] is False if turn["tool_calls"] else True


def test_a_turn_names_more_tools_and_takes_none_away(service: Service) -> None:
    calls = {"call": [["echo", {"text": "a"}], mail("more")]}
    turn = ask(service, calls, DONE, approve=["echo"])
    assert [request["tool"] for request in turn["requests"]] == ["echo", "send_email"]
    assert turn["options"]["approve"] == ["echo"]
    answer(service, turn, REJECT, REJECT)
    turn = ask(service, calls, DONE, conversation_id=turn["conversation_id"])
    assert [request["tool"] for request in turn["requests"]] == ["send_email"]
    service.client.post(place(turn, "/cancel"))


@pytest.mark.parametrize(
    ("agent", "names", "says"),
    [("plain", ["no"], "names no tool"), ("plain", ["echo", "x*"], "names no tool"), ("threaded", ["echo"], "thread")],
)
def test_a_turn_with_a_wrong_approve_is_refused(service: Service, agent: str, names: list[str], says: str) -> None:
    response = service.post("/turn", agent=agent, message="[]", approve=names)
    assert (response.status_code, error_code(response)) == (422, "invalid_request")
    assert response.json()["errors"][0]["pointer"].startswith("/approve")
    assert says in response.text
    made = service.post("/conversations", agent=agent).json()
    assert service.client.patch(f"/conversations/{made['id']}", json={"approve": names}).status_code == 422
    assert service.post("/conversations", agent=agent, approve=names).status_code == 422
