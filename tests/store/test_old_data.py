"""Data of earlier releases stays readable and usable for ever. Data of a later release is refused with a sentence.

Each file in tests/data was written with the code of its format. They never change.
"""

import struct
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from smolsessions.store.seal import VERSION, Sealer, parse_keys
from tests.support import old_data, remembering
from tests.support.old_data import TALKS, OldData
from tests.support.old_data_checks import ALL, FILES, MORE, assert_holds, assert_says_all, messages_of, restored
from tests.support.problems import problem
from tests.support.service import Service, run
from tests.support.store_server import PARTITION

MEMORY = [path for path in ALL if path not in FILES]
NEWER = "is of a format newer than this release"


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest) -> OldData:
    return OldData.at(request.param)


def test_there_is_a_file_of_every_format() -> None:
    assert {path.name for path in FILES} >= {f"format-{number}.json.gz" for number in range(1, VERSION + 1)}
    assert all(path.stat().st_size < 100_000 for path in ALL)


def test_old_conversations_are_read_and_gone_on_with(old: OldData, tmp_path: Path) -> None:
    with restored(old, tmp_path / "store") as (server, settings), Service(tmp_path / "service", settings) as service:
        now = assert_says_all(service, old)
        pages = [said["items"] for path, said in now.items() if path.endswith("/steps")]
        assert {"task", "planning", "action"} <= {step["type"] for page in pages for step in page}
        pages = [said["items"] for path, said in now.items() if path.endswith("/turns")]
        assert {turn["status"] for page in pages for turn in page} == {"finished", "failed", "cancelled"}
        for name in TALKS:
            assert_goes_on_as_one_that_is_played_now(service, name)
        for name in ("demo", "demo-code"):
            replies = [
                service.post("/turn", message=text, conversation_id=name).json()["reply"]
                for text in ("What did I ask first?", "What is 6 * 7?")
            ]
            assert old_data.FIRST_DEMO in replies[0]
            assert "42" in replies[1]
        for name in ("stopped", "handed", "empty"):  # whatever became of the last turn
            before = service.get(f"/conversations/{name}")
            turn = service.play({"say": "ещё"}, agent=before["agent"], conversation_id=name)
            assert (turn["status"], turn["reply"], turn["turn"]) == ("finished", "ещё", before["turn_count"] + 1)
        again = old_data.once(service)
        assert (again.status_code, again.json()["turn"]) == (200, 1)
        assert f"/conversations/{again.json()['conversation_id']}" in old.said
        problem(service.post("/conversations", id="deleted", agent="scripted"), 409, "conversation_exists")
        patched = service.client.patch("/conversations/tools", json={"metadata": {"новое": 1}}).json()
        assert patched["metadata"] == {**old_data.METADATA, "новое": 1}
        assert service.client.delete("/conversations/tools").status_code == 204
        problem(service.client.get("/conversations/tools"), 404, "conversation_not_found")
        with server.client() as raw:
            assert not raw.exists(f"{PARTITION}:steps:local/tools:0", f"{PARTITION}:images:local/tools")


def assert_goes_on_as_one_that_is_played_now(service: Service, name: str) -> None:
    turns = len(TALKS[name][1])
    now = old_data.play_as_new(service, name, f"{name}-now")
    then = service.get(f"/conversations/{name}/turns/{turns}")
    assert messages_of(service, then) == messages_of(service, now)
    asked = service.follow_up(then, {"prompt": True})
    assert (asked["status"], asked["turn"]) == ("finished", turns + 1)
    assert asked["reply"] == service.follow_up(now, {"prompt": True})["reply"]
    for entry, reply in MORE.get(name, ()):
        assert [service.follow_up(turn, entry)["reply"] for turn in (then, now)] == [reply] * 2


def test_newer_formats_are_refused_with_a_sentence_and_hide_nothing_else(old: OldData, tmp_path: Path) -> None:
    sealer = Sealer(parse_keys(old.seal_key))

    def key(kind: str, name: str, *more: str) -> str:
        return ":".join([PARTITION, kind, f"local/{name}", *more])

    with restored(old, tmp_path / "store") as (server, settings), server.client() as raw:
        steps = key("steps", "tools", "0")
        raw.lset(steps, 1, bytes([VERSION + 1]) + raw.lindex(steps, 1)[1:])
        step = sealer.seal(struct.pack(">BIH", 99, 1, 0) + b"data", "local/checks", "step", 0, 1)
        raw.lset(key("steps", "checks", "0"), 1, step)
        plans = key("conversation", "plans")
        head = sealer.open(raw.hget(plans, "head"), "local/plans", "head")
        raw.hset(plans, "head", sealer.seal(head[:-1] + b",0" * 40 + b"]", "local/plans", "head"))
        turns = key("turns", "code")
        record = from_json(sealer.open(raw.lindex(turns, 0), "local/code", "turn", 1))
        record["outcome"]["status"] = "postponed"
        raw.lset(turns, 0, sealer.seal(to_json(record), "local/code", "turn", 1))
        log = sealer.seal(b"turn.queued\n{}\nturn.postponed\n{}", "local/code", "log", 2)
        assert raw.hset(key("logs", "code"), "2", log) == 0
        with Service(tmp_path / "service", settings) as service:
            for name, agent in (("tools", "scripted"), ("checks", "checked"), ("plans", "planner")):
                shown = problem(service.client.get(f"/conversations/{name}/steps"), 500, "seal_broken")
                turn = service.play({"say": "never"}, conversation_id=name, agent=agent)
                assert (turn["status"], turn["error"]["code"]) == ("failed", "seal_broken")
                assert NEWER in shown["detail"]
                assert NEWER in turn["error"]["message"]
            shown = problem(service.client.get("/conversations/code/turns/1"), 500, "seal_broken")
            assert NEWER in shown["detail"]
            events = old_data.events(service.client.get("/conversations/code/turns/2/events").text)
            assert [event["type"] for event in events] == ["turn.queued", "turn.finished"]
            on = service.play({"code": "final_answer('on')"}, conversation_id="code", agent="code")
            assert on["reply"] == service.play({"say": "on"}, conversation_id="reset")["reply"] == "on"


def test_a_store_of_a_newer_schema_is_not_used(old: OldData, tmp_path: Path) -> None:
    with restored(old, tmp_path / "store") as (server, settings):
        with server.client() as raw:
            raw.hset(f"{PARTITION}:about", "schema", "3")
        status, _, said = run(tmp_path / "service", settings)
    assert status == 2
    assert "the store holds data of schema 3, this release knows 2; run the release that wrote it" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("path", MEMORY, ids=lambda path: path.name)
def test_old_memories_are_read_and_gone_on_with(path: Path, tmp_path: Path) -> None:
    old, folder = OldData.at(path), {remembering.FOLDER: str(tmp_path)}
    with (
        restored(old, tmp_path / "store") as (_, settings),
        Service(tmp_path / "service", settings | old_data.AGENTS, folder) as service,
    ):
        now = assert_says_all(service, old, memory=True)
        pages = [said["items"] for path, said in now.items() if path.endswith("/steps")]
        assert {"note", "summary"} <= {step["type"] for page in pages for step in page}
        assert now["/conversations/notes"]["expires_at"]
        assert_variables_come_back(service)
        for name, agent in old_data.MEMORY.items():
            where, fork = f"/conversations/{name}", service.post(f"/conversations/{name}/fork").json()["id"]
            turns = service.get(where)["turn_count"]
            both = (name, fork)
            assert len({service.play({"prompt": True}, agent=agent, conversation_id=one)["reply"] for one in both}) == 1
            assert service.post(f"{where}/rollback", turn=0).status_code == 200
            assert service.get(f"{where}/steps")["items"] == []
            assert service.post(f"{where}/rollback", turn=turns).status_code == 200
            if name not in {"archived", "variables"}:  # steps archived or undone since the last turn are back, too
                assert_holds(service.get(f"{where}/steps", limit=100), old.said[f"{where}/steps"], name)
            assert service.post(f"{where}/prune", policy=old_data.LAST, destroy=True).status_code == 200


def assert_variables_come_back(service: Service) -> None:
    def value(name: str) -> Any:
        return service.play({"code": "final_answer(x)"}, agent="code", conversation_id=name)["output"]

    fork = service.post("/conversations/variables/fork", turn=2).json()["id"]
    assert [value(name) for name in (fork, "imported", "variables")] == [2, {"ü": 1}, {"ü": 1}]
    service.post("/conversations/variables/rollback", turn=3).raise_for_status()
    assert value("variables") == 3
