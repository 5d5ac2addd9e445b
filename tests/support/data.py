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
