"""Chats of the AI SDK in a process of Node, which speak with a service of a test."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright._impl._driver import compute_driver_executable

from tests.support.data import FOLDER
from tests.support.debian import skip
from tests.support.service import Service
from tools.node_programs import NoNodeError, programs

Part = dict[str, Any]


class Chats:
    """Chats of one version of the SDK, one after another. Each method returns this, with the chat as it is then."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.status = ""
        self.error: str | None = None
        self.messages: list[Any] = []
        self.requests: list[str] = []
        """Methods of the requests since the last call."""

    def __call__(self, call: str, **given: Any) -> "Chats":
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps({'call': call, **given})}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process ended"
        vars(self).update(json.loads(line) if "error" in line else {"error": None, **json.loads(line)})
        return self

    def open(self, agent: str, chat: str, **given: Any) -> "Chats":
        return self("open", agent=agent, id=chat, **given)

    def send(self, *script: Any, **given: Any) -> "Chats":
        return self("send", text=json.dumps(script), **given)

    @property
    def parts(self) -> list[Part]:
        """Parts of the last message."""
        found: list[Part] = self.messages[-1]["parts"]
        return found

    def of(self, kind: str) -> list[Part]:
        return [part for part in self.parts if part["type"] == kind]

    @property
    def text(self) -> str:
        return "\n".join(part["text"] for part in self.of("text"))

    @property
    def tools(self) -> list[tuple[str, str, Any]]:
        """Name, state and output of the calls of the last message."""
        return [(part["toolName"], part["state"], part.get("output")) for part in self.of("dynamic-tool")]


def api_of(service: Service) -> str:
    return f"{str(service.client.base_url).rstrip('/')}/ai-sdk"


@contextmanager
def chats_of(service: Service, version: str) -> Iterator[Chats]:
    """Start Node with a version of the package: `ai` or `ai6`. It is Playwright's Node, which is new enough."""
    try:
        folder = programs().parent.parent
    except NoNodeError as error:
        skip(str(error))
    program = folder / "node_modules" / ".ai_sdk_chat.mjs"  # beside the packages that it imports
    program.write_text((FOLDER / "ai_sdk_chat.mjs").read_text())
    node, _ = compute_driver_executable()
    command = [node, str(program), api_of(service), version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Chats(process)
        finally:
            process.kill()
