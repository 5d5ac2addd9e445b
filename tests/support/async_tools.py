"""Agents whose tools are asynchronous."""

import asyncio
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, Tool, ToolCallingAgent, tool

from tests.support.agents import make_code, make_scripted
from tests.support.waiting import PATIENCE_S

_HERE: list[str] = []
_FULL = asyncio.Event()


class Meet(Tool):
    name = "meet"
    description = "Wait until as many calls are here."
    inputs: dict[str, Any] = {  # noqa: RUF012 - smolagents' own form
        "name": {"type": "string", "description": "who comes."},
        "count": {"type": "integer", "description": "how many are to come."},
    }
    output_type = "string"

    async def forward(self, name: str, count: int) -> str:
        _HERE.append(name)
        if len(_HERE) >= count:
            _FULL.set()
        await asyncio.wait_for(_FULL.wait(), PATIENCE_S)
        return f"{name} met {count - 1}"


@tool
async def hang(path: str) -> str:
    """Wait for long.

    Args:
        path: file that says how far it came.
    """
    said = Path(path)
    said.write_text("begun")  # noqa: ASYNC240 - short
    try:
        await asyncio.sleep(PATIENCE_S)
    except asyncio.CancelledError:
        said.write_text("cancelled")  # noqa: ASYNC240 - short
        raise
    return "late"


@tool
async def give_up(how: str) -> str:
    """End badly.

    Args:
        how: `exit` ends the process, if it can. Else it cancels itself.
    """
    raise SystemExit(3) if how == "exit" else asyncio.CancelledError


def make_tools() -> ToolCallingAgent:
    return make_scripted(tools=[Meet(), hang, give_up])  # type: ignore[no-untyped-call]


def make_coder() -> CodeAgent:
    return make_code(tools=[Meet(), hang])  # type: ignore[no-untyped-call]
