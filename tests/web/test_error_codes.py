"""Ids of requests in answers, problems and logs, and pages and a list of all codes."""

import ast
import re

from smolsessions.core.errors import FAILURES, codes_of_answers
from smolsessions.web.error_codes import errors_reference
from tests.support.problems import problem
from tests.support.service import ROOT, Service
from tests.support.streaming import posting
from tests.support.turns import DONE

APP = ROOT / "app" / "smolsessions"


def test_an_answer_has_the_id_that_its_request_has(service: Service) -> None:
    for sent in ("abc-1:2.x_Y", "a" * 128):
        for path in ("/livez", "/conversations", "/", "/nothing"):
            answer = service.client.get(path, headers={"X-Request-Id": sent})
            assert answer.headers.get_list("X-Request-Id") == [sent]
        refused = service.client.post("/turn", json={}, headers={"X-Request-Id": sent})
        assert problem(refused, 422, "invalid_request")["instance"] == sent
    with posting(service, DONE) as stream:
        assert re.fullmatch("[0-9a-f]{16}", stream.response.headers["X-Request-Id"])
    service.client.post("/turn", json={"message": "[", "agent": "scripted"}, headers={"X-Request-Id": "find-me"})
    lines = [line for line in service.log().splitlines() if "request=find-me " in line]
    assert [line for line in lines if "model_error" in line]


def test_other_requests_get_ids_of_their_own(service: Service) -> None:
    for sent in (None, "", "a b", "a" * 129, "<script>", "é"):
        headers = [] if sent is None else [(b"X-Request-Id", sent.encode())]
        answers = [service.client.get("/nothing", headers=headers) for _ in range(2)]
        ids = [problem(answer, 404, "not_found")["instance"] for answer in answers]
        assert ids == [answer.headers["X-Request-Id"] for answer in answers]
        assert len({*ids, sent}) == 3
        assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)


def test_each_code_of_an_answer_has_a_page(service: Service) -> None:
    for code, answer in codes_of_answers().items():
        page = service.client.get(f"/docs/errors/{code}")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer().message.split(";")[0].replace("'", "&#x27;") in page.text
    problem(service.client.get("/docs/errors/never"), 404, "not_found")


def test_the_list_of_codes_is_the_one_of_the_code() -> None:
    assert (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8") == errors_reference(), "run `make refresh`"


def test_each_failure_of_a_turn_is_listed() -> None:
    used: set[object] = set()
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name("Failure" | "_Kind"), args=[ast.Constant(str(code)), *_]):
                    used.add(code)
    assert {"model_error", "deadline_exceeded", "rolled_back", "rate_limited"} <= used
    assert used <= FAILURES.keys()
