"""Export of a conversation as a document, and its import: here, elsewhere, and by others."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smolsessions.store.seal import new_key
from tests.support.documents import REFUSED, without_ms
from tests.support.histories import (
    KINDS,
    SETTINGS,
    assert_consistent,
    fork,
    history_of,
    new_conversation,
    probe,
    record_of,
    roll_back,
    step_counts,
    variable_x,
)
from tests.support.json_values import places_in
from tests.support.owners import ADA, BOB, create_as, owner_line, request_as, say_as
from tests.support.problems import nothing_stored, problem, send
from tests.support.service import PLAIN, Service, json_of, shared_service, write_private
from tests.support.streaming import log_of
from tests.support.tiers import repeated
from tests.support.transfer import export, import_document, post_import, post_large_import
from tests.support.turns import DONE, ECHO, PROMPT

service = shared_service(SETTINGS)
# A service with another store and another key.
elsewhere = shared_service(SETTINGS | {"SEAL_KEYS": new_key()})


def refused(service: Service, *faults: tuple[Any, str], **query: str) -> None:
    with nothing_stored(service):
        for document, pointer in faults:
            found = problem(post_import(service, document, **query), 422, "invalid_request")
            assert pointer in [error.get("pointer") for error in found["errors"]], found


def lived(service: Service, kind: str, folder: Path) -> str:
    past = history_of(kind, folder)
    name = new_conversation(service, kind)
    past.play(service, name, 1, 7)
    roll_back(service, name, 6)
    service.play(ECHO if kind == "rememberer" else {"code": "y = 1"}, DONE, agent=kind, conversation_id=name)
    policy = [{"name": "keep_last_n_steps", "n": 3}]
    assert service.post(f"/conversations/{name}/prune", policy=policy).status_code == 200
    changed = {"metadata": {"topic": "größe", "": [1, None]}, "policy": [{"name": "token_budget", "max_tokens": 9000}]}
    changed |= {"title": "Größe"}
    assert service.client.patch(f"/conversations/{name}", json=changed).status_code == 200
    return name


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_elsewhere_is_the_same_and_goes_on_the_same(
    service: Service, elsewhere: Service, tmp_path: Path, kind: str
) -> None:
    name = lived(service, kind, tmp_path)
    document = export(service, name)
    assert (document["format"], document["version"], document["id"]) == ("smolsessions/conversation", 1, name)
    assert document["rollbacks"] == [[7, 6]]
    made = import_document(elsewhere, document, id=f"again-{kind}")
    assert made["id"] == f"again-{kind}"
    assert export(elsewhere, made["id"]) == document | {"id": made["id"]}
    large = json_of(post_large_import(elsewhere, document), 201)["id"]  # by the process that reads large ones
    assert export(elsewhere, large) == document | {"id": large}
    was = service.get(f"/conversations/{name}")
    same = ("agent", "title", "metadata", "turn_count", "step_counts", "archived_steps", "policy")
    assert {member: made[member] for member in same} == {member: was[member] for member in same}
    told: list[Any] = []
    for where, conversation in ((service, name), (elsewhere, made["id"])):
        path = f"/conversations/{conversation}"
        turns = where.get(f"{path}/turns", limit=100)["items"]
        steps = where.get(f"{path}/steps", limit=100, archived="true")["items"]
        plain = without_ms(json.dumps([turns, where.get(f"{path}/prompt")])).replace(conversation, "")
        kinds = [(s["type"], s["turn"], s["archived"] or s["rolled_back"], s["hidden"]) for s in steps]
        told.append((json.loads(plain), kinds))
    assert told[0] == told[1]
    assert [frame.event for frame in log_of(elsewhere, {"conversation_id": made["id"], "turn": 3})] == ["turn.failed"]
    assert probe(elsewhere, made["id"], kind) == probe(service, name, kind)


def test_it_is_anybodys_who_has_the_document(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB))
    with Service(tmp_path / "s", PLAIN | {"API_KEYS_FILE": str(keys)}) as locked:
        hers = create_as(locked, ADA, agent="scripted")["id"]
        say_as(locked, ADA, "hello", hers)
        document = request_as(locked, ADA, "GET", f"/conversations/{hers}/export").json()
        assert '"ada"' not in json.dumps(document)
        his = request_as(locked, BOB, "POST", f"/imports?id={hers}", document)
        assert his.status_code == 201
        for_bob = request_as(locked, BOB, "GET", f"/conversations/{hers}/export").json()
        assert for_bob == document
        say_as(locked, BOB, "more", hers)
        assert request_as(locked, ADA, "GET", f"/conversations/{hers}").json()["turn_count"] == 1
        assert request_as(locked, BOB, "GET", f"/conversations/{hers}").json()["turn_count"] == 2


def test_an_import_can_be_forked_and_gone_back_in_as_far_as_is_known(service: Service) -> None:
    turn = service.play(ECHO, {"say": "one"})
    name = turn["conversation_id"]
    for text in ("two", "three"):
        service.follow_up(turn, ECHO, {"say": text})
    made = import_document(service, export(service, name))["id"]
    service.play(ECHO, {"say": "four"}, conversation_id=made)
    for last in (2, 3, 1):
        assert step_counts(fork(service, made, turn=last)) == {"task": last, "action": 2 * last}
        assert step_counts(roll_back(service, made, last)) == {"task": last, "action": 2 * last}
    assert step_counts(roll_back(service, made, 0)) == {}
    assert step_counts(roll_back(service, made, 4)) == {"task": 4, "action": 8}
    assert_consistent(service, made)


def test_an_empty_conversation_and_one_whose_steps_are_gone_go_round(service: Service) -> None:
    empty = new_conversation(service, "scripted")
    document = export(service, empty)
    made = import_document(service, document)
    assert export(service, made["id"]) == document | {"id": made["id"]}
    assert_consistent(service, made["id"])
    turn = service.play({"code": "x = 5"}, DONE, agent="code")
    name = turn["conversation_id"]
    roll_back(service, name, 0)
    assert service.post(f"/conversations/{name}/prune", destroy=True).status_code == 200
    roll_back(service, name, 1)
    made = import_document(service, export(service, name))
    assert (step_counts(made), made["turn_count"]) == ({}, 1)
    assert variable_x(service, made["id"]) == 5


def test_variables_that_no_document_holds_are_named_and_the_model_is_told(service: Service) -> None:
    code = "a = {'n': [1, 2.5, None, 'é']}\npair = (1, 2)\ndef f():\n    return 7\nb = 3"
    turn = service.play({"code": code}, DONE, agent="code")
    document = export(service, turn["conversation_id"])
    assert {(it["kind"], it["name"]) for it in document["not_exported"]} == {("variable", "pair"), ("variable", "f")}
    assert document["variables"][""]["code"] == {"a": {"n": [1, 2.5, None, "é"]}, "b": 3}
    made = import_document(service, document)
    body = {"agent": "code", "conversation_id": made["id"]}
    shown = json.loads(service.play({"shown": True}, **body)["reply"])
    assert any("f, pair" in text and "gone" in text for _, text in shown), shown
    last = service.play({"code": "print(a, b)"}, {"code": "f()"}, {"code": "final_answer(a)"}, **body)
    assert last["output"] == {"n": [1, 2.5, None, "é"]}
    errors = [step["error"] for step in service.steps(last) if step["type"] == "action" and step["error"]]
    assert len(errors) == 1


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    turn = service.play(ECHO, {"say": "one"})
    service.follow_up(turn, ECHO, {"say": "two"})
    return export(service, turn["conversation_id"])


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with another value at a place. `...` removes the place."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")[1:]]
    place: Any = copy
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return copy


HALF = "\ud83d"
WRONG: list[tuple[str, Any, str]] = [
    *REFUSED["documents"],
    ("/version", ..., "/version"),
    ("/metadata", {"a": HALF}, "/metadata"),
    ("/turns/1", ..., "/turns"),
    ("/turns/0/message", HALF, "/turns/0/message"),
    ("/turns/0/message", None, "/turns/0/message"),
    ("/turns/0/tool_calls/0/arguments", ..., "/turns/0/tool_calls/0/arguments"),
    ("/turns/0/tool_calls/0/duration_ms", 10**400, "/turns/0/tool_calls/0/duration_ms"),
    ("/turns/0/additional_args", {"a": [1] * 1_000_001}, "/turns/0/additional_args"),
    ("/rollbacks", [[1, 0]] * 1001, "/rollbacks"),
    ("/turns", [{}] * 10_001, "/turns"),
]


def test_a_document_that_is_wrong_is_refused_with_the_place(service: Service, document: dict[str, Any]) -> None:
    refused(service, *((changed(document, path, value), pointer) for path, value, pointer in WRONG))


NUMBERS: list[Any] = [0, 1, 2, -1, 0.5, 1e308, 2**31, 2**63, 2**200, 10**400]
VALUES = st.sampled_from([*NUMBERS, None, True, False, "", "x", "finished", HALF, "\0", [], [1], {}, {"a": 1}])


@repeated(8)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=VALUES)
def test_a_changed_document_is_refused_or_whole(
    _time: int, service: Service, document: dict[str, Any], data: st.DataObject, value: Any
) -> None:
    found = changed(document, "/rollbacks", [[1, 0]])
    part, key = data.draw(st.sampled_from(places_in(found)))
    part[key] = value
    response = post_import(service, found)
    if response.status_code != 201:
        problem(response, response.status_code, response.json()["code"])
        assert response.status_code == 422
        return
    where = f"/conversations/{response.json()['id']}"
    for path in ("", "/turns", "/steps", "/prompt", "/export"):
        assert service.client.get(where + path).status_code == 200, path
    agent = response.json()["agent"]
    last = service.play(DONE, agent=agent, conversation_id=response.json()["id"])
    assert last["turn"] == len(found["turns"]) + 1
    assert service.client.delete(where).status_code == 204


def test_bodies_that_are_no_json_or_none(service: Service) -> None:
    problem(send(service, "POST", "/imports", "{"), 400, "malformed")
    problem(send(service, "POST", "/imports", ""), 400, "malformed")
    problem(send(service, "POST", "/imports", "{}", "text/plain"), 415, "unsupported_media_type")
    twice = send(service, "POST", "/imports", '{"format": 1, "format": 2}')
    assert "twice" in problem(twice, 422, "invalid_request")["detail"]
    problem(send(service, "POST", "/imports", '{"version": NaN}'), 422, "invalid_request")


def test_an_id_is_used_once_and_the_agent_is_one_that_is_there(service: Service, document: dict[str, Any]) -> None:
    first = import_document(service, document, id="mine")
    with nothing_stored(service):
        problem(service.client.post("/imports?id=mine", json=document), 409, "conversation_exists")
        problem(service.client.post("/imports?id=a%2Fb", json=document), 422, "invalid_request")
        for name in ("nobody", "ü"):
            problem(post_import(service, document, agent=name), 422, "unknown_agent")
        problem(service.client.post("/imports", json=document | {"agent": "nobody"}), 422, "unknown_agent")
    again = import_document(service, document)
    assert again["id"] not in {first["id"], document["id"]}
    other = import_document(service, document, agent="planner")
    assert other["agent"] == "planner"
    assert service.play(DONE, agent="planner", conversation_id=other["id"])["turn"] == 3
    with_code = export(service, service.play({"code": "x = 1"}, DONE, agent="code")["conversation_id"])
    refused(service, (with_code, "/variables/"), agent="scripted")


def test_an_export_has_all_turns_also_if_they_are_large(service: Service, document: dict[str, Any]) -> None:
    turns = [document["turns"][1] | {"turn": number, "message": "x" * 1024 * 1024} for number in range(1, 7)]
    name = import_document(service, document | {"turns": turns})["id"]
    assert len(service.get(f"/conversations/{name}/turns")["items"]) < len(turns)
    assert [turn["turn"] for turn in export(service, name)["turns"]] == [1, 2, 3, 4, 5, 6]


def test_steps_that_are_hidden_one_by_one_are_not_shown(service: Service, document: dict[str, Any]) -> None:
    for hidden in ([0, 1], [1], [0, 2, 4]):
        copy = json.loads(json.dumps(document))
        for place in hidden:
            copy["steps"][place]["hidden"] = True
        name = import_document(service, copy)["id"]
        steps = service.get(f"/conversations/{name}/steps", archived="true")["items"]
        assert [place for place, step in enumerate(steps) if step["hidden"] or step["archived"]] == hidden
        again = import_document(service, export(service, name))["id"]
        messages = [service.get(f"/conversations/{each}/prompt") for each in (name, again)]
        assert messages[0] == messages[1]
        assert service.play(PROMPT, conversation_id=name)["status"] == "finished"


def test_an_export_is_of_a_moment_while_turns_come(service: Service) -> None:
    turn = service.play(ECHO, {"say": "0"})
    name = turn["conversation_id"]
    with ThreadPoolExecutor(4) as pool:
        playing = [
            pool.submit(
                service.post, "/turn", conversation_id=name, message=json.dumps([ECHO, DONE]), on_busy="enqueue"
            )
            for _ in range(10)
        ]
        taken = []
        while not all(each.done() for each in playing):
            response = service.client.get(f"/conversations/{name}/export")
            if response.status_code == 200:
                taken.append(response.json())
            else:
                problem(response, 409, "busy")
    taken.append(export(service, name))
    for document in taken:
        assert [s["turn"] for s in document["steps"]] == [t["turn"] for t in document["turns"] for _ in range(3)]
        import_document(service, document)
    assert record_of(service, import_document(service, taken[-1])["id"])[0] == {
        **service.get(f"/conversations/{name}")["step_counts"]
    }
