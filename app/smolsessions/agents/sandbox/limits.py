"""What a CodeAgent's code may use. An agent's factory sets `agent.code_limits = {"cpu_s": 5}` for its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MB = 1024 * 1024
_COUNTS = frozenset({"processes", "open_files"})


@dataclass(frozen=True)
class CodeLimits:
    """Bounds of a code block (`cpu_s`, `wall_s`: seconds without its tool calls) and of the process that it runs in."""

    cpu_s: float = 30
    wall_s: float = 60
    memory_mb: float = 1024
    output_mb: float = 64
    """Of one message: a tool call's arguments, an output, changed variables."""
    variables_mb: float = 32
    """Of what is kept of the variables from turn to turn."""
    processes: int = 0
    """Processes and threads that code may start. Not bounded for root without uids of its own, except by 0."""
    open_files: int = 64


def limits_of(given: Mapping[str, Any]) -> CodeLimits:
    """Check limits by name. Raises `ValueError` with the mend."""
    known = {field.name for field in fields(CodeLimits)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"has {name!r}, which is no limit; there are {', '.join(sorted(known))}")
        kinds = int if name in _COUNTS else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < math.inf:
            raise ValueError(f"has {name}={value!r}; give a {'whole ' if name in _COUNTS else ''}number")
    return CodeLimits(**given)
