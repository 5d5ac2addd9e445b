"""API keys and owners: no owner can see, change or guess another owner's objects."""

import hashlib
import itertools
import json
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.owners import ADA, BOB, SECOND, create_as, owner_line, request_as, say_as
from tests.support.pictures import png
from tests.support.problems import nothing_stored, problem, send
from tests.support.refusals import Ending, Refused, sentence_of, started
from tests.support.service import CODELESS, PLAIN, Service, run, write_private
from tests.support.sounds import sent
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import wait_until

PATHS = [
    ("POST", "/turn"),
    ("POST", "/conversations"),
    ("GET", "/conversations"),
    ("GET", "/conversations/{id}"),
    ("PATCH", "/conversations/{id}"),
    ("DELETE", "/conversations/{id}"),
    ("GET", "/conversations/{id}/steps"),
    ("GET", "/conversations/{id}/turns"),
    ("GET", "/conversations/{id}/turns/1"),
    ("GET", "/conversations/{id}/turns/1/effects"),
    ("POST", "/conversations/{id}/turns"),
    ("GET", "/agents"),
    ("GET", "/agents/{id}"),
]
SAME_ID = {"X-Request-Id": "the-same"}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/turn"): {"message": '[{"say": "hi"}]', "agent": "scripted"},
    ("POST", "/conversations"): {},
    ("PATCH", "/conversations/{id}"): {"metadata": {"touched": True}},
    ("POST", "/conversations/{id}/turns"): {"message": '[{"say": "hi"}]'},
}
BROKEN = {
    "a key that is no digest": f"ada {ADA}",
    "a digest that is cut": f"ada {hashlib.sha256(ADA.encode()).hexdigest()[:-1]}",
    "a word too many": f"ada {hashlib.sha256(ADA.encode()).hexdigest()} x",
    "an owner with a slash": f"ada/bob {hashlib.sha256(ADA.encode()).hexdigest()}",
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with two owners, one of them with two keys. Its file has comments and blank lines."""
    folder = tmp_path_factory.mktemp("locked")
    keys = write_private(
        folder / "keys",
        f"# who may come in\n\n{owner_line('ada', ADA)}\n"
        f"   # her phone\n{owner_line('ada', SECOND)}\n{owner_line('bob', BOB)}",
    )
    with Service(folder, CODELESS | {"API_KEYS_FILE": str(keys)}) as running:
        yield running


@pytest.mark.parametrize("place", PATHS)
@pytest.mark.parametrize(
    "header",
    [None, "Bearer", "Bearer wrong-key", f"Bearer {ADA[:-1]}", f"Bearer {ADA} {ADA}", f"Basic {ADA}", ADA, "Bearer é"],
)
def test_requests_without_a_key_are_refused(locked: Service, place: tuple[str, str], header: str | None) -> None:
    made = create_as(locked, ADA)
    method, path = place
    with nothing_stored(locked, Authorization=f"Bearer {ADA}"):
        response = locked.client.request(
            method,
            path.format(id=made["id"]),
            json=BODIES.get(place),
            headers={b"Authorization": header.encode("latin-1")} if header else None,
        )
        problem(response, 401, "unauthorized")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("body", ["{", '{"message": ""}', '{"unknown": 1}', "[]"])
def test_an_answer_to_a_request_without_a_key_reveals_nothing_of_its_body(locked: Service, body: str) -> None:
    problem(send(locked, "POST", "/turn", body), 401, "unauthorized")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/"])
def test_health_figures_and_description_need_no_key(locked: Service, path: str) -> None:
    assert request_as(locked, None, "GET", path).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_word_before_the_key_may_be_written_in_any_case(locked: Service, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {ADA}"}
    assert locked.client.get("/agents", headers=headers).status_code == 200


def test_each_owner_sees_their_own_conversations_alone(locked: Service) -> None:
    hers, his = create_as(locked, ADA)["id"], create_as(locked, BOB)["id"]
    for key, own, other in ((ADA, hers, his), (BOB, his, hers)):
        ids = [item["id"] for item in request_as(locked, key, "GET", "/conversations?limit=100").json()["items"]]
        assert (own in ids, other in ids) == (True, False)


def test_all_keys_of_an_owner_open_the_same(locked: Service) -> None:
    made = create_as(locked, ADA, metadata={"by": "laptop"})
    assert request_as(locked, SECOND, "GET", f"/conversations/{made['id']}").json() == made


@pytest.mark.parametrize("place", [place for place in PATHS if "/conversations/{id}" in place[1]])
def test_another_owners_conversation_answers_as_one_that_never_existed(locked: Service, place: tuple[str, str]) -> None:
    conversation_id = create_as(locked, ADA)["id"]
    say_as(locked, ADA, "private", conversation_id)
    method, path = place
    with nothing_stored(locked, Authorization=f"Bearer {ADA}"), nothing_stored(locked, Authorization=f"Bearer {BOB}"):
        others, nothing = (
            request_as(locked, BOB, method, path.format(id=name), BODIES.get(place), **SAME_ID)
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


def test_a_turn_cannot_be_posted_to_anothers_conversation_by_its_id(locked: Service) -> None:
    conversation_id = create_as(locked, ADA)["id"]
    for agent in ({}, {"agent": "scripted"}, {"agent": "demo"}):
        others, nothing = (
            request_as(locked, BOB, "POST", "/turn", {"message": "hi", "conversation_id": name, **agent}, **SAME_ID)
            for name in (conversation_id, "never-was")
        )
        problem(others, 404, "conversation_not_found")
        assert _without_date(others) == _without_date(nothing)
    assert request_as(locked, ADA, "GET", f"/conversations/{conversation_id}").json()["turns"] == 0


def test_the_same_id_is_another_conversation_for_another_owner(locked: Service) -> None:
    for key, text in ((ADA, "hers"), (BOB, "his")):
        create_as(locked, key, id="diary", metadata={"of": text})
        say_as(locked, key, text, "diary")
    for key, text in ((ADA, "hers"), (BOB, "his")):
        shown = request_as(locked, key, "GET", "/conversations/diary").json()
        turns = request_as(locked, key, "GET", "/conversations/diary/turns").json()["items"]
        steps = request_as(locked, key, "GET", "/conversations/diary/steps").json()["items"]
        assert (shown["metadata"], shown["turns"], len(steps)) == ({"of": text}, 1, 2)
        assert [turn["reply"] for turn in turns] == [text]
    assert request_as(locked, BOB, "DELETE", "/conversations/diary").status_code == 204
    assert say_as(locked, ADA, "goes on", "diary")["turn"] == 2


def test_the_keys_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    _, made, told = run(tmp_path / "making", {}, "keys", "owner", "carol")
    carol = told.splitlines()[-1]
    keys = tmp_path / "keys"
    with _serving(tmp_path, keys, owner_line("ada", ADA) + owner_line("bob", BOB)) as service:
        assert _let_in(service, ADA, BOB, carol) == [True, True, False]
        _rewrite(keys, made + owner_line("ada", ADA))
        assert _let_in(service, ADA, BOB, carol) == [True, False, True]
        _rewrite(keys, f"{made}bob is missing something\n")
        assert _let_in(service, ADA, BOB, carol) == [False, False, True], "a wrong line keeps no revoked key"
        keys.unlink()
        assert _let_in(service, ADA, BOB, carol) == [False, False, True]
        _rewrite(keys, owner_line("bob", BOB))
        assert _let_in(service, ADA, BOB, carol) == [False, True, False]
        assert service.log().count("line 2") == 1


def test_a_keys_file_that_all_users_may_read_later_is_warned_of_and_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with _serving(tmp_path, keys, owner_line("ada", ADA)) as service:
        keys.chmod(0o644)
        assert _let_in(service, ADA, BOB) == [True, False]
        assert f"run `chmod o-rwx {keys}`" in service.log()
        _rewrite(keys, owner_line("bob", BOB))
        assert _let_in(service, ADA, BOB) == [False, True]


def test_a_keys_file_is_read_again_when_one_of_the_same_age_takes_its_place(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with _serving(tmp_path, keys, owner_line("ada", ADA)) as service:
        age = keys.stat().st_mtime_ns
        other = tmp_path / "other"
        other.write_text(owner_line("bob", BOB) + owner_line("ada", SECOND))
        os.utime(other, ns=(age, age))
        other.replace(keys)
        assert _let_in(service, ADA, BOB, SECOND) == [False, True, True]


@pytest.mark.parametrize("then", ["nothing", "another owner"])
@pytest.mark.parametrize("on_disconnect", ["", "?on_disconnect=cancel"])
def test_a_stream_ends_with_its_key_and_the_turn_goes_on(tmp_path: Path, then: str, on_disconnect: str) -> None:
    keys, go = tmp_path / "keys", tmp_path / "go"
    with _serving(
        tmp_path, keys, owner_line("ada", ADA) + owner_line("bob", BOB) + owner_line("ada", SECOND)
    ) as service:
        body = {"message": json.dumps([{"call": [["wait_for", {"path": str(go)}]]}, {"say": "done"}])}
        conversation_id = create_as(service, ADA, agent="scripted")["id"]
        path = f"/conversations/{conversation_id}/turns"
        assert request_as(service, ADA, "POST", path, body, Prefer="respond-async").status_code == 202
        with ExitStack() as stack:
            ended, goes_on = (
                stack.enter_context(
                    service.client.stream(
                        "GET", f"{path}/1/events{on_disconnect}", headers={"Authorization": f"Bearer {key}"}
                    )
                )
                for key in (ADA, SECOND)
            )
            assert (ended.status_code, goes_on.status_code) == (200, 200)
            lines = ended.iter_lines()
            assert next(lines) == "event: turn.queued"
            with Stopwatch() as watch:
                _rewrite(
                    keys,
                    owner_line("ada", SECOND)
                    + owner_line("bob", BOB)
                    + (owner_line("bob", ADA) if then != "nothing" else ""),
                )
                assert [text for text in lines if text][-1].startswith(": the API key")
            assert watch.s < 5
            again = request_as(service, ADA, "GET", f"{path}/1/events")
            problem(again, *((401, "unauthorized") if then == "nothing" else (404, "conversation_not_found")))
            go.touch()
            assert "event: turn.finished" in list(goes_on.iter_lines())


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ending]]]:
    folder = tmp_path_factory.mktemp("broken")
    table = {}
    for number, (what, broken) in enumerate(BROKEN.items()):
        keys = folder / f"keys{number}"
        keys.write_text(f"# two good lines\n\n{owner_line('ada', ADA)}{broken}\n{owner_line('bob', BOB)}")
        table[what] = Refused({"API_KEYS_FILE": str(keys)}, ())
    with started(table, folder / "logs") as found:
        yield found


@pytest.mark.parametrize("what", BROKEN)
def test_a_keys_file_is_refused_with_its_line_and_the_mend_for(what: str, endings: dict[str, Future[Ending]]) -> None:
    sentence = sentence_of(endings[what].result())
    number = list(BROKEN).index(what)
    for word in (f"keys{number}: line 4", "`smolsessions keys owner OWNER`"):
        assert word in sentence
    assert ADA not in sentence


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


def test_a_thousand_turns_of_one_owner_keep_another_waiting_for_a_few(tmp_path: Path) -> None:
    keys, gate = tmp_path / "keys", tmp_path / "gate"
    write_private(keys, owner_line("ada", ADA) + owner_line("bob", BOB))
    settings = PLAIN | {"API_KEYS_FILE": str(keys), "THREADS": "1", "MAX_QUEUED_TURNS": "1400"}
    with Service(tmp_path / "service", settings) as service:
        post(service, ADA, {"call": [["wait_for", {"path": str(gate)}]]}, {"say": "the first"})
        flood = [post(service, ADA, {"say": "more"}) for _ in range(1000)]
        gate.touch()
        bobs = [ended(service, BOB, post(service, BOB, {"say": "mine"})) for _ in range(9)]
        between: list[int] = []
        adas = (shown(service, ADA, turn)["timing"]["started_at"] for turn in flood)
        starts = list(itertools.takewhile(bool, adas))  # turns of one owner start in their order
        for turn in bobs:
            submitted, started_at = (turn["timing"][name] for name in ("submitted_at", "started_at"))
            between.append(sum(submitted < start < started_at for start in starts))
        assert statistics.median(between) <= 2, between
        assert len(starts) < len(flood)  # the flood lasted until the end


def post(service: Service, key: str, *script: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}", "Prefer": "respond-async"}
    body = {"agent": "scripted", "message": json.dumps(script)}
    response = service.client.post("/turn", json=body, headers=headers)
    assert response.status_code == 202, response.text
    turn: dict[str, Any] = response.json()
    return turn


def shown(service: Service, key: str, turn: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = request_as(
        service, key, "GET", f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}"
    ).json()
    return found


def ended(service: Service, key: str, turn: dict[str, Any]) -> dict[str, Any]:
    wait_until(lambda: shown(service, key, turn)["status"] == "finished")
    return shown(service, key, turn)
