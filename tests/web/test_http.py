"""Bounds of a connection, before any route: size, time and number of requests, on real sockets."""

import asyncio
import json
import re
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from smolsessions.web.http_connection import limited_connections
from tests.support.problems import answer_on, connected, problem_on
from tests.support.service import PATIENCE_S, PLAIN, Gate, Service, samples, shared_service, wait_until
from tests.support.store_server import running_store
from tests.support.tiers import mostly_deep

TIMEOUT_S = 1.0
MOST = 40
HALF_HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Half: "
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF_BODY = POST + b'Content-Length: 20\r\n\r\n{"meta'
TRICKLED = {
    "head": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"x"),
    "body": (POST + b"Content-Length: 2000\r\n\r\n", b" "),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=", b"y"),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ", b"x"),
}
LARGE = b"x" * 65536
ENDLESS = {
    "request line": (b"GET /", LARGE),
    "header": (HALF_HEAD, LARGE),
    "name of a header": (b"GET /livez HTTP/1.1\r\n", LARGE),
    "list of headers": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n" * 8192),
    "chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=", LARGE),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ", LARGE),
}
SMUGGLING = {
    "a length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
    "two equal lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
    "another encoding": POST + b"Transfer-Encoding: identity\r\n\r\n{}",
    "chunks that are not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + b"X-Folded: a\r\n Content-Length: 2\r\n\r\n{}",
    "line feeds alone": POST.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}",
    "a chunk with a sign": POST + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n",
    "a body for another protocol": POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}",
}
# A service that waits a second for a request.
quick = shared_service(PLAIN | {"RECEIVE_TIMEOUT_S": f"{TIMEOUT_S:g}"})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = PLAIN | {"RECEIVE_TIMEOUT_S": f"{TIMEOUT_S:g}", "MAX_CONNECTIONS": str(MOST)}
    with Service(tmp_path_factory.mktemp("small"), settings) as service:
        service.client.close()  # its connection counts
        yield service


def closed(connections: list[socket.socket]) -> list[bytes]:
    said = dict.fromkeys(connections, b"")
    poll = select.poll()
    known = {connection.fileno(): connection for connection in connections}
    for number in known:
        poll.register(number, select.POLLIN)
    while known:
        ready = poll.poll(PATIENCE_S * 1000)
        assert ready, f"{len(known)} of {len(connections)} are open"
        for number, _ in ready:
            connection = known[number]
            if piece := connection.recv(65536):
                said[connection] += piece
            else:
                poll.unregister(number)
                del known[number]
    return list(said.values())


def is_silent(connection: socket.socket, seconds: float) -> bool:
    """Return whether the other side says nothing for some time."""
    return select.select([connection], [], [], seconds)[0] == []


def pour(connection: socket.socket, piece: bytes, most_bytes: int) -> int:
    """Send pieces until the other side accepts no more. Return the number of sent bytes."""
    sent = 0
    with suppress(ConnectionError):
        while sent < most_bytes and not select.select([connection], [], [], 0)[0]:
            connection.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize("what", ENDLESS)
def test_it_is_refused_before_it_ends_for_an_endless(service: Service, what: str) -> None:
    first, piece = ENDLESS[what]
    with connected(service, first) as connection:
        assert pour(connection, piece, 64 * 1024 * 1024) < 32 * 1024 * 1024
        with suppress(ConnectionResetError):  # the answer may be lost if more was sent than was read
            problem_on(connection, 431, "head_too_large")


def test_a_large_head_is_refused_and_one_below_the_bound_is_not(service: Service) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    for more in (b"X-Long: " + b"x" * 32_000 + b"\r\n", b"X: y\r\n" * 99):
        with connected(service, head + more + b"\r\n") as connection:
            assert answer_on(connection)[0].status == 200
    for more in (b"X-Long: " + b"x" * 33_000 + b"\r\n", b"X: y\r\n" * 100):
        with connected(service, head + more + b"\r\n") as connection:
            problem_on(connection, 431, "head_too_large")


@pytest.mark.parametrize("count", mostly_deep([50, 3000], fast={50}))
def test_halves_of_requests_are_closed_in_time(quick: Service, count: int) -> None:
    with ExitStack() as stack:
        halves = [HALF_HEAD, HALF_BODY] * count
        said = closed([stack.enter_context(connected(quick, half)) for half in halves])
        assert quick.client.get("/livez").status_code == 200
    assert {answer.partition(b"\r\n")[0] for answer in said} == {b"HTTP/1.1 408 Request Timeout"}
    assert all(b'"code":"request_timeout"' in answer for answer in said)


def test_slow_connections_are_ended_unless_they_go_on(quick: Service) -> None:
    """All at once: each takes a second or two."""

    def trickle(what: str) -> None:
        first, piece = TRICKLED[what]
        with connected(quick, first) as connection:
            while is_silent(connection, 0.1):
                connection.sendall(piece)
            problem_on(connection, 408, "request_timeout")

    def upload(framing: str) -> None:
        pieces = [b'{"metadata": {"k": "' + b"x" * 4000, *[b"x" * 1500] * 6, b'"}}']
        head = b"Content-Length: %d" % sum(map(len, pieces)) if framing == "length" else b"Transfer-Encoding: chunked"
        with connected(quick, POST + head + b"\r\n\r\n") as connection:
            for piece in pieces:
                connection.sendall(piece if framing == "length" else b"%x\r\n%b\r\n" % (len(piece), piece))
                assert piece == pieces[-1] or is_silent(connection, 0.2)
            connection.sendall(b"" if framing == "length" else b"0\r\n\r\n")
            assert answer_on(connection)[0].status == 201

    def ask_nothing(sent: bytes) -> None:
        with connected(quick, sent) as connection:
            if sent.startswith(b"GET"):
                assert answer_on(connection)[0].status == 200
            while is_silent(connection, 0.2):
                connection.sendall(b"\r\n" if sent else b"")
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""

    def idle(request: bytes) -> None:
        with connected(quick, request) as connection:
            assert answer_on(connection)[0].status == 200
            assert is_silent(connection, TIMEOUT_S * 2)
            connection.sendall(request)
            assert answer_on(connection)[0].status == 200

    cases: list[tuple[Callable[[Any], None], Any]] = [
        *((trickle, what) for what in TRICKLED),
        *((upload, framing) for framing in ("length", "chunked")),
        *((ask_nothing, sent) for sent in (b"", b"\r\n", LIVEZ)),
        (idle, LIVEZ),
    ]
    with ThreadPoolExecutor(len(cases)) as pool:
        for job in [pool.submit(check, case) for check, case in cases]:
            job.result()


class LeapingLoop(asyncio.SelectorEventLoop):
    """Event loop with a clock that a test advances."""

    leapt_s = 0.0

    def time(self) -> float:
        return super().time() + self.leapt_s


@pytest.mark.parametrize(
    ("first_bytes", "leaps_s", "until", "status"),
    [
        pytest.param(100_000, [500], "later", 200, id="no one reads it for long"),
        pytest.param(100_000, [500], "timer", 200, id="no one reads it until its timer fires"),
        pytest.param(100_000, [500], None, 408, id="silence"),
        pytest.param(100_000, [2, 2, 2], None, 408, id="silence after a burst"),
        pytest.param(500_000, [400], None, 408, id="it takes longer than a body may"),
    ],
)
def test_a_body_has_a_rate_and_time_while_it_is_read(
    first_bytes: int, leaps_s: list[float], until: str | None, status: int
) -> None:
    async def send_half_and_leap() -> int:
        loop, go, state = asyncio.get_running_loop(), asyncio.Event(), ServerState()
        assert isinstance(loop, LeapingLoop)

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

        config = uvicorn.Config(app, ws="none", log_config=None)
        config.load()
        options = {"config": config, "server_state": state, "app_state": {}}
        server = await loop.create_server(lambda: limited_connections(TIMEOUT_S, MOST)(**options), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            if until is None:
                go.set()
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % (first_bytes + 100_000) + b"x" * first_bytes)
            await writer.drain()
            while not (state.connections and is_read(next(iter(state.connections)))):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
            for leap_s in leaps_s:
                loop.leapt_s += leap_s
                if until == "timer":
                    go.set()  # the app reads on before the timer's turn comes
                await asyncio.sleep(0.05)
            go.set()
            writer.write(b"x" * 100_000)
            found = (await reader.readline()).split()
            writer.close()
        return int(found[1])

    def is_read(connection: Any) -> bool:
        """Return whether the service has stopped to read, or has read the half."""
        return bool(connection.flow.read_paused if until else connection._body_bytes == first_bytes)  # noqa: SLF001

    def play() -> int:
        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            return runner.run(send_half_and_leap())

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(play).result(PATIENCE_S) == status


def test_connections_beyond_the_bound_are_refused_but_probes_are_not(small: Service) -> None:
    get = LIVEZ.replace(b"/livez", b"/%b")
    with ExitStack() as stack:
        for _ in range(MOST):
            assert answer_on(stack.enter_context(connected(small, get % b"agents")))[0].status == 200
        for _ in range(3):
            with connected(small, get % b"agents") as connection:
                assert problem_on(connection, 503, "too_many_connections").headers["retry-after"] == "5"
            for probe in (b"livez", b"readyz"):
                with connected(small, get % probe) as connection:
                    assert answer_on(connection)[0].status == 200
                    assert connection.recv(1) == b""
    wait_until(lambda: _status(small, get % b"agents") == 200)


@pytest.mark.parametrize("shape", SMUGGLING)
def test_a_request_whose_end_is_ambiguous_is_refused_for(service: Service, shape: str) -> None:
    with connected(service, SMUGGLING[shape] + LIVEZ) as connection:
        problem_on(connection, 400, "malformed")


def test_a_trailer_is_no_header(service: Service) -> None:
    body = json.dumps({"message": '[{"say": "hi"}]', "agent": "scripted"}).encode()
    head = POST.replace(b"/conversations", b"/turn") + b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%b\r\n0\r\nPrefer: respond-async\r\n\r\n" % (len(body), body)
    with connected(service, head + chunks) as connection:
        response, _ = answer_on(connection)
        assert (response.status, response.headers["preference-applied"]) == (200, None)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
def test_a_request_for_another_protocol_is_answered_in_http_1(service: Service, protocol: bytes) -> None:
    asked = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + protocol
    with connected(service, asked + b"\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n") as connection:
        assert answer_on(connection)[0].status == 200


def test_requests_that_are_sent_ahead_are_answered_in_order_up_to_a_bound(service: Service) -> None:
    paths = [b"/livez", b"/nowhere", b"*", b"/agents", b"/livez"]
    ahead = [b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths]
    last = ahead.pop().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connected(service, b"".join(ahead) + last) as connection:
        (said,) = closed([connection])
        assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"404", b"404", b"200", b"200"]
    with connected(service, ahead[0] * 1000) as connection:
        (said,) = closed([connection])
        assert said == b""


def test_a_disconnect_is_noticed_after_a_pipelined_request(service: Service, gate: Gate) -> None:
    wait = json.dumps({"message": json.dumps([gate.script, {"say": "done"}]), "agent": "scripted"}).encode()
    head = POST.replace(b"/conversations", b"/turn") + b"Accept: text/event-stream\r\n"
    asked = head + b"Content-Length: %d\r\n\r\n%b" % (len(wait), wait)
    before = samples(service)["streams_open", ""]
    with connected(service, asked + LIVEZ) as connection:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        gate.reached()
        assert samples(service)["streams_open", ""] == before + 1
    wait_until(lambda: samples(service)["streams_open", ""] == before)
    gate.open()


@pytest.mark.parametrize(("kind", "statuses"), [(b"application/json", [100, 201]), (b"text/plain", [415])])
def test_a_withheld_body_is_asked_for_unless_refused(service: Service, kind: bytes, statuses: list[int]) -> None:
    head = b"POST /conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + kind
    with connected(service, head + b"\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n") as connection:
        answers = connection.makefile("rb")
        found = [_status_line(answers.readline())]
        if found == [100]:
            assert answers.readline() == b"\r\n"
            connection.sendall(b"{}")
            found.append(_status_line(answers.readline()))
        assert found == statuses


def test_the_rest_of_a_refused_body_is_read_for_a_while(quick: Service) -> None:
    with connected(quick, POST + b"Content-Length: 1000000000\r\n\r\n") as connection:
        assert answer_on(connection)[0].status == 413
        assert pour(connection, b" " * 1024, 10**9) < 10**9


@pytest.mark.parametrize("role", mostly_deep(["web", "work"], fast={"work"}))
def test_the_port_of_each_role_is_bounded(tmp_path: Path, role: str) -> None:
    with running_store(tmp_path / "store") as server:
        settings = PLAIN | server.settings | {"RECEIVE_TIMEOUT_S": f"{TIMEOUT_S:g}"}
        with Service(tmp_path / role, settings, command=(role,)) as service:
            with connected(service, HALF_HEAD) as connection:
                problem_on(connection, 408, "request_timeout")
            with connected(service, HALF_HEAD + b"x" * 40_000) as connection:
                problem_on(connection, 431, "head_too_large")


def _status(service: Service, request: bytes) -> int | None:
    with suppress(ConnectionError), connected(service, request) as connection:
        return answer_on(connection)[0].status
    return None


def _status_line(line: bytes) -> int:
    return int(line.split()[1])


def test_connections_beyond_the_bound_do_not_keep_probes_out(small: Service) -> None:
    with ExitStack() as stack:
        for _ in range(MOST * 5):
            stack.enter_context(connected(small, HALF_HEAD))
        wait_until(lambda: _status(small, LIVEZ) == 200)
