"""Services on a Redis Cluster: all features of one server, on all primaries, also while these die, freeze and move."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support import failover
from tests.support.failover import Pair
from tests.support.idempotency import post_with_key, turn_of
from tests.support.problems import problem
from tests.support.refusals import Refused, assert_refused
from tests.support.service import Service, totals, wait_until, write_private
from tests.support.stopwatch import Stopwatch
from tests.support.streaming import Event, Patient, playing, posting, two_services, until_all_answer, watching
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO, ENDLESS, cancel, held_turn, submit_turn, wait_for_end
from tests.topology.certificates import new_authority
from tests.topology.cluster import ValkeyCluster
from tests.topology.node import Node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def services(cluster: ValkeyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_services(tmp_path_factory.mktemp("services"), cluster.settings | failover.REPLICATED) as both:
        yield both


@pytest.fixture
def pair(cluster: ValkeyCluster, services: Pair) -> Pair:
    cluster.until_whole()
    until_all_answer(services)
    return services


def partition_of(cluster: ValkeyCluster, turn: Event) -> str:
    name = f"*:conversation:local/{turn['conversation_id']}"
    found: set[str] = {key.decode() for node in cluster.primaries() for key in node.ask("KEYS", name)}
    assert len(found) == 1, found
    return found.pop().partition(":")[0]


def spread(cluster: ValkeyCluster, turns: list[Event]) -> dict[Node, list[Event]]:
    owners: dict[Node, list[Event]] = {node: [] for node in cluster.primaries()}
    for turn in turns:
        owners[cluster.primary_of(partition_of(cluster, turn))].append(turn)
    return owners


def load_while(pair: Pair, do: Callable[[], None]) -> list[Patient]:
    patients: list[Patient] = []
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(do)
        while not doing.done():
            some_more = failover.load(pair)
            patients += some_more
            with playing(some_more):
                pass
        doing.result()
    return patients


def play_on_each(
    cluster: ValkeyCluster, service: Service, agent: str = "scripted", *, most: int = 1
) -> dict[Node, list[Event]]:
    """Begin conversations until each primary has one, and one of them `most`. Return them by their primary."""
    turns: list[Event] = []
    while not all((owners := spread(cluster, turns)).values()) or max(map(len, owners.values())) < most:
        turns += failover.play_some(service, agent=agent)
    return owners


def test_turns_run_on_all_primaries_and_go_on_anywhere_after_a_move(cluster: ValkeyCluster, pair: Pair) -> None:
    owners = play_on_each(cluster, pair[0])
    for turns in owners.values():
        assert pair[1].follow_up(turns[0], {"say": "two"})["turn"] == 2
    source, (turn, *_) = next(iter(owners.items()))
    cluster.move(partition_of(cluster, turn), next(node for node in owners if node is not source))
    failover.assert_all_go_on(pair, [turn])
    listed = {item["id"] for item in pair[1].get("/conversations", limit=100)["items"]}
    assert listed >= {turn["conversation_id"] for turns in owners.values() for turn in turns}


@deep
def test_features_work_at_any_partition_and_either_service(cluster: ValkeyCluster, pair: Pair, tmp_path: Path) -> None:
    conversations = [turns[0] for turns in play_on_each(cluster, pair[0]).values()]
    for number, turn in enumerate(conversations):
        place, at = f"/conversations/{turn['conversation_id']}", {"conversation_id": turn["conversation_id"]}
        key, gate = os.urandom(8).hex(), tmp_path / f"gate {number}"
        with ThreadPoolExecutor(6) as pool:
            both = pool.map(lambda nth, key=key, at=at: post_with_key(pair[nth % 2], key, DONE, **at), range(6))
            turns = [turn_of(response) for response in both]
        assert turns == turns[:1] * 6
        problem(post_with_key(pair[1], key, DONE), 422, "idempotency_key_reused")
        another = {"conversation_id": conversations[number - 1]["conversation_id"]}
        problem(post_with_key(pair[1], key, DONE, **another), 422, "idempotency_key_reused")
        fork = pair[0].post(f"{place}/fork", turn=1).json()
        assert pair[1].post(f"{place}/rollback", turn=1).json()["archived_steps"] > 0
        policy = {"name": "keep_last_n_steps", "n": 1}
        assert pair[0].post(f"{place}/prune", policy=policy, destroy=True).json()["destroyed"] > 0
        for name in (fork["id"], turn["conversation_id"]):
            assert pair[1].play(DONE, conversation_id=name)["reply"] == "done", name
        with held_turn(pair[0], gate, **at):
            problem(pair[1].post("/turn", agent="scripted", message="[]", **at), 409, "busy")
            waiting = submit_turn(pair[1], DONE, on_busy="enqueue", **at)
        assert wait_for_end(pair[1], waiting)["reply"] == wait_for_end(pair[0], waiting)["reply"] == "done"
        with posting(pair[0], ECHO, ENDLESS) as here:
            endless = here.until("message.delta", step=2)
            with watching(pair[1], endless) as there:
                assert cancel(pair[1], endless).status_code in {200, 202}
                assert here.rest()[-1].event == there.rest()[-1].event == "turn.cancelled"
                assert [frame.data for frame in here.seen] == [frame.data for frame in there.seen]
        assert pair[1].client.delete(place).status_code == 204
        assert pair[0].client.get(place).status_code == 404
        keys = [key for node in cluster.primaries() for key in node.ask("KEYS", f"*{turn['conversation_id']}*")]
        assert {key.decode().split(":")[1] for key in keys} <= {"conversation", "idem"}


@deep
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_primary_lost_amid_turns_costs_no_step_and_no_partition(cluster: ValkeyCluster, pair: Pair, how: str) -> None:
    owners = play_on_each(cluster, pair[0], "streamed", most=4)
    old = max(owners, key=lambda node: len(owners[node]))
    first, second, *_ = at_old = [{"conversation_id": turn["conversation_id"]} for turn in owners[old]]
    tags = {partition_of(cluster, turn) for turn in owners[old]}
    spared = [turn for node in owners for turn in owners[node] if node is not old][:4]
    patients = [*failover.load(pair), *failover.load(pair, 1, **first), *failover.load(pair, 1, **second)]
    with playing(patients):
        wait_until(lambda: failover.all_have_begun(patients))
        assert not any(patient.is_over for patient in patients)
        (old.kill if how == "killed" else old.freeze)()
        with Stopwatch() as watch:
            for number, turn in enumerate(spared):
                assert pair[number % 2].follow_up(turn, {"say": "meanwhile"})["reply"] == "meanwhile"
        assert watch.s < 2
        late = [failover.load(pair, 1, **at)[0] for at in at_old[2:4]]
        with playing(late):
            assert old not in {cluster.primary_of(tag) for tag in tags}
            if how == "killed":
                cluster.restart(old)
            else:
                old.thaw()
    cluster.until_whole()
    failover.check_all(pair, [*patients, *late])
    failover.assert_all_go_on(pair, [turn for turns in owners.values() for turn in turns])


@deep
def test_a_partition_that_is_half_way_is_away_and_whole_when_it_is_there(cluster: ValkeyCluster, pair: Pair) -> None:
    """A slot moves key by key, so two primaries hold parts of it for a while."""
    (turn,) = turns = failover.play_some(pair[0], 1)
    before = pair[0].steps(turn)
    tag = partition_of(cluster, turn)
    source = cluster.primary_of(tag)
    target = next(node for node in cluster.primaries() if node is not source)
    slot = cluster.slot_of(tag)
    cluster.begin_move(slot, source, target)
    read = pair[0].client.get(f"/conversations/{turn['conversation_id']}/steps")
    posted = pair[1].post("/turn", agent="scripted", message="[]", conversation_id=turn["conversation_id"])
    for refused in (read, posted):
        problem(refused, 503, "store_unavailable")
        assert int(refused.headers["retry-after"]) > 0
    cluster.end_move(slot, source, target)
    failover.assert_all_go_on(pair, turns)
    assert pair[1].steps(turn)[: len(before)] == before


@deep
def test_services_follow_a_cluster_whose_nodes_all_move(cluster: ValkeyCluster, pair: Pair, tmp_path: Path) -> None:
    first = failover.play_some(pair[0], 4)
    failover.check_all(pair, load_while(pair, cluster.roll))
    failover.assert_all_go_on(pair, first)
    assert cluster.settings["REDIS_URL"] != pair[0].settings["REDIS_URL"]
    nowhere = pair[0].settings["REDIS_URL"].split(",")[:-1]
    living = cluster.url(cluster.nodes[:1]).rpartition("/")[2]
    settings = cluster.settings | failover.REPLICATED | {"REDIS_URL": ",".join([*nowhere, living])}
    with Service(tmp_path, settings) as late:
        assert late.follow_up(first[0], {"say": "found"})["reply"] == "found"


@deep
@pytest.mark.usefixtures("pair")
def test_figures_of_the_queues_leave_out_what_is_away_and_say_so(cluster: ValkeyCluster, tmp_path: Path) -> None:
    settings = cluster.settings | failover.REPLICATED | {"AGENTS": "unplayed=tests.support.agents:make_scripted"}
    with Service(tmp_path / "web", settings, command=("web",)) as web:
        with ThreadPoolExecutor(8) as pool:
            waiting = list(pool.map(lambda _: submit_turn(web, DONE, agent="unplayed"), range(24)))
        owners = spread(cluster, waiting)
        old = max(owners, key=lambda node: len(owners[node]))
        held = [tag for tag in (f"{{p{place:03}}}" for place in range(16)) if cluster.primary_of(tag) is old]
        queues = partial(figures_of, web, "unplayed")
        assert queues()[:2] == (24, 0)
        old.freeze()
        try:
            length, silent, oldest_s = queues()
            assert (length, silent) == (24 - len(owners[old]), len(held))
            assert oldest_s > 0
        finally:
            old.thaw()
        wait_until(lambda: queues()[:2] == (24, 0))
        for turn in waiting:
            assert cancel(web, turn).status_code == 200
        assert queues() == (0, 0, 0)
    assert "Traceback" not in web.log()


def figures_of(service: Service, agent: str) -> tuple[float, ...]:
    """Return the length of an agent's queue, the number of silent partitions, and the age of its oldest turn."""
    found, of = totals(service), f'{{agent="{agent}"}}'
    return tuple(
        found[f"smolsessions_{name}"]
        for name in (f"queue_length{of}", "partitions_silent", f"queue_oldest_seconds{of}")
    )


WORKER = f">{failover.SECOND_SECRET} {failover.KEY_PATTERNS} {failover.RIGHTS}".split()


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[tuple[ValkeyCluster, dict[str, str]]]:
    """Yield a cluster that requires a password and TLS, and the settings of its administrator."""
    authority = new_authority(folder / "ours")
    with ValkeyCluster(
        folder / "cluster", password=failover.SECRET, tls=authority.context, full_coverage=True
    ) as cluster:
        cluster.add_user("worker", *WORKER)
        yield cluster, {"REDIS_CA_FILE": str(authority.ca_file), **cluster.settings, **failover.REPLICATED}


@deep
def test_the_least_rights_tls_and_a_changing_password_file_suffice(
    guarded: tuple[ValkeyCluster, dict[str, str]], tmp_path: Path
) -> None:
    cluster, settings = guarded
    file = write_private(tmp_path / "password", f"{failover.SECOND_SECRET}\n")
    address = cluster.url(user="worker", password="x").replace(":x@", "@")
    with Service(tmp_path / "service", settings | {"REDIS_URL": address, "REDIS_PASSWORD_FILE": str(file)}) as service:
        turns = [turn for turns in play_on_each(cluster, service).values() for turn in turns]
        with posting(service, ECHO, ENDLESS) as stream:
            cancel(service, stream.until("message.delta", step=2))
            assert stream.rest()[-1].event == "turn.cancelled"
        assert service.client.delete(f"/conversations/{turns.pop()['conversation_id']}").status_code == 204
        assert len(service.get("/conversations", limit=100)["items"]) == len(turns) + 1
        file.write_text("the new one\n")
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", "worker", f"<{failover.SECOND_SECRET}", ">the new one")
            node.ask("CLIENT", "KILL", "USER", "worker")
        try:
            failover.assert_all_go_on((service, service), turns)
        finally:
            cluster.add_user("worker", *WORKER)
        assert "permission" not in service.log()
        said = service.log() + "".join(service.said)
        assert [secret for secret in (failover.SECRET, failover.SECOND_SECRET, "the new one") if secret in said] == []
    cluster.add_user("poor", f">{failover.SECOND_SECRET}", *failover.KEY_PATTERNS.split(), "+@read")
    poor = {"REDIS_URL": cluster.url(user="poor", password=failover.SECOND_SECRET)}
    theirs = {"REDIS_CA_FILE": str(new_authority(tmp_path / "theirs").ca_file)}
    table = {
        "too few rights": Refused(settings | poor, ("permission", *failover.RIGHTS.split())),
        "another authority": Refused(settings | theirs, ("certificate", "SMOLSESSIONS_REDIS_CA_FILE")),
        "a database": Refused(settings | {"REDIS_URL": f"{cluster.url()}/3"}, ("redis+cluster://",)),
    }
    assert_refused(table, tmp_path / "refused", (failover.SECRET, failover.SECOND_SECRET))
