"""Tenants apart: no agent, claim or metadata of one caller reaches another, a prompt, a log or the store's disk."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.callers import (
    ASK,
    FREE,
    MADE,
    OTHER,
    PRO,
    keys_file,
    number_of,
    observed,
    play,
    tenants_of,
    told,
)
from tests.support.owners import ADA, BOB, SECOND, create_as, owner_line, request_as
from tests.support.service import ROOT, Service, write_private
from tests.support.store_server import StoreServer
from tests.support.tenants import AGENTS
from tests.support.turns import DONE, submit_next, submit_turn, wait_for_end
from tests.support.waiting import Gate, wait_until

SHOWN = ("/turns/1/events", "/steps", "/messages", "/turns/1", "/export", "")
OUTSIDE = "no turn runs here, so there is no caller"


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with tenants_of(tmp_path_factory.mktemp("tenants")) as running:
        yield running


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


@pytest.mark.parametrize("agent", ["tenant", "plain"])
def test_keys_of_one_owner_with_other_claims_share_no_agent(tenants: Service, agent: str) -> None:
    first = play(tenants, ADA, MADE, DONE, agent=agent)
    number = number_of(tenants, first)
    where = {"conversation_id": first["conversation_id"], "agent": agent}
    second = play(tenants, SECOND, MADE, ASK, DONE, **where)
    assert observed(tenants, ADA, first)[-3].split()[-1] != number
    assert told(second, "ada", OTHER) in observed(tenants, ADA, first)[-2]
    play(tenants, ADA, MADE, DONE, **where)
    assert number_of(tenants, first) != number


def test_metadata_cost_no_warm_agent_whose_factory_has_not_seen_them(tenants: Service) -> None:
    turn = play(tenants, ADA, MADE, DONE, agent="plain")
    number, path = number_of(tenants, turn), f"/conversations/{turn['conversation_id']}"
    request_as(tenants, ADA, "PATCH", path, {"metadata": {"team": "red"}})
    play(tenants, ADA, ASK, MADE, DONE, agent="plain", conversation_id=turn["conversation_id"])
    assert number_of(tenants, turn) == number
    assert told(turn, "ada", PRO, team="red") in observed(tenants, ADA, turn)[-3]


def test_a_tool_that_holds_its_caller_holds_the_one_of_its_turn(tenants: Service) -> None:
    gold = {"call": [["gold", {}]]}
    turn = play(tenants, ADA, gold, gold, DONE)
    assert [seen.endswith("gold of ada, pro") for seen in observed(tenants, ADA, turn)[:2]] == [True, True]


def test_threads_of_a_tool_have_the_caller_if_they_copy_the_context(tenants: Service) -> None:
    for key, owner, claims in ((ADA, "ada", PRO), (BOB, "bob", FREE)):
        turn = play(tenants, key, {"call": [["threads", {}]]}, DONE, agent="plain")
        copied, bare, coroutine = observed(tenants, key, turn)[0].splitlines()[-3:]
        assert told(turn, owner, claims) in copied
        assert coroutine == told(turn, owner, claims)
        assert bare.startswith(OUTSIDE)


def test_code_in_its_child_process_has_no_caller_but_its_tools_do(tenants: Service) -> None:
    code = "import smolsessions\nprint(whose())\nprint(smolsessions.current_caller())"
    turn = play(tenants, ADA, {"code": code}, DONE, agent="coder")
    path = f"/conversations/{turn['conversation_id']}/steps?type=action"
    step = request_as(tenants, ADA, "GET", path).json()["items"][0]
    assert OUTSIDE in json.dumps(step["error"])
    assert told(turn, "ada", PRO) in step["observations"]


@pytest.mark.parametrize("agent", ["plain", "coder", "threaded"])
def test_a_caller_that_a_tool_returns_shows_no_claims(tenants: Service, agent: str) -> None:
    script = [{"call": [["me", {}]]}, DONE] if agent == "plain" else [{"code": "print(me())\nfinal_answer(me())"}]
    turn = play(tenants, ADA, *script, agent=agent)
    base = f"/conversations/{turn['conversation_id']}"
    pages = [request_as(tenants, ADA, "GET", base + path).text for path in SHOWN]
    assert "Caller('ada'" in pages[0]
    assert "seats" not in "".join(pages)


def test_own_policies_have_the_caller_in_turns_and_in_previews(tenants: Service) -> None:
    turns = {key: play(tenants, key, DONE, agent="ruled") for key in (ADA, BOB)}
    paths = {key: f"/conversations/{turn['conversation_id']}/messages" for key, turn in turns.items()}
    left_out = [request_as(tenants, key, "GET", path).json()["left_out"] for key, path in paths.items()]
    assert [found["steps"] for found in left_out] == [0, 2]


def test_without_keys_the_caller_is_local_and_has_no_claims(tmp_path: Path) -> None:
    with Service(tmp_path / "service", {"AGENTS": AGENTS, "DEMO_AGENTS": "0"}) as service:
        turn = service.play(ASK, DONE, agent="tenant")
        assert told(turn, "local", {}) in str(service.steps(turn)[1]["observations"])


def test_turns_keep_the_claims_of_their_post_when_the_keys_change(tmp_path: Path) -> None:
    with tenants_of(tmp_path) as service:
        service.client.headers["Authorization"] = f"Bearer {ADA}"
        gate = Gate(tmp_path / "gate")
        blocked = submit_turn(service, {"call": [["block", {"path": str(gate.path)}]]}, ASK, DONE, agent="tenant")
        gate.reached()
        queued = submit_next(service, blocked, ASK, DONE)
        keys_file(tmp_path, ada=OTHER)
        other = play(service, ADA, ASK, DONE)
        assert told(other, "ada", OTHER) in observed(service, ADA, other)[0]
        gate.open()
        assert wait_for_end(service, queued)["status"] == "finished"
        seen = observed(service, ADA, blocked)
        assert [told(blocked, "ada", PRO) in each for each in seen] == [True, True, False, True, False]


def test_a_repeated_request_keeps_the_claims_of_the_first(tmp_path: Path) -> None:
    with tenants_of(tmp_path) as service:
        body = {"agent": "tenant", "message": json.dumps([ASK, DONE])}
        first = request_as(service, ADA, "POST", "/turn", body, **{"Idempotency-Key": "k"}).json()
        keys_file(tmp_path, ada=OTHER)
        again = request_as(service, ADA, "POST", "/turn", body, **{"Idempotency-Key": "k"})
        assert (again.status_code, again.json()) == (200, first)
        assert [told(first, "ada", PRO) in each for each in observed(service, ADA, first)] == [True, False]


def test_claims_are_sealed_in_the_store_and_in_no_log(tmp_path: Path, outside: StoreServer) -> None:
    service = tenants_of(tmp_path, LOG_LEVEL="debug", **outside.settings)
    with service:
        service.client.headers["Authorization"] = f"Bearer {ADA}"
        gate = Gate(tmp_path / "gate")
        turn = submit_turn(service, {"call": [["block", {"path": str(gate.path)}]]}, DONE, agent="fickle")
        gate.reached()
        raw = outside.client()
        runs = [raw.hgetall(key) for key in raw.scan_iter(f"*:run:ada/{turn['conversation_id']}*")]
        assert [len(run[b"input"]) > 50 for run in runs] == [True]
        assert b"seats" not in b"".join(value for run in runs for value in run.values())
        gate.open()
        assert wait_for_end(service, turn)["status"] == "finished"
        keys_file(tmp_path, ada={"seats": "x" * 5000})
        refused = request_as(service, ADA, "GET", "/conversations")
        assert refused.status_code == 401, "a wrong line is passed over"
        wait_until(lambda: "its claims are longer than 4096 bytes" in service.log())
    assert "seats" not in service.log()


def test_the_example_of_the_docs_serves_each_tenant(tmp_path: Path) -> None:
    example = re.search(
        r"```python title=\S+\n(import smolsessions.*?)```", (ROOT / "docs/callers.md").read_text(), re.DOTALL
    )
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
