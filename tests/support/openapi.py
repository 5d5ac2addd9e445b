"""The API's description, and validating JSON against its schemas."""

from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.service import ROOT


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
