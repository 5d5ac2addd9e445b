"""Damaged records of a waiting turn: no call runs without its approval, and no other turn is touched."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.support.answering import APPROVE, answer, ask, asking_service, sent
from tests.support.damages import Damage, Snapshot, assert_said, code_of, damages, one_of_each_kind
from tests.support.service import Service
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE

KINDS = "conversation turns queue run journal log waiting".split()
LOOP = {"code": "for to in ['one', 'two']:\n    print(send_email(to, 'hi'))"}
UNFINISHED = {"queued", "running"}
EVERY = 4  # damage of a kind is tried; all of them take ten minutes
SAID = {  # of a damaged turn
    *("seal_broken", "conversation_not_found", "turn_not_found", "request_not_found", "not_waiting", "agent_changed"),
    *("store_unavailable", "deadline_exceeded", "conversation_busy", "too_many_turns"),
}


@dataclass
class Victim:
    """A waiting turn whose first e-mail is sent, one like it that lends its keys, and a conversation at rest."""

    service: Service
    raw: Raw
    turn: dict[str, Any]
    like: str
    rest: str
    waits: Snapshot

    @property
    def at(self) -> str:
        return f"/conversations/{self.turn['conversation_id']}"


@pytest.fixture(scope="module")
def victim(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    settings = outside.settings | {"WARM_SESSIONS": "0", "WAIT_S": "20", "LEASE_S": "2", "DRAIN_S": "1"}
    with asking_service(tmp_path_factory.mktemp("victim"), **settings) as service:
        rest = service.play({"say": "at rest"}, agent="plain")["conversation_id"]
        like = answer(service, ask(service, LOOP, DONE, agent="code-mailer"), APPROVE, status=202)["conversation_id"]
        turn = answer(service, ask(service, LOOP, DONE, agent="code-mailer"), APPROVE, status=202)
        raw = outside.client()
        yield Victim(service, raw, turn, like, rest, Snapshot(raw))


def damages_of(it: Victim, kind: str) -> Iterator[Damage]:
    if kind != "waiting":
        yield from damages(it.waits, kind, it.turn["conversation_id"], it.like)
        return
    name, ref = f"{PARTITION}:waiting", f"local/{it.turn['conversation_id']}"
    yield "deleted", partial(it.raw.delete, name)
    yield "a text", partial(it.raw.set, name, "junk")
    yield "without the turn", partial(it.raw.zrem, name, ref)
    yield "expired", partial(it.raw.zadd, name, {ref: 1})
    yield "never", partial(it.raw.zadd, name, {ref: 2**60})
    yield "with junk", partial(it.raw.zadd, name, {b"\xff\xfe junk": 1, "local/none": 1, f"local/{it.rest}": 1})


def faults(it: Victim) -> Iterator[str]:
    """Read, answer and cancel the turn, and use its conversation: each call works or reports the damage."""
    mails = sent(it.service)
    request = it.turn["requests"][0]["request_id"]
    approve = {"answers": [{"request_id": request, "decision": "approve"}]}
    calls: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", f"{it.at}/turns/1", None),
        ("GET", "/conversations?status=waiting", None),
        ("GET", f"/conversations/{it.rest}", None),
        ("POST", f"{it.at}/turns/1/answers", approve),
        ("POST", f"{it.at}/turns/1/cancel", None),
        ("POST", f"/conversations/{it.rest}/turns", {"message": json.dumps([DONE])}),
        ("POST", f"{it.at}/turns", {"message": json.dumps([DONE]), "on_busy": "interrupt"}),
    ]
    accepted = False
    for method, path, body in calls:
        response = it.service.client.request(method, path, json=body, headers={"Prefer": "wait=3"})
        found = response.json()
        is_rest = it.rest in path or path.endswith("=waiting")
        is_read = method == "GET" and response.status_code == 200
        is_over = is_read or (response.status_code in {200, 202} and found.get("status") not in UNFINISHED | {"failed"})
        accepted |= path.endswith("/answers") and response.status_code in {200, 202}
        if not is_over and (is_rest or code_of(found) not in SAID):
            yield f"{method} {path}: {response.status_code} {response.text[:300]}"
    more = sent(it.service)[len(mails) :]
    if more not in ([], ["two: hi"]) or (more and not accepted):
        yield f"sent: {more}"
    if it.service.client.get("/metrics").status_code != 200:
        yield "no metrics"


@pytest.mark.parametrize("kind", mostly_deep(["each", *KINDS], fast=["each"]))
def test_a_damaged_wait_runs_nothing_unasked_and_touches_no_other(victim: Victim, kind: str) -> None:
    it = victim
    it.waits.put_back()
    kinds = [list(damages_of(it, one)) for one in (KINDS if kind == "each" else [kind])]
    cases = one_of_each_kind(kinds) if kind == "each" else kinds[0][:: 1 if kind == "waiting" else EVERY]
    assert len(cases) > 3
    assert_said(it.service, it.waits, cases, lambda _: faults(it))


@pytest.mark.parametrize("kind", ["queue", "run"])
def test_a_damaged_wait_hides_no_figures_of_others(victim: Victim, kind: str) -> None:
    it = victim
    it.waits.put_back()
    (name,) = [key for key in it.raw.keys(f"{PARTITION}:{kind}:*") if it.like.encode() in key]  # its wait began first
    it.raw.delete(name)
    it.raw.set(name, "junk")
    figures = it.service.client.get("/metrics").text
    assert "smolsessions_partitions_silent 0.0" in figures
    assert "smolsessions_turns_waiting 2.0" in figures
