"""Callers: agents and tools learn from the service on whose behalf they work. No caller reaches another one."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

import smolsessions
from smolsessions import Caller
from smolsessions.core.errors import StartError
from smolsessions.core.records import TurnOptions
from smolsessions.web.auth import Authenticator
from tests.support.owners import ADA, BOB, SECOND, create_as, owner_line, request_as
from tests.support.service import ROOT, Gate, Service, json_of, run, shared_service, wait_until, write_private
from tests.support.store_server import StoreServer
from tests.support.tenants import AGENTS
from tests.support.turns import DONE, encoded, submit_next, submit_turn, wait_for_end

PRO, FREE, OTHER = {"plan": "pro", "seats": [1, {"two": 2}]}, {"plan": "free"}, {"plan": "none", "seats": [3]}
ASK, MADE = {"call": [["whose", {}]]}, {"call": [["made", {}]]}


def keys_file(folder: Path, *, ada: dict[str, Any] = PRO) -> str:
    """Write the keys of Ada, with these claims, and of Bob. Ada's second key has other claims."""
    keys = (("ada", ADA, ada), ("bob", BOB, FREE), ("ada", SECOND, OTHER))
    lines = [f"{owner_line(owner, key).strip()} {json.dumps(claims)}\n" for owner, key, claims in keys]
    return str(write_private(folder / "keys", "".join(lines)))


def tenants_of(folder: Path, **settings: str) -> Service:
    """Return a service for these tenants, which is not started yet."""
    known = {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "API_KEYS_FILE": keys_file(folder)}
    return Service(folder / "service", known | settings)


def play(service: Service, key: str, *script: dict[str, Any], agent: str = "tenant", **body: Any) -> dict[str, Any]:
    body = {"agent": agent, "message": json.dumps(script)} | body
    turn = json_of(request_as(service, key, "POST", "/turn", body))
    assert turn["status"] == "finished", turn
    return turn


def observed(service: Service, key: str, turn: dict[str, Any]) -> list[str]:
    path = f"/conversations/{turn['conversation_id']}/steps?limit=100&type=action"
    return [str(step["observations"]) for step in request_as(service, key, "GET", path).json()["items"]]


def told(turn: dict[str, Any], owner: str, claims: dict[str, Any], **metadata: Any) -> str:
    return json.dumps([owner, turn["conversation_id"], claims, metadata], sort_keys=True)


def number_of(service: Service, turn: dict[str, Any], key: str = ADA) -> str:
    """Return the number of the agent that played `MADE` as the last step but one."""
    return observed(service, key, turn)[-2].split()[-1]


SHOWN = ("/turns/1/events", "/steps", "/prompt", "/turns/1", "/export", "")
READ_AGAIN = "the API keys are read again"
GOLD = {"call": [["gold", {}]]}
tenants = shared_service(tenants_of, on_outside=True, LOG_LEVEL="debug", DRAIN_S="1")


@pytest.fixture
def as_ada(tenants: Service) -> Iterator[Service]:
    tenants.client.headers["Authorization"] = f"Bearer {ADA}"
    yield tenants
    tenants.client.headers.pop("Authorization", None)


@contextmanager
def claims_of_ada(tenants: Service, claims: dict[str, Any]) -> Iterator[None]:
    _change_keys(tenants, claims)
    yield
    _change_keys(tenants, PRO)


def _change_keys(tenants: Service, claims: dict[str, Any]) -> None:
    before = tenants.log().count(READ_AGAIN)
    keys_file(tenants.folder.parent, ada=claims)
    wait_until(lambda: tenants.log().count(READ_AGAIN) > before or tenants.process.poll() is not None)


@pytest.mark.parametrize("agent", ["tenant", "plain"])
def test_a_tool_knows_owner_conversation_claims_and_metadata(tenants: Service, agent: str) -> None:
    lie = {"caller": {"owner": "ada"}, "claims": PRO, "owner": "ada"}  # an argument changes no caller
    for key, owner, claims in ((ADA, "ada", PRO), (BOB, "bob", FREE)):
        turn = play(tenants, key, ASK, DONE, agent=agent, metadata={"team": owner}, additional_args=lie)
        assert told(turn, owner, claims, team=owner) in observed(tenants, key, turn)[0]


def test_parallel_calls_each_have_the_caller(tenants: Service) -> None:
    turn = play(tenants, ADA, {"call": [["whose", {"pause_s": 0.05}]] * 5}, DONE)
    assert observed(tenants, ADA, turn)[0].count(told(turn, "ada", PRO)) == 5


@pytest.mark.parametrize("agent", ["coder", "threaded"])
def test_tools_called_from_code_have_the_caller(tenants: Service, agent: str) -> None:
    turn = play(tenants, ADA, {"code": "print(whose())"}, {"code": "final_answer(whose())"}, agent=agent)
    assert turn["reply"] == told(turn, "ada", PRO)
    assert told(turn, "ada", PRO) in observed(tenants, ADA, turn)[0]


def test_code_in_its_child_process_has_no_caller_but_its_tools_do(tenants: Service) -> None:
    code = "import smolsessions\nprint(whose())\nprint(smolsessions.current_caller())"
    turn = play(tenants, ADA, {"code": code}, DONE, agent="coder")
    path = f"/conversations/{turn['conversation_id']}/steps?type=action"
    step = request_as(tenants, ADA, "GET", path).json()["items"][0]
    assert "Forbidden access to function: current_caller" in json.dumps(step["error"])
    assert told(turn, "ada", PRO) in step["observations"]


def test_threads_of_a_tool_have_the_caller_if_they_copy_the_context(tenants: Service) -> None:
    for key, owner, claims in ((ADA, "ada", PRO), (BOB, "bob", FREE)):
        turn = play(tenants, key, {"call": [["threads", {}]]}, DONE, agent="plain")
        copied, bare, coroutine = observed(tenants, key, turn)[0].splitlines()[-3:]
        assert told(turn, owner, claims) in copied
        assert coroutine == told(turn, owner, claims)
        assert bare.startswith("no turn runs here, so there is no caller")


@pytest.mark.parametrize("agent", ["plain", "coder", "threaded"])
def test_a_caller_that_a_tool_returns_shows_no_claims(tenants: Service, agent: str) -> None:
    script = [{"call": [["me", {}]]}, DONE] if agent == "plain" else [{"code": "print(me())\nfinal_answer(me())"}]
    turn = play(tenants, ADA, *script, agent=agent)
    base = f"/conversations/{turn['conversation_id']}"
    pages = [request_as(tenants, ADA, "GET", base + path).text for path in SHOWN]
    assert "Caller('ada'" in pages[0]
    assert "seats" not in "".join(pages)


def test_a_factory_makes_the_agent_of_its_caller(tenants: Service) -> None:
    hers = observed(tenants, ADA, play(tenants, ADA, GOLD, GOLD, DONE))
    assert [seen.endswith("gold of ada, pro") for seen in hers[:2]] == [True, True]
    turn = play(tenants, BOB, GOLD, DONE)
    path = f"/conversations/{turn['conversation_id']}/steps?type=action"
    assert "Unknown tool gold" in json.dumps(request_as(tenants, BOB, "GET", path).json()["items"][0])


def test_a_preview_of_the_prompt_is_of_the_askers_agent(tenants: Service) -> None:
    turn = play(tenants, ADA, DONE, metadata={"team": "red"})
    path = f"/conversations/{turn['conversation_id']}/prompt"
    assert "Plan pro of ada, team red." in request_as(tenants, ADA, "GET", path).text
    request_as(tenants, ADA, "PATCH", f"/conversations/{turn['conversation_id']}", {"metadata": {"team": "blue"}})
    assert "Plan pro of ada, team blue." in request_as(tenants, ADA, "GET", path).text


def test_own_policies_have_the_caller_in_turns_and_in_previews(tenants: Service) -> None:
    turns = {key: play(tenants, key, DONE, agent="ruled") for key in (ADA, BOB)}
    paths = {key: f"/conversations/{turn['conversation_id']}/prompt" for key, turn in turns.items()}
    left_out = [request_as(tenants, key, "GET", path).json()["left_out"] for key, path in paths.items()]
    assert [found["steps"] for found in left_out] == [0, 2]


@pytest.mark.parametrize("agent", ["tenant", "plain"])
def test_tenants_with_one_conversation_id_share_no_agent(tenants: Service, agent: str) -> None:
    where = {"conversation_id": f"shared-{agent}", "agent": agent}
    for key in (ADA, BOB):
        create_as(tenants, key, id=f"shared-{agent}", agent=agent)
    hers = number_of(tenants, play(tenants, ADA, MADE, DONE, **where))
    his = number_of(tenants, play(tenants, BOB, MADE, DONE, **where), BOB)
    again = play(tenants, ADA, MADE, ASK, DONE, **where)
    assert observed(tenants, ADA, again)[-3].split()[-1] == hers != his
    assert told(again, "ada", PRO) in observed(tenants, ADA, again)[-2]


def test_an_agent_stays_warm_for_an_equal_caller_alone(tenants: Service) -> None:
    turn = play(tenants, ADA, MADE, DONE)
    where = {"conversation_id": turn["conversation_id"]}
    first = number_of(tenants, turn)
    play(tenants, ADA, MADE, DONE, **where)
    assert number_of(tenants, turn) == first
    with claims_of_ada(tenants, PRO | {"seats": [2]}):
        asked = play(tenants, ADA, MADE, ASK, DONE, **where)
        assert told(asked, "ada", PRO | {"seats": [2]}) in observed(tenants, ADA, turn)[-2]
        third = observed(tenants, ADA, turn)[-3].split()[-1]
        assert third != first
        request_as(tenants, ADA, "PATCH", f"/conversations/{turn['conversation_id']}", {"metadata": {"team": "red"}})
        play(tenants, ADA, MADE, DONE, **where)
        assert number_of(tenants, turn) not in {first, third}


def test_metadata_cost_no_warm_agent_whose_factory_has_not_seen_them(tenants: Service) -> None:
    turn = play(tenants, ADA, MADE, DONE, agent="plain")
    number, path = number_of(tenants, turn), f"/conversations/{turn['conversation_id']}"
    request_as(tenants, ADA, "PATCH", path, {"metadata": {"team": "red"}})
    play(tenants, ADA, ASK, MADE, DONE, agent="plain", conversation_id=turn["conversation_id"])
    assert number_of(tenants, turn) == number
    assert told(turn, "ada", PRO, team="red") in observed(tenants, ADA, turn)[-3]


def test_turns_keep_the_claims_of_their_post_when_the_keys_change(as_ada: Service, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    blocked = submit_turn(as_ada, {"call": [["block", {"path": str(gate.path)}]]}, ASK, DONE, agent="tenant")
    gate.reached()
    queued = submit_next(as_ada, blocked, ASK, DONE)
    with claims_of_ada(as_ada, OTHER):
        other = play(as_ada, ADA, ASK, DONE)
        assert told(other, "ada", OTHER) in observed(as_ada, ADA, other)[0]
        gate.open()
        assert wait_for_end(as_ada, queued)["status"] == "finished"
    seen = observed(as_ada, ADA, blocked)
    assert [told(blocked, "ada", PRO) in each for each in seen] == [True, True, False, True, False]


def test_a_message_joins_no_turn_of_a_caller_with_other_claims(as_ada: Service, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    turn = submit_turn(as_ada, {"call": [["block", {"path": str(gate.path)}]]}, DONE, agent="tenant")
    gate.reached()
    with claims_of_ada(as_ada, OTHER):  # its image is more than one reply of the store has
        large = [encoded(PIL.Image.effect_noise((1200, 1200), 100), "PNG")]
        own = submit_next(as_ada, turn, ASK, DONE, on_busy="steer", images=large)
    joins = submit_next(as_ada, turn, DONE, on_busy="steer")
    gate.open()
    assert wait_for_end(as_ada, own)["status"] == "finished"
    assert wait_for_end(as_ada, joins)["error"]["code"] == "steered"
    assert told(own, "ada", OTHER) in observed(as_ada, ADA, own)[-2]


def test_a_repeated_request_keeps_the_claims_of_the_first(tenants: Service) -> None:
    body = {"agent": "tenant", "message": json.dumps([ASK, DONE])}
    first = request_as(tenants, ADA, "POST", "/turn", body, **{"Idempotency-Key": "k"}).json()
    with claims_of_ada(tenants, OTHER):
        again = request_as(tenants, ADA, "POST", "/turn", body, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (200, first)
    assert [told(first, "ada", PRO) in each for each in observed(tenants, ADA, first)] == [True, False]


def test_claims_are_sealed_in_the_store_and_in_no_log(as_ada: Service, outside: StoreServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    turn = submit_turn(as_ada, {"call": [["block", {"path": str(gate.path)}]]}, DONE, agent="fickle")
    gate.reached()
    raw = outside.client()
    runs = [raw.hgetall(key) for key in raw.scan_iter(f"*:run:ada/{turn['conversation_id']}*")]
    assert [len(run[b"input"]) > 50 for run in runs] == [True]
    assert b"seats" not in b"".join(value for run in runs for value in run.values())
    gate.open()
    assert wait_for_end(as_ada, turn)["status"] == "finished"
    with claims_of_ada(as_ada, {"seats": "x" * 5000}):
        refused = request_as(as_ada, ADA, "GET", "/conversations")
        assert refused.status_code == 401, "a wrong line is passed over"
    wait_until(lambda: "its claims are longer than 4096 bytes" in as_ada.log())
    assert "seats" not in as_ada.log()


def test_a_takeover_has_the_turns_claims_and_replays_with_no_other_agent(as_ada: Service, tmp_path: Path) -> None:
    gates = {agent: Gate(tmp_path / agent) for agent in ("tenant", "fickle")}
    turns = {
        agent: submit_turn(as_ada, {"call": [["block", {"path": str(gate.path)}]]}, ASK, DONE, agent=agent)
        for agent, gate in gates.items()
    }
    for gate in gates.values():
        gate.reached()
    as_ada.kill()
    as_ada.environment["TENANT_INSTRUCTIONS"] = "Be long."  # the agent of the check at start is as it was
    with claims_of_ada(as_ada, {"plan": "none"}):
        as_ada.start()
        as_ada.client.headers["Authorization"] = f"Bearer {ADA}"
        same, changed = (wait_for_end(as_ada, turn) for turn in turns.values())
    assert (same["status"], same["attempts"]) == ("finished", 2)
    assert all(told(same, "ada", PRO) in seen for seen in observed(as_ada, ADA, same)[:2])
    assert (changed["status"], changed["error"]["code"], changed["attempts"]) == ("failed", "agent_changed", 2)


def test_the_example_of_the_docs_serves_each_tenant(tmp_path: Path) -> None:
    example = re.search(r"```python title=\S+\n(import smol.*?)```", (ROOT / "docs/callers.md").read_text(), re.DOTALL)
    assert example
    scripted = re.sub(r"OpenAIModel\(.*\)", "ScriptedModel()", example[1]).replace("OpenAIModel, ", "")
    (tmp_path / "my_shop.py").write_text(f"from tests.support.agents import ScriptedModel\n{scripted}")
    lines = f'{owner_line("acme", ADA).strip()} {{"refund_limit": 100}}\n{owner_line("zeta", BOB)}'
    settings = {"API_KEYS_FILE": str(write_private(tmp_path / "keys", lines)), "DEMO_AGENTS": "0"}
    script = ({"call": [["orders", {}]]}, {"call": [["refund", {"number": "1041"}]]}, DONE)
    with Service(tmp_path / "service", settings | {"AGENTS": f"{tmp_path}/my_shop.py:make_shop"}) as service:
        acme, zeta = (play(service, key, *script, agent="shop") for key in (ADA, BOB))
        orders, refund, _ = observed(service, ADA, acme)
        assert orders.endswith("1041 lamp, 1055 desk")
        assert refund.endswith("order 1041 of acme: at most 100 EUR are refunded")
        orders, *rest = observed(service, BOB, zeta)
        assert orders.endswith("2007 chair")
        assert "refunded" not in "".join(rest)


BAD = {
    "a list": ("[1]", "no JSON object"),
    "a member twice": ('{"a": 1, "a": 2}', "no JSON object"),
    "too deep": ('{"a":' * 600 + "1" + "}" * 600, "no JSON object"),
    "too long": (json.dumps({"a": "x" * 4096}), "longer than 4096 bytes"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_keys_file_with_wrong_claims_is_refused(tmp_path: Path, case: str) -> None:
    column, why = BAD[case]
    keys = write_private(tmp_path / "keys", f"{owner_line('ada', ADA).strip()} {column}\n")
    with pytest.raises(StartError, match=f"line 1: its claims are {why}"):
        Authenticator(keys, loopback=True)


def test_the_command_line_makes_a_line_with_claims(tmp_path: Path) -> None:
    status, line, key = run(tmp_path / "a", {}, "keys", "owner", "ada", "--claims", json.dumps(PRO))
    owner, digest, claims = line.strip().split(maxsplit=2)
    assert (status, owner, json.loads(claims)) == (0, "ada", PRO)
    assert hashlib.sha256(key.splitlines()[-1].encode()).hexdigest() == digest
    status, _, sentence = run(tmp_path / "b", {}, "keys", "owner", "ada", "--claims", '{"plan": "\udcff"}')
    assert status == 2
    assert "--claims: its claims are no JSON object" in sentence


def test_claims_may_hold_text_of_any_language(tmp_path: Path) -> None:
    claims = {"name": "Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich\N{LINE SEPARATOR}"}
    keys = tmp_path / "keys"
    keys.write_bytes(f"{owner_line('ada', ADA).strip()} {json.dumps(claims, ensure_ascii=False)}\r\n".encode())
    keys.chmod(0o600)
    assert Authenticator(keys, loopback=True).identify(f"Bearer {ADA}").claims == claims


def test_a_record_that_can_change_has_no_hash() -> None:
    with pytest.raises(TypeError, match="a TurnOptions can change, so it has no hash"):
        hash(TurnOptions())


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
