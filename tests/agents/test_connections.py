"""A stop ends a provider's work at once, and a complete answer leaves its connection for the next call."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.endpoint import AGENTS, Endpoint
from tests.support.service import PATIENCE_S, Service
from tests.support.tiers import mostly_deep
from tests.support.turns import cancel, submit_turn, wait_for_end

CLIENTS = ("openai", "openai-whole", "openai-httpx", "azure", "inference")
DEADLINES_S = (1, 4, 16, 64)  # the next one if the machine was too slow to begin the call before this one
MODES = ("prefill", "headers", "silent", "endless")
CASES = [(agent, mode) for agent in CLIENTS for mode in MODES if agent != "openai-whole" or mode == "prefill"]
FAST = [
    *(("openai", mode) for mode in MODES),
    ("openai-whole", "prefill"),
    ("openai-httpx", "endless"),
    ("azure", "headers"),
    ("inference", "silent"),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[Endpoint]:
    with Endpoint() as running:
        yield running


@pytest.fixture(scope="module")
def hosted(provider: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(provider, tmp_path_factory.mktemp("hosted")) as running:
        yield running


def serving(provider: Endpoint, folder: Path, **settings: str) -> Service:
    named = {"AGENTS": AGENTS, "DEMO_AGENTS": "0"} | settings
    return Service(folder, named, {"ENDPOINT_URL": provider.base_url})


def in_call(service: Service, provider: Endpoint, agent: str, mode: str, **body: Any) -> dict[str, Any]:
    calls = provider.calls
    turn = submit_turn(service, agent=agent, message=mode, **body)
    assert provider.wait(lambda it: it.calls > calls, within_s=PATIENCE_S)
    if mode in {"silent", "endless"}:  # the first piece has arrived
        where = f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events"
        with service.client.stream("GET", where) as answer:
            assert any("message.delta" in line for line in answer.iter_lines())
    return turn


def is_let_go(provider: Endpoint) -> bool:
    return provider.wait(lambda it: it.open_calls == 0, within_s=PATIENCE_S)


@pytest.mark.parametrize(("agent", "mode"), mostly_deep(CASES, fast=FAST, several=True))
def test_a_stop_ends_the_providers_work(hosted: Service, provider: Endpoint, agent: str, mode: str) -> None:
    turn = in_call(hosted, provider, agent, mode)
    cancel(hosted, turn)
    assert is_let_go(provider)
    assert wait_for_end(hosted, turn)["status"] == "cancelled"
    assert "ignores a request to stop" not in hosted.log()


@pytest.mark.parametrize("mode", mostly_deep(MODES, fast=["silent"]))
def test_a_deadline_ends_it(hosted: Service, provider: Endpoint, mode: str) -> None:
    calls = provider.calls
    for deadline_s in DEADLINES_S:
        turn = wait_for_end(hosted, submit_turn(hosted, agent="openai", message=mode, deadline_s=deadline_s))
        assert is_let_go(provider)
        assert turn["error"]["code"] == "deadline_exceeded"
        if provider.calls > calls:
            break
    assert provider.calls == calls + 1


def test_a_client_that_goes_away_and_wants_it_so_ends_it(hosted: Service, provider: Endpoint) -> None:
    calls = provider.calls
    body = {"agent": "openai", "message": "prefill"}
    headers = {"Accept": "text/event-stream"}
    with hosted.client.stream("POST", "/turn?on_disconnect=cancel", json=body, headers=headers):
        assert provider.wait(lambda it: it.calls > calls, within_s=PATIENCE_S)
    assert is_let_go(provider)


def test_a_drain_ends_it_after_its_time(provider: Endpoint, tmp_path: Path) -> None:
    with serving(provider, tmp_path, DRAIN_S="1") as service:
        in_call(service, provider, "openai", "prefill")
        since = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert is_let_go(provider)
        assert time.monotonic() - since > 0.9
        assert service.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("agent", CLIENTS)
def test_a_connection_is_used_again(hosted: Service, provider: Endpoint, agent: str) -> None:
    first = hosted.post("/turn", agent=agent, message="hello").json()
    connections, calls = provider.connections, provider.calls
    for _ in range(5):
        turn = hosted.post("/turn", conversation_id=first["conversation_id"], message="hello").json()
        assert turn["reply"] == "done", json.dumps(turn)
    assert (provider.connections, provider.calls) == (connections, calls + 5)


@pytest.mark.parametrize("agent", mostly_deep(["encrypted", "encrypted_httpx"], fast=["encrypted"]))
def test_a_stop_ends_a_tls_handshake(tmp_path: Path, agent: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        environment = {"SILENT_URL": "https://{}:{}/v1".format(*silent.getsockname())}
        settings = {"AGENTS": f"{agent}=tests.support.endpoint:make_{agent}", "DEMO_AGENTS": "0"}
        with Service(tmp_path, settings, environment) as service:
            turn = submit_turn(service, agent=agent, message="hello")
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(PATIENCE_S)
                assert connection.recv(1, socket.MSG_PEEK) == b"\x16"  # the handshake has begun
                cancel(service, turn)
                while connection.recv(4096):
                    pass
                assert wait_for_end(service, turn)["status"] == "cancelled"
            assert "ignores a request to stop" not in service.log()
