"""Refused requests, which change nothing, and failed turns."""

import base64
import json
import struct
import zlib
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from smolsessions.core import errors
from smolsessions.web.problems import status_of
from tests.support.data import table
from tests.support.problems import OF_A_CONVERSATION, connected, nothing_stored, problem, problem_on, send, strict_json
from tests.support.service import PATIENCE_S, PLAIN, Service, listed, shared_service, wait_until
from tests.support.turns import encoded, pixel, png

SECRET = "hunter2"
LONE = "\ud800"  # half of a surrogate pair: JSON can escape it, UTF-8 cannot hold it
SAY = '[{"say": "hi"}]'


def _claiming(width: int, height: int) -> str:
    """Make a PNG that declares a size and holds almost no data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return _text(b"\x89PNG\r\n\x1a\n" + parts)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


PIXEL = pixel()
BAD_METADATA = ["x", [1], None, {"a": {"b": [LONE]}}, {LONE: 1}]
BAD_IDS = ["", "a b", "ab\n", "../a", "\u0430", "a" * 65, LONE, ["a"], 5]
# Values of the member that the error's pointer names.
BAD_TURNS: dict[str, list[Any]] = {
    "/message": ["", " \t\n\u2003", "x" * 100_001, None, 5, f"hi {LONE}"],
    "/messages": [[]],
    "/a~1b": [1],
    "/a~0b": [1],
    "/conversation_id": BAD_IDS,
    "/agent": [5, "", "a" * 65],
    "/max_steps": [0, -1, 101, 10**400, 1.5, "many"],
    "/deadline_s": [0, -1, 3600.5, 1e300, "long", True],
    "/images": ["x", [PIXEL] * 17],
    "/images/0": [
        [_text(b"garbage" * 99)],
        ["data:image/png;base64,"],
        [_text(base64.b64decode(png("red", (99, 99)))[:200])],
        [_text(b"<svg/>")],
    ],
    "/images/1": [[PIXEL, 5], [PIXEL, "???"]],
    "/additional_args": [[1], {LONE: 1}],
    "/metadata": BAD_METADATA,
    "/reset": ["maybe"],
    "/on_busy": ["wait", "Enqueue", None, ["enqueue"]],
    "/include_internal_tools": [True],
}
BAD_CONVERSATIONS: dict[str, list[Any]] = {
    "/id": BAD_IDS,
    "/agent": [[], ""],
    "/metadata": BAD_METADATA,
    "/ttl_s": [0, "x"],
    "/name": ["x"],
}
BAD_PATCHES: dict[str, list[Any]] = {"/metadata": BAD_METADATA, "/agent": ["demo"], "/title": ["", "x" * 201, 7]}
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
STATUSES: Any = table("errors statuses")
BODIES: list[tuple[str, str]] = [
    ("POST", "/turn"),
    ("POST", "/conversations/{}/turns"),
    ("POST", "/conversations"),
    ("PATCH", "/conversations/{}"),
]
OTHERS: list[tuple[str, str, Any]] = table("errors others")


@pytest.fixture(scope="module")
def kept(service: Service) -> str:
    return str(service.play({"say": "kept"}, metadata={"a": 1})["conversation_id"])


# A service with small bounds, and with agents whose parts or whose ends fail.
small = shared_service(
    PLAIN
    | {
        "AGENTS": f"{PLAIN['AGENTS']},{listed('agents', 'broken clinging')}",
        "WARM_IDLE_S": "0.1",
        "MAX_BODY_BYTES": "65536",
        "MAX_MESSAGE_CHARS": "200",
        "MAX_STEPS": "5",
        "MAX_IMAGE_PIXELS": "10000",
    }
)


@pytest.mark.parametrize(
    ("method", "path", "table"),
    [
        ("POST", "/turn", BAD_TURNS),
        ("POST", "/conversations/{}/turns", BAD_TURNS),
        ("POST", "/conversations", BAD_CONVERSATIONS),
        ("PATCH", "/conversations/{}", BAD_PATCHES),
    ],
)
def test_a_wrong_member_is_named_by_a_pointer(
    service: Service, kept: str, method: str, path: str, table: dict[str, list[Any]]
) -> None:
    rest = {"message": "hi"} if table is BAD_TURNS else {}
    with nothing_stored(service):
        for pointer, values in table.items():
            member = pointer.split("/")[1].replace("~1", "/").replace("~0", "~")
            for value in values:
                response = send(service, method, path.format(kept), json.dumps(rest | {member: value}))
                found = problem(response, 422, "invalid_request")["errors"]
                assert [it for it in found if it["pointer"].startswith(pointer) and it["message"]], (found, value)


def test_a_body_is_an_object_with_a_member(service: Service, kept: str) -> None:
    with nothing_stored(service):
        for method, path in BODIES:
            for body in ("", "[]", "null", "true", "1", '"hi"', '[{"message": "hi"}]'):
                found = problem(send(service, method, path.format(kept), body), 422, "invalid_request")
                assert [error["pointer"] for error in found["errors"]] == [""]
        for path, pointer in (("/turn", "/message"), (f"/conversations/{kept}", "")):
            found = problem(send(service, "POST" if pointer else "PATCH", path, "{}"), 422, "invalid_request")
            assert [error["pointer"] for error in found["errors"]] == [pointer]


def test_a_body_is_json_in_utf8(service: Service, kept: str) -> None:
    with nothing_stored(service):
        found = {
            (what, path): problem(send(service, method, path.format(kept), body), 400, "malformed")["detail"]
            for what, body in NO_JSON.items()
            for method, path in BODIES
        }
    for path in ("/turn", "/conversations"):
        assert "digits" in found["a number of 5000 digits", path]
    assert "levels" in found["9,000 lists", "/turn"]
    assert found["two values", "/turn"] == "The body is not JSON: Extra data at character 18."


def test_the_last_of_repeated_members_counts(service: Service) -> None:
    made = service.play({"say": "hi"})["conversation_id"]
    message = json.dumps(json.dumps([{"say": "the last"}]))
    body = f'{{"message": "[]", "agent": "scripted", "message": {message}}}'
    for path in ("/turn", f"/conversations/{made}/turns"):
        assert send(service, "POST", path, body).json()["reply"] == "the last"
    patched = send(service, "PATCH", f"/conversations/{made}", '{"metadata": {"a": 1}, "metadata": {"b": 2, "b": 3}}')
    assert patched.json()["metadata"] == {"b": 3}


def test_a_body_has_a_content_type_of_json(service: Service, kept: str) -> None:
    forms = ("application/x-www-form-urlencoded", "multipart/form-data")
    for name in ("application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"):
        assert send(service, "POST", "/conversations", "{}", name).status_code == 201
    with nothing_stored(service):
        for kind in (None, "text/plain", "text/json", "text/x+json", "json", *forms):
            for method, path in BODIES:
                body = '{"message": "hi"}' if "turn" in path else '{"metadata": {}}'
                problem(send(service, method, path.format(kept), body, kind), 415, "unsupported_media_type")
        chunked = b"POST /conversations HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        for line in (b"", b"Content-Type: text/plain\r\n"):
            with connected(service, chunked + line + b"Connection: close\r\n\r\n2\r\n{}\r\n0\r\n\r\n") as connection:
                problem_on(connection, 415, "unsupported_media_type")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_nan_and_infinity_are_refused(service: Service, kept: str, number: str) -> None:
    with nothing_stored(service):
        for method, path, body in (
            ("POST", "/conversations", '{"metadata": {"a": [%s]}}'),
            ("PATCH", f"/conversations/{kept}", '{"metadata": {"a": [%s]}}'),
            ("POST", "/turn", '{"message": "hi", "agent": "demo", "metadata": {"a": %s}}'),
            ("POST", "/turn", '{"message": "hi", "agent": "demo", "additional_args": {"a": %s}}'),
        ):
            response = send(service, method, path, body % number)
            problem(response, *((400, "malformed") if response.status_code == 400 else (422, "invalid_request")))


def test_a_large_number_comes_back_as_it_was(service: Service) -> None:
    metadata = {"whole": -(10**400), "float": 1.7976931348623157e308, "small": 5e-324}
    made = service.post("/conversations", metadata=metadata).json()
    assert service.get(f"/conversations/{made['id']}")["metadata"] == metadata
    assert str(10**400) in service.steps(service.play({"say": "ok"}, additional_args={"n": 10**400}))[0]["task"]


def test_an_answer_that_no_json_number_holds_is_encoded_in_json(service: Service) -> None:
    script = json.dumps([{"code": "final_answer([float('nan'), float('-inf')])"}])
    turn = strict_json(service.post("/turn", message=script, agent="code").text)
    where = f"/conversations/{turn['conversation_id']}"
    for path in (f"{where}/turns/1", f"{where}/turns", f"{where}/steps"):
        strict_json(service.client.get(path).text)
    called = service.post("/turn", message='[{"call": [["echo", {"text": NaN}]]}, {"say": "x"}]', agent="scripted")
    assert strict_json(called.text)["reply"] == "x"


def test_nested_json_is_refused_or_kept_and_hides_no_conversation(small: Service) -> None:
    old = small.post("/conversations").json()["id"]
    for depth in (100, 199, 203, 260, 990, 1500):
        for left, middle, right in (("[", "", "]"), ('{"a": ', "1", "}")):
            nested = '{"a": ' + left * depth + middle + right * depth + "}"
            for method, path, body in (
                ("POST", "/conversations", '{"metadata": %s}'),
                ("PATCH", f"/conversations/{old}", '{"metadata": %s}'),
                ("POST", "/turn", '{"message": "hi", "agent": "demo", "metadata": %s}'),
                ("POST", "/turn", '{"message": "hi", "agent": "demo", "additional_args": %s}'),
            ):
                status = send(small, method, path, body % nested).status_code
                assert status in {200, 201, 400, 413, 422}, (depth, method, path, status)
                ids = [conversation["id"] for conversation in small.get("/conversations", limit=100)["items"]]
                assert old in ids, (depth, method, path, status)
    for conversation_id in ids:
        small.get(f"/conversations/{conversation_id}")
        small.get(f"/conversations/{conversation_id}/steps")


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


@pytest.mark.parametrize("name", ["a" * 65, "a b", "a%0A", "%00", "%FF", "%D0%B0", "a.b", "%2e%2e%5cx", "a:b"])
def test_an_id_in_a_path_is_held_to_its_letters(service: Service, name: str) -> None:
    with nothing_stored(service):
        for method, path, body in OF_A_CONVERSATION:
            found = problem(service.client.request(method, path.format(name), json=body), 422, "invalid_request")
            assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("path", "conversation_id")


def test_an_unknown_query_parameter_is_refused(service: Service, kept: str) -> None:
    with nothing_stored(service):
        for method, path, body in OF_A_CONVERSATION + OTHERS:
            response = service.client.request(method, path.format(kept), json=body, params={"limitt": "1"})
            found = problem(response, 422, "invalid_request")
            assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("query", "limitt")


def test_an_unknown_member_is_named_with_the_one_that_was_meant(service: Service) -> None:
    found = problem(service.post("/turn", message="hi", file=[], xyz=1), 422, "invalid_request")
    assert {error["pointer"]: error["message"] for error in found["errors"]} == {
        "/file": "there is no such member; did you mean files?",
        "/xyz": "there is no such member",
    }


def test_agents_and_conversations_that_do_not_fit_are_refused(service: Service, kept: str) -> None:
    with nothing_stored(service):
        for path, body in (("/turn", {"message": "hi", "agent": "nobody"}), ("/conversations", {"agent": "nobody"})):
            found = problem(service.post(path, **body), 422, "unknown_agent")
            assert found["errors"][0]["pointer"] == "/agent"
            assert "'nobody'" in found["detail"]
        found = problem(service.post("/turn", message="hi", conversation_id=kept, agent="demo"), 409, "agent_mismatch")
        assert "'scripted'" in found["detail"]
        problem(service.post(f"/conversations/{kept}/turns", message="hi", agent="demo"), 409, "agent_mismatch")
        response = service.post(f"/conversations/{kept}/turns", message="hi", conversation_id="another")
        assert problem(response, 422, "invalid_request")["errors"][0]["pointer"] == "/conversation_id"


def test_an_image_whose_header_claims_a_huge_size_is_too_large(service: Service) -> None:
    with nothing_stored(service):
        for side in (7000, 20_000, 2**31 - 1):
            problem(service.post("/turn", message="hi", images=[_claiming(side, side)]), 413, "too_large")


def test_an_image_may_have_as_many_pixels_as_are_set(small: Service) -> None:
    assert small.play({"say": "seen"}, images=[png("red", (100, 100))])["reply"] == "seen"
    too_large = [png("red", (101, 100)), png("red", (100, 100))]  # one by itself, and one with another
    square = PIL.Image.new("RGB", (80, 80))
    too_large += [encoded(square, "WEBP"), encoded(square, "JPEG", progressive=True)]  # they take twice the memory
    with nothing_stored(small):
        for image in too_large:
            found = problem(small.post("/turn", message="hi", images=[PIXEL, image]), 413, "too_large")
            assert "/images/1" in found["detail"]
            assert "10000" in found["detail"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_large_as_is_set(small: Service, *, chunked: bool) -> None:
    def post(size: int) -> Any:
        whole = b'{"metadata": {}%b}' % (b" " * (size - 16))  # small, once it is parsed
        parts = (whole[at : at + 4096] for at in range(0, size, 4096))
        headers = {"Content-Type": "application/json", "Connection": "close"}
        return small.client.post("/conversations", content=parts if chunked else whole, headers=headers)

    assert post(65536).status_code == 201
    with nothing_stored(small):
        for size in (65537, 300_000):
            assert "65536 bytes (SMOLSESSIONS_MAX_BODY_BYTES)" in problem(post(size), 413, "too_large")["detail"]


def test_a_body_whose_length_header_is_too_large_is_refused_before_it_arrives(small: Service) -> None:
    head = b"POST /turn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 65537\r\n"
    with connected(small, head + b"\r\n") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_metadata_is_bounded_wherever_it_comes_from(service: Service, kept: str) -> None:
    def metadata(size: int) -> dict[str, str]:
        return {"a": "x" * (size - len('{"a": ""}'))}

    document = service.get(f"/conversations/{kept}/export")
    for size, statuses in ((65536, [200, 201, 200, 201, 201]), (65537, [413] * 5)):
        answers = [
            service.post("/turn", message=SAY, agent="scripted", metadata=metadata(size)),
            service.post("/conversations", metadata=metadata(size)),
            service.client.patch(f"/conversations/{kept}", json={"metadata": metadata(size)}),
            service.post("/imports", **document | {"metadata": metadata(size)}),
            service.post(f"/conversations/{kept}/fork", metadata=metadata(size)),
        ]
        assert [answer.status_code for answer in answers] == statuses
    merged = service.client.patch(f"/conversations/{kept}", json={"metadata": {"b": 1}})
    assert "metadata" in problem(merged, 413, "too_large")["detail"]
    assert service.client.patch(f"/conversations/{kept}", json={"metadata": {"a": 1}}).status_code == 200


def test_a_connection_stays_usable_after_a_defect(small: Service) -> None:
    turn = small.play({"say": "hi"}, agent="broken")
    url = small.client.base_url
    path = f"/conversations/{turn['conversation_id']}/prompt"
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


def test_messages_and_steps_have_the_bounds_that_are_set(small: Service) -> None:
    for letter in "xé😀":
        assert small.post("/turn", message=letter * 200, agent="demo").status_code == 200
        with nothing_stored(small):
            problem(small.post("/turn", message=letter * 201, agent="demo"), 422, "invalid_request")
    again = {"call": [["echo", {"text": "again"}]]}
    assert small.play(again, max_steps=5)["tool_call_names"] == ["echo"] * 5
    with nothing_stored(small):
        found = problem(small.post("/turn", message="hi", max_steps=6), 422, "invalid_request")
    assert "5" in found["errors"][0]["message"]


def test_an_unknown_path_is_not_found_and_a_method_gets_the_supported_ones(service: Service) -> None:
    for path in ("/nowhere", "/conversations/a/b", "/docs/static/nothing", "/docs/static/%00", "/turn/1"):
        problem(service.client.get(path), 404, "not_found")
    for method, path, allowed in table("errors methods"):
        response = service.client.request(method, path)
        problem(response, 405, "method_not_allowed")
        assert response.headers.get("allow") == allowed, (method, path)


def test_a_loopback_service_answers_to_its_own_names_alone(service: Service) -> None:
    for host in ("127.0.0.1", "127.0.0.1:8000", "localhost:1", "LocalHost", "[::1]", "[::1]:8000"):
        assert service.client.get("/livez", headers={"Host": host}).status_code == 200
    with nothing_stored(service):
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:8000", ""):
            for method, path, body in (("GET", "/livez", None), ("GET", "/", None), ("POST", "/conversations", {})):
                problem(service.client.request(method, path, json=body, headers={"Host": host}), 403, "foreign_host")


def test_every_error_has_a_status_and_a_code_of_its_own() -> None:
    types = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in types if issubclass(kind, errors.ServiceError)]
    statuses = {code: status for status, codes in STATUSES.items() for code in codes.split()}
    assert sorted(kind.code for kind in kinds) == sorted(statuses)
    assert {kind.code: status_of(kind()).value for kind in kinds} == statuses
    assert [kind.__name__ for kind in kinds if not (kind.__doc__ or "").strip()] == []
    transient = {kind.code for kind in kinds if kind.retry_after_s}
    assert transient == {*STATUSES[503].split(), *STATUSES[429].split()}


def test_a_model_that_fails_is_a_failed_turn_that_keeps_its_words_to_itself(service: Service) -> None:
    scripts = [{"raise": SECRET}], [{"shown": True}]
    failed = service.play(*scripts[0])
    error = {"code": "model_error", "message": "The model gave no usable answer (RuntimeError).", "retryable": False}
    assert (failed["status"], failed["error"]) == ("failed", error)
    assert (failed["reply"], failed["output"], failed["outcome"], failed["step_count"]) == (None, None, None, 0)
    assert service.get(f"/conversations/{failed['conversation_id']}/turns/1") == failed
    assert [(step["type"], step["unanswered"]) for step in service.steps(failed)] == [("task", True)]
    after = service.follow_up(failed, *scripts[1])  # its prompt has nothing of the unfinished step
    assert (after["turn"], after["status"]) == (2, "finished")
    assert json.loads(after["reply"]) == [["user", f"New task:\n{json.dumps(script)}"] for script in scripts]


def test_a_tool_that_ends_the_interpreter_ends_its_turn_alone(service: Service) -> None:
    for agent, script in (
        ("scripted", {"call": [["leave", {}], ["echo", {"text": "beside it"}]]}),
        ("code", {"code": "leave()"}),
    ):
        turn = service.play(script, agent=agent)
        assert (turn["status"], turn["error"]["code"]) == ("failed", "agent_error")
        assert service.follow_up(turn, {"say": "still here"})["reply"] == "still here"
        assert service.process.poll() is None


def test_a_factory_that_ends_the_process_fails_its_turn_alone(tmp_path: Path) -> None:
    settings = {"AGENTS": "leaving=tests.support.agents:make_leaving", "DEMO_AGENTS": "0"}
    with Service(tmp_path, settings) as own:
        try:
            failed = own.play({"say": "first"}, agent="leaving")
            assert (failed["status"], failed["error"]["code"]) == ("failed", "agent_error")
            assert own.follow_up(failed, {"say": "second"})["reply"] == "second"
        finally:
            own.kill()  # a half-ended process answers no signal


def test_an_agent_that_cannot_be_cleaned_up_ends_nothing_but_itself(small: Service) -> None:
    failed = small.play({"raise": "let go of at once"}, agent="clinging")
    turn = small.follow_up(failed, {"say": "let go of when idle"})
    wait_until(lambda: "sessions_warm 0.0" in small.client.get("/metrics").text)
    assert small.follow_up(turn, {"say": "goes on"})["reply"] == "goes on"


DEEP = "x = []\nfor _ in range({}):\n    x = [x]\nfinal_answer(x)"
END: dict[str, Any] = {"say": "end"}


@pytest.mark.parametrize(
    ("agent", "script"),
    [
        ("scripted", [{"text": LONE}, END]),
        ("scripted", [{"say": f"half a pair: {LONE}"}]),
        ("scripted", [{"call": [["echo", {"text": LONE}]]}, END]),
        ("scripted", [{"call": [[LONE, {}]]}, END]),
        ("scripted", [{"call": [["fail", {"reason": LONE}]]}, END]),
        ("code", [{"code": "final_answer({chr(0xd800): [chr(0xdfff)]})"}]),
        ("code", [{"code": "print(chr(0xd800))"}, END]),
        *[("code", [{"code": DEEP.format(depth)}]) for depth in (190, 200, 250, 400)],
        ("code", [{"code": "final_answer(10**5000)"}]),
        ("code", [{"code": "final_answer('x' * 17_000_000)"}]),
        ("scripted", [{"call": [["echo", {"text": json.loads("[" * 220 + "]" * 220)}]]}, END]),
        ("scripted", [{"call": [["make", {"what": "deep"}]]}, END]),
        ("scripted", [{"call": [[None, 5]]}, END]),
        ("scripted", [{"call": [[5, None]]}, END]),
    ],
)
def test_answers_and_arguments_may_have_any_shape(service: Service, agent: str, script: list[dict[str, Any]]) -> None:
    turn = service.play(*script, agent=agent)
    assert turn["status"] in {"finished", "failed"}
    where = f"/conversations/{turn['conversation_id']}"
    assert service.get(f"{where}/turns/1") == turn
    assert service.get(f"{where}/turns")["items"] == [turn]
    service.get(f"{where}/steps")
    assert service.follow_up(turn, {"say": "goes on"})["reply"] == "goes on"
