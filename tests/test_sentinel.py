"""Services on a primary that sentinels watch: it dies, or is cut off with its clients, and nothing acknowledged is lost."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.patient import Patient, playing
from tests.problems import problem
from tests.refusals import Refused, sentence_of, started
from tests.service import Service
from tests.test_cluster import ANOTHER, PLACES, REPLICATED, RIGHTS, SECRET, begun, goes_on, load, some
from tests.test_stop import DONE, ECHO
from tests.test_store import KEY, until
from tests.topology.certificates import new_authority
from tests.topology.node import DURABLE, HOST, Node, free_port
from tests.topology.sentinels import Sentinels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.refusals import Ending
    from tests.test_cluster import Pair

pytest_plugins = ["tests.streaming"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinels]:
    with Sentinels(tmp_path_factory.mktemp("sentinels")) as running:
        yield running


@pytest.fixture(scope="module")
def services(sentinels: Sentinels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give two services on the primary."""
    folder = tmp_path_factory.mktemp("services")
    settings = sentinels.settings | REPLICATED
    with ExitStack() as stack:
        yield (
            stack.enter_context(Service(folder / "a", settings)),
            stack.enter_context(Service(folder / "b", settings)),
        )


@pytest.fixture
def pair(sentinels: Sentinels, services: Pair) -> Pair:
    """Give the services, when every server follows the primary."""
    sentinels.until_whole()
    for service in services:
        until(lambda service=service: service.client.get("/conversations").status_code == 200)  # type: ignore[misc]
    return services


def test_a_primary_that_dies_amid_turns_costs_no_step(sentinels: Sentinels, pair: Pair) -> None:
    turns = some(pair[0], 4)
    patients = load(pair)
    with playing(patients):
        until(lambda: begun(patients))
        assert not any(patient.is_over for patient in patients)
        old = sentinels.primary()
        old.kill()
        late = load(pair, 4)
        with playing(late):
            sentinels.until_failover(old)
            old.start()
    sentinels.until_whole()
    for number, patient in enumerate([*patients, *late]):
        patient.check(pair[number % 2])
        assert (patient.result["status"], patient.result["steps"]) == ("finished", 6)
    goes_on(pair, turns)


def test_what_a_primary_acknowledged_that_was_cut_off_with_the_services_is_there_when_it_is_back(
    sentinels: Sentinels, pair: Pair
) -> None:
    turns = some(pair[0], 4)
    patients = load(pair)
    with playing(patients):
        until(lambda: begun(patients))
        assert not any(patient.is_over for patient in patients)
        old = sentinels.primary()
        sentinels.partition(old)
        late = load(pair, 8)  # nobody else hears of these until their services ask who the primary is
        with playing(late):
            sentinels.until_failover(old)
            sentinels.heal(old)
    sentinels.until_whole()
    assert sentinels.primary() is not old
    for number, patient in enumerate([*patients, *late]):
        patient.check(pair[number % 2])
        assert (patient.result["status"], patient.result["steps"]) == ("finished", 6)
    goes_on(pair, turns)


def test_services_leave_a_primary_that_is_cut_off_for_the_one_that_others_can_reach(tmp_path: Path) -> None:
    """With two replicas the new primary has one of its own, and nobody has to wait for the partition's end."""
    with Sentinels(tmp_path / "sentinels", replicas=2) as sentinels, ExitStack() as stack:
        settings = sentinels.settings | REPLICATED
        one, other = (stack.enter_context(Service(tmp_path / name, settings)) for name in "ab")
        pair = (one, other)
        turns = some(one, 4)
        patients = load(pair)
        with playing(patients):
            until(lambda: begun(patients))
            old = sentinels.primary()
            sentinels.partition(old)
            sentinels.until_failover(old)
            start = time.monotonic()
            goes_on(pair, turns)
            assert time.monotonic() - start < 10
        assert old.ask("ROLE")[0] == b"master"
        sentinels.heal(old)
        sentinels.until_whole()
        for number, patient in enumerate(patients):
            patient.check(pair[number % 2])
            assert (patient.result["status"], patient.result["steps"]) == ("finished", 6)


def test_with_the_primary_as_the_only_witness_a_service_goes_on_as_soon_as_there_is_another(tmp_path: Path) -> None:
    with Sentinels(tmp_path / "sentinels") as sentinels:
        one, *others = sentinels.sentinels
        settings = sentinels.settings | {"REDIS_URL": f"{sentinels.url(db=3)}"}
        one.kill()
        with Service(tmp_path / "service", settings) as service:
            (turn,) = some(service, 1)
            assert b"{p000}:about" in sentinels.primary().client(db=3).keys("*")
            old = sentinels.primary()
            old.kill()
            sentinels.until_failover(old)
            start = time.monotonic()
            goes_on((service, service), [turn])
            assert time.monotonic() - start < 5
            assert [other.lives for other in others] == [True, True]


def test_without_a_replica_nothing_is_acknowledged_until_there_is_one(tmp_path: Path) -> None:
    primary = Node(tmp_path / "primary", dict(DURABLE))
    replica = Node(tmp_path / "replica", DURABLE | {"replicaof": f"{HOST} {primary.port}"})
    try:
        primary.start()
        settings = REPLICATED | {"REDIS_URL": f"redis://{HOST}:{primary.port}", "SEAL_KEYS": KEY}
        with Service(tmp_path / "service", settings) as service:
            assert "no replica" in service.log()
            for _ in range(2):
                start = time.monotonic()
                refused = service.post("/turn", agent="scripted", message="[]")
                problem(refused, 503, "store_unavailable")
                assert int(refused.headers["retry-after"]) > 0
                assert time.monotonic() - start < 8
            patient = Patient([service], [ECHO, DONE])
            with playing([patient]):
                until(lambda: patient.refusals)
                replica.start()
            patient.check(service)
            assert patient.result["reply"] == "done"
    finally:
        primary.kill()
        replica.kill()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sentinels, dict[str, str], Path]]:
    """Give servers that want a password and speak TLS, the settings of a user with the least rights, and a folder."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = new_authority(folder / "ours")
    with Sentinels(folder / "sentinels", password=SECRET, tls=authority.context) as sentinels:
        for node in sentinels.nodes:
            node.ask("ACL", "SETUSER", "worker", "reset", "on", f">{ANOTHER}", *PLACES.split(), *RIGHTS.split())
        settings = sentinels.settings | REPLICATED | {"REDIS_CA_FILE": str(authority.ca_file)}
        yield sentinels, settings | {"REDIS_URL": sentinels.url(user="worker", password=ANOTHER)}, folder


def test_a_user_with_the_least_rights_and_tls_do_for_all(
    guarded: tuple[Sentinels, dict[str, str], Path], tmp_path: Path
) -> None:
    sentinels, settings, _ = guarded
    with Service(tmp_path / "service", settings) as service:
        turns = some(service, 4)
        old = sentinels.primary()
        sentinels.until_failover(_told_to_go(sentinels))
        goes_on((service, service), turns)
        assert sentinels.primary() is not old
        said = service.log() + "".join(service.said)
        assert SECRET not in said
        assert ANOTHER not in said


def _told_to_go(sentinels: Sentinels) -> Node:
    """Have the sentinels replace the primary, which lives; give it."""
    old = sentinels.primary()
    sentinels.sentinels[0].ask("SENTINEL", "FAILOVER", "main")
    return old


REFUSED = (
    "a service that nobody watches",
    "sentinels that nobody runs",
    "a wrong password",
    "no service",
    "a word for a database",
)


@pytest.fixture(scope="module")
def table(guarded: tuple[Sentinels, dict[str, str], Path]) -> dict[str, Refused]:
    sentinels, settings, _ = guarded

    def at(url: str, *told: str) -> Refused:
        return Refused(settings | {"REDIS_URL": url}, told)

    nobody, good = free_port(), settings["REDIS_URL"]
    return {
        "a service that nobody watches": at(sentinels.url(service="other"), "SMOLSESSIONS_REDIS_URL", "other"),
        "sentinels that nobody runs": at(
            f"rediss+sentinel://worker:{SECRET}@{HOST}:{nobody},{HOST}:{nobody}/main/0", "SMOLSESSIONS_REDIS_URL"
        ),
        "a wrong password": at(sentinels.url(user="worker", password="wrong-sesame"), "refuses us"),
        "no service": at(good.removesuffix("/main/0"), "redis+sentinel://host:port,host:port/service/db"),
        "a word for a database": at(good.removesuffix("0") + "zero", "redis+sentinel://host:port,host:port/service/db"),
    }


@pytest.fixture(scope="module")
def endings(
    table: dict[str, Refused], guarded: tuple[Sentinels, dict[str, str], Path]
) -> Iterator[dict[str, Future[Ending]]]:
    with started(table, guarded[2] / "refused") as found:
        yield found


@pytest.mark.parametrize("what", REFUSED)
def test_a_start_is_refused_with_the_mend_and_without_a_secret_for(
    what: str, table: dict[str, Refused], endings: dict[str, Future[Ending]]
) -> None:
    sentence = sentence_of(endings[what].result())
    assert [part for part in table[what].told if part not in sentence] == [], sentence
    assert not [secret for secret in (SECRET, ANOTHER, quote(ANOTHER, safe=""), "wrong-sesame") if secret in sentence]
