"""Services on a primary that sentinels watch: it dies or is cut off, and no acknowledged write is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from smolsessions.store.connection.sentinels import QuorumSentinel
from tests.support import failover
from tests.support.failover import Pair
from tests.support.problems import problem
from tests.support.refusals import Refused, assert_refused
from tests.support.service import CODELESS, Gate, Service, wait_until
from tests.support.store_server import SEAL_KEY
from tests.support.streaming import FINAL, Patient, log_of, playing, two_services, until_all_answer
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import DONE, ECHO, submit_turn, wait_for_end
from tests.topology.certificates import new_authority
from tests.topology.liar import running_liar
from tests.topology.node import DURABLE, HOST, Node
from tests.topology.sentinels import SERVICE, Sentinels


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinels]:
    with Sentinels(tmp_path_factory.mktemp("sentinels"), replicas=2) as running:
        yield running


@pytest.fixture(scope="module")
def services(sentinels: Sentinels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_services(tmp_path_factory.mktemp("services"), sentinels.settings | failover.REPLICATED) as both:
        yield both


@pytest.fixture
def pair(sentinels: Sentinels, services: Pair) -> Pair:
    sentinels.until_whole()
    until_all_answer(services)
    return services


@pytest.mark.parametrize("how", mostly_deep(["killed", "cut off"], fast=["killed"]))
def test_a_primary_lost_amid_turns_costs_no_step_and_is_replaced(sentinels: Sentinels, pair: Pair, how: str) -> None:
    """A primary that is cut off still answers, but writes that only it has are lost. Services must look for another."""
    turns = failover.play_some(pair[0], 4)
    patients = failover.load(pair)
    with playing(patients):
        wait_until(lambda: failover.all_have_begun(patients))
        assert not any(patient.is_over for patient in patients)
        old = sentinels.primary()
        (old.kill if how == "killed" else partial(sentinels.partition, old))()
        late = failover.load(pair, 8)
        with playing(late):
            sentinels.until_failover(old)
            failover.assert_all_go_on(pair, turns)
    if how == "killed":
        old.start()
    else:
        assert old.ask("ROLE")[0] == b"master"
        sentinels.heal(old)
    sentinels.until_whole()
    assert sentinels.primary() is not old
    failover.check_all(pair, [*patients, *late])
    failover.assert_all_go_on(pair, turns)


@deep
def test_a_turn_that_lost_what_was_acknowledged_ends_all_the_same(sentinels: Sentinels, tmp_path: Path) -> None:
    """If the primary's acknowledgement is enough, a failover may undo it. No turn waits for ever for lost writes."""
    sentinels.until_whole()
    settings = CODELESS | sentinels.settings | {"REDIS_URL": sentinels.url(db=5)}
    kept, lost = (Gate(tmp_path / name) for name in ("kept", "lost"))
    with Service(tmp_path / "service", settings) as service:
        turn = submit_turn(service, ECHO, kept.script, ECHO, lost.script, DONE)
        kept.reached()
        old = sentinels.primary()
        sentinels.partition(old)
        sentinels.until_failover(old)
        kept.open()
        lost.reached()
        wait_until(lambda: len(service.steps(turn)) == 4)
        sentinels.heal(old)
        sentinels.until_whole()
        wait_until(lambda: service.client.get("/conversations").status_code == 200)
        assert len(service.steps(turn)) < 4
        lost.open()
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["reply"], ended["step_count"]) == ("finished", "done", 5)
        kinds = [frame.event for frame in log_of(service, turn)]
        assert [kind for kind in kinds if kind in FINAL] == kinds[-1:]
        failover.assert_all_go_on((service, service), [turn])


async def test_the_latest_decision_that_a_majority_of_sentinels_knows_is_believed() -> None:
    """The first one was cut off, and answers first. The last one is not waited for."""
    old, new, slow = (1111, 1, 0.0), (2222, 2, 0.1), (2222, 2, 60.0)
    with ExitStack() as stack:
        sentinels = [stack.enter_context(running_liar(SERVICE, *state)) for state in (old, new, slow)]
        places = [sentinel.server_address for sentinel in sentinels]
        quorum = QuorumSentinel(places, sentinel_kwargs={"protocol": 2})  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(50):
                assert await quorum.discover_master(SERVICE) == (HOST, 2222)
        finally:
            await quorum.aclose()


def test_without_a_replica_nothing_is_acknowledged_until_there_is_one(tmp_path: Path) -> None:
    primary = Node(tmp_path / "primary", dict(DURABLE))
    replica = Node(tmp_path / "replica", DURABLE | {"replicaof": f"{HOST} {primary.port}"})
    try:
        primary.start()
        settings = failover.REPLICATED | {"REDIS_URL": f"redis://{HOST}:{primary.port}", "SEAL_KEYS": SEAL_KEY}
        with Service(tmp_path / "service", settings) as service:
            assert "no replica" in service.log()
            refused = service.post("/turn", agent="scripted", message="[]")
            problem(refused, 503, "store_unavailable")
            assert int(refused.headers["retry-after"]) > 0
            patient = Patient([service], [ECHO, DONE])
            with playing([patient]):
                wait_until(lambda: patient.refusals)
                problem(service.client.get("/conversations"), 503, "store_unavailable")
                replica.start()
            patient.check(service)
            assert patient.result["reply"] == "done"
            wait_until(lambda: "is back" in service.log())
            assert service.log().count("is away") == 1, "an outage is said once, and its end when it is over"
    finally:
        primary.kill()
        replica.kill()


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[tuple[Sentinels, dict[str, str]]]:
    """Yield servers that require a password and TLS, and the settings of a user with the least rights."""
    authority = new_authority(folder / "ours")
    with Sentinels(folder / "sentinels", password=failover.SECRET, tls=authority.context) as sentinels:
        for node in sentinels.nodes:
            rights = f"on >{failover.SECOND_SECRET} {failover.KEY_PATTERNS} {failover.RIGHTS}"
            node.ask("ACL", "SETUSER", "worker", "reset", *rights.split())
        settings = sentinels.settings | failover.REPLICATED | {"REDIS_CA_FILE": str(authority.ca_file)}
        yield sentinels, settings | {"REDIS_URL": sentinels.url(user="worker", password=failover.SECOND_SECRET)}


@deep
def test_the_least_rights_and_tls_suffice(guarded: tuple[Sentinels, dict[str, str]], tmp_path: Path) -> None:
    sentinels, settings = guarded
    with Service(tmp_path / "service", settings) as service:
        turns = failover.play_some(service, 4)
        old = sentinels.primary()
        sentinels.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
        sentinels.until_failover(old)
        failover.assert_all_go_on((service, service), turns)
        assert sentinels.primary() is not old
        said = service.log() + "".join(service.said)
        assert failover.SECRET not in said
        assert failover.SECOND_SECRET not in said
    other = {"REDIS_URL": sentinels.url(service="other")}
    theirs = {"REDIS_CA_FILE": str(new_authority(tmp_path / "theirs").ca_file)}
    table = {
        "a service that nobody watches": Refused(settings | other, ("SMOLSESSIONS_REDIS_URL", "other")),
        "another authority": Refused(settings | theirs, ("is not trusted", "SMOLSESSIONS_REDIS_CA_FILE")),
    }
    assert_refused(table, tmp_path / "refused", (failover.SECRET, failover.SECOND_SECRET))
