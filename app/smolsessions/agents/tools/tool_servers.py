"""Tool servers of agents.toml. The MCP library is loaded only if an agent names one."""

from __future__ import annotations

import builtins
import contextlib
import importlib.metadata
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.tools.mcp_schemas import MAX_NAME_CHARS, python_name
from smolsessions.core.agent_ports import ToolServer
from smolsessions.core.errors import StartError

if TYPE_CHECKING:  # the extra `mcp`, and 0.4 s
    from smolsessions.agents.tools.mcp import McpServers


class ToolServers:
    """MCP servers that the agents of this process share."""

    def __init__(self) -> None:
        self._servers: McpServers | None = None
        self._is_missing = False

    def open(self, tables: Mapping[str, McpTable]) -> None:
        """Take the servers that agents name. Raises `StartError` if one cannot be started as it is described.

        Without the MCP library, only the agents with servers raise it.
        """
        if not tables:
            return
        try:
            from smolsessions.agents.tools.mcp import McpServers  # noqa: PLC0415 - an extra, and 0.4 s
        except ImportError:
            self._is_missing = True
            return
        self._servers = McpServers(tables)

    def try_once(self) -> None:
        """For a check of the agents: let a server that gives no list be a `StartError` that has the cause."""
        if self._servers:
            self._servers.tries_once = True

    def tools(self, names: Sequence[str], taken: Collection[str]) -> list[Any]:
        """Return the tools of these servers. A name that is taken, or that two servers use, is prefixed by its server.

        Raises `AgentUnavailableError` if a server has given no list.
        """
        if names and self._is_missing:
            missing = "a package that is missing"
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                if (version := importlib.metadata.version("mcp")).startswith(("0.", "1.")):
                    missing = f"mcp 2, and {version} is here, which smolagents' own MCPClient needs: use one of the two"
            raise StartError(f"needs {missing}; pip install 'smolsessions[mcp]'")
        if not names or self._servers is None:
            return []
        from smolsessions.agents.tools.mcp_tools import McpTool  # noqa: PLC0415

        lists = {name: self._servers.tools(name) for name in names}
        listed = [tool.name for tools in lists.values() for tool in tools]
        used = {*taken, *dir(builtins)}  # code would lose a function of Python
        found = []
        for server, tools in lists.items():
            prefix = python_name(server, (), MAX_NAME_CHARS // 2)
            for tool in tools:
                is_free = tool.name not in used and listed.count(tool.name) == 1 and not tool.name.startswith("__")
                name = python_name(tool.name if is_free else f"{prefix}_{tool.name}", used)
                used.add(name)
                found.append(McpTool(self._servers[server], tool, name))
        return found

    def health(self) -> list[ToolServer]:
        return self._servers.health() if self._servers else []

    def close(self) -> None:
        if self._servers:
            self._servers.close()
