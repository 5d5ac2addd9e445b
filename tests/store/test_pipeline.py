"""Connections to the store under odd conditions: resets, silence, a full store, stalls and a queue."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Connection

from smolsessions.store.connection.commands import pack
from smolsessions.store.connection.pipeline import KEEPALIVE_S, REPLY_TIMEOUT_S
from smolsessions.store.connection.reply_protocol import ReplyProtocol
from tests.support.failover import REPLICATED
from tests.support.problems import problem
from tests.support.service import PATIENCE_S, Gate, Service, totals, wait_until
from tests.support.stopwatch import Stopwatch
from tests.support.store_server import SEAL_KEY
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import submit_turn
from tests.topology.exchange import Exchange
from tests.topology.node import DURABLE, HOST, Node

KINDS = ("commands", "messages", "acks")
PARTITIONS = 4
SOON_S = 5.0
SILENCE_S = REPLY_TIMEOUT_S + REPLY_TIMEOUT_S / 5 + 2  # the bound, its check's interval, and slack for a busy machine
SAY = [{"say": "hi"}]
NOTHING = {"agent": "scripted", "message": '[{"say": "hi"}]'}


@dataclass(frozen=True)
class Lines:
    """A primary with a replica, and two services that each reach the primary over an exchange.

    `service` plays turns. `deaf` plays none and has received no news since `deaf_at`.
    Its connections for news are open and silent.
    """

    servers: tuple[Node, Node]
    exchange: Exchange
    service: Service
    deafs_exchange: Exchange
    deaf: Service
    deaf_at: float


@pytest.fixture(scope="module")
def lines(folder: Path) -> Iterator[Lines]:
    primary = Node(folder / "primary", dict(DURABLE))
    replica = Node(folder / "replica", DURABLE | {"replicaof": f"{HOST} {primary.port}"})
    with ExitStack() as stack:
        for node in (primary, replica):
            stack.callback(node.kill)
            node.start()
        wait_until(lambda: replica.ask("ROLE")[3] == b"connected")
        exchanges = [stack.enter_context(Exchange(primary.port)) for _ in range(2)]
        settings = REPLICATED | {"SEAL_KEYS": SEAL_KEY, "PARTITIONS": str(PARTITIONS)}
        service, deaf = (
            stack.enter_context(Service(folder / role, settings | {"REDIS_URL": each.url}, command=(role,)))
            for role, each in zip(("serve", "web"), exchanges, strict=True)
        )
        wait_until(lambda: exchanges[1].answered("messages") == PARTITIONS)
        assert exchanges[1].silence("messages") == PARTITIONS
        yield Lines((primary, replica), exchanges[0], service, exchanges[1], deaf, time.monotonic())


@pytest.fixture
def whole(lines: Lines) -> Lines:
    """Return the lines once every connection of the service is open and was used."""
    wait_until(lambda: lines.service.client.get("/conversations").status_code == 200)
    wait_until(lambda: [lines.exchange.answered(kind) for kind in KINDS] == [PARTITIONS] * 3)
    return lines


def test_a_turns_end_is_seen_where_no_news_comes_to(lines: Lines) -> None:
    answer = lines.deaf.post("/turn", **NOTHING)
    assert (answer.status_code, answer.json()["reply"]) == (200, "hi")


@pytest.mark.parametrize("kind", mostly_deep(KINDS, fast=["commands"]))
def test_idle_connections_may_be_reset(whole: Lines, kind: str) -> None:
    """At most the requests in flight fail. Neither the process nor the pipeline ends."""
    service, said = whole.service, len(whole.service.log())
    assert whole.exchange.reset(kind) == PARTITIONS
    wait_until(lambda: service.client.get("/conversations").status_code == 200)
    assert service.play(*SAY)["reply"] == "hi"
    wait_until(lambda: [whole.exchange.answered(each) for each in KINDS] == [PARTITIONS] * 3)
    assert service.process.poll() is None
    assert [service.client.get(path).status_code for path in ("/livez", "/readyz")] == [200, 200]
    assert "Traceback" not in service.log()[said:]


@deep
@pytest.mark.parametrize("kind", ["commands", "acks"])
def test_a_silent_connection_is_given_up_in_time(whole: Lines, kind: str) -> None:
    with Stopwatch() as watch:
        assert whole.exchange.silence(kind) == PARTITIONS
        refused = whole.service.client.get("/conversations")
    assert watch.s < SILENCE_S
    problem(refused, 503, "store_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    wait_until(lambda: whole.service.client.get("/conversations").status_code == 200)
    assert whole.service.play(*SAY)["reply"] == "hi"


def test_a_full_store_is_read_and_deleted_from_and_named(whole: Lines, gate: Gate) -> None:
    service = whole.service
    turns = [service.play(*SAY) for _ in range(6)]
    turns.append(submit_turn(service, gate.script))
    gate.reached()
    said = len(service.log())
    for node in whole.servers:
        node.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        for turn in turns:
            where = f"/conversations/{turn['conversation_id']}"
            for path in ("/conversations", where, f"{where}/steps", f"{where}/turns/1", "/readyz"):
                assert service.client.get(path).status_code == 200, path
            assert service.client.delete(where).status_code == 204
            assert service.client.get(where).status_code in {404, 410}
        problem(service.post("/turn", **NOTHING), 503, "store_full")
        assert totals(service)['smolsessions_store_errors_total{cause="full"}'] > 0
    finally:
        gate.open()
        for node in whole.servers:
            node.ask("CONFIG", "SET", "maxmemory", 0)
    wait_until(lambda: service.post("/turn", **NOTHING).status_code == 200)
    new = service.log()[said:]
    assert new.count("is away") == 0, new
    assert "takes no writes, as its memory is full" in new
    assert "Traceback" not in new


async def test_a_server_that_reads_nothing_bounds_the_write_buffer(lines: Lines) -> None:
    replies: list[bytes] = []
    done = asyncio.Event()

    def on_reply(reply: bytes) -> None:
        replies.append(reply)
        if reply == b"last":
            done.set()

    connection = Connection(host=HOST, port=lines.servers[0].port, protocol=2)
    await connection.connect()
    commands = ReplyProtocol(connection, on_reply, lambda: None)
    lines.servers[0].freeze()
    try:
        sent = [b"%d " % number + b"x" * 2**20 for number in range(100)]
        for number, payload in enumerate(sent):
            commands.write(pack(("ECHO", payload)))
            if not commands.is_writable:
                del sent[number + 1 :]
                break
        assert len(sent) < 50
    finally:
        lines.servers[0].thaw()
    async with asyncio.timeout(PATIENCE_S):
        commands.write(pack(("ECHO", b"last")))
        await done.wait()
    assert replies == [*sent, b"last"]
    assert commands.is_writable
    await connection.disconnect(nowait=True)
    with pytest.raises(ConnectionError):
        await commands.wait_lost()


@deep
def test_a_silent_line_for_news_is_made_anew(lines: Lines) -> None:
    """This test runs last: the silence shows only when the connection is used next, and other tests fill the time."""
    passed_s = time.monotonic() - lines.deaf_at
    within_s = max(0.0, KEEPALIVE_S + REPLY_TIMEOUT_S - passed_s) + SOON_S
    wait_until(lambda: lines.deafs_exchange.answered("messages") == PARTITIONS, within_s)
    assert lines.deaf.process.poll() is None
    answer = lines.deaf.post("/turn", **NOTHING)
    assert (answer.status_code, answer.json()["reply"]) == (200, "hi")
