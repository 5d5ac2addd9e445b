"""Validating JSON against the schemas of openapi.yaml."""

from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.service import ROOT


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of one schema of the description."""
    described = yaml.safe_load((ROOT / "openapi.yaml").read_text())
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def assert_described(name: str, value: Any) -> None:
    problems = [f"{problem.json_path}: {problem.message}" for problem in validator(name).iter_errors(value)]
    assert problems == [], value
