"""Checks before every route: hosts, origins, and bodies that end too early."""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.support.launch import ON_LOOPBACK
from tests.support.problems import nothing_stored, problem
from tests.support.raw_http import connected, problem_on
from tests.support.service import CODELESS, Service
from tests.support.waiting import wait_until

ALLOWED = "http://app.example:5173"
BAD_HOSTS = [
    "user@localhost",
    "user:word@localhost",
    "localhost:65536",
    "localhost:0",
    "localhost:-1",
    "localhost:port",
    "localhost:80:80",
    "localhost, localhost",
    "localhost/path",
    "localhost?x",
    "local host",
    "[::1",
    "::1",
    "[localhost]",
    "[::1]x",
    "[1.2.3.4]",
    "[:::1]",
    "-localhost",
]
FOREIGN = [
    "null",
    "http://evil.example",
    "https://localhost.evil.example",
    "http://localhost@evil.example",
    "file://",
    "chrome-extension://abcdef",
    "localhost",
    "",
]
BODY = json.dumps({"message": '[{"say": "hi"}]', "agent": "scripted"}).encode()
CUT = {
    "its length": (b"Content-Length: %d" % (len(BODY) + 2), BODY),
    "its last chunk": (b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n" % (len(BODY), BODY)),
    "a chunk's end": (b"Transfer-Encoding: chunked", b"%x\r\n%b" % (len(BODY) + 2, BODY)),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service that is open to a network, as behind a proxy, and allows one other origin."""
    settings = CODELESS | {"HOST": ON_LOOPBACK, "ALLOW_ANONYMOUS": "1", "CORS_ORIGINS": ALLOWED}
    with Service(tmp_path_factory.mktemp("network"), settings) as service:
        yield service


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_host_that_is_none_is_refused(service: Service, network: Service, host: str) -> None:
    for each in (service, network):
        problem(each.client.get("/livez", headers={"Host": host}), 400, "malformed")


@pytest.mark.parametrize("host", ["smolsessions", "a_b.svc.cluster.local:80", "EXAMPLE.org.", "[2001:db8::1]:8443"])
def test_a_service_on_a_network_answers_to_any_host(network: Service, host: str) -> None:
    assert network.client.get("/livez", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: localhost\r\nhost: evil.example\r\n"]
)
def test_a_request_has_one_host(service: Service, hosts: bytes) -> None:
    with connected(service, b"GET /livez HTTP/1.1\r\nConnection: close\r\n" + hosts + b"\r\n") as connection:
        problem_on(connection, 400, "malformed")


@pytest.mark.parametrize("name", ["Authorization", "Content-Type", "Origin", "Idempotency-Key", "Last-Event-ID"])
def test_a_header_that_decides_is_sent_once(service: Service, name: str) -> None:
    headers = [(name, "application/json"), (name, "application/json")]
    problem(service.client.get("/agents", headers=headers), 400, "malformed")


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_foreign_origin_is_refused_without_a_word_about_the_site(
    service: Service, network: Service, origin: str
) -> None:
    for each in (service, network):
        with nothing_stored(each):
            for method, path in (("POST", "/conversations"), ("GET", "/agents"), ("DELETE", "/conversations/x")):
                body: dict[str, str] | None = {} if method == "POST" else None
                answer = each.client.request(method, path, json=body, headers={"Origin": origin})
                problem(answer, 403, "foreign_origin")


def test_an_origin_of_another_port_is_foreign(service: Service) -> None:
    for origin in ("http://127.0.0.1:1", "http://127.0.0.1", "http://[::1]:8000"):
        answer = service.client.post("/conversations", json={}, headers={"Origin": origin})
        problem(answer, 403, "foreign_origin")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://chat.example", "Host": "chat.example"},
        {"Origin": "http://chat.example", "Host": "chat.example:80"},
        {"Origin": "https://chat.example", "Host": "chat.example"},
        {"Origin": "https://Chat.example:8443", "Host": "chat.example:8443"},
        {"Origin": "https://[2001:db8::1]", "Host": "[2001:db8::1]:443"},
        {"Origin": "https://chat.example", "Host": "upstream:8000", "Sec-Fetch-Site": "same-origin"},
        {"Origin": ALLOWED, "Host": "upstream:8000"},
        {"Origin": ALLOWED, "Host": "upstream:8000", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_the_services_own_pages_and_allowed_ones_are_let_in(network: Service, headers: dict[str, str]) -> None:
    assert network.client.post("/conversations", json={}, headers=headers).status_code == 201


def test_the_page_of_a_loopback_service_is_let_in(service: Service) -> None:
    url = service.client.base_url
    for name in ("127.0.0.1", "localhost"):
        headers = {"Host": f"{name}:{url.port}", "Origin": f"http://{name}:{url.port}"}
        assert service.client.post("/conversations", json={}, headers=headers).status_code == 201


@pytest.mark.parametrize("what", CUT)
@pytest.mark.parametrize("path", [b"/turn", b"/conversations/cut/turns"])
def test_a_body_starts_nothing_that_ends_before(service: Service, path: bytes, what: str) -> None:
    framing, sent = CUT[what]
    service.post("/conversations", id="cut", agent="scripted")
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % path
    with nothing_stored(service):
        with connected(service, head + framing + b"\r\n\r\n" + sent) as connection:
            connection.shutdown(socket.SHUT_WR)
            problem_on(connection, 400, "malformed")
        with connected(service, head + framing + b"\r\n\r\n" + sent):
            pass
        marker = service.post("/turn", message='[{"say": "after"}]', agent="scripted").json()
        wait_until(lambda: service.get("/conversations", limit=1)["items"][0]["id"] == marker["conversation_id"])
        service.client.delete(f"/conversations/{marker['conversation_id']}")


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/static/swagger-ui-bundle.js", "/page/page.js"])
def test_pages_in_a_browser_run_only_the_services_own_scripts(service: Service, path: str) -> None:
    headers = service.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
