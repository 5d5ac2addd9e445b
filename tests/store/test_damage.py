"""Damaged records, also of waiting turns: no other conversation is affected, and no call runs without an approval."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import answering
from tests.support.answering import APPROVE, answer, ask, asking_service
from tests.support.damages import Damage, Snapshot, assert_said, code_of, damages, one_of_each, one_of_each_kind
from tests.support.service import Gate, Service, wait_until
from tests.support.sounds import sent
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, png, submit_turn, wait_for_end

AGENT = "code"
FILE = sent("data.csv", "text/csv", "a,b\n")
SETTINGS = {"WARM_SESSIONS": "0", "WAIT_S": "30", "DRAIN_S": "1", "THREADS": "4"}
AT_REST = "conversation turns steps images variables heads old oldest log logs longlogs".split()
OPEN = "conversation turns steps images variables pending heads queue run journal watch log".split()
ENDS = {"seal_broken", "conversation_not_found", "agent_changed", "deadline_exceeded"}  # the last two: not sealed
TIMES = ("large", "another's")
LINKS = re.compile(r'"(?:output_)?(?:images|files)": ?\[[^]]*\],? ?')


@dataclass
class Victim:
    """A service, the conversation that is damaged, one like it that lends its keys, and one that is played."""

    service: Service
    raw: Raw
    turn: dict[str, Any]
    like: str
    untouched: dict[str, Any]
    rest: Snapshot
    left: Snapshot
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.turn["conversation_id"])

    @property
    def ref(self) -> str:
        return f"local/{self.id}"

    @property
    def reads(self) -> dict[str, str]:
        at = f"/conversations/{self.id}"
        turns = {f"{at}/turns/{number}{more}": "" for number in (1, 2, 3) for more in ("", "/events")}
        paths = [at, f"{at}/turns", f"{at}/steps", f"{at}/steps?type=action&archived=true", f"{at}/prompt"]
        paths += [f"{at}/export", f"{at}/turns?limit=1", f"{at}/steps?limit=2"]
        paths += [self.turn[kind][0]["url"] for kind in ("images", "files")]
        return dict.fromkeys(paths, "") | turns

    def get(self, path: str) -> tuple[int, Any]:
        """Return the status and the body (bytes if it is a stream)."""
        response = self.service.client.get(path)
        is_json = "json" in response.headers.get("content-type", "")
        return response.status_code, response.json() if is_json else response.content


@pytest.fixture(scope="module")
def victim(outside: StoreServer, folder: Path) -> Iterator[Victim]:
    gate = Gate(folder / "gate")
    with Service(folder, outside.settings | SETTINGS) as service:
        origin = service.play({"code": "x = [1]\nprint(x)"}, {"say": "one"}, agent=AGENT, images=[png("red")])
        fork = service.post(f"/conversations/{origin['conversation_id']}/fork", metadata={"a": 1}).json()
        change = {"ttl_s": 3600, "policy": [{"name": "keep_last_n_steps", "n": 50}]}
        patched = service.client.patch(f"/conversations/{fork['id']}", json=change)
        assert patched.status_code == 200, patched.text
        service.play({"code": "x += [2]"}, {"say": "two"}, agent=AGENT, conversation_id=fork["id"])
        like = service.play({"code": "z = 1"}, {"say": "other"}, agent=AGENT, images=[png("blue")])
        untouched = service.play({"say": "untouched"})
        blocks = [{"code": "y = 3\nx += [y]"}, {"code": f"echo('w')\nwait_for({str(gate.path)!r})"}, {"say": "three"}]
        turn = submit_turn(
            service, *blocks, agent=AGENT, conversation_id=fork["id"], images=[png("green")], files=[FILE]
        )
        gate.reached()
        service.kill()
        raw = outside.client()
        raw.delete(f"{PARTITION}:leases")
        left = Snapshot(raw)
        gate.open()
        raw.zadd(f"{PARTITION}:leases", {f"local/{fork['id']}": 1})
        service.start()
        turn = wait_for_end(service, turn)
        assert (turn["status"], turn["attempts"]) == ("finished", 2)
        it = Victim(service, raw, turn, like["conversation_id"], untouched, Snapshot(raw), left)
        it.answers = {path: it.get(path) for path in it.reads}
        assert {status for status, _ in it.answers.values()} == {200}, it.answers
        yield it


def without_links(body: Any) -> str:
    """Return an answer as text, without its links to images and files."""
    return LINKS.sub("", body.decode() if isinstance(body, bytes) else json.dumps(body))


def faults_of_reads(it: Victim, what: str, *, gone: bool) -> Iterator[str]:
    """Read everything: each answer must be unchanged or report the damage.

    Times of a conversation are not sealed. Of a missing log the last event remains, since logs expire or are destroyed.
    A turn and its events link only images and files that the store has, since a prune may destroy them.
    """
    is_time = any(f".b'{name}' {how}" in what for name in ("updated", "expires", "ttl") for how in TIMES)
    at = f"/conversations/{it.id}"
    may_differ_at = [at, f"{at}/export"] if is_time else []
    is_whole = "'." not in what and what.endswith("another's")
    if (":log:" in what and what.endswith("deleted")) or (":logs:" in what and (is_whole or what.endswith("deleted"))):
        may_differ_at = [path for path in it.reads if path.endswith("/events")]
    for path in it.reads:
        status, body = it.get(path)
        is_gone = status == 404 and (gone or "/images/" in path or "/files/" in path)
        may_differ = is_gone or (path in may_differ_at and status == 200)
        if ":images:" in what and "/turns" in path and status == 200:
            may_differ = without_links(body) == without_links(it.answers[path][1])
        if (status, body) != it.answers[path] and not may_differ and code_of(body) != "seal_broken":
            yield f"GET {path}: {status} {str(body)[:300]}"


def faults_of_writes(it: Victim, *, gone: bool) -> Iterator[str]:
    """Call everything that writes: each call must work or report the damage."""
    at, may = f"/conversations/{it.id}", {"seal_broken", "history_gone", *(["conversation_not_found"] if gone else [])}
    calls: list[tuple[str, dict[str, Any]]] = [
        (f"{at}/prune", {"dry_run": True}),
        (f"{at}/turns/2/cancel", {}),
        (f"{at}/fork", {}),
        (f"{at}/fork", {"turn": 1}),
        ("/turn", {"conversation_id": it.id, "message": '[{"say": "four"}]'}),
        (f"{at}/rollback", {"turn": 1}),
        (f"{at}/prune", {"policy": [{"name": "keep_last_n_steps", "n": 1}], "destroy": True}),
        ("/turn", {"conversation_id": it.id, "message": '[{"say": "five"}]'}),
    ]
    for path, body in calls:
        response = it.service.post(path, **body)
        answer = response.json()
        is_over = response.status_code in {200, 201} and answer.get("status") != "failed"
        if not (is_over or code_of(answer) in may or (gone and response.status_code == 404)):
            yield f"POST {path}: {response.text[:300]}"
    patched = it.service.client.patch(at, json={"metadata": {"b": 2}})
    if patched.status_code != 200 and code_of(patched.json()) not in may:
        yield f"PATCH: {patched.status_code} {patched.text}"
    deleted = it.service.client.delete(at)
    if deleted.status_code != 204 and code_of(deleted.json()) not in may:
        yield f"DELETE: {deleted.status_code} {deleted.text}"


def faults_of_others(it: Victim) -> Iterator[str]:
    other = it.untouched["conversation_id"]
    listed = it.service.client.get("/conversations")
    if listed.status_code != 200 or other not in [each["id"] for each in listed.json()["items"]]:
        yield f"the list: {listed.status_code} {listed.text[:300]}"
    if (metrics := it.service.client.get("/metrics")).status_code != 200:
        yield f"the metrics: {metrics.text[:300]}"
    response = it.service.post("/turn", conversation_id=other, message='[{"say": "on"}]')
    if response.status_code != 200 or response.json()["reply"] != "on":
        yield f"another conversation: {response.text[:300]}"


def faults_at_rest(it: Victim, what: str) -> Iterator[str]:
    gone = not it.raw.exists(f"{PARTITION}:conversation:{it.ref}")
    yield from (*faults_of_reads(it, what, gone=gone), *faults_of_writes(it, gone=gone), *faults_of_others(it))


@pytest.mark.parametrize("kind", mostly_deep(["each", *AT_REST], fast=["each"]))
def test_a_conversation_at_rest_that_was_damaged_says_so_and_no_other_is_touched(victim: Victim, kind: str) -> None:
    it = victim
    it.rest.put_back()
    kinds = AT_REST if kind == "each" else [kind]
    cases = [case for one in kinds for case in damages(it.rest, one, it.id, it.like)]
    assert len(cases) > 5
    assert_said(it.service, it.rest, one_of_each(cases) if kind == "each" else cases, partial(faults_at_rest, it))


def faults_of_open(it: Victim, _what: str) -> Iterator[str]:
    it.raw.zadd(f"{PARTITION}:leases", {it.ref: 1})
    yield from (*faults_of_others(it), *faults_of_the_end(it))


@pytest.mark.parametrize("kind", mostly_deep(["each", *OPEN], fast=["each"]))
def test_a_turn_that_was_left_and_damaged_ends_and_no_other_is_touched(victim: Victim, kind: str) -> None:
    it = victim
    it.left.put_back()
    kinds = [list(damages(it.left, one, it.id, it.like)) for one in (OPEN if kind == "each" else [kind])]
    assert len(kinds[0]) > 5
    assert_said(
        it.service, it.left, one_of_each_kind(kinds) if kind == "each" else kinds[0], partial(faults_of_open, it)
    )


def faults_of_the_end(it: Victim) -> Iterator[str]:
    """The turn must continue, end as broken or be unreadable. Afterwards no worker may hold it."""
    where, ended = f"/conversations/{it.id}/turns/{it.turn['turn']}", dict[str, Any]()

    def is_over() -> bool:
        nonlocal ended
        status, ended = it.get(where)
        return status != 200 or ended["status"] in {"finished", "failed", "cancelled"}

    try:
        wait_until(is_over)
        wait_until(lambda: not it.raw.zcard(f"{PARTITION}:leases") and not it.raw.zcard(f"{PARTITION}:ready:{AGENT}"))
    except (AssertionError, httpx2.TransportError):
        yield f"it does not end: {str(ended)[:300]}"
    if ended.get("status") == "finished":
        if ended["reply"] != "three":
            yield f"it ended otherwise: {str(ended)[:300]}"
    elif ended.get("status") == "cancelled" or code_of(ended) not in ENDS:
        yield f"it ended so: {str(ended)[:300]}"


KINDS = "conversation turns queue run journal log waiting".split()
LOOP = {"code": "for to in ['one', 'two']:\n    print(send_email(to, 'hi'))"}
UNFINISHED = {"queued", "running"}
EVERY = 4  # damage of a kind is tried; all of them take ten minutes
SAID = {  # of a damaged turn
    *("seal_broken", "conversation_not_found", "turn_not_found", "request_not_found", "not_waiting", "agent_changed"),
    *("store_unavailable", "deadline_exceeded", "conversation_busy", "too_many_turns"),
}


@dataclass
class WaitingVictim:
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
def waiting_victim(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaitingVictim]:
    settings = outside.settings | {"WARM_SESSIONS": "0", "WAIT_S": "20", "LEASE_S": "2", "DRAIN_S": "1"}
    with asking_service(tmp_path_factory.mktemp("waiting_victim"), **settings) as service:
        rest = service.play({"say": "at rest"}, agent="plain")["conversation_id"]
        like = answer(service, ask(service, LOOP, DONE, agent="code-mailer"), APPROVE, status=202)["conversation_id"]
        turn = answer(service, ask(service, LOOP, DONE, agent="code-mailer"), APPROVE, status=202)
        raw = outside.client()
        yield WaitingVictim(service, raw, turn, like, rest, Snapshot(raw))


def damages_of(it: WaitingVictim, kind: str) -> Iterator[Damage]:
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


def faults(it: WaitingVictim) -> Iterator[str]:
    """Read, answer and cancel the turn, and use its conversation: each call works or reports the damage."""
    mails = answering.sent(it.service)
    approve = {"answers": [{"request_id": it.turn["requests"][0]["request_id"], "decision": "approve"}]}
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
    more = answering.sent(it.service)[len(mails) :]
    if more not in ([], ["two: hi"]) or (more and not accepted):
        yield f"sent: {more}"
    if it.service.client.get("/metrics").status_code != 200:
        yield "no metrics"


@pytest.mark.parametrize("kind", mostly_deep(["each", *KINDS], fast=["each"]))
def test_a_damaged_wait_runs_nothing_unasked_and_touches_no_other(waiting_victim: WaitingVictim, kind: str) -> None:
    it = waiting_victim
    it.waits.put_back()
    kinds = [list(damages_of(it, one)) for one in (KINDS if kind == "each" else [kind])]
    cases = one_of_each_kind(kinds) if kind == "each" else kinds[0][:: 1 if kind == "waiting" else EVERY]
    assert len(cases) > 3
    assert_said(it.service, it.waits, cases, lambda _: faults(it))


@pytest.mark.parametrize("kind", ["queue", "run"])
def test_a_damaged_wait_hides_no_figures_of_others(waiting_victim: WaitingVictim, kind: str) -> None:
    it = waiting_victim
    it.waits.put_back()
    (name,) = [key for key in it.raw.keys(f"{PARTITION}:{kind}:*") if it.like.encode() in key]  # its wait began first
    it.raw.delete(name)
    it.raw.set(name, "junk")
    figures = it.service.client.get("/metrics").text
    assert "smolsessions_partitions_silent 0.0" in figures
    assert "smolsessions_turns_waiting 2.0" in figures
