"""Checks before every route: hosts, origins, and bodies that end too early."""

import json
import socket

import pytest

from tests.support.launch import ON_LOOPBACK
from tests.support.problems import connected, nothing_stored, problem, problem_on
from tests.support.service import PLAIN, Service, shared_service, wait_until

ALLOWED = "http://app.example:5173"
BAD_HOSTS = (
    "user@localhost|user:word@localhost|localhost:65536|localhost:0|localhost:-1|localhost:port|localhost:80:80|"
    "localhost, localhost|localhost/path|localhost?x|local host|[::1|::1|[localhost]|[::1]x|[1.2.3.4]|[:::1]|-localhost"
).split("|")
FOREIGN = (
    "null|http://evil.example|https://localhost.evil.example|http://localhost@evil.example|file://|"
    "chrome-extension://abcdef|localhost||http://127.0.0.1:1|http://127.0.0.1|http://[::1]:8000"
).split("|")
CROSS_SITE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
]
OWN_PAGES = [
    {"Origin": "http://chat.example", "Host": "chat.example"},
    {"Origin": "http://chat.example", "Host": "chat.example:80"},
    {"Origin": "https://chat.example", "Host": "chat.example"},
    {"Origin": "https://Chat.example:8443", "Host": "chat.example:8443"},
    {"Origin": "https://[2001:db8::1]", "Host": "[2001:db8::1]:443"},
    {"Origin": "https://chat.example", "Host": "upstream:8000", "Sec-Fetch-Site": "same-origin"},
    {"Origin": ALLOWED, "Host": "upstream:8000"},
    {"Origin": ALLOWED, "Host": "upstream:8000", "Sec-Fetch-Site": "cross-site"},
]
BODY = json.dumps({"message": '[{"say": "hi"}]', "agent": "scripted"}).encode()
CUT = {
    "its length": (b"Content-Length: %d" % (len(BODY) + 2), BODY),
    "its last chunk": (b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n" % (len(BODY), BODY)),
    "a chunk's end": (b"Transfer-Encoding: chunked", b"%x\r\n%b" % (len(BODY) + 2, BODY)),
}
# A service that is open to a network, as behind a proxy, and allows one other origin.
OPEN = {"HOST": ON_LOOPBACK, "ALLOW_ANONYMOUS": "1", "ALLOWED_HOSTS": "Chat.example, example.org."}
network = shared_service(PLAIN | OPEN | {"CORS_ORIGINS": ALLOWED})


def test_a_host_that_is_none_is_refused(service: Service, network: Service) -> None:
    for each in (service, network):
        for host in BAD_HOSTS:
            problem(each.client.get("/livez", headers={"Host": host}), 400, "malformed")
    for host in ("smolsessions", "a_b.svc.cluster.local:80", "EXAMPLE.org.", "[2001:db8::1]:8443"):
        assert network.client.get("/livez", headers={"Host": host}).status_code == 200


def test_a_public_name_that_is_not_allowed_is_refused_without_keys(network: Service) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "1.2.3.4.5", "local.example:80", "local."):
        for path in ("/agents", "/livez", "/"):
            problem(network.client.get(path, headers={"Host": host}), 403, "foreign_host")
    for host in ("10.0.0.7:8000", "printer.local", "agents.svc", "x.internal"):
        assert network.client.get("/agents", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: localhost\r\nhost: evil.example\r\n"]
)
def test_a_request_has_one_host(service: Service, hosts: bytes) -> None:
    with connected(service, b"GET /livez HTTP/1.1\r\nConnection: close\r\n" + hosts + b"\r\n") as connection:
        problem_on(connection, 400, "malformed")


def test_a_header_that_decides_is_sent_once(service: Service) -> None:
    for name in "Authorization Content-Type Origin Idempotency-Key Last-Event-ID Sec-Fetch-Site".split():
        headers = [(name, "application/json"), (name, "application/json")]
        assert name.lower() in problem(service.client.get("/agents", headers=headers), 400, "malformed")["detail"]


def test_a_foreign_origin_is_refused_without_a_word_about_the_site(service: Service, network: Service) -> None:
    for each in (service, network):
        with nothing_stored(each):
            for origin in FOREIGN:
                for method, path in (("POST", "/conversations"), ("GET", "/agents"), ("DELETE", "/conversations/x")):
                    body: dict[str, str] | None = {} if method == "POST" else None
                    answer = each.client.request(method, path, json=body, headers={"Origin": origin})
                    problem(answer, 403, "foreign_origin")
            for headers in CROSS_SITE:
                problem(each.client.get("/agents", headers=headers), 403, "foreign_origin")
            for site in ("cross-site", "same-site"):  # a link on another site may lead here, and a form may not
                headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
                assert each.client.get("/", headers=headers).status_code == 200
                problem(each.client.post("/conversations", json={}, headers=headers), 403, "foreign_origin")
                problem(each.client.get("/", headers=headers | {"Origin": "null"}), 403, "foreign_origin")


def test_a_refused_origin_is_one_line_of_the_log(service: Service) -> None:
    service.client.get("/agents", headers={"Origin": "https://told.example"})
    (line,) = [line for line in service.log().splitlines() if "told.example" in line]
    assert "WARNING" in line


def test_the_services_own_pages_and_allowed_ones_are_let_in(service: Service, network: Service) -> None:
    for headers in OWN_PAGES:
        assert network.client.post("/conversations", json={}, headers=headers).status_code == 201, headers
    for origin, host in (("http://chat.example", "chat.example:443"), ("https://chat.example", "chat.example:80")):
        headers = {"Origin": origin, "Host": host}
        problem(network.client.post("/conversations", json={}, headers=headers), 403, "foreign_origin")
    port = service.client.base_url.port
    for name in ("127.0.0.1", "localhost"):
        headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
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


def test_pages_in_a_browser_run_only_the_services_own_scripts(service: Service) -> None:
    for path in ("/", "/docs", "/docs/static/swagger-ui-bundle.js", "/page/page.js", "/docs/errors/busy"):
        headers = service.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-cache"
        policy = headers["content-security-policy"]
        assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= {
            part.strip() for part in policy.split(";")
        }
        assert "unsafe" not in policy
