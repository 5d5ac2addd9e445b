"""After `smolsessions store rekey` the new seal key alone opens all records, whatever ran or was killed meanwhile."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smolsessions.core.errors import SealBrokenError
from smolsessions.store.connection.servers import Address
from smolsessions.store.key_rotation import MOST_PASSES
from smolsessions.store.partition import Options
from smolsessions.store.scripts.loader import script
from smolsessions.store.seal import Sealer, new_key, parse_keys, tag_of
from smolsessions.store.store import open_store
from tests.support import old_data, remembering
from tests.support.key_search import values_of
from tests.support.old_data import OldData
from tests.support.old_data_checks import ALL, assert_says_all, restored
from tests.support.service import PLAIN, Gate, Service, run, spawn, wait_until
from tests.support.store_server import PARTITION, SEAL_KEY, Raw, StoreServer
from tests.support.stores import open_replica
from tests.support.turns import DONE, png, submit_turn, wait_for_end
from tests.topology.cluster import ValkeyCluster

CODE = {"AGENTS": "code=tests.support.agents:make_code,scripted=tests.support.agents:make_scripted", "DEMO_AGENTS": "0"}
KINDS = {"about", "conversation", "turns", "steps", "images", "heads", "variables", "old", "logs", "log"}
OF_OPEN_TURN = {"pending", "run", "journal"}


def rekey(folder: Path, settings: dict[str, str], keys: str) -> int:
    status, output, errors = run(folder, settings | {"SEAL_KEYS": keys}, "store", "rekey")
    found = re.fullmatch(r"(\d+) records were sealed again\.\n", output)
    assert status == 0, output + errors
    assert found, output + errors
    return int(found[1])


def kinds_under(server: StoreServer, key: str) -> set[str]:
    """Return the kinds of the server's keys that hold records of a seal key."""
    key_id = key.partition(":")[0].encode()
    marks = [bytes((version, len(key_id))) + key_id for version in (0x01, 0x81)]
    return {name.split(":")[1] for name, value in values_of(server) if any(mark in value for mark in marks)}


def counts_of(folder: Path, settings: dict[str, str], keys: str) -> dict[str, int]:
    _, output, errors = run(folder, PLAIN | settings | {"SEAL_KEYS": keys}, "check")
    found = re.search(r"^store +\w+ .*?\(([^)]*)\)", output, re.MULTILINE)
    assert found, output + errors
    return {key: int(number) for number, key in re.findall(r"(\d+) records with seal key (\w+)", found[1])}


def times_to_live(raw: Raw) -> dict[bytes, int]:
    return {name: raw.expiretime(name) for name in raw.scan_iter() if name != f"{PARTITION}:beat".encode()}


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_the_new_key_alone_opens_all(path: Path, tmp_path: Path) -> None:
    old, new, folder = OldData.at(path), new_key(), {remembering.FOLDER: str(tmp_path)}
    both = f"{new},{old.seal_key}"
    with restored(old, tmp_path / "store") as (server, settings), server.client() as raw:
        before = times_to_live(raw)
        (total,) = counts_of(tmp_path / "check", settings, old.seal_key).values()
        assert rekey(tmp_path / "rekey", settings, both) == total - 2, "each start seals the two of `about`"
        assert rekey(tmp_path / "rekey", settings, both) == 0
        assert times_to_live(raw) == before
        assert counts_of(tmp_path / "check", settings, new) == {new.partition(":")[0]: total}
        assert kinds_under(server, old.seal_key) == set()
        agents = old_data.AGENTS if "memory" in path.name else {}
        with Service(tmp_path / "service", settings | {"SEAL_KEYS": new} | agents, folder) as service:
            assert_says_all(service, old, memory="memory" in path.name)
            if "memory" in path.name:  # values of replaced variables
                fork = service.post("/conversations/variables/fork", turn=2).json()["id"]
                turn = service.play({"code": "final_answer(x)"}, agent="code", conversation_id=fork)
                assert turn["output"] == 2


@pytest.fixture
def broken_off(server: StoreServer, tmp_path: Path, gate: Gate) -> Iterator[dict[str, Any]]:
    """Yield a turn of a fork whose process was killed. Its conversation has records of all kinds."""
    settings = CODE | server.settings | {"LOG_TTL_S": "0"}
    with Service(tmp_path / "old", settings) as service:
        image = {"agent": "code", "images": [png("red")]}
        origin = service.play({"code": "x = [1]"}, {"code": "final_answer(x)"}, **image)
        fork = service.post(f"/conversations/{origin['conversation_id']}/fork", metadata={"a": 1}).json()["id"]
        service.play({"code": "x += [2]\nfinal_answer(x)"}, agent="code", conversation_id=fork)
        blocks = [{"code": "x += [3]\ny = 4"}, {"code": f"wait_for({str(gate.path)!r})"}, {"code": "final_answer(x)"}]
        turn = submit_turn(service, *blocks, **image | {"conversation_id": fork})
        gate.reached()
        service.kill()
    yield turn
    gate.open()


def test_no_turn_needs_an_old_key(server: StoreServer, tmp_path: Path, gate: Gate, broken_off: dict[str, Any]) -> None:
    new, settings = new_key(), CODE | server.settings | {"LOG_TTL_S": "0"}
    with server.client() as raw:  # and some chunks of a step that was cut off
        (pending,) = raw.keys("*:pending:*")
        raw.hset(pending, mapping={name + b"\n9.9": blob for name, blob in raw.hgetall(pending).items()})
    assert kinds_under(server, SEAL_KEY) == KINDS | OF_OPEN_TURN
    rekey(tmp_path / "rekey", settings, f"{new},{SEAL_KEY}")
    assert kinds_under(server, SEAL_KEY) == set()
    assert kinds_under(server, new) == KINDS | OF_OPEN_TURN
    gate.open()
    with Service(tmp_path / "new", settings | {"SEAL_KEYS": new}) as service:
        turn = wait_for_end(service, broken_off)
        assert (turn["status"], turn["attempts"], turn["output"]) == ("finished", 2, [1, 2, 3])
        at = f"/conversations/{turn['conversation_id']}"
        assert service.client.get(turn["images"][0]["url"]).status_code == 200
        assert service.post(f"{at}/rollback", turn=1).status_code == 200
        assert service.follow_up(turn, {"code": "final_answer(x)"})["output"] == [1]


def test_a_running_turn_notices_nothing(server: StoreServer, tmp_path: Path, gate: Gate) -> None:
    """Its process still seals with the old key, so that a second call has to seal what the turn adds."""
    new = new_key()
    settings = CODE | server.settings | {"SEAL_KEYS": f"{SEAL_KEY},{new}"}
    both = f"{new},{SEAL_KEY}"
    with Service(tmp_path / "service", settings) as service:
        first = service.play({"code": "x = [1]\ny = 5"}, {"code": "final_answer(x)"}, agent="code")
        at = {"agent": "code", "conversation_id": first["conversation_id"]}
        blocks = [{"code": "x += [2]"}, {"code": f"wait_for({str(gate.path)!r})"}, {"code": "final_answer(x + [y])"}]
        turn = submit_turn(service, *blocks, **at)
        gate.reached()
        assert rekey(tmp_path / "rekey", settings, both) > 0
        assert rekey(tmp_path / "rekey", settings, both) == 0
        gate.open()
        turn = wait_for_end(service, turn)
        assert (turn["status"], turn["attempts"], turn["output"]) == ("finished", 1, [1, 2, 5])
        assert service.play({"code": "final_answer(len(x) + y)"}, **at)["output"] == 7
    assert rekey(tmp_path / "rekey", settings, both) > 0
    with Service(tmp_path / "new", settings | {"SEAL_KEYS": new}) as service:
        assert service.play({"code": "final_answer(x + [y])"}, **at)["output"] == [1, 2, 5]
        assert len(service.steps(turn)) == 11


def test_a_record_that_changed_meanwhile_stays(server: StoreServer) -> None:
    with server.client() as raw:
        raw.script_load(script("rekey").source)
        raw.rpush("{p000}:list", "one", "two")
        raw.hset("{p000}:hash", mapping={"a": "one", "b": "two"})

        def replace(name: str, *changes: str) -> int:
            return int(raw.execute_command(*script("rekey").command(PARTITION, changes, {"server_key": name})))

        assert replace("{p000}:list", "0", "older", "new", "1", "two", "new", "2", "gone", "new") == 1
        assert raw.lrange("{p000}:list", 0, -1) == [b"one", b"new"]
        assert replace("{p000}:hash", "a", "older", "new", "b", "two", "new", "c", "gone", "new") == 1
        assert raw.hgetall("{p000}:hash") == {b"a": b"one", b"b": b"new"}
        assert replace("{p000}:none", "a", "one", "new") == 0
        assert raw.exists("{p000}:none") == 0


def test_copies_under_way_are_waited_for(server: StoreServer, tmp_path: Path) -> None:
    new = new_key()
    with Service(tmp_path / "service", PLAIN | server.settings) as service:
        turns = f"{PARTITION}:turns:local/{service.play(DONE)['conversation_id']}"
    settings = PLAIN | server.settings | {"SEAL_KEYS": f"{new},{SEAL_KEY}"}
    with server.client() as raw:
        raw.copy(turns, f"{PARTITION}:staged:copy:turns")
        status, output, errors = run(tmp_path / "early", settings, "store", "rekey")
        assert (status, "run the command again" in " ".join(output.split())) == (1, True), output + errors
        assert kinds_under(server, SEAL_KEY) == {"staged"}
        process = spawn(tmp_path / "rekey", settings, {}, "store", "rekey")
        raw.config_resetstat()
        wait_until(lambda: raw.info("commandstats").get("cmdstat_scan", {}).get("calls", 0) > 2)
        raw.rename(f"{PARTITION}:staged:copy:turns", turns)
        process.communicate()
    assert process.returncode == 0
    assert kinds_under(server, SEAL_KEY) == set()


async def test_a_process_that_still_seals_with_an_older_key_is_noticed(server: StoreServer) -> None:
    keys, turns = f"{new_key()},{SEAL_KEY}", f"{PARTITION}:turns:local/a"
    record = Sealer(parse_keys(SEAL_KEY)).seal(b"{}", "local/a", "turn", 1)
    async with open_replica(server.socket_path, Sealer(parse_keys(keys))) as store:
        with server.client() as raw:
            raw.rpush(turns, record)

            def put_back(_: int) -> None:
                raw.lset(turns, 0, record)

            done = await store.rekey(put_back)
            assert (done.records, done.is_complete) == (MOST_PASSES, False)
            done = await store.rekey(lambda _: None)
            assert (done.records, done.is_complete) == (1, True)


def test_one_damaged_conversation_does_not_stop_the_others(server: StoreServer, tmp_path: Path) -> None:
    new = new_key()
    with Service(tmp_path / "service", PLAIN | server.settings) as service:
        one, other, _ = (service.play(DONE)["conversation_id"] for _ in range(3))
    settings = PLAIN | server.settings | {"SEAL_KEYS": f"{new},{SEAL_KEY}"}
    with server.client() as raw:
        raw.set(f"{PARTITION}:conversation:local/{one}", "damaged")
        raw.hset(f"{PARTITION}:conversation:local/{other}", "settings", b"\xff")
        status, output, errors = run(tmp_path / "rekey", settings, "store", "rekey")
        assert (status, "records cannot be opened" in output) == (1, True), output + errors
    mark = SEAL_KEY.partition(":")[0].encode()
    unopened = {name for name, value in values_of(server) if mark in value}
    assert {name.split("/")[1].split(":")[0] for name in unopened} == {one, other}


def test_the_chunks_of_a_fork_alone(server: StoreServer, tmp_path: Path, broken_off: dict[str, Any]) -> None:
    """Its settings, which name the origin that sealed them, have the new key already."""
    settings, new = CODE | server.settings | {"LOG_TTL_S": "0"}, new_key()
    old = f"{PARTITION}:old:local/{broken_off['conversation_id']}"
    with server.client() as raw:
        assert (count := raw.hlen(old)) > 1
        chunks = raw.dump(old)
        rekey(tmp_path / "rekey", settings, f"{new},{SEAL_KEY}")
        raw.restore(old, 0, chunks, replace=True)
    assert kinds_under(server, SEAL_KEY) == {"old"}
    assert rekey(tmp_path / "again", settings, f"{new},{SEAL_KEY}") == count
    assert kinds_under(server, SEAL_KEY) == set()


def test_records_are_counted_and_sealed_again_in_all_partitions(server: StoreServer, tmp_path: Path) -> None:
    with Service(tmp_path / "service", PLAIN | server.settings | {"PARTITIONS": "4"}) as service:
        assert {service.play(DONE)["status"] for _ in range(8)} == {"finished"}
    (total,) = counts_of(tmp_path / "check", server.settings, SEAL_KEY).values()
    assert rekey(tmp_path / "rekey", server.settings, f"{new_key()},{SEAL_KEY}") == total - 2 > 30


async def test_the_keys_of_all_servers_of_a_cluster_are_counted(tmp_path: Path) -> None:
    options = Options(lease_s=1, log_ttl_s=1, max_behind=1, max_queued=1)
    with ValkeyCluster(tmp_path) as cluster:
        address, sealer = Address(cluster.url()), Sealer(parse_keys(SEAL_KEY))
        async with open_store(address, sealer, options, lambda _: None) as store:
            before = await store.key_count()
            for partition in store.partitions:
                await partition.ask("SET", f"{partition.name}:one", "more")
            assert await store.key_count() == before + len(store.partitions)


def test_a_call_that_was_killed_is_run_again(server: StoreServer, tmp_path: Path) -> None:
    new = new_key()
    with Service(tmp_path / "service", PLAIN | server.settings) as service:
        turn = service.play({"call": [["echo", {"text": "a"}]]}, DONE)
        forks = [service.post(f"/conversations/{turn['conversation_id']}/fork").json()["id"] for _ in range(300)]
    settings = PLAIN | server.settings | {"SEAL_KEYS": f"{new},{SEAL_KEY}"}
    with server.client() as raw:
        raw.config_resetstat()
        process = spawn(tmp_path / "killed", settings, {}, "store", "rekey")
        wait_until(lambda: "cmdstat_lset" in raw.info("commandstats"))
        process.kill()
    process.communicate()
    counts = counts_of(tmp_path / "check", settings, new)
    assert min(counts.values()) > 0
    assert len(counts) == 2, counts
    assert rekey(tmp_path / "rekey", settings, settings["SEAL_KEYS"]) == counts[SEAL_KEY.partition(":")[0]]
    with Service(tmp_path / "new", settings | {"SEAL_KEYS": new}) as service:
        for fork in forks[::50]:
            assert service.get(f"/conversations/{fork}/turns/1")["reply"] == "done"
            assert service.play(DONE, conversation_id=fork)["turn"] == 2


@pytest.mark.parametrize("name", ["data", "d" * 120], ids=["short", "beyond a socket's path"])
def test_the_embedded_store_of_a_running_service(name: str, tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    data = {"DATA_DIR": str(tmp_path / name)}
    status, _, said = run(tmp_path / "none", data, "store", "rekey")
    assert (status, "holds no store" in said) == (2, True), said
    with Service(tmp_path / "old", PLAIN | data | {"SEAL_KEYS": old}) as service:
        turn = service.play(DONE)
    with Service(tmp_path / "both", PLAIN | data | {"SEAL_KEYS": f"{new},{old}"}) as service:
        assert rekey(tmp_path / "rekey", PLAIN | data, f"{new},{old}") > 0
        assert service.follow_up(turn, DONE)["turn"] == 2
    assert rekey(tmp_path / "rekey", PLAIN | data, f"{new},{old}") == 0
    with Service(tmp_path / "new", PLAIN | data | {"SEAL_KEYS": new}) as service:
        assert service.follow_up(turn, DONE)["turn"] == 3


def test_a_record_that_was_sealed_again_keeps_its_tag_and_cannot_be_changed() -> None:
    old, new, newest = (parse_keys(new_key()) for _ in range(3))
    first = Sealer(old).seal(b"text", "a/b", "step", 0, 1)
    second = Sealer(new + old).rekey(first, "a/b", "step", 0, 1)
    third = Sealer(newest + new).rekey(second, "a/b", "step", 0, 1)
    assert {tag_of(first), tag_of(second)} == {tag_of(third)}
    sealer = Sealer(newest)
    assert sealer.open(third, "a/b", "step", 0, 1) == b"text"
    for place in ("step", 0, 2), ("step", 0):
        with pytest.raises(SealBrokenError):
            sealer.open(third, "a/b", *place)
    for index in range(len(third)):
        with pytest.raises(SealBrokenError):
            sealer.open(third[:index] + bytes([third[index] ^ 1]) + third[index + 1 :], "a/b", "step", 0, 1)
        with pytest.raises(SealBrokenError):
            sealer.open(third[:index], "a/b", "step", 0, 1)
