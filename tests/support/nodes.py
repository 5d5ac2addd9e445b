"""This machine as the nodes of a cluster: starts pods as they are declared, probes and ends them as a node does."""

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from redis import Redis
from redis.exceptions import RedisError

from smolsessions.settings import PREFIX
from smolsessions.store.embedded.server import find_binary
from tests.support.images import Container, Image, bare, started
from tests.support.manifests import ROLES, Overlay, Pod
from tests.support.service import ROOT
from tests.support.waiting import wait_until

USER = "smolsessions"  # of the store
START_S, END_S = 120, 120


@dataclass
class Running:
    """A pod's process."""

    pod: Pod
    container: Container

    def probes(self) -> dict[str, int]:
        """Probe as a node does, on the local port in place of the declared one. Return the statuses of the answers."""
        asked = {kind: probe["httpGet"] for kind, probe in self.pod.probes.items()}
        assert {get["port"] for get in asked.values()} <= self.pod.ports.keys()
        return {kind: self.container.client.get(get["path"]).status_code for kind, get in asked.items()}

    @property
    def metrics(self) -> dict[str, float]:
        lines = self.container.client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    @property
    def is_busy(self) -> bool:
        return self.metrics["smolsessions_threads_busy"] > 0

    def terminate(self) -> float:
        """Send the signal that a node sends after the preStop's sleep. Return the time."""
        assert self.pod.pre_stop_s < self.pod.grace_s
        self.container.process.terminate()
        return time.monotonic()

    def ends_in_time(self, since: float) -> None:
        left = self.pod.grace_s - self.pod.pre_stop_s - (time.monotonic() - since)
        assert self.container.process.wait(left) == 0, self.container.log.read_text()
        assert "Traceback" not in self.container.log.read_text()


@dataclass
class Nodes:
    """Local cluster for an overlay's pods. It differs only in ports, in the store's address, and in one more agent."""

    overlay: Overlay
    image: Image
    folder: Path
    key: str
    stack: ExitStack
    settings: Mapping[str, str]
    """The store's address here, and the settings that it needs."""
    mounts: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.headers = {"Authorization": f"Bearer {self.key}"}
        self._gates = self.folder / "gates"
        self._gates.mkdir()
        self._gates.chmod(0o777)
        self._count = 0

    def start(self, role: str) -> Running:
        """Start one more pod: the image's entry point and the declared arguments, environment, files and user."""
        assert role in ROLES
        self._count += 1
        folder = self.folder / f"{role}-{self._count}"
        pod = self.overlay.pod(f"smolsessions-{role}")
        mounts, writable = pod.mounts(folder)
        here = {f"{PREFIX}PORT": "0", f"{PREFIX}AGENTS": "scripted=tests.support.agents:make_scripted", **self.settings}
        command = self.image.command(
            *pod.arguments,
            user=pod.user,
            environment=pod.environment | here,
            mounts={**mounts, **self.mounts, "/agents/tests": ROOT / "tests", "/gates": self._gates},
            writable=[*writable, "/gates"],
            entrypoint=pod.command or None,
        )
        return Running(pod, self.stack.enter_context(started(command, folder / "log")))

    def post(self, web: Running, message: str, prefer: str = "wait=50", **body: str) -> httpx2.Response:
        headers = self.headers | {"Prefer": prefer}
        return web.container.client.post("/turn", json={"message": message} | body, headers=headers)

    def get(self, web: Running, path: str) -> dict[str, Any]:
        found: dict[str, Any] = web.container.client.get(path, headers=self.headers).json()
        return found

    def waiting(self, web: Running, gate: str) -> str:
        """Begin a turn of two steps, the first of which waits at a gate. Return its path."""
        script = [{"call": [["wait_for", {"path": f"/gates/{gate}"}]]}, {"say": "it went on"}]
        answer = self.post(web, json.dumps(script), "respond-async", agent="scripted")
        assert answer.status_code == 202, answer.text
        wait_until((self._gates / f"{gate}.started").exists, START_S)
        return str(answer.headers["location"])

    def open(self, gate: str) -> None:
        (self._gates / gate).touch()

    def ended(self, web: Running, where: str) -> dict[str, Any]:
        wait_until(lambda: self.get(web, where)["status"] not in {"queued", "running"})
        return self.get(web, where)


class StorePod:
    """The dev overlay's store: its declared command, found as this machine's server, on a port that is free here."""

    def __init__(self, overlay: Overlay, folder: Path, stack: ExitStack) -> None:
        pod = overlay.pod("smolsessions-store")
        mounts, writable = pod.mounts(folder / "store")
        system = bare(folder / "system")
        assert pod.command[0] == "valkey-server"
        self._port = _free_port()
        self._password = password_of(overlay)
        self._log, self._stack = folder / "store.log", stack
        self._command = replace(system, environment={"PATH": f"/opt/store:{system.environment['PATH']}"}).command(
            *pod.command,
            *("--port", str(self._port), "--bind", "127.0.0.1"),
            user=pod.user,
            mounts={**mounts, "/opt/store/valkey-server": find_binary()},
            writable=writable,
        )
        declared = overlay.pod("smolsessions-web").environment[f"{PREFIX}REDIS_URL"]
        name = f"{pod.name}:{pod.ports['store']}"
        assert name in declared
        self.settings = {f"{PREFIX}REDIS_URL": declared.replace(name, f"127.0.0.1:{self._port}")}

    def start(self) -> None:
        """Start it with the data that it has, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = self._stack.enter_context(subprocess.Popen(self._command, stdout=log, stderr=log))
        self._stack.callback(self._process.kill)
        wait_until(self._answers, START_S)

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(END_S) == 0

    def _answers(self) -> bool:
        with suppress(RedisError, OSError), Redis(port=self._port, username=USER, password=self._password) as client:
            return bool(client.info("server"))
        return False


def password_of(overlay: Overlay) -> str:
    """Return the password of the store's user."""
    pod = overlay.pod("smolsessions-web")
    return pod.files()[pod.environment[f"{PREFIX}REDIS_PASSWORD_FILE"]].decode()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port: int = closing.getsockname()[1]
    return port
