"""Refused requests, which change nothing, and failed turns."""

import base64
import io
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from smolsessions.core import errors
from smolsessions.web.problems import status_of
from tests.support.problems import nothing_stored, problem, send, strict_json
from tests.support.service import AGENTS, Service
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import PATIENCE_S

SECRET = "hunter2"
LONE = "\ud800"  # half of a surrogate pair: JSON can escape it, UTF-8 cannot hold it


def _png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (width, height), (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def _claiming(width: int, height: int) -> bytes:
    """Make a PNG that declares a size and holds almost no data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


BAD_TURNS: dict[str, tuple[dict[str, Any], str]] = {
    "no message": ({}, "/message"),
    "an empty message": ({"message": ""}, "/message"),
    "a message of white space": ({"message": " \t\n\u2003"}, "/message"),
    "a message that is too long": ({"message": "x" * 100_001}, "/message"),
    "a message that is null": ({"message": None}, "/message"),
    "a message that is a number": ({"message": 5}, "/message"),
    "a message that is no Unicode": ({"message": f"hi {LONE}"}, "/message"),
    "an unknown field": ({"message": "hi", "messages": []}, "/messages"),
    "an unknown field with a slash": ({"message": "hi", "a/b": 1}, "/a~1b"),
    "an unknown field with a tilde": ({"message": "hi", "a~b": 1}, "/a~0b"),
    "an empty conversation": ({"message": "hi", "conversation_id": ""}, "/conversation_id"),
    "a conversation with a blank": ({"message": "hi", "conversation_id": "a b"}, "/conversation_id"),
    "a conversation with a line's end": ({"message": "hi", "conversation_id": "ab\n"}, "/conversation_id"),
    "a conversation with a slash": ({"message": "hi", "conversation_id": "../a"}, "/conversation_id"),
    "a conversation in Cyrillic": ({"message": "hi", "conversation_id": "а"}, "/conversation_id"),  # noqa: RUF001
    "a conversation of 65 characters": ({"message": "hi", "conversation_id": "a" * 65}, "/conversation_id"),
    "a conversation that is no Unicode": ({"message": "hi", "conversation_id": LONE}, "/conversation_id"),
    "a conversation that is a list": ({"message": "hi", "conversation_id": ["a"]}, "/conversation_id"),
    "an agent that is a number": ({"message": "hi", "agent": 5}, "/agent"),
    "an empty agent": ({"message": "hi", "agent": ""}, "/agent"),
    "no steps": ({"message": "hi", "max_steps": 0}, "/max_steps"),
    "a negative number of steps": ({"message": "hi", "max_steps": -1}, "/max_steps"),
    "more steps than are allowed": ({"message": "hi", "max_steps": 101}, "/max_steps"),
    "a number of steps beyond all machines": ({"message": "hi", "max_steps": 10**400}, "/max_steps"),
    "half a step": ({"message": "hi", "max_steps": 1.5}, "/max_steps"),
    "a word for the steps": ({"message": "hi", "max_steps": "many"}, "/max_steps"),
    "images that are a text": ({"message": "hi", "images": "x"}, "/images"),
    "an image that is a number": ({"message": "hi", "images": [_text(_png(1, 1)), 5]}, "/images/1"),
    "an image that is no base64": ({"message": "hi", "images": [_text(_png(1, 1)), "???"]}, "/images/1"),
    "an image that is base64 of garbage": ({"message": "hi", "images": [_text(b"garbage" * 99)]}, "/images/0"),
    "an image without anything": ({"message": "hi", "images": ["data:image/png;base64,"]}, "/images/0"),
    "an image that is cut in the middle": ({"message": "hi", "images": [_text(_png(99, 99)[:200])]}, "/images/0"),
    "an image of another kind": ({"message": "hi", "images": [_text(b"<svg/>")]}, "/images/0"),
    "seventeen images": ({"message": "hi", "images": [_text(_png(1, 1))] * 17}, "/images"),
    "arguments that are a list": ({"message": "hi", "additional_args": [1]}, "/additional_args"),
    "arguments with a key that is no Unicode": ({"message": "hi", "additional_args": {LONE: 1}}, "/additional_args"),
    "metadata that is a text": ({"message": "hi", "metadata": "x"}, "/metadata"),
    "metadata that is no Unicode": ({"message": "hi", "metadata": {"a": [LONE]}}, "/metadata"),
    "a reset that is a word": ({"message": "hi", "reset": "maybe"}, "/reset"),
    "a wish that is a number": ({"message": "hi", "include_internal_tools": 7}, "/include_internal_tools"),
}

BAD_CONVERSATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty id": ({"id": ""}, "/id"),
    "an id with a blank": ({"id": "a b"}, "/id"),
    "an id with a line's end": ({"id": "a\n"}, "/id"),
    "an id of 65 characters": ({"id": "a" * 65}, "/id"),
    "an id that is no Unicode": ({"id": LONE}, "/id"),
    "an id that is a number": ({"id": 5}, "/id"),
    "an agent that is a list": ({"agent": []}, "/agent"),
    "metadata that is a list": ({"metadata": []}, "/metadata"),
    "metadata that is null": ({"metadata": None}, "/metadata"),
    "metadata that is no Unicode": ({"metadata": {"a": {"b": LONE}}}, "/metadata"),
    "metadata with a name that is no Unicode": ({"metadata": {LONE: 1}}, "/metadata"),
    "an unknown field": ({"name": "x"}, "/name"),
}

BAD_PATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, ""),
    "metadata that is null": ({"metadata": None}, "/metadata"),
    "metadata that is a list": ({"metadata": [1]}, "/metadata"),
    "metadata that is no Unicode": ({"metadata": {"a": LONE}}, "/metadata"),
    "another field": ({"metadata": {}, "agent": "demo"}, "/agent"),
}

NO_JSON = {
    "nothing but a brace": b"{",
    "words": b"hello",
    "Python": b"{'message': 'hi'}",
    "two values": b'{"message": "hi"} {}',
    "bytes that are no UTF-8": b'{"message": "\xff"}',
    "Latin-1": '{"message": "café"}'.encode("latin-1"),
    "UTF-16": '{"message": "hi"}'.encode("utf-16"),
    "UTF-16 without a mark": '{"message": "hi"}'.encode("utf-16-le"),
    "UTF-32": '{"message": "hi"}'.encode("utf-32"),
    "9,000 lists": b'{"message": "hi", "additional_args": {"a": ' + b"[" * 9_000 + b"]" * 9_000 + b"}}",
    "9,000 objects": b'{"message": "hi", "metadata": ' + b'{"a": ' * 9_000 + b"1" + b"}" * 9_000 + b"}",
    "a number of 5000 digits": b'{"message": "hi", "metadata": {"a": 1' + b"0" * 5000 + b"}}",
}

STATUSES = {
    "agent_error": 500,
    "precondition_failed": 412,
    "internal": 500,
    "head_too_large": 431,
    "request_timeout": 408,
    "too_many_connections": 503,
    "cannot_start": 500,
    "seal_broken": 500,
    "lease_lost": 500,
    "malformed": 400,
    "unauthorized": 401,
    "foreign_host": 403,
    "foreign_origin": 403,
    "not_found": 404,
    "conversation_not_found": 404,
    "turn_not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "conversation_exists": 409,
    "already_answered": 409,
    "not_waiting": 409,
    "request_not_found": 404,
    "busy": 409,
    "agent_mismatch": 409,
    "agent_not_found": 404,
    "agent_unavailable": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "invalid_request": 422,
    "unknown_agent": 422,
    "history_gone": 409,
    "idempotency_key_reused": 422,
    "too_many_turns": 429,
    "overloaded": 503,
    "store_unavailable": 503,
    "shutting_down": 503,
}


@pytest.fixture(scope="module")
def kept(service: Service) -> str:
    """Return a conversation of one turn that no refused request may change."""
    return str(service.play({"say": "kept"}, metadata={"a": 1})["conversation_id"])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with small bounds, and with an agent whose factory fails for the first session."""
    settings = {
        "AGENTS": f"{AGENTS},fickle=tests.support.agents:make_fickle,broken=tests.support.agents:make_broken",
        "MAX_BODY_BYTES": "65536",
        "MAX_MESSAGE_CHARS": "200",
        "MAX_STEPS": "5",
        "MAX_IMAGE_PIXELS": "10000",
    }
    with Service(tmp_path_factory.mktemp("small"), settings) as running:
        yield running


@pytest.mark.parametrize("what", BAD_TURNS)
def test_a_turn_is_refused_by_the_fields_pointer_for(service: Service, kept: str, what: str) -> None:
    body, pointer = BAD_TURNS[what]
    with nothing_stored(service):
        for path in ("/turn", f"/conversations/{kept}/turns"):
            found = problem(send(service, "POST", path, json.dumps(body)), 422, "invalid_request")
            _assert_named(found, pointer)


@pytest.mark.parametrize("what", BAD_CONVERSATIONS)
def test_a_conversation_is_refused_by_the_fields_pointer_for(service: Service, what: str) -> None:
    body, pointer = BAD_CONVERSATIONS[what]
    with nothing_stored(service):
        found = problem(send(service, "POST", "/conversations", json.dumps(body)), 422, "invalid_request")
    _assert_named(found, pointer)


@pytest.mark.parametrize("what", BAD_PATCHES)
def test_a_patch_is_refused_by_the_fields_pointer_for(service: Service, kept: str, what: str) -> None:
    body, pointer = BAD_PATCHES[what]
    with nothing_stored(service):
        found = problem(send(service, "PATCH", f"/conversations/{kept}", json.dumps(body)), 422, "invalid_request")
    _assert_named(found, pointer)


@pytest.mark.parametrize("what", NO_JSON)
def test_a_body_is_no_json_in_utf8_if_it_is(service: Service, kept: str, what: str) -> None:
    with nothing_stored(service):
        for method, path in (
            ("POST", "/turn"),
            ("POST", f"/conversations/{kept}/turns"),
            ("POST", "/conversations"),
            ("PATCH", f"/conversations/{kept}"),
        ):
            problem(send(service, method, path, NO_JSON[what]), 400, "malformed")


def test_a_number_of_too_many_digits_is_named(service: Service) -> None:
    body = NO_JSON["a number of 5000 digits"]
    for path in ("/turn", "/conversations"):
        assert "digits" in problem(send(service, "POST", path, body), 400, "malformed")["detail"]
    assert "levels" in problem(send(service, "POST", "/turn", NO_JSON["9,000 lists"]), 400, "malformed")["detail"]


def test_the_last_of_repeated_members_counts(service: Service) -> None:
    made = service.play({"say": "hi"})["conversation_id"]
    message = json.dumps(json.dumps([{"say": "the last"}]))
    body = f'{{"message": "[]", "agent": "scripted", "message": {message}}}'
    for path in ("/turn", f"/conversations/{made}/turns"):
        assert send(service, "POST", path, body).json()["reply"] == "the last"
    patched = send(service, "PATCH", f"/conversations/{made}", '{"metadata": {"a": 1}, "metadata": {"b": 2, "b": 3}}')
    assert patched.json()["metadata"] == {"b": 3}


@pytest.mark.parametrize("body", ["[]", "null", "true", "1", '"hi"', '[{"message": "hi"}]'])
def test_a_body_that_is_no_object_is_refused(service: Service, kept: str, body: str) -> None:
    with nothing_stored(service):
        for method, path in (("POST", "/turn"), ("POST", "/conversations"), ("PATCH", f"/conversations/{kept}")):
            found = problem(send(service, method, path, body), 422, "invalid_request")
            assert [error["pointer"] for error in found["errors"]] == [""]


def test_a_request_without_a_body_is_refused(service: Service) -> None:
    with nothing_stored(service):
        for path in ("/turn", "/conversations"):
            found = problem(service.client.post(path), 422, "invalid_request")
            assert [error["pointer"] for error in found["errors"]] == [""]


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "text/json",
        "text/x+json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "json",
    ],
)
def test_a_body_of_another_content_type_is_refused(service: Service, kept: str, kind: str | None) -> None:
    with nothing_stored(service):
        for method, path in (("POST", "/turn"), ("POST", "/conversations"), ("PATCH", f"/conversations/{kept}")):
            body = '{"message": "hi"}' if path == "/turn" else '{"metadata": {}}'
            problem(send(service, method, path, body, kind), 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"])
def test_json_may_be_called_by_its_other_names(service: Service, kind: str) -> None:
    assert send(service, "POST", "/conversations", "{}", kind).status_code == 201


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("where", ["metadata", "additional_args", "a patch", "a turn's metadata"])
def test_nan_and_infinity_are_refused(service: Service, kept: str, number: str, where: str) -> None:
    method, path, body = {
        "metadata": ("POST", "/conversations", '{"metadata": {"a": [%s]}}'),
        "a patch": ("PATCH", f"/conversations/{kept}", '{"metadata": {"a": [%s]}}'),
        "a turn's metadata": ("POST", "/turn", '{"message": "hi", "agent": "demo", "metadata": {"a": %s}}'),
        "additional_args": ("POST", "/turn", '{"message": "hi", "agent": "demo", "additional_args": {"a": %s}}'),
    }[where]
    with nothing_stored(service):
        response = send(service, method, path, body % number)
        assert response.status_code in {400, 422}, response.text
        problem(response, response.status_code, {400: "malformed", 422: "invalid_request"}[response.status_code])


def test_a_large_number_comes_back_as_it_was(service: Service) -> None:
    metadata = {"whole": -(10**400), "float": 1.7976931348623157e308, "small": 5e-324}
    made = service.post("/conversations", metadata=metadata).json()
    assert service.get(f"/conversations/{made['id']}")["metadata"] == metadata
    turn = service.play({"say": "ok"}, additional_args={"n": 10**400})
    assert str(10**400) in service.steps(turn)[0]["task"]


def test_an_answer_that_no_json_number_holds_is_encoded_in_json(service: Service) -> None:
    script = json.dumps([{"code": "final_answer([float('nan'), float('-inf')])"}])
    response = service.post("/turn", message=script, agent="code")
    turn = strict_json(response.text)
    where = f"/conversations/{turn['conversation_id']}"
    for path in (f"{where}/turns/1", f"{where}/turns", f"{where}/steps"):
        strict_json(service.client.get(path).text)
    called = service.post("/turn", message='[{"call": [["echo", {"text": NaN}]]}, {"say": "x"}]', agent="scripted")
    assert strict_json(called.text)["reply"] == "x"


def test_nested_json_is_refused_or_kept_and_hides_no_conversation(tmp_path: Path) -> None:
    with Service(tmp_path) as own:
        old = own.post("/conversations").json()["id"]
        for depth in (100, 190, 199, 203, 230, 260, 500, 962, 990, 1500):
            for left, middle, right in (("[", "", "]"), ('{"a": ', "1", "}")):
                nested = '{"a": ' + left * depth + middle + right * depth + "}"
                for method, path, body in (
                    ("POST", "/conversations", '{"metadata": %s}'),
                    ("PATCH", f"/conversations/{old}", '{"metadata": %s}'),
                    ("POST", "/turn", '{"message": "hi", "agent": "demo", "metadata": %s}'),
                    ("POST", "/turn", '{"message": "hi", "agent": "demo", "additional_args": %s}'),
                ):
                    status = send(own, method, path, body % nested).status_code
                    assert status in {200, 201, 400, 413, 422}, (depth, method, path, status)
                    ids = [conversation["id"] for conversation in own.get("/conversations", limit=100)["items"]]
                    assert old in ids, (depth, method, path, status)
        for conversation_id in ids:
            own.get(f"/conversations/{conversation_id}")
            own.get(f"/conversations/{conversation_id}/steps")


def test_an_answer_to_a_bad_request_is_short(service: Service) -> None:
    fields = ", ".join(f'"field{number}": 0' for number in range(9_000))
    for method, path, body in (
        ("POST", "/turn", f'{{"message": "hi", {fields}}}'),
        ("POST", "/turn", json.dumps({"message": "hi", "images": [0] * 9_000})),
        ("POST", "/turn", json.dumps({"message": "hi", "agent": "a" * 1_000_000})),
        ("POST", "/turn", json.dumps({"message": "hi", "a" * 1_000_000: 1})),
        ("POST", "/conversations", json.dumps({"agent": "a" * 1_000_000})),
    ):
        response = send(service, method, path, body)
        assert (response.status_code, len(response.content) < 20_000) == (422, True), len(response.content)


def test_an_unknown_conversation_is_not_found_on_every_path(service: Service) -> None:
    with nothing_stored(service):
        for method, path, body in (
            ("GET", "/conversations/nowhere", None),
            ("DELETE", "/conversations/nowhere", None),
            ("PATCH", "/conversations/nowhere", {"metadata": {}}),
            ("GET", "/conversations/nowhere/steps", None),
            ("GET", "/conversations/nowhere/turns", None),
            ("GET", "/conversations/nowhere/turns/1", None),
            ("POST", "/conversations/nowhere/turns", {"message": "hi"}),
            ("POST", "/turn", {"message": "hi", "conversation_id": "nowhere"}),
        ):
            problem(service.client.request(method, path, json=body), 404, "conversation_not_found")


@pytest.mark.parametrize("name", ["a" * 65, "a b", "a%0A", "%00", "%FF", "%D0%B0", "a.b", "%2e%2e%5cx", "a:b"])
def test_an_id_in_a_path_is_held_to_its_letters(service: Service, name: str) -> None:
    with nothing_stored(service):
        for method, path, body in (
            ("GET", f"/conversations/{name}", None),
            ("DELETE", f"/conversations/{name}", None),
            ("PATCH", f"/conversations/{name}", {"metadata": {}}),
            ("GET", f"/conversations/{name}/steps", None),
            ("GET", f"/conversations/{name}/turns", None),
            ("GET", f"/conversations/{name}/turns/1", None),
            ("POST", f"/conversations/{name}/turns", {"message": "hi"}),
        ):
            found = problem(service.client.request(method, path, json=body), 422, "invalid_request")
            assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("path", "conversation_id")


def test_an_unknown_member_is_named_with_the_one_that_was_meant(service: Service) -> None:
    found = problem(service.post("/turn", message="hi", file=[], xyz=1), 422, "invalid_request")
    assert {error["pointer"]: error["message"] for error in found["errors"]} == {
        "/file": "there is no such member; did you mean files?",
        "/xyz": "there is no such member",
    }


def test_an_unknown_agent_is_named(service: Service) -> None:
    with nothing_stored(service):
        for path, body in (("/turn", {"message": "hi", "agent": "nobody"}), ("/conversations", {"agent": "nobody"})):
            found = problem(service.post(path, **body), 422, "unknown_agent")
            assert found["errors"][0]["pointer"] == "/agent"
            assert "'nobody'" in found["detail"]


def test_a_conversation_keeps_its_agent(service: Service, kept: str) -> None:
    with nothing_stored(service):
        found = problem(service.post("/turn", message="hi", conversation_id=kept, agent="demo"), 409, "agent_mismatch")
        problem(service.post(f"/conversations/{kept}/turns", message="hi", agent="demo"), 409, "agent_mismatch")
    assert "'scripted'" in found["detail"]


def test_the_path_and_the_body_must_name_the_same_conversation(service: Service, kept: str) -> None:
    with nothing_stored(service):
        response = service.post(f"/conversations/{kept}/turns", message="hi", conversation_id="another")
        assert problem(response, 422, "invalid_request")["errors"][0]["pointer"] == "/conversation_id"


@pytest.mark.parametrize("size", [(7000, 7000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_whose_header_claims_a_huge_size_is_too_large(service: Service, size: tuple[int, int]) -> None:
    with nothing_stored(service):
        problem(service.post("/turn", message="hi", images=[_text(_claiming(*size))]), 413, "too_large")


def test_an_image_may_have_as_many_pixels_as_are_set(small: Service) -> None:
    assert small.play({"say": "seen"}, images=[_text(_png(100, 100))])["reply"] == "seen"
    with nothing_stored(small):
        found = problem(
            small.post("/turn", message="hi", images=[_text(_png(1, 1)), _text(_png(101, 100))]), 413, "too_large"
        )
    assert "/images/1" in found["detail"]
    assert "10000" in found["detail"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_large_as_is_set(small: Service, *, chunked: bool) -> None:
    def body(size: int) -> bytes:
        start, end = b'{"metadata": {"a": "', b'"}}'
        return start + b"x" * (size - len(start) - len(end)) + end

    def post(size: int) -> Any:
        whole = body(size)
        parts = (whole[at : at + 4096] for at in range(0, size, 4096))
        headers = {"Content-Type": "application/json", "Connection": "close"}
        return small.client.post("/conversations", content=parts if chunked else whole, headers=headers)

    assert post(65536).status_code == 201
    with nothing_stored(small):
        assert "65536" in problem(post(65537), 413, "too_large")["detail"]
        assert "65536" in problem(post(300_000), 413, "too_large")["detail"]


def test_a_body_whose_length_header_is_too_large_is_refused_before_it_arrives(small: Service) -> None:
    url = small.client.base_url
    head = f"POST /turn HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\nContent-Length: 65537\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_connection_stays_usable_after_a_defect(small: Service) -> None:
    turn = small.play({"say": "hi"}, agent="broken")
    url = small.client.base_url
    path = f"/conversations/{turn['conversation_id']}/messages"
    logged = len(small.log())
    with closing(HTTPConnection(str(url.host), url.port or 80, timeout=PATIENCE_S)) as connection:
        connection.auto_open = 0  # no second connection
        connection.connect()
        for query, status in (("?summary_mode=true", 500), ("", 200), ("?summary_mode=true", 500), ("", 200)):
            connection.request("GET", path + query)
            response = connection.getresponse()
            body = json.loads(response.read())
            assert (response.status, response.headers["connection"]) == (status, None)
            assert status == 200 or body["code"] == "internal"
    assert small.log()[logged:].count("RuntimeError: broken") == 2  # each once


def test_a_message_may_be_as_long_as_is_set(small: Service) -> None:
    for letter in "xé😀":
        assert small.post("/turn", message=letter * 200, agent="demo").status_code == 200
        with nothing_stored(small):
            problem(small.post("/turn", message=letter * 201, agent="demo"), 422, "invalid_request")


def test_a_turn_may_have_as_many_steps_as_are_set(small: Service) -> None:
    again = {"call": [["echo", {"text": "again"}]]}
    assert small.play(again, max_steps=5)["tool_call_names"] == ["echo"] * 5
    with nothing_stored(small):
        found = problem(small.post("/turn", message="hi", max_steps=6), 422, "invalid_request")
    assert "5" in found["errors"][0]["message"]


@pytest.mark.parametrize(
    "path", ["/nowhere", "/conversations/a/b", "/docs/static/nothing", "/docs/static/%00", "/turn/1"]
)
def test_an_unknown_path_is_not_found(service: Service, path: str) -> None:
    problem(service.client.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/turn", "POST"),
        ("DELETE", "/turn", "POST"),
        ("POST", "/agents", "GET"),
        ("PUT", "/livez", "GET"),
        ("PUT", "/conversations", "GET, POST"),
        ("PUT", "/conversations/c", "DELETE, GET, PATCH"),
        ("PUT", "/conversations/c/turns", "GET, POST"),
        ("PUT", "/conversations/import", "DELETE, GET, PATCH, POST"),
    ],
)
def test_a_method_that_a_path_does_not_support_gets_the_supported_ones(
    service: Service, method: str, path: str, allowed: str
) -> None:
    response = service.client.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert response.headers.get("allow") == allowed


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:8000", ""])
def test_a_loopback_service_refuses_the_names_of_other_hosts(service: Service, host: str) -> None:
    with nothing_stored(service):
        for method, path, body in (("GET", "/livez", None), ("GET", "/", None), ("POST", "/conversations", {})):
            problem(service.client.request(method, path, json=body, headers={"Host": host}), 403, "foreign_host")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LocalHost", "[::1]", "[::1]:8000"])
def test_a_loopback_service_answers_to_its_own_names(service: Service, host: str) -> None:
    assert service.client.get("/livez", headers={"Host": host}).status_code == 200


def test_every_error_has_a_status_and_a_code_of_its_own() -> None:
    kinds = _errors()
    assert sorted(kind.code for kind in kinds) == sorted(STATUSES)
    assert {kind.code: status_of(kind()).value for kind in kinds} == STATUSES
    assert [kind.__name__ for kind in kinds if not (kind.__doc__ or "").strip()] == []


def test_only_transient_errors_have_a_retry_after() -> None:
    assert {kind.code for kind in _errors() if kind.retry_after_s} == {
        "overloaded",
        "store_unavailable",
        "shutting_down",
        "too_many_turns",
        "too_many_connections",
    }


def test_a_model_that_fails_is_a_failed_turn_that_keeps_its_words_to_itself(service: Service) -> None:
    turn = service.play({"raise": SECRET})
    error = {"code": "model_error", "message": "The model gave no usable answer (RuntimeError).", "retryable": False}
    assert (turn["status"], turn["error"]) == ("failed", error)
    assert (turn["reply"], turn["output"], turn["state"], turn["steps"]) == (None, None, None, 0)
    assert service.get(f"/conversations/{turn['conversation_id']}/turns/1") == turn


def test_the_prompt_after_a_failed_turn_has_its_task_and_nothing_of_its_unfinished_step(service: Service) -> None:
    scripts = [{"raise": SECRET}], [{"shown": True}]
    failed = service.play(*scripts[0])
    assert [(step["type"], step["unanswered"]) for step in service.steps(failed)] == [("task", True)]
    after = service.follow_up(failed, *scripts[1])
    assert (after["turn"], after["status"]) == (2, "finished")
    assert json.loads(after["reply"]) == [["user", f"New task:\n{json.dumps(script)}"] for script in scripts]


def test_a_failed_turn_keeps_the_steps_that_it_finished(service: Service) -> None:
    failed = service.play({"call": [["echo", {"text": "done before"}]]}, {"raise": SECRET})
    assert (failed["status"], failed["tool_call_names"], failed["steps"]) == ("failed", ["echo"], 1)
    after = service.follow_up(failed, {"say": "goes on"})
    assert after["reply"] == "goes on"
    steps = service.steps(after)
    assert [(step["turn"], step["type"]) for step in steps] == [(1, "task"), (1, "action"), (2, "task"), (2, "action")]
    assert steps[1]["observations"] == "done before"
    assert not [step for step in steps if step.get("error")]


@pytest.mark.parametrize(
    ("agent", "script"),
    [
        ("scripted", {"call": [["leave", {}]]}),
        ("scripted", {"call": [["leave", {}], ["echo", {"text": "beside it"}]]}),
        ("code", {"code": "leave()"}),
    ],
)
def test_a_tool_that_ends_the_interpreter_ends_its_turn_alone(
    service: Service, agent: str, script: dict[str, Any]
) -> None:
    turn = service.play(script, agent=agent)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "agent_error")
    assert service.follow_up(turn, {"say": "still here"})["reply"] == "still here"
    assert service.process.poll() is None


def test_a_factory_that_fails_for_a_session_fails_that_turn_alone(small: Service) -> None:
    failed = small.play({"say": "first"}, agent="fickle")
    assert (failed["status"], failed["error"]["code"], failed["steps"]) == ("failed", "agent_error", 0)
    assert SECRET not in json.dumps(failed)
    assert small.follow_up(failed, {"say": "second"})["reply"] == "second"


def test_a_factory_that_ends_the_process_fails_its_turn_alone(tmp_path: Path) -> None:
    with Service(tmp_path, {"AGENTS": "leaving=tests.support.agents:make_leaving"}) as own:
        try:
            failed = own.play({"say": "first"}, agent="leaving")
            assert (failed["status"], failed["error"]["code"]) == ("failed", "agent_error")
            assert own.follow_up(failed, {"say": "second"})["reply"] == "second"
        finally:
            own.kill()  # a half-ended process answers no signal


def test_an_agent_that_cannot_be_cleaned_up_ends_nothing_but_itself(tmp_path: Path) -> None:
    settings = {"AGENTS": "clinging=tests.support.agents:make_clinging", "WARM_IDLE_S": "0.1"}
    with Service(tmp_path, settings) as own:
        failed = own.play({"raise": "let go of at once"}, agent="clinging")
        turn = own.follow_up(failed, {"say": "let go of when idle"})
        end = time.monotonic() + PATIENCE_S
        while "sessions_warm 0.0" not in own.client.get("/metrics").text:
            assert time.monotonic() < end
        assert own.follow_up(turn, {"say": "goes on"})["reply"] == "goes on"


def test_text_that_is_no_unicode_is_a_turn_like_others(tmp_path: Path) -> None:
    with Service(tmp_path) as own:
        for agent, script in (
            ("scripted", [{"text": LONE}, {"say": "end"}]),
            ("scripted", [{"say": f"half a pair: {LONE}"}]),
            ("scripted", [{"call": [["echo", {"text": LONE}]]}, {"say": "end"}]),
            ("scripted", [{"call": [[LONE, {}]]}, {"say": "end"}]),
            ("scripted", [{"call": [["fail", {"reason": LONE}]]}, {"say": "end"}]),
            ("code", [{"code": "final_answer({chr(0xd800): [chr(0xdfff)]})"}]),
            ("code", [{"code": "print(chr(0xd800))"}, {"say": "end"}]),
        ):
            _assert_readable(own, own.play(*script, agent=agent))


def test_answers_and_arguments_of_any_shape_are_a_turn_like_others(tmp_path: Path) -> None:
    deep = "x = []\nfor _ in range({}):\n    x = [x]\nfinal_answer(x)"
    with Service(tmp_path) as own:
        for agent, script in (
            ("code", [{"code": deep.format(190)}]),
            ("code", [{"code": deep.format(200)}]),
            ("code", [{"code": deep.format(250)}]),
            ("code", [{"code": deep.format(400)}]),
            ("code", [{"code": "final_answer(10**5000)"}]),
            ("code", [{"code": "final_answer('x' * 17_000_000)"}]),
            ("scripted", [{"call": [["echo", {"text": json.loads("[" * 220 + "]" * 220)}]]}, {"say": "end"}]),
            ("scripted", [{"call": [["make", {"what": "deep"}]]}, {"say": "end"}]),
            ("scripted", [{"call": [[None, 5]]}, {"say": "end"}]),
            ("scripted", [{"call": [[5, None]]}, {"say": "end"}]),
        ):
            _assert_readable(own, own.play(*script, agent=agent))


def _errors() -> list[type[errors.ServiceError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in found if issubclass(kind, errors.ServiceError)]


def _assert_named(found: dict[str, Any], pointer: str) -> None:
    assert [error for error in found["errors"] if error["pointer"].startswith(pointer) and error["message"]], found


def _assert_readable(service: Service, turn: dict[str, Any]) -> None:
    assert turn["status"] in {"finished", "failed"}
    where = f"/conversations/{turn['conversation_id']}"
    assert service.get(f"{where}/turns/1") == turn
    assert service.get(f"{where}/turns")["items"] == [turn]
    service.get(f"{where}/steps")
    assert service.follow_up(turn, {"say": "goes on"})["reply"] == "goes on"


UNKNOWN_PARAMETERS = [
    ("POST", "/turn", {"message": "hi"}),
    ("POST", "/conversations", {}),
    ("GET", "/conversations", None),
    ("GET", "/conversations/{}", None),
    ("PATCH", "/conversations/{}", {}),
    ("DELETE", "/conversations/{}", None),
    ("GET", "/conversations/{}/steps", None),
    ("GET", "/conversations/{}/messages", None),
    ("GET", "/conversations/{}/turns", None),
    ("POST", "/conversations/{}/turns", {"message": "hi"}),
    ("GET", "/conversations/{}/turns/1", None),
    ("GET", "/conversations/{}/turns/1/events", None),
    ("POST", "/conversations/{}/turns/1/cancel", None),
    ("POST", "/conversations/{}/prune", {}),
    ("POST", "/conversations/{}/fork", {}),
    ("POST", "/conversations/{}/rollback", {"turn": 1}),
    ("GET", "/conversations/{}/export", None),
    ("POST", "/conversations/import", {}),
    ("GET", "/agents", None),
]


@pytest.mark.parametrize(("method", "path", "body"), UNKNOWN_PARAMETERS, ids=lambda part: str(part)[:30])
def test_an_unknown_query_parameter_is_refused(
    service: Service, kept: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    with nothing_stored(service):
        response = service.client.request(method, path.format(kept), json=body, params={"limitt": "1"})
        found = problem(response, 422, "invalid_request")
    assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("query", "limitt")


@pytest.mark.parametrize("path", ["/conversations", "/conversations/{}/turns", "/conversations/{}/steps"])
def test_an_empty_cursor_is_refused(service: Service, kept: str, path: str) -> None:
    found = problem(service.client.get(path.format(kept), params={"cursor": ""}), 422, "invalid_request")
    assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("query", "cursor")


@pytest.mark.parametrize("path", ["/turn", "/conversations"])
def test_an_empty_agent_is_refused(service: Service, path: str) -> None:
    body = {"agent": "", "message": "hi"} if path == "/turn" else {"agent": ""}
    assert problem(service.post(path, **body), 422, "invalid_request")["errors"][0]["pointer"] == "/agent"


@pytest.mark.parametrize("prefer", ["respond-async, wait=1", "wait=1, respond-async"])
def test_a_client_may_wait_and_then_go_on(service: Service, tmp_path: Path, prefer: str) -> None:
    gate = tmp_path / "gate"
    body = {"agent": "scripted", "message": json.dumps([{"call": [["wait_for", {"path": str(gate)}]]}, {"say": "ok"}])}
    began = time.monotonic()
    with Stopwatch() as watch:
        slow = service.client.post("/turn", json=body, headers={"Prefer": prefer})
    waited_s = time.monotonic() - began
    gate.touch()
    quick = service.client.post("/turn", json={"agent": "scripted", "message": "[]"}, headers={"Prefer": prefer})

    assert (slow.status_code, slow.headers["preference-applied"]) == (202, "respond-async, wait=1")
    assert waited_s >= 1
    assert watch.s < 5
    assert quick.status_code == 200
