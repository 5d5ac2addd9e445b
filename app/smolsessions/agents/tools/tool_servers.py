"""Tool servers of agents.toml. The MCP library is loaded only if an agent names one."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import importlib.metadata
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.tools.mcp_schemas import MAX_NAME_CHARS, python_name
from smolsessions.core.agent_ports import ToolServer
from smolsessions.core.errors import StartError

if TYPE_CHECKING:  # the extra `mcp`, and 0.4 s
    from smolsessions.agents.tools.mcp import McpServer

START_S = 10.0  # longest wait for the lists of tools
CLOSE_S = 7.0


class ToolServers:
    """MCP servers that the agents of this process share, with their clients in the event loop of one thread.

    They start together, when an agent first needs the tools of one.
    """

    def __init__(self) -> None:
        self.tries_once = False
        """True for a check of the agents: a server that gives no list at once is a `StartError` with its cause."""
        self._servers: dict[str, McpServer] = {}
        self._is_missing = False
        self._lock = threading.Lock()
        self._closing = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._until = 0.0

    def open(self, tables: Mapping[str, McpTable]) -> None:
        """Take the servers that agents name. Raises `StartError` if a program or a variable is missing.

        Without the MCP library, only the agents with servers raise it.
        """
        if not tables:
            return
        try:
            from smolsessions.agents.tools.mcp import McpServer  # noqa: PLC0415 - an extra, and 0.4 s
        except ImportError:
            self._is_missing = True
            return
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs messages, which may hold prompts and keys
        self._servers = {name: McpServer(name, table) for name, table in tables.items()}

    def tools(self, names: Sequence[str], taken: Collection[str]) -> list[Any]:
        """Return the tools of these servers. A name that is taken, or that two servers use, is prefixed by its server.

        Raises `AgentUnavailableError` if a server has given no list, or `StartError` if it is tried once.
        """
        if names and self._is_missing:
            missing = "a package that is missing"
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                if (version := importlib.metadata.version("mcp")).startswith(("0.", "1.")):
                    missing = f"mcp 2, and {version} is here, which smolagents' own MCPClient needs: use one of the two"
            raise StartError(f"needs {missing}; pip install 'smolsessions[mcp]'")
        if not names or not self._servers:
            return []
        from smolsessions.agents.tools.mcp import McpTool  # noqa: PLC0415 - as above

        with self._lock:
            if not self._thread:
                self._until = time.monotonic() + START_S
                self._loop = asyncio.SelectorEventLoop()
                self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
                self._thread.start()
        lists = {name: self._servers[name].pinned_tools(self._until, tries_once=self.tries_once) for name in names}
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
        return [server.health() for server in self._servers.values()]

    def close(self) -> None:
        """End all clients and the programs that they started."""
        if self._thread and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _serve(self) -> None:
        connections = (server.keep_connected(tries_once=self.tries_once) for server in self._servers.values())
        tasks = {asyncio.create_task(connection) for connection in connections}
        await self._closing.wait()
        for ending in (tasks, asyncio.all_tasks() - tasks - {asyncio.current_task()}):  # calls end after their servers
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
