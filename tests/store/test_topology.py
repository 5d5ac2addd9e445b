"""Stores of several servers that other tests use behave as operators' stores do, faults included."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.exceptions import AskError
from redis.exceptions import ConnectionError as NoConnectionError
from redis.retry import Retry

from tests.topology.certificates import new_authority
from tests.topology.cluster import ValkeyCluster
from tests.topology.node import HOST
from tests.topology.sentinels import Sentinels

KEYS = [f"{{p{number:03d}}}:x" for number in range(16)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_cluster_survives_a_killed_primary_which_comes_back_as_a_replica(cluster: ValkeyCluster) -> None:
    key = KEYS[0]
    old = cluster.primary_of(key)
    spared = next(other for other in KEYS if cluster.primary_of(other) is not old)
    with old.client() as client:
        client.set(key, "kept")
        assert client.wait(1, 1000) == 1
    old.kill()
    assert cluster.primary_of(spared).ask("SET", spared, "meanwhile")
    new = cluster.primary_of(key)
    assert new is not old
    assert new.ask("GET", key) == b"kept"
    cluster.restart(old)
    cluster.until_whole()
    assert cluster.replica_of(new) is old
    assert old.ask("ROLE")[0] == b"slave"


def test_a_frozen_primary_is_replaced_and_follows_when_it_goes_on(cluster: ValkeyCluster) -> None:
    key = KEYS[1]
    old = cluster.primary_of(key)
    old.freeze()
    try:
        assert cluster.primary_of(key) is not old
    finally:
        old.thaw()
    cluster.until_whole()
    assert cluster.primary_of(key) is not old
    assert old.ask("ROLE")[0] == b"slave"


def test_all_nodes_may_be_found_elsewhere_after_a_while(cluster: ValkeyCluster) -> None:
    ports = {node.port for node in cluster.nodes}
    owner = cluster.primary_of(KEYS[0])
    owner.ask("SET", KEYS[0], "here")
    cluster.roll()
    assert not ports & {node.port for node in cluster.nodes}
    assert cluster.primary_of(KEYS[0]).ask("GET", KEYS[0]) == b"here"


@pytest.mark.parametrize("atomically", [True, False], ids=["at once", "key by key"])
def test_a_slot_moves_with_what_is_in_it(cluster: ValkeyCluster, *, atomically: bool) -> None:
    key = KEYS[2]
    source = cluster.primary_of(key)
    target = next(node for node in cluster.primaries() if node is not source)
    source.ask("SET", key, "moved")
    cluster.move(key, target, atomically=atomically)
    assert target.ask("GET", key) == b"moved"
    cluster.until_whole()


def test_a_script_that_follows_a_slot_half_way_sees_half_of_it(cluster: ValkeyCluster) -> None:
    """The service never follows one: its scripts declare a partition, which is no key, and find keys themselves."""
    key, script = KEYS[3], "return redis.call('GET', KEYS[1] .. ':x')"
    source, slot = cluster.primary_of(key), cluster.slot_of(key)
    target = next(node for node in cluster.primaries() if node is not source)
    source.ask("SET", key, "not yet there")
    cluster.begin_move(slot, source, target)
    with pytest.raises(AskError):
        source.ask("EVAL", script, 1, "{p003}")
    with target.client(single_connection_client=True) as client:
        client.execute_command("ASKING")
        assert client.execute_command("EVAL", script, 1, "{p003}") is None
    cluster.end_move(slot, source, target)
    assert target.ask("EVAL", script, 1, "{p003}") == b"not yet there"
    cluster.until_whole()


def test_a_cluster_with_users_and_tls_takes_those_that_know_both(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("secret")
    ours, theirs = new_authority(folder / "ours"), new_authority(folder / "theirs")
    with ValkeyCluster(folder / "cluster", password="hunter2", tls=ours.context) as cluster:
        cluster.add_user("worker", ">swordfish", "~{p*", "+get", "+set", "+cluster", "+command")
        place: dict[str, Any] = {"host": HOST, "port": cluster.announced(cluster.nodes[0]), "ssl": True}
        who: dict[str, Any] = {"username": "worker", "password": "swordfish"}
        with RedisCluster(**place, **who, ssl_ca_certs=str(ours.ca_file)) as client:
            assert all(client.set(key, key) for key in KEYS)
            assert [client.get(key) for key in KEYS] == [key.encode() for key in KEYS]
            assert {node.port for node in client.get_nodes()} == {cluster.announced(node) for node in cluster.nodes}
        with pytest.raises(NoConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            Redis(**place, **who, ssl_ca_certs=str(theirs.ca_file), retry=Retry(NoBackoff(), 0)).ping()


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinels]:
    with Sentinels(tmp_path_factory.mktemp("sentinels")) as running:
        yield running


def test_a_partitioned_primary_takes_writes_that_are_lost_but_for_those_that_a_replica_confirmed(
    sentinels: Sentinels,
) -> None:
    old = sentinels.primary()
    before, after = "written before", "written after"
    with old.client() as client:
        client.set(before, 1)
        assert client.wait(1, 1000) == 1
        sentinels.partition(old)
        new = sentinels.until_failover(old)
        client.set(after, 1)
        assert client.wait(1, 100) == 0
        assert client.get(after) == b"1"
    sentinels.heal(old)
    sentinels.until_whole()
    for node in (old, new):
        assert (node.ask("GET", before), node.ask("GET", after)) == (b"1", None)


def test_sentinels_replace_a_killed_primary(sentinels: Sentinels) -> None:
    old = sentinels.primary()
    old.kill()
    new = sentinels.until_failover(old)
    new.ask("SET", "while it was away", 1)
    old.start()
    sentinels.until_whole()
    assert old.ask("GET", "while it was away") == b"1"


def test_sentinels_watch_servers_with_a_password_behind_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("secret")
    ours = new_authority(folder / "ours")
    with Sentinels(folder / "sentinels", replicas=2, password="hunter2", tls=ours.context) as sentinels:
        port = sentinels.lines[sentinels.nodes.index(sentinels.primary())].port
        with Redis(host=HOST, port=port, password="hunter2", ssl=True, ssl_ca_certs=str(ours.ca_file)) as client:
            assert client.set("x", 1)
            assert client.wait(2, 1000) == 2
