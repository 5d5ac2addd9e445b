"""Files in tests/data: programs, modules, configurations and tables that tests use."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "data"


def data(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


@cache
def _tables() -> dict[str, Any]:
    return dict(yaml.safe_load(data("tables.yaml")))


def table(name: str) -> Any:
    """Return a table of `tables.yaml`. Its rows are lists."""
    return _tables()[name]


def _pairs(text: str) -> dict[str, tuple[str, str]]:
    return {name: (first, then) for name, code in named(text).items() for first, _, then in [code.partition("---\n")]}


def named(text: str) -> dict[str, str]:
    found = {}
    for part in text.split("=== ")[1:]:
        name, _, code = part.partition("\n")
        found[name] = code
    return found


CARRIED = _pairs(data("carried.txt"))

CARRIED_WITH_PANDAS = _pairs(data("carried_with_pandas.txt"))

HOSTILE = named(data("hostile_programs.txt"))
