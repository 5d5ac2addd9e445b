"""smolagents tools that call an MCP server."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

from smolagents import Tool

from smolsessions.agents.run.failures import TurnStopped
from smolsessions.agents.run.turn_run import stoppable
from smolsessions.agents.tools.mcp import McpServer
from smolsessions.agents.tools.mcp_results import UNKNOWN, ToolServerError, value_of
from smolsessions.agents.tools.mcp_schemas import ListedTool


class McpTool(Tool):
    """One tool of a server. It has no state, so all sessions share it."""

    skip_forward_signature_validation = True
    name = "mcp_tool"
    description = ""
    inputs: dict[str, Any] = {}  # noqa: RUF012 - smolagents' own form
    output_type = "any"

    def __init__(self, server: McpServer, listed: ListedTool, name: str) -> None:
        self.name = name
        self.description = listed.description
        self.inputs = listed.inputs
        self.output_type = "object" if listed.output_schema else "any"
        self.output_schema = listed.output_schema
        self.unsafe_to_repeat = listed.is_unsafe_to_repeat
        self._server = server
        self._listed = listed
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the server's tool. A stop of the turn ends the wait."""
        server, listed = self._server, self._listed
        future = server.submit(listed.remote_name, listed.remote_arguments(args, kwargs))
        outcome = "failed"
        try:
            with stoppable(future.cancel):
                result = future.result(server.timeout_s)
            outcome = "error" if result.is_error else "ok"
            return value_of(result, is_structured=listed.output_schema is not None)
        except CancelledError:
            outcome = "stopped"
            raise TurnStopped from None
        except TimeoutError:
            outcome = "timeout"
            raise ToolServerError(
                f"the MCP server {server.name} did not answer within {server.timeout_s:g} s; {UNKNOWN}"
            ) from None
        finally:
            future.cancel()
            server.count(outcome)
