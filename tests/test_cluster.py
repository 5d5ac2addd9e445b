"""Services on a Redis Cluster: all they do on one server, on all primaries, also while these die, freeze and move."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.patient import Patient, playing
from tests.problems import problem
from tests.refusals import Refused, sentence_of, started
from tests.service import Service
from tests.streaming import log_of, place, posting, watching
from tests.test_busy import held, shown
from tests.test_idempotency import ask, made
from tests.test_stop import DONE, ECHO, ENDLESS, stop, wait
from tests.test_store import Gate, begin, over, until
from tests.topology.certificates import new_authority
from tests.topology.cluster import ValkeyCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.refusals import Ending
    from tests.streaming import Event
    from tests.topology.node import Node

pytest_plugins = ["tests.streaming"]
pytestmark = pytest.mark.timeout(120)

REPLICATED = {"DURABILITY": "replicated"}
SLOWLY: Event = {"text": "x" * 60, "pace_s": 0.04}  # a step that is a parse error, told in pieces for 0.8 s
LOAD = 12
Pair = tuple[Service, Service]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def services(cluster: ValkeyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give two services on the cluster."""
    folder = tmp_path_factory.mktemp("services")
    settings = cluster.settings | REPLICATED
    with ExitStack() as stack:
        yield (
            stack.enter_context(Service(folder / "a", settings)),
            stack.enter_context(Service(folder / "b", settings)),
        )


@pytest.fixture
def pair(cluster: ValkeyCluster, services: Pair) -> Pair:
    """Give the services, on a cluster that is whole."""
    cluster.until_whole()
    for service in services:
        until(lambda service=service: service.client.get("/conversations").status_code == 200)  # type: ignore[misc]
    return services


def partition_of(cluster: ValkeyCluster, turn: Event) -> str:
    """Give the tag of a conversation's keys."""
    name = f"*:conversation:local/{turn['conversation_id']}"
    found = {key.decode() for node in cluster.primaries() for key in node.ask("KEYS", name)}
    assert len(found) == 1, found
    return found.pop().partition(":")[0]


def some(service: Service, number: int = LOAD, agent: str = "scripted") -> list[Event]:
    """Begin conversations."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: service.play({"say": "one"}, agent=agent), range(number)))


def spread(cluster: ValkeyCluster, turns: list[Event]) -> dict[Node, list[Event]]:
    """Tell which primary has which conversations."""
    owners: dict[Node, list[Event]] = {node: [] for node in cluster.primaries()}
    for turn in turns:
        owners[cluster.primary_of(partition_of(cluster, turn))].append(turn)
    return owners


def load(pair: Pair, number: int = LOAD, **body: Any) -> list[Patient]:
    """Give turns of a few seconds, half of them handed in at each service."""
    script = [ECHO, SLOWLY, ECHO, SLOWLY, ECHO, DONE]
    return [Patient(pair if at % 2 else pair[::-1], script, body=body) for at in range(number)]


def begun(patients: list[Patient]) -> bool:
    """Tell whether all of them have shown a step."""
    return all(any(frame.event == "step.finished" for frame in patient.frames) for patient in patients)


def test_turns_are_played_on_all_primaries_and_go_on_at_either_service(cluster: ValkeyCluster, pair: Pair) -> None:
    turns = some(pair[0], 24)
    assert all(spread(cluster, turns).values())
    for turn in turns:
        assert pair[1].follow_up(turn, {"say": "two"})["turn"] == 2


def test_a_list_shows_all_partitions_the_newest_first_without_gaps_or_doubles(pair: Pair) -> None:
    names = [f"listed-{number}-{os.urandom(4).hex()}" for number in range(30)]
    for number, name in enumerate(names):
        assert pair[number % 2].post("/conversations", id=name, agent="scripted").status_code == 201
    listed: list[Event] = []
    cursor: dict[str, str] = {}
    while cursor is not None:
        page = pair[len(listed) % 2].get("/conversations", limit=7, **cursor)
        listed += page["items"]
        if len(listed) == 7:  # what comes and goes meanwhile moves nothing else
            pair[0].post("/conversations", agent="scripted")
            assert pair[0].client.delete(f"/conversations/{names.pop(3)}").status_code == 204
        assert len(page["items"]) == 7 or not page["next_cursor"]
        if not page["next_cursor"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert [item["id"] for item in listed if item["id"].startswith("listed-")] == names[::-1]
    assert len({item["id"] for item in listed}) == len(listed)
    times = [item["created_at"] for item in listed]
    assert times == sorted(times, reverse=True)


def test_a_turn_is_seen_live_at_the_service_that_does_not_play_it(pair: Pair, tmp_path: Path) -> None:
    delays = []
    for number in range(6):
        gate = Gate(tmp_path / f"gate {number}")
        with posting(pair[0], gate.script, DONE) as here, watching(pair[1], here.until("turn.queued")) as there:
            for stream in (here, there):
                stream.until("tool.call", name="wait_for")
            start = time.monotonic()
            gate.open()
            for stream in (here, there):
                stream.until("tool.result", name="wait_for")
            delays.append(time.monotonic() - start)
            here.rest()
            there.rest()
            assert [frame.data for frame in here.seen] == [frame.data for frame in there.seen]
    assert min(delays) < 0.5


def test_requests_of_one_key_at_both_services_make_one_turn(pair: Pair) -> None:
    for _ in range(6):
        key = os.urandom(8).hex()
        with ThreadPoolExecutor(6) as pool:
            turns = [made(a) for a in pool.map(lambda number, key=key: ask(pair[number % 2], key, DONE), range(6))]  # type: ignore[misc]
        assert turns == turns[:1] * 6
        assert shown(pair[0], turns[0]) == (1, None, 0)


def test_a_key_that_comes_with_another_request_is_refused_whatever_partition_it_is_of(pair: Pair) -> None:
    conversations = some(pair[0])
    for turn in conversations:
        key, at = os.urandom(8).hex(), {"conversation_id": turn["conversation_id"]}
        first = made(ask(pair[0], key, DONE, **at))
        problem(ask(pair[1], key, DONE), 422, "idempotency_key_reused")
        for other in conversations[:3]:
            if other is not turn:
                another = {"conversation_id": other["conversation_id"]}
                problem(ask(pair[1], key, DONE, **another), 422, "idempotency_key_reused")
        assert made(ask(pair[1], key, DONE, **at)) == first
    for turn in conversations[:3]:
        key = os.urandom(8).hex()
        first = made(ask(pair[0], key, DONE))
        problem(ask(pair[1], key, DONE, conversation_id=turn["conversation_id"]), 422, "idempotency_key_reused")
        assert made(ask(pair[1], key, DONE)) == first


def test_a_stop_at_the_other_service_lands(pair: Pair) -> None:
    for _ in range(4):
        with posting(pair[0], ECHO, ENDLESS) as stream:
            turn = stream.until("message.delta", step=2)
            assert stop(pair[1], turn).status_code in {200, 202}
            assert stream.rest()[-1].event == "turn.cancelled"
        assert over(pair[1], turn)["status"] == "cancelled"


def test_turns_that_meet_wait_or_interrupt_across_services(pair: Pair, tmp_path: Path) -> None:
    with held(pair[0], tmp_path / "gate") as first:
        at = {"conversation_id": first["conversation_id"]}
        problem(pair[1].post("/turn", agent="scripted", message="[]", **at), 409, "busy")
        waiting = begin(pair[1], DONE, on_busy="enqueue", **at)
    assert over(pair[1], waiting)["reply"] == over(pair[0], waiting)["reply"] == "done"
    with posting(pair[0], ECHO, ENDLESS) as stream:
        endless = stream.until("message.delta", step=2)
        at = {"conversation_id": endless["conversation_id"]}
        second = begin(pair[1], DONE, agent="streamed", on_busy="interrupt", **at)
        assert stream.rest()[-1].event == "turn.cancelled"
    assert over(pair[0], second)["reply"] == "done"


def test_what_is_deleted_at_one_service_is_gone_at_the_other(
    cluster: ValkeyCluster, pair: Pair, tmp_path: Path
) -> None:
    turns = some(pair[0], 6)
    with held(pair[0], tmp_path / "gate", conversation_id=turns[0]["conversation_id"]):
        for turn in turns:
            assert pair[1].client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
            for service in pair:
                assert service.client.get(f"/conversations/{turn['conversation_id']}").status_code == 404
    ids = {turn["conversation_id"] for turn in turns}
    assert not ids & {item["id"] for item in pair[0].get("/conversations", limit=100)["items"]}
    left = {
        key.decode().split(":")[1]
        for name in ids
        for node in cluster.primaries()
        for key in node.ask("KEYS", f"*{name}*")
    }
    assert left <= {"conversation", "log", "idem"}


def goes_on(pair: Pair, turns: list[Event]) -> None:
    """See that conversations take turns again, at either service, and that no service was started anew."""
    assert all(service.process.poll() is None for service in pair)
    with ThreadPoolExecutor(8) as pool:
        patients = [
            Patient(pair, [DONE], turn["agent"]["name"], {"conversation_id": turn["conversation_id"]}) for turn in turns
        ]
        for patient in pool.map(Patient.play, patients):
            assert patient.result["reply"] == "done"


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_primary_that_goes_amid_turns_costs_no_step_and_stops_no_other_partition(
    cluster: ValkeyCluster, pair: Pair, how: str
) -> None:
    owners = spread(cluster, some(pair[0], 18, "streamed"))
    old = max(owners, key=lambda node: len(owners[node]))
    first, second, *_ = at_old = [{"conversation_id": turn["conversation_id"]} for turn in owners[old]]
    tags = {partition_of(cluster, turn) for turn in owners[old]}
    spared = [turn for node in owners for turn in owners[node] if node is not old][:4]
    patients = [*load(pair), *load(pair, 1, **first), *load(pair, 1, **second)]
    with playing(patients):
        until(lambda: begun(patients))
        assert not any(patient.is_over for patient in patients)
        (old.kill if how == "killed" else old.freeze)()
        start = time.monotonic()
        for number, turn in enumerate(spared):
            assert pair[number % 2].follow_up(turn, {"say": "meanwhile"})["reply"] == "meanwhile"
        assert time.monotonic() - start < 2
        late = [load(pair, 1, **at)[0] for at in at_old[2:4]]
        with playing(late):
            assert old not in {cluster.primary_of(tag) for tag in tags}
            if how == "killed":
                cluster.restart(old)
            else:
                old.thaw()
    cluster.until_whole()
    for number, patient in enumerate([*patients, *late]):
        patient.check(pair[number % 2])
        assert (patient.result["status"], patient.result["steps"]) == ("finished", 6)
    goes_on(pair, [turn for turns in owners.values() for turn in turns])


@pytest.mark.parametrize("atomically", [True, False], ids=["at once", "key by key"])
def test_a_partition_that_moves_amid_turns_loses_nothing(
    cluster: ValkeyCluster, pair: Pair, *, atomically: bool
) -> None:
    turns = some(pair[0])
    tags = {partition_of(cluster, turn): turn for turn in turns}
    patients = [*load(pair), *load(pair, 4)]
    with playing(patients) as playing_on:
        until(lambda: begun(patients))
        for tag in tags:
            target = next(node for node in cluster.primaries() if node is not cluster.primary_of(tag))
            cluster.move(tag, target, atomically=atomically)
        assert not all(future.done() for future in playing_on)
    for number, patient in enumerate(patients):
        patient.check(pair[number % 2])
        assert patient.result["status"] == "finished"
        assert (patient.result["attempts"], patient.breaks) == (1, 0)
    goes_on(pair, turns)


def test_a_partition_that_is_half_way_is_away_and_whole_when_it_is_there(cluster: ValkeyCluster, pair: Pair) -> None:
    """Key by key, a slot is in two places for a while."""
    turns = some(pair[0], 4)
    turn = turns[0]
    before = pair[0].steps(turn)
    tag = partition_of(cluster, turn)
    source = cluster.primary_of(tag)
    target = next(node for node in cluster.primaries() if node is not source)
    slot = cluster.slot_of(tag)
    cluster.begin_move(slot, source, target)
    refused = pair[0].client.get(f"/conversations/{turn['conversation_id']}/steps")
    assert int(problem(refused, 503, "store_unavailable") and refused.headers["retry-after"]) > 0
    problem(
        pair[1].post("/turn", agent="scripted", message="[]", conversation_id=turn["conversation_id"]),
        503,
        "store_unavailable",
    )
    cluster.end_move(slot, source, target)
    goes_on(pair, turns)
    assert pair[1].steps(turn)[: len(before)] == before


def test_services_follow_a_cluster_whose_nodes_all_move_away(
    cluster: ValkeyCluster, pair: Pair, tmp_path: Path
) -> None:
    first = some(pair[0], 4)
    patients = load(pair, 4)
    with playing(patients):
        cluster.roll()
    for patient in patients:
        patient.check(pair[0])
        assert patient.result["status"] == "finished"
    goes_on(pair, first)
    seeds = cluster.settings["REDIS_URL"]
    assert seeds != pair[0].settings["REDIS_URL"]
    nowhere = pair[0].settings["REDIS_URL"].split(",")[:-1]
    living = cluster.url(cluster.nodes[:1]).rpartition("/")[2]
    settings = cluster.settings | REPLICATED | {"REDIS_URL": ",".join([*nowhere, living])}
    with Service(tmp_path, settings) as late:
        assert late.follow_up(first[0], {"say": "found"})["reply"] == "found"


def test_a_partition_without_a_replica_acknowledges_nothing_until_it_has_one(
    cluster: ValkeyCluster, pair: Pair
) -> None:
    owners = spread(cluster, some(pair[0], 18))
    primary = max(owners, key=lambda node: len(owners[node]))
    alone, others = owners[primary], [turn for node in owners for turn in owners[node] if node is not primary]
    replica = cluster.replica_of(primary)
    replica.kill()
    key, body = os.urandom(8).hex(), {"conversation_id": alone[0]["conversation_id"]}
    start = time.monotonic()
    refused = ask(pair[0], key, {"say": "once"}, **body)
    assert time.monotonic() - start < 8
    problem(refused, 503, "store_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    for turn in others[:4]:
        assert pair[1].follow_up(turn, {"say": "meanwhile"})["reply"] == "meanwhile"
    cluster.restart(replica)
    cluster.until_whole()

    def is_taken() -> bool:
        return bool(ask(pair[1], key, {"say": "once"}, **body).status_code == 200)

    until(is_taken)
    assert made(ask(pair[0], key, {"say": "once"}, **body))["turn"] == 2
    assert shown(pair[0], alone[0]) == (2, None, 0)
    goes_on(pair, alone)


SECRET, ANOTHER = "hunter2", "sword/fi:sh"
RIGHTS = (
    "resetkeys ~{p* resetchannels &{p* -@all +@read +@write +@pubsub +evalsha +script|load +info +wait +time".split()
)
