"""The API's description, validating JSON against its schemas, and checks of the links that a turn shows."""

from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.service import ROOT, Service
from tests.support.streaming import Event, log_of


@cache
def description() -> dict[str, Any]:
    """Return openapi.yaml. The parser in C takes a sixth of the time."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    described: dict[str, Any] = yaml.load((ROOT / "openapi.yaml").read_text("utf-8"), loader)
    return described


@cache
def validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": description()["components"]}
    return Draft202012Validator(schema)


def assert_described(name: str, value: Any) -> None:
    problems = [f"{problem.json_path}: {problem.message}" for problem in validator(name).iter_errors(value)]
    assert problems == [], value


def contents(service: Service, links: list[Event]) -> list[tuple[str, str, bytes]]:
    found = []
    for link in links:
        response = service.client.get(link["url"])
        assert response.status_code == 200, response.text
        assert len(response.content) == link.get("size_bytes", len(response.content))
        kind = response.headers["content-type"].partition(";")[0]
        found.append((link.get("name", link["url"].rpartition("/")[2]), kind, response.content))
    return found


def check_links(service: Service, turn: Event, kind: str) -> None:
    """Check that the record, the last step and the events link the same `files` or `images` of an answer as a turn."""
    assert turn["status"] == "finished", turn
    answered = turn[f"output_{kind}"]
    assert service.get(f"/conversations/{turn['conversation_id']}/turns")["items"] == [turn]
    assert service.steps(turn)[-1][kind] == answered
    events = [frame.data for frame in log_of(service, turn)]
    for event in events:
        assert_described("Event", event)
    last, final = events[-2:]
    assert (last["type"], last[kind]) == ("step.finished", answered)
    assert final["result"] == turn
