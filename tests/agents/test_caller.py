"""Callers: agents and tools learn from the service on whose behalf they work, and from nothing else."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import smolsessions
from smolsessions import Caller
from smolsessions.web.auth import Authenticator
from tests.support.callers import ASK, FREE, MADE, PRO, keys_file, number_of, observed, play, tenants_of, told
from tests.support.owners import ADA, BOB, owner_line, request_as
from tests.support.refusals import sentence_of
from tests.support.service import ROOT, Service, run, write_private
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("tenants")
    with tenants_of(folder) as running:
        yield running


@pytest.mark.parametrize("agent", ["tenant", "plain"])
def test_a_tool_knows_owner_conversation_claims_and_metadata(tenants: Service, agent: str) -> None:
    for key, owner, claims in ((ADA, "ada", PRO), (BOB, "bob", FREE)):
        turn = play(tenants, key, ASK, DONE, agent=agent, metadata={"team": owner})
        assert told(turn, owner, claims, team=owner) in observed(tenants, key, turn)[0]


def test_parallel_calls_each_have_the_caller(tenants: Service) -> None:
    calls = {"call": [["whose", {"pause_s": 0.05}]] * 5}
    turn = play(tenants, ADA, calls, DONE)
    assert observed(tenants, ADA, turn)[0].count(told(turn, "ada", PRO)) == 5


def test_a_managed_agents_tools_have_the_caller(tenants: Service) -> None:
    inner = json.dumps([ASK, {"say": "told"}])
    turn = play(tenants, BOB, {"call": [["helper", {"task": inner}]]}, DONE, agent="lead")
    events = request_as(
        tenants, BOB, "GET", f"/conversations/{turn['conversation_id']}/turns/1/events", include_internal_tools="1"
    ).text
    assert json.dumps(told(turn, "bob", FREE))[1:-1] in events


@pytest.mark.parametrize("agent", ["coder", "threaded"])
def test_tools_called_from_code_have_the_caller(tenants: Service, agent: str) -> None:
    turn = play(tenants, ADA, {"code": "print(whose())"}, {"code": "final_answer(whose())"}, agent=agent)
    assert turn["reply"] == told(turn, "ada", PRO)
    assert told(turn, "ada", PRO) in observed(tenants, ADA, turn)[0]


def test_arguments_of_the_request_do_not_change_the_caller(tenants: Service) -> None:
    lie = {"caller": {"owner": "ada"}, "claims": PRO, "owner": "ada"}
    turn = play(tenants, BOB, ASK, DONE, additional_args=lie)
    assert told(turn, "bob", FREE) in observed(tenants, BOB, turn)[0]


def test_claims_are_neither_in_a_prompt_nor_in_an_answer(tenants: Service) -> None:
    turn = play(tenants, ADA, DONE, agent="plain")
    base = f"/conversations/{turn['conversation_id']}"
    for path in ("/messages", "/turns/1", "", "/steps", "/export", "/turns/1/events"):
        assert "seats" not in request_as(tenants, ADA, "GET", base + path).text


def test_a_factory_makes_the_agent_of_its_caller(tenants: Service) -> None:
    gold = {"call": [["gold", {}]]}
    assert "gold" in observed(tenants, ADA, play(tenants, ADA, gold, DONE))[0]
    turn = play(tenants, BOB, gold, DONE)
    [step] = request_as(tenants, BOB, "GET", f"/conversations/{turn['conversation_id']}/steps?type=action").json()[
        "items"
    ][:1]
    assert "Unknown tool gold" in json.dumps(step)


def test_a_preview_of_the_prompt_is_of_the_askers_agent(tenants: Service) -> None:
    turn = play(tenants, ADA, DONE, metadata={"team": "red"})
    path = f"/conversations/{turn['conversation_id']}/messages"
    assert "Plan pro of ada, team red." in request_as(tenants, ADA, "GET", path).text
    request_as(tenants, ADA, "PATCH", f"/conversations/{turn['conversation_id']}", {"metadata": {"team": "blue"}})
    assert "Plan pro of ada, team blue." in request_as(tenants, ADA, "GET", path).text


def test_an_agent_stays_warm_for_an_equal_caller_alone(tmp_path: Path) -> None:
    with tenants_of(tmp_path) as service:
        turn = play(service, ADA, MADE, DONE)
        where = {"conversation_id": turn["conversation_id"]}
        first = number_of(service, turn)
        play(service, ADA, MADE, DONE, **where)
        assert number_of(service, turn) == first
        keys_file(tmp_path, ada=PRO | {"seats": [2]})
        asked = play(service, ADA, MADE, ASK, DONE, **where)
        assert told(asked, "ada", PRO | {"seats": [2]}) in observed(service, ADA, turn)[-2]
        third = observed(service, ADA, turn)[-3].split()[-1]
        assert third != first
        request_as(service, ADA, "PATCH", f"/conversations/{turn['conversation_id']}", {"metadata": {"team": "red"}})
        play(service, ADA, MADE, DONE, **where)
        assert number_of(service, turn) not in {first, third}


def killed_in_a_tool(service: Service, folder: Path, agent: str) -> dict[str, Any]:
    """Play a turn of Ada's until it is inside a tool, and kill its process."""
    gate = folder / "gate"
    service.start()
    service.client.headers["Authorization"] = f"Bearer {ADA}"
    turn = submit_turn(service, {"call": [["block", {"path": str(gate)}]]}, ASK, DONE, agent=agent)
    wait_until((folder / "gate.started").exists)
    service.kill()
    return turn


def test_a_takeover_runs_with_the_claims_of_the_turn(tmp_path: Path) -> None:
    service = tenants_of(tmp_path)
    turn = killed_in_a_tool(service, tmp_path, "tenant")
    keys_file(tmp_path, ada={"plan": "none"})
    with service:
        service.client.headers["Authorization"] = f"Bearer {ADA}"
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["attempts"]) == ("finished", 2)
        assert all(told(turn, "ada", PRO) in seen for seen in observed(service, ADA, turn)[:2])


def test_a_takeover_with_another_agent_for_this_caller_replays_nothing(tmp_path: Path) -> None:
    service = tenants_of(tmp_path, DRAIN_S="1")
    turn = killed_in_a_tool(service, tmp_path, "fickle")
    service.environment["TENANT_INSTRUCTIONS"] = "Be long."  # the agent of the check at start is as it was
    with service:
        service.client.headers["Authorization"] = f"Bearer {ADA}"
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["error"]["code"], ended["attempts"]) == ("failed", "agent_changed", 2)


BAD = {
    "a list": ("[1]", "no JSON object"),
    "a word": ("pro", "no JSON object"),
    "half an object": ('{"plan": ', "no JSON object"),
    "a member twice": ('{"a": 1, "a": 2}', "no JSON object"),
    "no number": ('{"a": NaN}', "no JSON object"),
    "too deep": ('{"a":' * 600 + "1" + "}" * 600, "no JSON object"),
    "too long": (json.dumps({"a": "x" * 4096}), "longer than 4096 bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_keys_file_with_wrong_claims_is_refused(tmp_path: Path, case: str) -> None:
    column, why = BAD[case]
    keys = write_private(tmp_path / "keys", f"{owner_line('ada', ADA).strip()} {column}\n")
    sentence = sentence_of(run(tmp_path / "service", {"API_KEYS_FILE": str(keys)}, cwd=ROOT))
    assert "line 1: its claims are" in sentence
    assert why in sentence


def test_a_factory_with_another_required_parameter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("def make(caller, plan): ...\n")
    sentence = sentence_of(run(tmp_path / "service", {"AGENTS": "theirs=theirs:make"}, cwd=tmp_path))
    assert "missing 1 required positional argument: 'plan'" in sentence
    assert "without arguments, except `caller`" in sentence


def test_the_command_line_makes_a_line_with_claims(tmp_path: Path) -> None:
    status, line, key = run(tmp_path / "a", {}, "keys", "owner", "ada", "--claims", json.dumps(PRO))
    owner, digest, claims = line.strip().split(maxsplit=2)
    assert (status, owner, json.loads(claims)) == (0, "ada", PRO)
    assert hashlib.sha256(key.splitlines()[-1].encode()).hexdigest() == digest
    for wrong in ("[]", '{"plan": "\udcff"}'):
        status, _, sentence = run(tmp_path / "b", {}, "keys", "owner", "ada", "--claims", wrong)
        assert status == 2
        assert "--claims: its claims are no JSON object" in sentence


def test_claims_may_hold_text_of_any_language(tmp_path: Path) -> None:
    claims = {"name": "Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich\N{LINE SEPARATOR}"}
    keys = tmp_path / "keys"
    keys.write_bytes(f"{owner_line('ada', ADA).strip()} {json.dumps(claims, ensure_ascii=False)}\r\n".encode())
    keys.chmod(0o600)
    assert Authenticator(keys, loopback=True).identify(f"Bearer {ADA}").claims == claims


def test_a_caller_is_read_only_and_outside_of_a_turn_there_is_none() -> None:
    caller = Caller("ada", "c1", PRO)
    equal = Caller("ada", "c1", dict(reversed(PRO.items())))
    assert (caller, hash(caller), caller.metadata()) == (equal, hash(equal), {})
    assert caller not in {Caller("ada", "c1", FREE), Caller("ada", "c1"), Caller("bob", "c1", PRO)}
    assert Caller("ada", "c1", {"admin": 1}) != Caller("ada", "c1", {"admin": True})
    for change in ("claims", "owner"):
        with pytest.raises(AttributeError):
            setattr(caller, change, {})
    caller.claims["plan"] = "free"
    caller.claims["seats"].append(2)
    assert json.loads(json.dumps(caller.claims)) == PRO
    assert "pro" not in repr(caller)  # a prompt or a log may hold it
    with pytest.raises(LookupError, match="inside a tool"):
        smolsessions.current_caller()
