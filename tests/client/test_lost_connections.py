"""The Python client on connections that are cut, and behind a gateway that answers in the service's place."""

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from smolsessions import ApiError, AsyncClient, Client, UnreachableError
from smolsessions.wire.events import MessageDelta, ToolCalled, TurnEnded, TurnEvent
from tests.support.relay import Relay
from tests.support.service import PLAIN, Gate, Service, wait_until
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO

STREAMED = {"AGENTS": "streamed=tests.support.streaming:make_streamed"}
TEXT = "Grüße, 漢字 und 😀! " * 20
OWN_PATIENCE_S = 3.0  # of a client: for a new connection on a loaded machine, too
HTML = b"<html><h1>nginx</h1></html>"


def said(*script: dict[str, Any]) -> str:
    return json.dumps(script)


def html(status: str, *headers: str) -> list[bytes]:
    head = "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: text/html", "Connection: close", *headers])
    return [f"{head}\r\n\r\n".encode() + HTML]


def url_of(service: Service) -> str:
    return service.url


def assert_whole(events: list[TurnEvent]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1], TurnEnded)


def spoken(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, MessageDelta) and event.channel == "answer")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_stream_yields_each_event_once_though_its_service_is_restarted(tmp_path: Path, end: str) -> None:
    events: list[TurnEvent] = []
    settings = PLAIN | STREAMED | {"DRAIN_S": "0.1", "LEASE_S": "0.5"}
    with Service(tmp_path, settings) as service, Client(url_of(service)) as client:
        service.settings["PORT"] = str(service.client.base_url.port)

        def restart() -> None:
            getattr(service, end)()
            service.start()

        stream = client.stream(said({"say": "on and on " * 30, "pace_s": 0.02}))
        for event in stream:
            events.append(event)
            if isinstance(event, MessageDelta):
                break
        with ThreadPoolExecutor(1) as pool:
            restarted = pool.submit(restart)
            events.extend(stream)
            restarted.result()
    assert_whole(events)
    assert {event.attempt for event in events} >= {1, 2}


@pytest.mark.parametrize(
    "cuts", [[1, 150, 400, 822, 1666], pytest.param([*range(1, 400, 37), *range(400, 3000, 211)], marks=deep)]
)
def test_a_stream_is_whole_though_it_is_cut_at_any_byte(service: Service, cuts: list[int]) -> None:
    with Relay(url_of(service), cuts) as relay, Client(relay.address) as client:
        events = list(client.stream(said({"say": TEXT, "pace_s": 0.01}), agent="streamed"))
        turns = list(client.list_turns(events[0].conversation_id))
    assert relay.connections > 5
    assert_whole(events)
    assert (spoken(events), len(turns)) == (TEXT, 1)


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"])
def test_a_gateway_without_its_service_is_waited_for(service: Service, status: str) -> None:
    with (
        Relay(url_of(service), [html(status), 600, html(status), html(status)]) as relay,
        Client(relay.address) as client,
    ):
        events = list(client.stream(said({"say": TEXT}), agent="streamed"))
    assert relay.connections >= 5
    assert_whole(events)


def test_a_request_is_repeated_only_if_it_did_nothing(service: Service) -> None:
    """A gateway's 503 may come after the request has arrived. The service's own `overloaded` says that it did not."""
    refusal = b'{"type":"x","title":"x","status":503,"code":"overloaded","detail":"x"}'
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nConnection: close\r\n\r\n"
    gateway = html("503 Service Unavailable")
    for answer in ([head + refusal], gateway):  # a creation has an Idempotency-Key
        with Relay(url_of(service), [answer]) as relay, Client(relay.address) as client:
            made = client.create_conversation(agent="scripted")
            assert (made.agent, relay.connections) == ("scripted", 2)
    with Relay(url_of(service), [[head + refusal]]) as relay, Client(relay.address) as client:
        assert client.roll_back_conversation(made.id, 0).id == made.id
        assert relay.connections == 2
    with Relay(url_of(service), [gateway]) as relay, Client(relay.address) as client, pytest.raises(ApiError) as seen:
        client.roll_back_conversation(made.id, 0)
    assert (seen.value.code, seen.value.status, relay.connections) == ("foreign_answer", 503, 1)


def test_a_long_wait_for_a_service_is_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    late = html("503 Service Unavailable", "Retry-After: 2")
    with Relay(url_of(service), [late]) as relay, Client(relay.address) as client:
        client.get_readiness()
    assert re.search(r"503 .* Trying again for 60 s\.$", caplog.text), caplog.text


def test_a_hurried_retry_after_does_not_hurry_the_client(service: Service) -> None:
    hurried = repeat(html("503 Service Unavailable", "Retry-After: 0"))
    with (
        Relay(url_of(service), hurried) as relay,
        Client(relay.address, patience_s=1) as client,
        pytest.raises(ApiError, match="503"),
    ):
        client.get_readiness()
    assert 2 <= relay.connections <= 5


def test_a_long_silence_does_not_use_up_the_patience(service: Service, gate: Gate) -> None:
    """The connection is cut before the silence and after it."""
    events: list[TurnEvent] = []

    def cut_twice() -> None:
        relay.cut()
        wait_until(lambda: relay.connections > 1)
        time.sleep(1.1 * OWN_PATIENCE_S)  # no event ends it: the length of the silence is the matter
        relay.cut()
        gate.open()

    with (
        Relay(url_of(service)) as relay,
        ThreadPoolExecutor(1) as pool,
        Client(relay.address, patience_s=OWN_PATIENCE_S) as client,
    ):
        for event in client.stream(said(gate.script, DONE), agent="scripted"):
            events.append(event)
            if isinstance(event, ToolCalled) and event.name == "wait_for":
                pool.submit(cut_twice)
    assert_whole(events)


def test_a_turn_that_was_stored_is_not_made_again_after_a_kill(tmp_path: Path, gate: Gate) -> None:
    with Service(tmp_path, PLAIN) as service, Client(url_of(service)) as client:
        service.settings["PORT"] = str(service.client.base_url.port)
        conversation = client.create_conversation(agent="scripted").id
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.turn, said(gate.script, DONE), conversation_id=conversation)
            gate.reached()
            service.kill()
            gate.open()
            service.start()
            assert waiting.result().reply == "done"
        assert [turn.turn for turn in client.list_turns(conversation)] == [1]


def test_internal_tools_are_named_after_a_long_wait_and_a_cut(tmp_path: Path) -> None:
    script = said({"call": [["echo", {"text": "x" * 3000}]]}, {"say": "a long answer", "pace_s": 0.1})
    names = ["echo", "final_answer"]
    with Service(tmp_path, PLAIN | STREAMED | {"WAIT_S": "0.1"}) as service, Client(url_of(service)) as client:
        assert client.turn(script, include_internal_tools=True).tool_call_names == names
        with Relay(url_of(service), [1000]) as relay, Client(relay.address) as cut:
            events = list(cut.stream(script, include_internal_tools=True))
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].result.tool_call_names == names


def test_the_client_reads_no_endless_answers(service: Service) -> None:
    piece = b"x" * 2**20
    problem = [b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n\r\n", *repeat(piece, 100)]
    line = [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ", *repeat(piece, 100)]
    with Relay(url_of(service), [problem, line]) as relay, Client(relay.address) as client:
        with pytest.raises(ApiError) as refused:
            client.list_agents()
        assert len(str(refused.value)) < 1000
        with pytest.raises(ApiError, match="byte limit"):
            list(client.stream("hello"))
    assert relay.connections == 2


def test_what_is_no_address_or_key_is_refused_at_once() -> None:
    for address in ("localhost:8000", "127.0.0.1:8000", "ftp://host", "http://", ""):
        with pytest.raises(ValueError, match="write it as http"):
            Client(address)
    for key in ("a-key\n", "two words", "ключ"):
        with pytest.raises(ValueError, match="copy it again"):
            Client(api_key=key)


async def test_a_cancelled_task_frees_its_connection(service: Service) -> None:
    async with AsyncClient(url_of(service)) as client:
        conversation, begun = await client.create_conversation(agent="streamed"), asyncio.Event()

        async def watch() -> None:
            script = said({"endless": "on ", "pace_s": 0.01})
            async for _ in client.stream(script, conversation_id=conversation.id):
                begun.set()

        task = asyncio.create_task(watch())
        await begun.wait()
        before = await open_streams(client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while await open_streams(client) >= before:
            pass
        await client.delete_conversation(conversation.id)


async def open_streams(client: AsyncClient) -> float:
    lines = (await client.get_metrics()).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("smolsessions_streams"))


def test_a_service_that_stays_away_is_unreachable(service: Service) -> None:
    with (
        Relay(url_of(service), repeat(0)) as relay,
        Client(relay.address, patience_s=0.5) as client,
        pytest.raises(UnreachableError, match="does not answer"),
    ):
        list(client.stream(said(ECHO, DONE), agent="scripted"))
    assert relay.connections > 1
    with (
        Client("http://127.0.0.1:9", patience_s=0.2) as client,
        pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"),
    ):
        client.turn("hello")
