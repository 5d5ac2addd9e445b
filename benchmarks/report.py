"""Results as text: the machine and the tables. A table's columns are the fields of its figures."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cpu import CORES, OTHER_CORE, SERVER_CORE
from smolsessions.store.embedded.server import find_binary

PACKAGES = ("smolsessions", "smolagents", "fastapi", "uvicorn", "uvloop", "redis", "pydantic")
WHOLE_FROM = 100  # Larger numbers have no decimals.

Row = dict[str, Any]
Tables = dict[str, list[Row]]
"""Rows by the table's title."""


def rows_of(figures: Iterable[Any]) -> list[Row]:
    """Return a row for each dataclass. A nested one becomes columns with a dot in their names."""
    return [dict(_columns(asdict(each) if is_dataclass(each) else each)) for each in figures]  # type: ignore[arg-type]


def spread(what: str, figures: Sequence[float]) -> Row:
    return {
        "what": what,
        "times": len(figures),
        "median": median(figures),
        "least": min(figures),
        "most": max(figures),
    }


def machine() -> dict[str, str]:
    """Describe the machine and the versions of the measurement."""
    models = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "processor": f"{models[0].strip() if models else platform.machine()}, cores {', '.join(map(str, CORES))}",
        "pinned": f"server or bare to core {SERVER_CORE}; each store, the embedded too, and client to {OTHER_CORE}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "store": f"{find_binary().name} with an append-only file, on a unix socket with the embedded store's own "
        "options; I and K: on a port",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


def as_text(about: dict[str, str], tables: Tables) -> str:
    """Lay the figures out for reading."""
    lines = [f"{name:<10} {value}" for name, value in about.items()]
    for title, rows in tables.items():
        lines += ["", title, *_table(rows)]
    return "\n".join(lines)


def _table(rows: list[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_shown(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "   " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= WHOLE_FROM else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _columns(row: Row, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _columns(value, f"{name}.")
        else:
            yield before + name, value
