"""Rented places for code on loopback: Docker's daemon and E2B's service, as far as their own clients call them.

A container is a real Jupyter kernel gateway, as in smolagents' image. A sandbox of E2B is a Python process.

PYTEST_DONT_REWRITE: other processes import this, too.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.http_server import Handler, Server
from tests.support.remote import KERNEL, ask_kernel
from tests.support.waiting import wait_until

GATEWAY = (sys.executable, "-m", "kernel_gateway", "--KernelGatewayApp.ip=127.0.0.1")


class Sandboxes:
    def __init__(self, folder: Path, key: str = "") -> None:
        self.folder = folder
        self.key = key
        self.started: list[subprocess.Popen[str]] = []
        self.asked: list[dict[str, Any]] = []
        """The bodies of the requests for a place."""
        self.url = ""

    def start(self, *command: str, environment: dict[str, str] | None = None) -> None:
        home = self.folder / f"home{len(self.started)}"
        home.mkdir()
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_NO_INDEX": "1", **(environment or {})}
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        place = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=nothing, text=True, start_new_session=True
        )
        self.started.append(place)

    def end(self, number: int) -> None:
        with self.started[number] as place:
            if place.poll() is None:
                os.killpg(place.pid, signal.SIGKILL)

    @property
    def running(self) -> int:
        return sum(place.poll() is None for place in self.started)


class _Handler(Handler):
    places: Sandboxes

    def reply(self, found: object, status: int = 200) -> None:
        data = b"" if found is None else found if isinstance(found, bytes) else json.dumps(found).encode()
        self.answer(status, data, {"Content-Type": "application/json"})

    def asked(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body() or b"{}")
        return found


class DockerDaemon(_Handler):
    """Docker's interface: an image that is there, and containers that publish the port of their gateway."""

    def do_GET(self) -> None:
        _, _, kind, name = [*self.path.split("/"), "", ""][:4]
        if kind == "containers":
            running = self.places.started and self.places.started[int(name)].poll() is None
            self.reply({"Id": name, "Name": f"/{name}", "State": {"Status": "running" if running else "created"}})
        elif kind == "images":
            self.reply({"Id": "sha256:1", "RepoTags": [name]})
        else:
            self.reply({"ApiVersion": "1.44", "MinAPIVersion": "1.24", "Version": "27"})

    def do_POST(self) -> None:
        body, action = self.asked(), self.path.partition("?")[0].rpartition("/")[2]
        if action == "create":
            self.places.asked.append(body)
            port = body["HostConfig"]["PortBindings"]["8888/tcp"][0]["HostPort"]
            environment = dict(each.split("=", 1) for each in body["Env"])
            self.places.start(*GATEWAY, f"--KernelGatewayApp.port={port}", environment=environment)
            self.reply({"Id": str(len(self.places.started) - 1), "Warnings": []}, 201)
            return
        if action == "start":
            self.wait_for_gateway()
        if action == "stop":
            self.places.end(int(self.path.split("/")[3]))
        self.reply(None, 204)

    def wait_for_gateway(self) -> None:
        """Wait until the gateway listens: smolagents waits ten seconds, which a busy machine may need."""
        port = self.places.asked[-1]["HostConfig"]["PortBindings"]["8888/tcp"][0]["HostPort"]

        def is_listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(port))) == 0

        wait_until(is_listening)

    def do_DELETE(self) -> None:
        self.reply(None, 204)


class E2BService(_Handler):
    """E2B's interface of sandboxes and of the code interpreter in them. A refusal repeats the key."""

    def do_POST(self) -> None:
        body = self.asked()
        if not self.path.endswith("/execute"):
            self._create(body)
            return
        place = self.places.started[int(self.headers["E2b-Sandbox-Id"])]
        # smolagents installs the packages that its final_answer would like to have.
        logs, raised = ("", None) if body["code"].startswith("!pip ") else ask_kernel(place, body["code"])
        events: list[dict[str, Any]] = [{"type": "stdout", "text": logs, "timestamp": 0}] if logs else []
        if raised:
            events.append({"type": "error", "name": raised[0], "value": raised[1], "traceback": ""})
        self.reply("".join(json.dumps(event) + "\n" for event in events).encode())

    def _create(self, body: dict[str, Any]) -> None:
        self.places.asked.append(body)
        if self.headers["X-API-KEY"] != self.places.key:
            self.reply({"code": 401, "message": f"the headers {dict(self.headers)} hold no key of a team"}, 401)
            return
        self.places.start(sys.executable, "-c", KERNEL)
        number = str(len(self.places.started) - 1)
        self.reply({"templateID": "code", "sandboxID": number, "clientID": "c", "envdVersion": "0.4.0"}, 201)

    def do_DELETE(self) -> None:
        self.places.end(int(self.path.rpartition("/")[2]))
        self.reply(None, 204)


@contextmanager
def serving(handler: type[_Handler], folder: Path, key: str = "") -> Iterator[Sandboxes]:
    places = Sandboxes(folder, key)
    with Server(type("PlacesHandler", (handler,), {"places": places})) as server:
        places.url = server.url
        try:
            yield places
        finally:
            for number in range(len(places.started)):
                places.end(number)
