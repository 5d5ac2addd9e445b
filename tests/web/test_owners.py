"""API keys and owners: no owner can see, change or guess another owner's objects."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from smolsessions.core.records import Owner
from smolsessions.web.auth import MOST_BYTES, Authenticator
from tests.support.owners import ADA, BOB, SECOND, create_as, owner_line, request_as, say_as
from tests.support.problems import OF_A_CONVERSATION, nothing_stored, problem, send
from tests.support.refusals import Ending, Refused, sentence_of, started
from tests.support.service import PATIENCE_S, PLAIN, Gate, Service, run, shared_service, wait_until, write_private
from tests.support.sounds import sent
from tests.support.tiers import mostly_deep
from tests.support.turns import png

TURN = {"message": '[{"say": "hi"}]', "agent": "scripted"}
OTHERS: list[tuple[str, str, Any]] = [
    ("POST", "/turn", TURN),
    ("POST", "/conversations", {}),
    ("GET", "/conversations", None),
    ("POST", "/imports", {}),
    ("GET", "/agents", None),
    ("GET", "/agents/scripted", None),
]
SAME_ID = {"X-Request-Id": "the-same"}
DIGEST = hashlib.sha256(ADA.encode()).hexdigest()
BROKEN = {
    "a key that is no digest": f"ada {ADA}",
    "a digest that is cut": f"ada {DIGEST[:-1]}",
    "a word too many": f"ada {DIGEST} x",
    "an owner with a slash": f"ada/bob {DIGEST}",
    "a byte that is not UTF-8": f'ada {DIGEST} {{"name": "\udcff"}}',
}
KEYS = (
    f"# who may come in\n\n{owner_line('ada', ADA)}\n"
    f"   # her phone\n{owner_line('ada', SECOND)}\n{owner_line('bob', BOB)}"
)
# A service with two owners, one of them with two keys. Its file has comments and blank lines.
locked = shared_service(lambda f: Service(f, PLAIN | {"API_KEYS_FILE": str(write_private(f / "keys", KEYS))}))


def test_requests_without_a_key_are_refused(locked: Service) -> None:
    made = create_as(locked, ADA)["id"]
    wrong = ["Bearer", "Bearer wrong-key", f"Bearer {ADA[:-1]}", f"Bearer {ADA} {ADA}", f"Basic {ADA}", ADA, "Bearer é"]
    with nothing_stored(locked, Authorization=f"Bearer {ADA}"):
        for header in (None, *wrong):
            headers = {b"Authorization": header.encode("latin-1")} if header else None
            for method, path, body in OF_A_CONVERSATION + OTHERS:
                response = locked.client.request(method, path.format(made), json=body, headers=headers)
                problem(response, 401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
        for body in ("{", '{"message": ""}', '{"unknown": 1}', "[]"):  # reveals nothing of it
            problem(send(locked, "POST", "/turn", body), 401, "unauthorized")
    for path in ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/"):
        assert request_as(locked, None, "GET", path).status_code == 200
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert locked.client.get("/agents", headers={"Authorization": f"{scheme} {ADA}"}).status_code == 200


def test_each_owner_sees_their_own_conversations_alone(locked: Service) -> None:
    hers, his = create_as(locked, ADA)["id"], create_as(locked, BOB)["id"]
    for key, own, other in ((ADA, hers, his), (BOB, his, hers)):
        ids = [item["id"] for item in request_as(locked, key, "GET", "/conversations?limit=100").json()["items"]]
        assert (own in ids, other in ids) == (True, False)
    for conversation_id in (hers, create_as(locked, ADA)["id"]):
        for _ in range(2):
            say_as(locked, ADA, "more", conversation_id)
    create_as(locked, BOB, id=hers)  # the same id, and another conversation
    for path in ("/conversations", f"/conversations/{hers}/turns", f"/conversations/{hers}/steps"):
        cursor = request_as(locked, ADA, "GET", f"{path}?limit=1").json()["next_cursor"]
        assert request_as(locked, ADA, "GET", f"{path}?cursor={cursor}").status_code == 200
        problem(request_as(locked, BOB, "GET", f"{path}?cursor={cursor}"), 422, "invalid_request")


def test_another_owners_conversation_answers_as_one_that_never_existed(locked: Service) -> None:
    conversation_id = create_as(locked, ADA)["id"]
    say_as(locked, ADA, "private", conversation_id)
    with nothing_stored(locked, Authorization=f"Bearer {ADA}"), nothing_stored(locked, Authorization=f"Bearer {BOB}"):
        for method, path, body in OF_A_CONVERSATION:
            others, nothing = (
                request_as(locked, BOB, method, path.format(name), body, **SAME_ID)
                for name in (conversation_id, "never-was")
            )
            problem(others, 404, "conversation_not_found")
            assert _without_date(others) == _without_date(nothing)
        for agent in ({}, {"agent": "scripted"}, {"agent": "demo"}):
            others, nothing = (
                request_as(locked, BOB, "POST", "/turn", {"message": "hi", "conversation_id": name, **agent}, **SAME_ID)
                for name in (conversation_id, "never-was")
            )
            problem(others, 404, "conversation_not_found")
            assert _without_date(others) == _without_date(nothing)
    assert say_as(locked, ADA, "still here", conversation_id)["turn"] == 2


def test_images_and_files_of_another_owner_answer_as_those_that_never_were(locked: Service) -> None:
    body = {"message": '[{"say": "hi"}]', "agent": "scripted", "images": [png("red")]}
    turn = request_as(locked, ADA, "POST", "/turn", body | {"files": [sent("a.csv", "text/csv", "a,b")]}).json()
    for url in (turn["images"][0]["url"], turn["files"][0]["url"]):
        others, nothing = (
            request_as(locked, BOB, "GET", path, **SAME_ID)
            for path in (url, url.replace(turn["conversation_id"], "never-was"))
        )
        problem(others, 404, "not_found")
        assert _without_date(others) == _without_date(nothing)
        assert request_as(locked, None, "GET", url).status_code == 401
        assert request_as(locked, ADA, "GET", url).status_code == 200


def test_the_same_id_is_another_conversation_for_another_owner(locked: Service) -> None:
    for key, text in ((ADA, "hers"), (BOB, "his")):
        create_as(locked, key, id="diary", metadata={"of": text})
        say_as(locked, key, text, "diary")
    for key, text in ((ADA, "hers"), (BOB, "his")):
        shown = request_as(locked, key, "GET", "/conversations/diary").json()
        turns = request_as(locked, key, "GET", "/conversations/diary/turns").json()["items"]
        steps = request_as(locked, key, "GET", "/conversations/diary/steps").json()["items"]
        assert (shown["metadata"], shown["turn_count"], len(steps)) == ({"of": text}, 1, 2)
        assert [turn["reply"] for turn in turns] == [text]
    assert request_as(locked, BOB, "DELETE", "/conversations/diary").status_code == 204
    assert say_as(locked, ADA, "goes on", "diary")["turn"] == 2


def test_the_same_idempotency_key_of_another_owner_is_another_key(locked: Service) -> None:
    turns = []
    for key in (ADA, BOB, ADA, BOB, SECOND):
        response = request_as(locked, key, "POST", "/turn", TURN, **{"Idempotency-Key": "the-same"})
        assert response.status_code == 200, response.text
        turns.append(response.json())
    assert turns[:2] == turns[2:4]
    assert turns[0] == turns[4]
    assert turns[0]["conversation_id"] != turns[1]["conversation_id"]


def test_the_keys_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    _, made, told = run(tmp_path / "making", {}, "keys", "owner", "carol")
    carol = told.splitlines()[-1]
    keys = tmp_path / "keys"
    with _serving(tmp_path, keys, owner_line("ada", ADA) + owner_line("bob", BOB)) as service:
        wait_until(lambda: _let_in(service, ADA, BOB, carol) == [True, True, False])
        _rewrite(keys, made + owner_line("ada", ADA))
        wait_until(lambda: _let_in(service, ADA, BOB, carol) == [True, False, True])
        _rewrite(keys, f"{made}bob is missing something\n")
        wait_until(lambda: _let_in(service, ADA, BOB, carol) == [False, False, True])
        keys.unlink()
        wait_until(lambda: _let_in(service, ADA, BOB, carol) == [False, False, True])
        _rewrite(keys, owner_line("bob", BOB))
        wait_until(lambda: _let_in(service, ADA, BOB, carol) == [False, True, False])
        assert service.log().count("line 2") == 1
        keys.chmod(0o644)  # a refusal would keep revoked keys in
        wait_until(lambda: _let_in(service, ADA, BOB) == [False, True])
        wait_until(lambda: f"run `chmod o-rwx {keys}`" in service.log())
        _rewrite(keys, owner_line("ada", ADA))
        wait_until(lambda: _let_in(service, ADA, BOB) == [True, False])
        age = keys.stat().st_mtime_ns  # another file of the same age takes its place
        other = tmp_path / "other"
        other.write_text(owner_line("bob", BOB) + owner_line("ada", SECOND))
        os.utime(other, ns=(age, age))
        other.replace(keys)
        wait_until(lambda: _let_in(service, ADA, BOB, SECOND) == [False, True, True])
        keys.unlink()
        keys.mkdir()
        wait_until(lambda: "Is a directory" in service.log())
        opened = psutil.Process(service.process.pid).num_fds()
        keys.rmdir()
        os.mkfifo(keys)  # who opens it waits for ever
        wait_until(lambda: "it is no regular file" in service.log())
        assert _let_in(service, ADA, BOB, SECOND) == [False, True, True]
        wait_until(lambda: service.get("/readyz") == {"status": "stale_keys"})
        keys.unlink()
        write_private(keys, owner_line("ada", ADA) + "#" * MOST_BYTES)
        wait_until(lambda: f"more than {MOST_BYTES} bytes" in service.log())
        assert _let_in(service, ADA, BOB, SECOND) == [False, True, True]
        assert service.get("/readyz") == {"status": "stale_keys"}
        assert psutil.Process(service.process.pid).num_fds() <= opened + 3, "a failure leaves nothing open"
        keys.unlink()
        write_private(keys, owner_line("bob", BOB))
        wait_until(lambda: _let_in(service, BOB, SECOND) == [True, False])
        keys.write_bytes(b"\xff\xfe no text\n" + owner_line("ada", ADA).encode())
        wait_until(lambda: _let_in(service, ADA, BOB) == [True, False])
        assert service.get("/readyz") == {"status": "ok"}
        assert service.log().count("no regular file") == 1, "a failure is one line of the log a minute"
        claims = owner_line("bob", BOB).encode().strip() + b' {"name": "\xff"}\n'
        keys.write_bytes(claims + owner_line("ada", SECOND).encode())
        wait_until(lambda: _let_in(service, ADA, BOB, SECOND) == [False, False, True])
        assert "line 1: it is not UTF-8" in service.log()


@pytest.mark.parametrize(
    "case",
    mostly_deep(
        [(then, query) for then in ("revoked", "another owner's") for query in ("", "?on_disconnect=cancel")],
        fast={("revoked", "?on_disconnect=cancel"), ("another owner's", "")},
    ),
)
def test_a_stream_ends_with_its_key_and_the_turn_goes_on(tmp_path: Path, gate: Gate, case: tuple[str, str]) -> None:
    then, query = case
    keys = tmp_path / "keys"
    second, bob = owner_line("ada", SECOND), owner_line("bob", BOB)
    with _serving(tmp_path, keys, owner_line("ada", ADA) + bob + second) as service, ExitStack() as stack:
        path = f"/conversations/{create_as(service, ADA, agent='scripted')['id']}/turns"
        body = {"message": json.dumps([gate.script, {"say": "done"}])}
        assert request_as(service, ADA, "POST", path, body, Prefer="respond-async").status_code == 202
        ended, goes_on = (
            stack.enter_context(
                service.client.stream("GET", f"{path}/1/events{query}", headers={"Authorization": f"Bearer {key}"})
            )
            for key in (ADA, SECOND)
        )
        assert (ended.status_code, goes_on.status_code) == (200, 200)
        lines = ended.iter_lines()
        assert next(lines) == "event: turn.queued"
        _rewrite(keys, second + bob + (owner_line("bob", ADA) if then != "revoked" else ""))
        assert next(text for text in lines if text.startswith(":")).startswith(": the API key")
        assert not any(lines)
        again = request_as(service, ADA, "GET", f"{path}/1/events")
        problem(again, *((401, "unauthorized") if then == "revoked" else (404, "conversation_not_found")))
        gate.open()
        assert "event: turn.finished" in list(goes_on.iter_lines())


async def test_a_stream_that_ended_is_not_ended_again_with_its_key(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB))
    watched, over, revoked = Authenticator(keys, loopback=True), list[str](), asyncio.Event()
    with watched.watch_key(f"Bearer {ADA}", Owner("ada"), partial(over.append, "ended again")):
        pass
    with watched.watch_key(f"Bearer {ADA}", Owner("ada"), revoked.set):
        _rewrite(keys, owner_line("bob", BOB))
        async with asyncio.timeout(PATIENCE_S):
            await revoked.wait()
    assert over == []


async def test_the_event_loop_looks_at_no_file_for_a_key(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA))
    authenticator, called = Authenticator(keys, loopback=True), set[str]()
    sys.setprofile(lambda _frame, event, function: called.add(function.__name__) if event == "c_call" else None)
    try:
        with authenticator.watch_key(f"Bearer {ADA}", Owner("ada"), called.clear):
            assert not authenticator.is_stale
    finally:
        sys.setprofile(None)
    assert "monotonic" in called, "builtin functions are noted"
    assert called & {"open", "stat", "fstat", "read"} == set()


@pytest.fixture(scope="module")
def endings(folder: Path) -> Iterator[dict[str, Future[Ending]]]:
    table = {}
    for number, (what, broken) in enumerate((BROKEN | {"open to all": ""}).items()):
        keys = folder / f"keys{number}"
        text = f"# two good lines\n\n{owner_line('ada', ADA)}{broken}\n{owner_line('bob', BOB)}"
        keys.write_text(text, errors="surrogateescape")
        table[what] = Refused({"API_KEYS_FILE": str(keys)}, ())
    os.mkfifo(folder / "pipe")
    write_private(folder / "large", owner_line("ada", ADA) + "#" * MOST_BYTES)
    for what, name in (("a pipe", "pipe"), ("a large one", "large")):
        table[what] = Refused({"API_KEYS_FILE": str(folder / name)}, ())
    with started(table, folder / "logs") as found:
        yield found


def test_a_wrong_keys_file_is_refused_at_the_start(endings: dict[str, Future[Ending]]) -> None:
    for number, what in enumerate(BROKEN):
        sentence = sentence_of(endings[what].result())
        for word in (f"keys{number}: line 4", "`smolsessions keys owner OWNER`"):
            assert word in sentence
        assert ADA not in sentence
    assert "chmod o-rwx" in sentence_of(endings["open to all"].result())
    assert "it is no regular file" in sentence_of(endings["a pipe"].result())
    assert f"more than {MOST_BYTES} bytes" in sentence_of(endings["a large one"].result())


def _serving(folder: Path, keys: Path, text: str) -> Service:
    write_private(keys, text)
    return Service(folder, PLAIN | {"API_KEYS_FILE": str(keys)})


def _rewrite(keys: Path, text: str) -> None:
    """Write the file and advance its modification time, because a clock's tick may be longer than a test."""
    before = keys.stat().st_mtime_ns if keys.exists() else 0
    keys.write_text(text)
    later = max(keys.stat().st_mtime_ns, before + 1_000_000)
    os.utime(keys, ns=(later, later))


def _let_in(service: Service, *keys: str) -> list[bool]:
    statuses = [request_as(service, key, "GET", "/agents").status_code for key in keys]
    assert set(statuses) <= {200, 401}
    return [status == 200 for status in statuses]


def _without_date(response: httpx2.Response) -> tuple[int, dict[str, str], bytes]:
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return response.status_code, headers, response.content
