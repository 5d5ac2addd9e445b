"""openapi.yaml as generators of clients read it: names, descriptions, headers, security."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from smolsessions.core.errors import codes_of_answers
from smolsessions.web.problems import status_of
from tests.support.data import table
from tests.support.debian import npm_packages
from tests.support.examples import FILE, record
from tests.support.openapi import description
from tests.support.service import ROOT
from tests.support.tiers import deep
from tools.node_programs import lint

DOCUMENT = description()
BINARY = ("image/", "application/octet-stream")
OPERATIONS: dict[str, dict[str, Any]] = {
    operation["operationId"]: operation for path in DOCUMENT["paths"].values() for operation in path.values()
}
MS = timedelta(milliseconds=1)
OPEN = {"getLiveness", "getReadiness", "getMetrics"}


def responses_of(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for status, response in operation["responses"].items():
        name = response.get("$ref", "").rpartition("/")[2]
        yield status, DOCUMENT["components"]["responses"][name] if name else response


@deep  # `make check` lints it, too
def test_the_document_passes_a_strict_linter_that_finds_faults(tmp_path: Path) -> None:
    assert npm_packages()
    good = lint(ROOT / "openapi.yaml")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "warning" not in good.stdout
    (tmp_path / "openapi.yaml").write_text(yaml.safe_dump({**DOCUMENT, "servers": []}))
    assert "no-empty-servers" in lint(tmp_path / "openapi.yaml").stdout


def test_each_operation_is_described_with_its_keys_headers_and_examples() -> None:
    for name, operation in OPERATIONS.items():
        assert name[0].islower()
        assert name.isalpha()
        assert name not in {"import", "delete", "export"}
        assert operation["summary"]
        assert operation["description"].startswith(operation["summary"])
        parameters = [
            DOCUMENT["components"]["parameters"].get(each.get("$ref", "").split("/")[-1], each)
            for each in operation.get("parameters", ())
        ]
        assert all(parameter["description"] for parameter in parameters)
        assert not any(parameter["name"].lower() == "accept" for parameter in parameters)
        assert {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]} >= set(operation["tags"])
        responses = dict(responses_of(operation))
        assert all(response["description"] for response in responses.values())
        headers = {status: set(response.get("headers", ())) for status, response in responses.items()}
        assert operation["security"] == ([] if name in OPEN else [{"HTTPBearer": []}, {}])
        assert ("401" in headers) is (name not in OPEN)
        assert "Location" in headers.get("201", {"Location"})
        assert {"Location", "Preference-Applied"} <= headers.get("202", {"Location", "Preference-Applied"})
        assert all("Retry-After" in headers[status] for status in ("429", "503") if status in headers)
        contents = [operation.get("requestBody", {}), *responses.values()]
        described = [(kind, content) for each in contents for kind, content in each.get("content", {}).items()]
        assert [kind for kind, content in described if "example" not in content and not kind.startswith(BINARY)] == []


def undescribed(name: str, schema: dict[str, Any]) -> list[str]:
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *([schema["items"]] if "items" in schema else [])]
    found = [path for each in inner for path in undescribed(name, each)]
    for field, described in schema.get("properties", {}).items():
        path = f"{name}.{field}"
        found += [path] * (not described.get("description", "").endswith((".", "…"))) + undescribed(path, described)
    return found


def test_each_schema_and_each_of_its_fields_are_described() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema.get("description"), name
        assert undescribed(name, schema) == []
        Draft202012Validator.check_schema(schema)


def test_headers_are_described() -> None:
    inline = [
        header
        for operation in OPERATIONS.values()
        for _, each in responses_of(operation)
        for header in each.get("headers", {}).values()
        if "$ref" not in header
    ]
    headers = [*inline, *DOCUMENT["components"]["headers"].values()]
    assert headers
    assert all(header["description"] and header["schema"] for header in headers)


def test_a_word_that_may_get_company_is_a_text_with_its_known_values() -> None:
    for schema, field, word in table("openapi words"):
        described = DOCUMENT["components"]["schemas"][schema]["properties"][field]
        text = next(each for each in [described, *described.get("anyOf", ())] if each.get("type") == "string")
        assert word in text["x-extensible-enum"]
        assert f"`{word}`" in text["description"]
        assert "enum" not in text


def test_each_example_is_an_answer_of_a_service(tmp_path: Path) -> None:
    assert record(tmp_path) == json.loads(FILE.read_text()), "`make refresh` records the examples again"


def test_each_described_error_has_an_example_of_its_own() -> None:
    statuses = {code: status_of(error()).value for code, error in codes_of_answers().items()}
    for name, response in DOCUMENT["components"]["responses"].items():
        example = response["content"]["application/problem+json"]["example"]
        assert HTTPStatus(example["status"]).phrase.title().replace(" ", "") == name
        assert statuses[example["code"]] == example["status"]


def test_times_and_durations_of_an_example_agree() -> None:
    timings: list[dict[str, Any]] = []
    json.loads(FILE.read_text(), object_hook=lambda shown: timings.append(shown) if "queued_ms" in shown else shown)
    assert len(timings) > 8
    for timing in timings:
        submitted, started, finished = (
            datetime.fromisoformat(timing[f"{name}_at"] or timing["started_at"])
            for name in ("submitted", "started", "finished")
        )
        assert (started - submitted) / MS == pytest.approx(timing["queued_ms"], abs=1)
        ran_ms = (timing["duration_ms"] or -timing["waited_ms"]) + timing["waited_ms"]
        assert (finished - started) / MS == pytest.approx(ran_ms, abs=1)


def test_a_stream_has_a_json_twin_only_where_a_turn_goes_on() -> None:
    streams = {
        name: sorted(operation["responses"]["200"]["content"])
        for name, operation in OPERATIONS.items()
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", ())
    }
    both = ["application/json", "text/event-stream"]
    assert streams == {
        "createTurn": both,
        "createConversationTurn": both,
        "answerTurn": both,
        "getTurnEvents": ["text/event-stream"],
    }
