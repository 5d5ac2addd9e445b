"""Data of earlier releases stays readable and usable for ever. Data of a later release is refused with a sentence.

The files in tests/data were written by `tests.support.old_data`, each with the code of its format. They never change.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from smolsessions.store.seal import VERSION, Sealer, parse_keys
from tests.support import old_data, remembering
from tests.support.old_data import DEMO, TALKS, OldData
from tests.support.old_data_checks import ALL, FILES, MORE, assert_holds, messages_of, restored
from tests.support.problems import problem
from tests.support.service import Service, run
from tests.support.store_server import PARTITION, Raw

MEMORY = [path for path in ALL if path not in FILES]
NEWER = "is of a format newer than this release"


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest) -> OldData:
    return OldData.at(request.param)


@pytest.fixture(scope="module")
def untouched(old: OldData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service on the old data, which is only read."""
    folder = tmp_path_factory.mktemp("untouched")
    with restored(old, folder / "store") as (_, settings), Service(folder / "service", settings) as service:
        yield service


@pytest.fixture(scope="module")
def used(old: OldData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service on the old data. One test continues each of its conversations."""
    folder = tmp_path_factory.mktemp("used")
    with restored(old, folder / "store") as (_, settings), Service(folder / "service", settings) as service:
        yield service


def test_there_is_a_file_of_every_format() -> None:
    assert {path.name for path in FILES} >= {f"format-{number}.json.gz" for number in range(1, VERSION + 1)}
    assert all(path.stat().st_size < 100_000 for path in ALL)


def test_all_that_was_said_of_old_data_is_said_of_it_now(old: OldData, untouched: Service) -> None:
    now = old_data.say_all(untouched)
    assert now.keys() == old.said.keys()
    for path, then in old.said.items():
        assert_holds(now[path], then, path)
    kinds = {step["type"] for path, answer in old.said.items() if path.endswith("/steps") for step in answer["items"]}
    assert {"task", "planning", "action"} <= kinds
    statuses = {turn["status"] for path, said in old.said.items() if path.endswith("/turns") for turn in said["items"]}
    assert statuses == {"finished", "failed", "cancelled"}


@pytest.mark.parametrize("name", TALKS)
def test_an_old_conversation_goes_on_as_one_that_is_played_now(used: Service, name: str) -> None:
    turns = len(TALKS[name][1])
    now = old_data.play_as_new(used, name, f"{name}-now")
    then = used.get(f"/conversations/{name}/turns/{turns}")
    assert messages_of(used, then) == messages_of(used, now)
    asked = used.follow_up(then, {"prompt": True})
    assert (asked["status"], asked["turn"]) == ("finished", turns + 1)
    assert asked["reply"] == used.follow_up(now, {"prompt": True})["reply"]
    for entry, reply in MORE.get(name, ()):
        assert [used.follow_up(turn, entry)["reply"] for turn in (then, now)] == [reply] * 2


@pytest.mark.parametrize("name", ["demo", "demo-code"])
def test_an_old_conversation_with_a_demo_agent_goes_on(used: Service, name: str) -> None:
    for text in ("What did I ask first?", "What is 6 * 7?"):
        turn = used.post("/turn", message=text, conversation_id=name).json()
        assert turn["status"] == "finished"
        assert (DEMO[0] if "first" in text else "42") in turn["reply"]


@pytest.mark.parametrize("name", ["stopped", "handed", "empty"])
def test_whatever_became_of_the_last_turn_another_one_is_played(used: Service, name: str) -> None:
    where = f"/conversations/{name}"
    before = used.get(where)
    turn = used.play({"say": "ещё"}, agent=before["agent"], conversation_id=name)
    assert (turn["status"], turn["reply"], turn["turn"]) == ("finished", "ещё", before["turns"] + 1)


def test_old_keys_of_requests_and_deleted_names_are_known(old: OldData, used: Service) -> None:
    again = old_data.once(used)
    assert (again.status_code, again.json()["turn"]) == (200, 1)
    assert f"/conversations/{again.json()['conversation_id']}" in old.said
    problem(used.post("/conversations", id="deleted", agent="scripted"), 409, "conversation_exists")


def test_old_conversations_are_patched_and_deleted(old: OldData, tmp_path: Path) -> None:
    with restored(old, tmp_path / "store") as (server, settings), Service(tmp_path / "service", settings) as service:
        patched = service.client.patch("/conversations/tools", json={"metadata": {"новое": 1}}).json()
        assert patched["metadata"] == {**old_data.METADATA, "новое": 1}
        assert service.client.delete("/conversations/tools").status_code == 204
        problem(service.client.get("/conversations/tools"), 404, "conversation_not_found")
        with server.client() as raw:
            assert not raw.exists(f"{PARTITION}:steps:local/tools:0", f"{PARTITION}:images:local/tools")


def test_what_later_releases_do_with_conversations_is_done_with_old_ones_too(old: OldData, tmp_path: Path) -> None:
    with restored(old, tmp_path / "store") as (_, settings), Service(tmp_path / "service", settings) as service:
        where, before = "/conversations/tools", service.get("/conversations/tools/steps", limit=100)
        turn = {"conversation_id": "tools", "agent": {"name": "scripted"}}
        fork = turn | {"conversation_id": service.post(f"{where}/fork").json()["id"]}
        assert messages_of(service, fork) == messages_of(service, turn)
        brought = service.client.post("/conversations/import", json=service.get(f"{where}/export"))
        assert brought.status_code == 201, brought.text
        assert messages_of(service, turn | {"conversation_id": brought.json()["id"]}) == messages_of(service, turn)
        digest = service.follow_up(turn, {"prompt": True})["reply"]
        assert service.follow_up(fork, {"prompt": True})["reply"] == digest
        back = service.follow_up(turn, {"say": "taken back"})
        assert service.post(f"{where}/rollback", turn=back["turn"] - 1).status_code == 200
        assert service.post(f"{where}/prune", policy={"name": "keep_last_n_steps", "n": 1}).json()["archived"] > 0
        record = service.get(f"{where}/steps", limit=100, archived=True)["items"]
        assert [step["task"] for step in record if step["type"] == "task"][:5] == [
            step["task"] for step in before["items"] if step["type"] == "task"
        ]


def newer_seal(raw: Raw, _seal: Sealer) -> None:
    blob = raw.lindex(STEPS, 1)
    raw.lset(STEPS, 1, bytes([VERSION + 1]) + blob[1:])


def newer_step(raw: Raw, sealer: Sealer) -> None:
    raw.lset(STEPS, 1, sealer.seal(struct.pack(">BIH", 99, 1, 0) + b"data", SCOPE, "step", 0, 1))


def newer_head(raw: Raw, sealer: Sealer) -> None:
    head = sealer.open(raw.hget(CONVERSATION, "head"), SCOPE, "head")
    raw.hset(CONVERSATION, "head", sealer.seal(head[:-1] + b",0" * 40 + b"]", SCOPE, "head"))


SCOPE = "local/tools"
STEPS, CONVERSATION = f"{PARTITION}:steps:{SCOPE}:0", f"{PARTITION}:conversation:{SCOPE}"


@pytest.mark.parametrize("make_newer", [newer_seal, newer_step, newer_head])
def test_a_newer_format_is_refused_with_a_sentence(old: OldData, tmp_path: Path, make_newer: Any) -> None:
    with restored(old, tmp_path / "store") as (server, settings), server.client() as raw:
        make_newer(raw, Sealer(parse_keys(old.seal_key)))
        with Service(tmp_path / "service", settings) as service:
            shown = problem(service.client.get("/conversations/tools/steps"), 500, "seal_broken")
            turn = service.play({"say": "never"}, conversation_id="tools")
            assert (turn["status"], turn["error"]["code"]) == ("failed", "seal_broken")
            for sentence in (shown["detail"], turn["error"]["message"]):
                assert NEWER in sentence
            assert service.play({"say": "others go on"}, conversation_id="reset")["reply"] == "others go on"


def test_a_newer_record_of_a_turn_is_refused_with_a_sentence(old: OldData, tmp_path: Path) -> None:
    with restored(old, tmp_path / "store") as (server, settings), server.client() as raw:
        sealer, turns = Sealer(parse_keys(old.seal_key)), f"{PARTITION}:turns:{SCOPE}"
        record = from_json(sealer.open(raw.lindex(turns, 0), SCOPE, "turn", 1))
        record["outcome"]["status"] = "postponed"
        raw.lset(turns, 0, sealer.seal(to_json(record), SCOPE, "turn", 1))
        log = sealer.seal(b"turn.queued\n{}\nturn.postponed\n{}", SCOPE, "log", 2)
        assert raw.hset(f"{PARTITION}:logs:{SCOPE}", "2", log) == 0
        with Service(tmp_path / "service", settings) as service:
            shown = problem(service.client.get("/conversations/tools/turns/1"), 500, "seal_broken")
            assert NEWER in shown["detail"]
            events = old_data.events(service.client.get("/conversations/tools/turns/2/events").text)
            assert [event["type"] for event in events] == ["turn.queued", "turn.finished"]
            assert service.play({"say": "goes on"}, conversation_id="tools")["reply"] == "goes on"


def test_a_store_of_a_newer_schema_is_not_used(old: OldData, tmp_path: Path) -> None:
    with restored(old, tmp_path / "store") as (server, settings):
        with server.client() as raw:
            raw.hset(f"{PARTITION}:about", "schema", "2")
        status, _, said = run(tmp_path / "service", settings)
    assert status == 2
    assert "the store holds data of schema 2, this release knows 1; run the release that wrote it" in said
    assert "Traceback" not in said


@pytest.fixture(params=MEMORY, ids=lambda path: path.name)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[OldData, Service]]:
    """Yield the data of conversations with bounded memory that went back in time, and a service on it."""
    kept, folder = OldData.at(request.param), {remembering.FOLDER: str(tmp_path)}
    with (
        restored(kept, tmp_path / "store") as (_, settings),
        Service(tmp_path / "service", settings | old_data.AGENTS, folder) as service,
    ):
        yield kept, service


def test_old_memories_are_read_and_gone_on_with(memory: tuple[OldData, Service]) -> None:
    kept, service = memory
    now = old_data.say_all(service, memory=True)
    assert now.keys() == kept.said.keys()
    for path, then in kept.said.items():
        assert_holds(now[path], then, path)
    assert {"note", "summary"} <= {
        step["type"] for path, said in now.items() if path.endswith("/steps") for step in said["items"]
    }
    assert now["/conversations/notes"]["expires_at"]
    old_data_turns = {name: service.get(f"/conversations/{name}")["turns"] for name in old_data.MEMORY}
    for name, (agent, _) in old_data.MEMORY.items():
        where, fork = f"/conversations/{name}", service.post(f"/conversations/{name}/fork").json()["id"]
        replies = {service.play({"prompt": True}, agent=agent, conversation_id=one)["reply"] for one in (name, fork)}
        assert len(replies) == 1, name
        assert service.post(f"{where}/rollback", turn=0).status_code == 200
        assert service.get(f"{where}/steps")["items"] == []
        assert service.post(f"{where}/rollback", turn=old_data_turns[name]).status_code == 200
        if name not in {"archived", "variables"}:  # steps archived or undone since the last turn are back, too
            assert_holds(service.get(f"{where}/steps", limit=100), kept.said[f"{where}/steps"], name)
        assert service.post(f"{where}/prune", policy=old_data.LAST, destroy=True).status_code == 200


def test_old_values_of_variables_come_back(memory: tuple[OldData, Service]) -> None:
    _, service = memory

    def value(name: str) -> Any:
        return service.play({"code": "final_answer(x)"}, agent="code", conversation_id=name)["output"]

    made = service.post("/conversations/variables/fork", turn=2).json()["id"]
    assert [value(name) for name in (made, "imported", "variables")] == [2, {"ü": 1}, {"ü": 1}]
    service.post("/conversations/variables/rollback", turn=3).raise_for_status()
    assert value("variables") == 3
