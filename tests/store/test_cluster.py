"""Services on a Redis Cluster: all features of one server, on all primaries, also while these die, freeze and move."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.failover import (
    KEY_PATTERNS,
    REPLICATED,
    RIGHTS,
    SECOND_SECRET,
    SECRET,
    Pair,
    all_have_begun,
    assert_all_go_on,
    check_all,
    load,
    play_some,
)
from tests.support.idempotency import post_with_key, turn_of
from tests.support.patient import Patient, playing, two_services, until_all_answer
from tests.support.problems import problem
from tests.support.refusals import Ending, Refused, sentence_of, started
from tests.support.service import Service, run, write_private
from tests.support.stopwatch import Stopwatch
from tests.support.streaming import Event, posting, watching
from tests.support.turns import (
    DONE,
    ECHO,
    ENDLESS,
    cancel,
    held_turn,
    submit_turn,
    turn_counts,
    wait_for_end,
)
from tests.support.waiting import Gate, wait_until
from tests.topology.certificates import Authority, new_authority
from tests.topology.cluster import ValkeyCluster
from tests.topology.node import Node, free_port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def services(cluster: ValkeyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two services on the cluster."""
    with two_services(tmp_path_factory.mktemp("services"), cluster.settings | REPLICATED) as both:
        yield both


@pytest.fixture
def pair(cluster: ValkeyCluster, services: Pair) -> Pair:
    """Return the services once the cluster is whole."""
    cluster.until_whole()
    until_all_answer(services)
    return services


def partition_of(cluster: ValkeyCluster, turn: Event) -> str:
    """Return the hash tag of a conversation's keys."""
    name = f"*:conversation:local/{turn['conversation_id']}"
    found: set[str] = {key.decode() for node in cluster.primaries() for key in node.ask("KEYS", name)}
    assert len(found) == 1, found
    return found.pop().partition(":")[0]


def spread(cluster: ValkeyCluster, turns: list[Event]) -> dict[Node, list[Event]]:
    """Return the turns by the primary that stores their conversation."""
    owners: dict[Node, list[Event]] = {node: [] for node in cluster.primaries()}
    for turn in turns:
        owners[cluster.primary_of(partition_of(cluster, turn))].append(turn)
    return owners


def load_while(pair: Pair, do: Callable[[], None]) -> list[Patient]:
    """Play turns until `do` has returned, and return them."""
    patients: list[Patient] = []
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(do)
        while not doing.done():
            some_more = load(pair)
            patients += some_more
            with playing(some_more):
                pass
        doing.result()
    return patients


def test_turns_are_played_on_all_primaries_and_go_on_at_either_service(cluster: ValkeyCluster, pair: Pair) -> None:
    turns = play_some(pair[0], 24)
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
        page = pair[len(listed) % 2].get("/conversations", limit=7, sort="created", **cursor)
        listed += page["items"]
        if len(listed) == 7:  # changes between two pages move no other item
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
            with Stopwatch() as watch:
                gate.open()
                for stream in (here, there):
                    stream.until("tool.result", name="wait_for")
            delays.append(watch.s)
            here.rest()
            there.rest()
            assert [frame.data for frame in here.seen] == [frame.data for frame in there.seen]
    assert min(delays) < 0.5


def test_requests_of_one_key_at_both_services_make_one_turn(pair: Pair) -> None:
    for _ in range(6):
        key = os.urandom(8).hex()
        with ThreadPoolExecutor(6) as pool:
            turns = [
                turn_of(a)
                for a in pool.map(lambda number, key=key: post_with_key(pair[number % 2], key, DONE), range(6))
            ]
        assert turns == turns[:1] * 6
        assert turn_counts(pair[0], turns[0]) == (1, None, 0)


def test_a_key_that_comes_with_another_request_is_refused_whatever_partition_it_is_of(pair: Pair) -> None:
    conversations = play_some(pair[0])
    for turn in conversations:
        key, at = os.urandom(8).hex(), {"conversation_id": turn["conversation_id"]}
        first = turn_of(post_with_key(pair[0], key, DONE, **at))
        problem(post_with_key(pair[1], key, DONE), 422, "idempotency_key_reused")
        for other in conversations[:3]:
            if other is not turn:
                another = {"conversation_id": other["conversation_id"]}
                problem(post_with_key(pair[1], key, DONE, **another), 422, "idempotency_key_reused")
        assert turn_of(post_with_key(pair[1], key, DONE, **at)) == first
    for turn in conversations[:3]:
        key = os.urandom(8).hex()
        first = turn_of(post_with_key(pair[0], key, DONE))
        problem(
            post_with_key(pair[1], key, DONE, conversation_id=turn["conversation_id"]), 422, "idempotency_key_reused"
        )
        assert turn_of(post_with_key(pair[1], key, DONE)) == first


def test_forks_rollbacks_and_prunes_are_made_at_any_partition_and_seen_at_the_other_service(pair: Pair) -> None:
    for turn in play_some(pair[0], 8):
        place = f"/conversations/{turn['conversation_id']}"
        pair[1].follow_up(turn, DONE)
        fork = pair[0].post(f"{place}/fork", turn=1).json()
        assert (fork["turns"], fork["forked_from"]) == (1, {"conversation_id": turn["conversation_id"], "turn": 1})
        assert pair[1].post(f"{place}/rollback", turn=1).json()["archived_steps"] > 0
        policy = {"name": "keep_last_n_steps", "n": 1}
        assert pair[0].post(f"{place}/prune", policy=policy, destroy=True).json()["destroyed"] > 0
        for name in (fork["id"], turn["conversation_id"]):
            assert pair[1].play(DONE, agent="scripted", conversation_id=name)["reply"] == "done", name


def test_a_stop_at_the_other_service_lands(pair: Pair) -> None:
    for _ in range(4):
        with posting(pair[0], ECHO, ENDLESS) as stream:
            turn = stream.until("message.delta", step=2)
            assert cancel(pair[1], turn).status_code in {200, 202}
            assert stream.rest()[-1].event == "turn.cancelled"
        assert wait_for_end(pair[1], turn)["status"] == "cancelled"


def test_turns_that_meet_wait_or_interrupt_across_services(pair: Pair, tmp_path: Path) -> None:
    with held_turn(pair[0], tmp_path / "gate") as first:
        at = {"conversation_id": first["conversation_id"]}
        problem(pair[1].post("/turn", agent="scripted", message="[]", **at), 409, "busy")
        waiting = submit_turn(pair[1], DONE, on_busy="enqueue", **at)
    assert wait_for_end(pair[1], waiting)["reply"] == wait_for_end(pair[0], waiting)["reply"] == "done"
    with posting(pair[0], ECHO, ENDLESS) as stream:
        endless = stream.until("message.delta", step=2)
        at = {"conversation_id": endless["conversation_id"]}
        second = submit_turn(pair[1], DONE, agent="streamed", on_busy="interrupt", **at)
        assert stream.rest()[-1].event == "turn.cancelled"
    assert wait_for_end(pair[0], second)["reply"] == "done"


def test_what_is_deleted_at_one_service_is_gone_at_the_other(
    cluster: ValkeyCluster, pair: Pair, tmp_path: Path
) -> None:
    turns = play_some(pair[0], 6)
    with held_turn(pair[0], tmp_path / "gate", conversation_id=turns[0]["conversation_id"]):
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
    assert left <= {"conversation", "idem"}


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_primary_that_goes_amid_turns_costs_no_step_and_stops_no_other_partition(
    cluster: ValkeyCluster, pair: Pair, how: str
) -> None:
    owners = spread(cluster, play_some(pair[0], 18, "streamed"))
    old = max(owners, key=lambda node: len(owners[node]))
    first, second, *_ = at_old = [{"conversation_id": turn["conversation_id"]} for turn in owners[old]]
    tags = {partition_of(cluster, turn) for turn in owners[old]}
    spared = [turn for node in owners for turn in owners[node] if node is not old][:4]
    patients = [*load(pair), *load(pair, 1, **first), *load(pair, 1, **second)]
    with playing(patients):
        wait_until(lambda: all_have_begun(patients))
        assert not any(patient.is_over for patient in patients)
        (old.kill if how == "killed" else old.freeze)()
        with Stopwatch() as watch:
            for number, turn in enumerate(spared):
                assert pair[number % 2].follow_up(turn, {"say": "meanwhile"})["reply"] == "meanwhile"
        assert watch.s < 2
        late = [load(pair, 1, **at)[0] for at in at_old[2:4]]
        with playing(late):
            assert old not in {cluster.primary_of(tag) for tag in tags}
            if how == "killed":
                cluster.restart(old)
            else:
                old.thaw()
    cluster.until_whole()
    check_all(pair, [*patients, *late])
    assert_all_go_on(pair, [turn for turns in owners.values() for turn in turns])


def test_turns_of_a_process_that_dies_are_played_on_at_every_partition(
    cluster: ValkeyCluster, pair: Pair, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path / f"gate {number}") for number in range(24)]
    # Half of the threads that the turns need: the other processes claim the rest.
    killed = Service(tmp_path / "killed", cluster.settings | REPLICATED | {"THREADS": str(len(gates) // 2)})
    with killed:
        turns = [submit_turn(killed, ECHO, gate.script, DONE) for gate in gates]
        for gate in gates:
            gate.reached()
        assert len({partition_of(cluster, turn) for turn in turns}) > 4
        killed.kill()
        for gate in gates:
            gate.open()
        ended = [wait_for_end(pair[number % 2], turn) for number, turn in enumerate(turns)]
    assert {(turn["status"], turn["reply"], turn["steps"]) for turn in ended} == {("finished", "done", 3)}
    assert {turn["attempts"] for turn in ended} == {1, 2}


@pytest.mark.parametrize("atomically", [True, False], ids=["at once", "key by key"])
def test_a_partition_that_moves_amid_turns_loses_nothing(
    cluster: ValkeyCluster, pair: Pair, *, atomically: bool
) -> None:
    turns = play_some(pair[0])
    tags = {partition_of(cluster, turn) for turn in turns}

    def move_all() -> None:
        for tag in tags:
            target = next(node for node in cluster.primaries() if node is not cluster.primary_of(tag))
            cluster.move(tag, target, atomically=atomically)

    patients = load_while(pair, move_all)
    check_all(pair, patients)
    assert {patient.result["attempts"] for patient in patients} == {1}
    assert_all_go_on(pair, turns)


def test_a_partition_that_is_half_way_is_away_and_whole_when_it_is_there(cluster: ValkeyCluster, pair: Pair) -> None:
    """A slot moves key by key, so two primaries hold parts of it for a while."""
    turns = play_some(pair[0], 4)
    turn = turns[0]
    before = pair[0].steps(turn)
    tag = partition_of(cluster, turn)
    source = cluster.primary_of(tag)
    target = next(node for node in cluster.primaries() if node is not source)
    slot = cluster.slot_of(tag)
    cluster.begin_move(slot, source, target)
    refused = pair[0].client.get(f"/conversations/{turn['conversation_id']}/steps")
    problem(refused, 503, "store_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    problem(
        pair[1].post("/turn", agent="scripted", message="[]", conversation_id=turn["conversation_id"]),
        503,
        "store_unavailable",
    )
    cluster.end_move(slot, source, target)
    assert_all_go_on(pair, turns)
    assert pair[1].steps(turn)[: len(before)] == before


def test_services_follow_a_cluster_whose_nodes_all_move_away(
    cluster: ValkeyCluster, pair: Pair, tmp_path: Path
) -> None:
    first = play_some(pair[0], 4)
    patients = load_while(pair, cluster.roll)
    check_all(pair, patients)
    assert_all_go_on(pair, first)
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
    owners = spread(cluster, play_some(pair[0], 18))
    primary = max(owners, key=lambda node: len(owners[node]))
    alone, others = owners[primary], [turn for node in owners for turn in owners[node] if node is not primary]
    replica = cluster.replica_of(primary)
    replica.kill()
    key, body = os.urandom(8).hex(), {"conversation_id": alone[0]["conversation_id"]}
    with Stopwatch() as watch:
        refused = post_with_key(pair[0], key, {"say": "once"}, **body)
    assert watch.s < 8
    problem(refused, 503, "store_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    for turn in others[:4]:
        assert pair[1].follow_up(turn, {"say": "meanwhile"})["reply"] == "meanwhile"
    cluster.restart(replica)
    cluster.until_whole()

    def is_taken() -> bool:
        return bool(post_with_key(pair[1], key, {"say": "once"}, **body).status_code == 200)

    wait_until(is_taken)
    assert turn_of(post_with_key(pair[0], key, {"say": "once"}, **body))["turn"] == 2
    assert turn_counts(pair[0], alone[0]) == (2, None, 0)
    assert_all_go_on(pair, alone)


@pytest.mark.usefixtures("pair")
def test_figures_of_the_queues_leave_out_what_is_away_and_say_so(cluster: ValkeyCluster, tmp_path: Path) -> None:
    settings = cluster.settings | REPLICATED | {"AGENTS": "unplayed=tests.support.agents:make_scripted"}
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


def figures_of(service: Service, agent: str) -> tuple[float, float, float]:
    """Return the length of an agent's queue, the number of silent partitions, and the age of its oldest turn."""
    lines = service.client.get("/metrics").text.splitlines()
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    names = (f'queue_length{{agent="{agent}"}}', "partitions_silent", f'queue_oldest_seconds{{agent="{agent}"}}')
    length, silent, oldest_s = (found[f"smolsessions_{name}"] for name in names)
    return length, silent, oldest_s


@dataclass(frozen=True)
class Guarded:
    """A cluster that requires a password and TLS, with the settings to connect to it."""

    cluster: ValkeyCluster
    folder: Path
    authority: Authority
    single: Node

    @property
    def settings(self) -> dict[str, str]:
        return {"REDIS_CA_FILE": str(self.authority.ca_file), **self.cluster.settings, **REPLICATED}

    def as_worker(self, password: str = SECOND_SECRET) -> dict[str, str]:
        return self.settings | {"REDIS_URL": self.cluster.url(user="worker", password=password)}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = new_authority(folder / "ours")
    with ValkeyCluster(folder / "cluster", password=SECRET, tls=authority.context, full_coverage=True) as cluster:
        cluster.add_user("worker", f">{SECOND_SECRET}", *KEY_PATTERNS.split(), *RIGHTS.split())
        single = Node(folder / "single", {})
        try:
            single.start()
            yield Guarded(cluster, folder, authority, single)
        finally:
            single.kill()


@pytest.mark.alone  # many TLS handshakes at once, each within the timeout of a reply
def test_a_user_with_the_least_rights_and_tls_do_for_all(guarded: Guarded, tmp_path: Path) -> None:
    with Service(tmp_path / "service", guarded.as_worker()) as service:
        first, *others = play_some(service, 18)
        assert all(spread(guarded.cluster, others).values())
        with posting(service, ECHO, ENDLESS) as stream:
            turn = stream.until("message.delta", step=2)
            cancel(service, turn)
            assert stream.rest()[-1].event == "turn.cancelled"
        assert_all_go_on((service, service), others)
        assert {service.get(f"/conversations/{turn['conversation_id']}")["turns"] for turn in others} == {2}
        assert service.client.delete(f"/conversations/{first['conversation_id']}").status_code == 204
        assert len(service.get("/conversations", limit=100)["items"]) == len(others) + 1
        assert "permission" not in service.log()
        said = service.log() + "".join(service.said)
        assert SECRET not in said
        assert SECOND_SECRET not in said


@pytest.mark.alone  # many TLS handshakes at once, each within the timeout of a reply
def test_a_service_goes_on_at_the_replica_of_a_primary_that_stands_still(guarded: Guarded, tmp_path: Path) -> None:
    """The primary's acknowledgement is enough here. Servers close all partitions by default while one has none."""
    cluster = guarded.cluster
    with Service(tmp_path / "service", guarded.as_worker() | {"DURABILITY": "primary"}) as service:
        owners = spread(cluster, play_some(service, 12, "streamed"))
        old = max(owners, key=lambda node: len(owners[node]))
        tags = {partition_of(cluster, turn) for turn in owners[old]}
        patients = load((service, service), 4)
        try:
            with playing(patients):
                wait_until(lambda: all_have_begun(patients))
                old.freeze()
                assert old not in {cluster.primary_of(tag) for tag in tags}
                with Stopwatch() as watch:
                    assert_all_go_on((service, service), [turn for turns in owners.values() for turn in turns])
                assert watch.s < 10
        finally:
            old.thaw()
            cluster.until_whole()
        assert {patient.result["status"] for patient in patients} == {"finished"}


def test_the_rights_that_a_refusal_names_are_those_that_do(guarded: Guarded, tmp_path: Path) -> None:
    guarded.cluster.add_user("poor", f">{SECOND_SECRET}", "~{p*", "&{p*", "+@read")
    url = {"REDIS_URL": guarded.cluster.url(user="poor", password=SECOND_SECRET)}
    sentence = sentence_of(run(tmp_path, guarded.settings | url))
    assert "permission" in sentence
    assert [right for right in (*KEY_PATTERNS.split(), *RIGHTS.split()) if right not in sentence] == [], sentence


@pytest.mark.alone  # many TLS handshakes at once, each within the timeout of a reply
def test_a_password_may_be_in_a_file_which_may_change(guarded: Guarded, tmp_path: Path) -> None:
    file = write_private(tmp_path / "password", f"{SECOND_SECRET}\n")
    address = guarded.cluster.url(user="worker", password="x").replace(":x@", "@")
    settings = guarded.settings | {"REDIS_URL": address, "REDIS_PASSWORD_FILE": str(file)}
    with Service(tmp_path / "service", settings) as service:
        turn = service.play({"say": "one"})
        file.write_text("the new one\n")
        for node in guarded.cluster.nodes:
            node.ask("ACL", "SETUSER", "worker", f"<{SECOND_SECRET}", ">the new one")
            node.ask("CLIENT", "KILL", "USER", "worker")
        try:
            assert_all_go_on((service, service), [turn])
        finally:
            guarded.cluster.add_user("worker", f">{SECOND_SECRET}", *KEY_PATTERNS.split(), *RIGHTS.split())


def refused(guarded: Guarded) -> dict[str, Refused]:
    """Return starts that must fail on a guarded cluster, each with the words that its error must contain."""
    cluster, settings = guarded.cluster, guarded.settings
    theirs = new_authority(guarded.folder / "theirs")
    wrong_file = write_private(guarded.folder / "wrong", "wrong-sesame\n")
    address, port = cluster.url(user="worker", password="x").replace(":x@", "@"), free_port()
    plain = f"redis+cluster://worker:{quote(SECOND_SECRET, safe='')}@127.0.0.1:{cluster.announced(cluster.nodes[0])}"
    return {
        "a wrong password": Refused(guarded.as_worker("wrong-sesame"), ("refuses the login", "SMOLSESSIONS_REDIS_URL")),
        "a wrong password in a file": Refused(
            settings | {"REDIS_URL": address, "REDIS_PASSWORD_FILE": str(wrong_file)},
            ("refuses the login", "SMOLSESSIONS_REDIS_PASSWORD_FILE"),
        ),
        "a password file that is not there": Refused(
            settings | {"REDIS_URL": address, "REDIS_PASSWORD_FILE": "/nowhere/password"},
            ("SMOLSESSIONS_REDIS_PASSWORD_FILE", "/nowhere/password"),
        ),
        "another authority": Refused(
            guarded.as_worker() | {"REDIS_CA_FILE": str(theirs.ca_file)}, ("certificate", "SMOLSESSIONS_REDIS_CA_FILE")
        ),
        "no authority": Refused(
            {k: v for k, v in guarded.as_worker().items() if k != "REDIS_CA_FILE"},
            ("certificate", "SMOLSESSIONS_REDIS_CA_FILE"),
        ),
        "an authority's file that is not there": Refused(
            guarded.as_worker() | {"REDIS_CA_FILE": "/nowhere/ca.pem"},
            ("SMOLSESSIONS_REDIS_CA_FILE", "/nowhere/ca.pem"),
        ),
        "nodes that nobody runs": Refused(
            settings | {"REDIS_URL": f"rediss+cluster://worker:{SECRET}@127.0.0.1:{port},127.0.0.1:{port}"},
            ("SMOLSESSIONS_REDIS_URL does not answer",),
        ),
        "a server that is no cluster": Refused(
            {"REDIS_URL": f"redis+cluster://127.0.0.1:{guarded.single.port}", "SEAL_KEYS": cluster.key},
            ("is no cluster", "redis://"),
        ),
        "a node of a cluster as a server": Refused(
            guarded.as_worker() | {"REDIS_URL": plain.replace("redis+cluster", "redis")}, ("redis+cluster://",)
        ),
        "a cluster's address with a database": Refused(
            settings | {"REDIS_URL": f"{cluster.url()}/3"}, ("SMOLSESSIONS_REDIS_URL", "redis+cluster://")
        ),
        "another number of partitions": Refused(
            guarded.as_worker() | {"PARTITIONS": "8"}, ("SMOLSESSIONS_PARTITIONS", "16")
        ),
    }


REFUSED = (
    "a wrong password",
    "a wrong password in a file",
    "a password file that is not there",
    "another authority",
    "no authority",
    "an authority's file that is not there",
    "nodes that nobody runs",
    "a server that is no cluster",
    "a node of a cluster as a server",
    "a cluster's address with a database",
    "another number of partitions",
)


@pytest.fixture(scope="module")
def table(guarded: Guarded) -> dict[str, Refused]:
    found = refused(guarded)
    assert tuple(found) == REFUSED
    return found


@pytest.fixture(scope="module")
def endings(table: dict[str, Refused], guarded: Guarded) -> Iterator[dict[str, Future[Ending]]]:
    with Service(guarded.folder / "first", guarded.as_worker()):
        pass  # the number of partitions is fixed now
    with started(table, guarded.folder / "refused") as found:
        yield found


@pytest.mark.parametrize("what", REFUSED)
def test_a_start_is_refused_with_the_mend_and_without_a_secret_for(
    what: str, table: dict[str, Refused], endings: dict[str, Future[Ending]]
) -> None:
    sentence = sentence_of(endings[what].result())
    assert [part for part in table[what].told if part not in sentence] == [], sentence
    secrets = (SECRET, SECOND_SECRET, quote(SECOND_SECRET, safe=""), "wrong-sesame")
    assert not [secret for secret in secrets if secret in sentence]
