"""Tools that the client of a turn runs: the agent calls them, and the turn waits for the client's result.

The tool proxy answers their calls (`agents/run/approvals.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic_core import to_json
from smolagents import Tool
from smolagents.local_python_executor import BASE_PYTHON_TOOLS

from smolsessions.agents.run.agent_run import INTERNAL_TOOLS
from smolsessions.agents.tools.json_schemas import check_schema
from smolsessions.agents.tools.mcp_schemas import ListedTool, ToolOfSchema, adapted, shown_to_models
from smolsessions.core.errors import InvalidRequestError, ToolNameTakenError
from smolsessions.core.records import ClientTool

MAX_BYTES = 64 * 1024
POINTER = "/client_tools"


class ToolOfClient(ToolOfSchema):
    """A tool of the client, as its agent sees it."""

    def __init__(self, described: ClientTool, listed: ListedTool) -> None:
        self.described = described
        super().__init__(listed, described.name)

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("a client's tool needs a turn of a conversation")


def adapted_tools(tools: Sequence[ClientTool], taken: Collection[str]) -> list[Tool]:
    """Return the tools for an agent that has the names in `taken`.

    Raises `ToolNameTakenError` and `InvalidRequestError`, which name the tool by its JSON pointer.
    """
    if len(to_json(tools)) > MAX_BYTES:
        raise InvalidRequestError.at(POINTER, "are larger than 64 KiB together")
    found: list[Tool] = []
    used = {*taken, *INTERNAL_TOOLS}
    if "python_interpreter" in taken:
        used |= BASE_PYTHON_TOOLS.keys()  # in code these names never lead to a tool
    for place, tool in enumerate(tools):
        if tool.name in used:
            raise ToolNameTakenError.at(f"{POINTER}/{place}/name", f"{tool.name} is the name of another tool")
        used.add(tool.name)
        if tool.parameters.get("type", "object") not in ("object", ["object"]):
            raise InvalidRequestError.at(f"{POINTER}/{place}/parameters/type", "is not object: arguments have names")
        for member, schemas in (("parameters", (tool.parameters, {})), ("output_schema", ({}, tool.output_schema))):
            at = f"{POINTER}/{place}/{member}"
            check_schema(schemas[0] or schemas[1] or {}, at)
            with shown_to_models(at):
                adapted(tool.name, "", schemas[0], schemas[1], ())
        found.append(ToolOfClient(tool, adapted(tool.name, tool.description, tool.parameters, tool.output_schema, ())))
    return found
