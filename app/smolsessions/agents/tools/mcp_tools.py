"""smolagents tools that call an MCP server."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

from smolsessions.agents.run.failures import TurnStopped
from smolsessions.agents.run.turn_run import stoppable
from smolsessions.agents.tools.mcp import McpServer
from smolsessions.agents.tools.mcp_results import UNKNOWN, ToolServerError, value_of
from smolsessions.agents.tools.mcp_schemas import ListedTool, ToolOfSchema


class McpTool(ToolOfSchema):
    """One tool of a server. All sessions share it."""

    def __init__(self, server: McpServer, listed: ListedTool, name: str) -> None:
        self.unsafe_to_repeat = listed.is_unsafe_to_repeat
        self._server = server
        super().__init__(listed, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the server's tool. A stop of the turn ends the wait."""
        server, listed = self._server, self.listed
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
