"""Bounds of a connection, before any route: size, time and number of requests, on real sockets."""

import json
import re
import select
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.metrics import samples
from tests.support.raw_http import answer_on, connected, problem_on
from tests.support.service import PLAIN, Service
from tests.support.store_server import running_store
from tests.support.waiting import wait_until

TIMEOUT_S = 1.0
LATE_S = TIMEOUT_S + 8  # for a loaded machine
MOST = 40
HALF_HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Half: "
POST = b"POST /conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF_BODY = POST + b'Content-Length: 20\r\n\r\n{"meta'
TRICKLED = {
    "head": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"x"),
    "body": (POST + b"Content-Length: 2000\r\n\r\n", b" "),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=", b"y"),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ", b"x"),
}
ENDLESS = {
    "request line": (b"GET /", b"x" * 65536),
    "header": (HALF_HEAD, b"x" * 65536),
    "name of a header": (b"GET /livez HTTP/1.1\r\n", b"x" * 65536),
    "list of headers": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n" * 8192),
    "chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=", b"y" * 65536),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ", b"x" * 65536),
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


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service that waits a second for a request."""
    with Service(tmp_path_factory.mktemp("quick"), PLAIN | {"RECEIVE_TIMEOUT_S": f"{TIMEOUT_S:g}"}) as service:
        yield service


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Service]:
    settings = PLAIN | {"RECEIVE_TIMEOUT_S": f"{TIMEOUT_S:g}", "MAX_CONNECTIONS": str(MOST)}
    with Service(tmp_path, settings) as service:
        service.client.close()  # its connection counts
        yield service


def closed_within(seconds: float, connections: list[socket.socket]) -> list[bytes]:
    """Wait until all connections are closed. Return the last bytes of each."""
    said = dict.fromkeys(connections, b"")
    poll = select.poll()
    known = {connection.fileno(): connection for connection in connections}
    for number in known:
        poll.register(number, select.POLLIN)
    end = time.monotonic() + seconds
    while known:
        assert time.monotonic() < end, f"{len(known)} of {len(connections)} are open after {seconds:g} s"
        for number, _ in poll.poll(100):
            connection = known[number]
            if piece := connection.recv(65536):
                said[connection] += piece
            else:
                poll.unregister(number)
                del known[number]
    return list(said.values())


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
        sent = pour(connection, piece, 64 * 1024 * 1024)
        assert sent < 32 * 1024 * 1024
        with suppress(ConnectionResetError):  # the answer may be lost if more was sent than was read
            problem_on(connection, 431, "head_too_large")


@pytest.mark.parametrize("what", ["header", "trailer"])
def test_others_are_served_meanwhile_for_an_endless(service: Service, what: str) -> None:
    over = threading.Event()
    first, piece = ENDLESS[what]

    def attack() -> None:
        while not over.is_set():
            with connected(service, first) as connection:
                pour(connection, piece, 64 * 1024 * 1024)

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        times = []
        for _ in range(50):
            begun = time.perf_counter()
            assert service.client.get("/livez").status_code == 200
            times.append(time.perf_counter() - begun)
    finally:
        over.set()
        attacker.join()
    assert statistics.median(times) < 0.05


def test_a_large_head_is_refused_and_one_below_the_bound_is_not(service: Service) -> None:
    assert service.client.get("/livez", headers={"X-Long": "x" * 30_000}).status_code == 200
    assert service.client.get("/livez", headers={f"X-{number}": "y" for number in range(90)}).status_code == 200
    for more in (b"X-Long: " + b"x" * 40_000 + b"\r\n", b"X: y\r\n" * 101):
        with connected(service, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n") as connection:
            problem_on(connection, 431, "head_too_large")


@pytest.mark.parametrize("half", [HALF_HEAD, HALF_BODY], ids=["heads", "bodies"])
def test_thousands_of_halves_are_closed_in_time(quick: Service, half: bytes) -> None:
    with ExitStack() as stack:
        begun = time.monotonic()
        halves = [stack.enter_context(connected(quick, half)) for _ in range(3000)]
        opened_s = time.monotonic() - begun
        said = closed_within(LATE_S + opened_s, halves)
        assert quick.client.get("/livez").status_code == 200
    assert {answer.partition(b"\r\n")[0] for answer in said} == {b"HTTP/1.1 408 Request Timeout"}
    assert all(b'"code":"request_timeout"' in answer for answer in said)


@pytest.mark.parametrize("what", TRICKLED)
def test_a_request_is_ended_for_a_trickling(quick: Service, what: str) -> None:
    first, piece = TRICKLED[what]
    with connected(quick, first) as connection:
        end = time.monotonic() + LATE_S
        while not select.select([connection], [], [], 0.1)[0]:
            assert time.monotonic() < end
            connection.sendall(piece)
        problem_on(connection, 408, "request_timeout")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_slow_upload_that_goes_on_is_taken(quick: Service, *, chunked: bool) -> None:
    pieces = [b'{"metadata": {"k": "', *[b"x" * 400] * 16, b'"}}']
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % sum(map(len, pieces))
    with connected(quick, POST + framing + b"\r\n\r\n") as connection:
        for piece in pieces:
            assert select.select([connection], [], [], 0.2)[0] == []
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        assert answer_on(connection)[0].status == 201


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_connection_that_asks_nothing_is_closed_without_a_word(quick: Service, sent: bytes) -> None:
    with connected(quick, sent) as connection:
        if sent.startswith(b"GET"):
            assert answer_on(connection)[0].status == 200
        end = time.monotonic() + LATE_S
        while not select.select([connection], [], [], 0.2)[0]:
            assert time.monotonic() < end
            connection.sendall(b"\r\n" if sent else b"")
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_an_idle_connection_is_kept_as_long_as_is_set(quick: Service) -> None:
    with connected(quick, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert answer_on(connection)[0].status == 200
        assert select.select([connection], [], [], TIMEOUT_S * 2)[0] == []
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer_on(connection)[0].status == 200


def test_connections_beyond_the_bound_are_refused_but_probes_are_not(small: Service) -> None:
    get = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
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


def test_connections_beyond_the_bound_do_not_keep_probes_out(small: Service) -> None:
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(MOST * 5):
            stack.enter_context(connected(small, HALF_HEAD))
        wait_until(lambda: _status(small, get) == 200)


@pytest.mark.parametrize("shape", SMUGGLING)
def test_a_request_whose_end_is_ambiguous_is_refused_for(service: Service, shape: str) -> None:
    follower = b"GET /agents HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(service, SMUGGLING[shape] + follower) as connection:
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
    paths = [b"/livez", b"/nowhere", b"/agents", b"/livez"]
    ahead = [b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths]
    last = ahead.pop().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connected(service, b"".join(ahead) + last) as connection:
        (said,) = closed_within(LATE_S, [connection])
        assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"404", b"200", b"200"]
    with connected(service, ahead[0] * 1000) as connection:
        (said,) = closed_within(LATE_S, [connection])
        assert said == b""


def test_a_disconnect_is_noticed_after_a_pipelined_request(service: Service, tmp_path: Path) -> None:
    script = [{"call": [["wait_for", {"path": str(tmp_path / "go")}]]}, {"say": "done"}]
    wait = json.dumps({"message": json.dumps(script), "agent": "scripted"}).encode()
    head = POST.replace(b"/conversations", b"/turn") + b"Accept: text/event-stream\r\n"
    asked = head + b"Content-Length: %d\r\n\r\n%b" % (len(wait), wait)
    before = samples(service)["streams_open", ""]
    with connected(service, asked + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        wait_until((tmp_path / "go.started").exists)
        assert samples(service)["streams_open", ""] == before + 1
    wait_until(lambda: samples(service)["streams_open", ""] == before)
    (tmp_path / "go").touch()


@pytest.mark.parametrize(("kind", "statuses"), [(b"application/json", [100, 201]), (b"text/plain", [415])])
def test_a_body_that_is_waited_with_is_asked_for_unless_refused(
    service: Service, kind: bytes, statuses: list[int]
) -> None:
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
        begun = time.monotonic()
        pour(connection, b" " * 1024, 10**9)
        assert time.monotonic() - begun < LATE_S


def test_the_port_of_each_role_is_bounded(tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as server:
        settings = PLAIN | server.settings | {"RECEIVE_TIMEOUT_S": f"{TIMEOUT_S:g}"}
        for role in ("web", "work"):
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
