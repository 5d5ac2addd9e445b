"""Real clients of other projects, connected to a service of a test."""

import json
import subprocess
from typing import Any, Self

import openai
from playwright._impl._driver import compute_driver_executable

from tests.support.data import FOLDER
from tests.support.debian import npm_packages
from tests.support.service import PATIENCE_S, Service

WHERE: dict[str, Any] = {  # a tool that the client runs
    "name": "where",
    "description": "Return the place of a thing.",
    "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
}


def openai_of(service: Service, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{service.url}/openai/v1", api_key="any", timeout=PATIENCE_S, max_retries=0, **options
    )


def node_command(service: Service, name: str, path: str, *arguments: str) -> list[str]:
    """Return the command of a program of the tests' data with the packages of npm. Playwright's Node is new enough."""
    program = npm_packages() / f".{name}"  # beside the packages that it imports
    program.write_text((FOLDER / name).read_text())
    node, _ = compute_driver_executable()
    return [node, str(program), f"{service.url}{path}", *arguments]


class NodeClient:
    """`with NodeClient(…) as client:` runs a client in a process of Node."""

    def __init__(self, service: Service, name: str, path: str, version: str) -> None:
        self.version = version
        command = node_command(service, name, path, version)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def answer(self, call: str, **given: Any) -> dict[str, Any]:
        """Return all that the client has after a call."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps({'call': call, **given})}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process ended"
        found: dict[str, Any] = json.loads(line)
        return found
