"""MCP servers as real processes, and clients of them without a service."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.tools.tool_servers import ToolServers
from tests.support.service import ROOT, wait_until
from tests.topology.node import free_port

PROGRAM = "tests.support.mcp_server"
HOSTILE = "tests.support.hostile_mcp"


def stdio(*args: str, program: str = PROGRAM, **more: Any) -> McpTable:
    return McpTable(command=sys.executable, args=("-m", program, *(args or ("stdio",))), **more)


class Tools:
    """Tools of servers by name, as one agent gets them. `with` ends the clients."""

    def __init__(self, taken: tuple[str, ...] = (), **tables: McpTable) -> None:
        self.servers = ToolServers()
        self.servers.open(tables)
        self._names = tuple(tables)
        self._taken = taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.servers.close()

    def all(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self.servers.tools(self._names, self._taken)}

    def is_up(self) -> bool:
        return all(server.is_up for server in self.servers.health())


@dataclass
class HttpServer:
    """The server of the SDK over streamable HTTP, in a process that can be killed, frozen and started again."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        environment = os.environ | {"NOTES": str(self.folder / "notes")} | self.environment
        command = [sys.executable, "-m", PROGRAM, str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment)
        wait_until(self._answers)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def _answers(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0


def programs_of(pid: int, program: str = PROGRAM) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if program in _command_of(child)]


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ends just now
        return ""
