"""The service as a process of its own, as an operator starts it, with a client and its metrics."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TextIO

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.preloaded import PYTHONPATH, ForkedProcess, fork
from tests.support.service_logs import note_log
from tests.support.waiting import PATIENCE_S, Gate, run_program, wait_until

__all__ = ["PATIENCE_S", "Gate", "run_program", "wait_until"]  # most tests of a service wait for it
SAID = {"serve": 6, "web": 6, "work": 3}  # lines after the first, of one process
ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[str] | ForkedProcess
START_TRIES = 5
TOO_SLOW = "does not answer (timeout)"  # a loaded machine kept the store from its check at start


def listed(module: str, names: str) -> str:
    """Return the setting for agents of a module of `tests.support`, whose factories have their names."""
    return ",".join(f"{name}=tests.support.{module}:make_{name.replace('-', '_')}" for name in names.split())


AGENTS = ",".join(
    [
        listed("agents", "scripted code planner carrier manager checked"),
        listed("streaming", "streamed streamed-code structured streamed-planner family code-family careful"),
        listed("coders", "coder whole lead threaded walker walker-libraries walker-thread hasty small walled forking"),
    ]
)
DEMO = "demo=smolsessions.agents.demo.agents:make_demo"
CODELESS = {  # the tool-calling agents: a server of processes for code starts slowly
    "AGENTS": f"{listed('agents', 'scripted planner checked')},{listed('streaming', 'streamed')},{DEMO}",
    "DEMO_AGENTS": "0",
}
PLAIN = {  # a service with these starts faster: it checks two agents, and starts no server of processes for code
    "AGENTS": f"{listed('agents', 'scripted')},{DEMO}",
    "DEMO_AGENTS": "0",
}


def json_of(response: httpx2.Response, status: int = 200) -> dict[str, Any]:
    """Return the object in an answer, which has this status."""
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


@dataclass
class Service:
    """`with Service(folder) as service:` starts it and stops it. Settings are given without their prefix.

    `command` is a role with its options. `wrapper` is a program that becomes or starts its arguments.
    `forked` allows a process that a parent with all imports has forked, instead of a started command.
    """

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    cwd: Path = ROOT
    command: tuple[str, ...] = ("serve",)
    wrapper: tuple[str, ...] = ()
    python: str = sys.executable
    forked: bool = True
    process: Process = field(init=False)
    client: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        self.settings = dict(self.settings)  # a test may change them

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        for _ in range(START_TRIES):
            self.process = self._fork() if self._is_forkable() else self._spawn()
            if (first := self._line()) or TOO_SLOW not in self.log():
                break
            self._end()
        assert ("serves on" in first) or ("health and metrics on" in first), first + self.log()
        lines = SAID[self.command[0]] + ("--processes" in self.command)
        self.said = [first] + [self._line() for _ in range(lines)]
        self.client = httpx2.Client(base_url=f"http://{first.split()[-1]}", timeout=PATIENCE_S)
        self.wait_ready()

    def wait_ready(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            with suppress(httpx2.TransportError):
                if self.client.get("/readyz").status_code == 200:
                    return
            time.sleep(0.01)
        raise AssertionError(self.log())

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._end()

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def log(self) -> str:
        return (self.folder / "service.log").read_text()

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.client.post(path, json=body)

    def play(self, *script: dict[str, Any], **body: Any) -> dict[str, Any]:
        return json_of(self.post("/turn", message=json.dumps(script), **({"agent": "scripted"} | body)))

    def follow_up(self, turn: dict[str, Any], *script: dict[str, Any], **body: Any) -> dict[str, Any]:
        return self.play(*script, agent=turn["agent"]["name"], conversation_id=turn["conversation_id"], **body)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return json_of(self.client.get(path, params=query))

    def steps(self, turn: dict[str, Any]) -> list[dict[str, Any]]:
        return list(self.get(f"/conversations/{turn['conversation_id']}/steps", limit=100)["items"])

    def _is_forkable(self) -> bool:
        is_plain = self.cwd == ROOT and not self.wrapper and self.python == sys.executable
        return self.forked and is_plain and _is_forkable(self.command, self.environment)

    def _fork(self) -> ForkedProcess:
        with _log(self.folder) as log:
            return fork(self.command, _variables(self.folder, self.settings, self.environment), self.cwd, log)

    def _spawn(self) -> subprocess.Popen[str]:
        return spawn(
            self.folder,
            self.settings,
            self.environment,
            *self.command,
            cwd=self.cwd,
            wrapper=self.wrapper,
            python=self.python,
        )

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().rstrip()

    def _end(self) -> int:
        status = self.process.wait(PATIENCE_S)
        assert self.process.stdout
        self.process.stdout.close()
        if hasattr(self, "client"):
            self.client.close()
        return status


def shared_service(
    made: Mapping[str, str] | Callable[..., Service],
    *,
    on_outside: bool = False,
    scope: Literal["module", "session"] = "module",
    **settings: str,
) -> Any:
    """Return a fixture: a service with these settings, or the one that `made` returns for a folder and the settings.

    `on_outside` adds the settings of the store `outside`.
    """

    @pytest.fixture(scope=scope)
    def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        folder = tmp_path_factory.mktemp("service")
        given = settings | (request.getfixturevalue("outside").settings if on_outside else {})
        with made(folder, **given) if callable(made) else Service(folder, {**made, **given}) as running:
            yield running

    return shared


def write_agents(folder: Path, text: str) -> dict[str, str]:
    """Write an agents.toml. Return the settings that serve its agents alone."""
    file = folder / "agents.toml"
    file.write_text(text)
    return {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(file)}


def write_private(path: Path, text: str) -> Path:
    """Write a file that its owner alone may read, as the service asks of secrets."""
    path.touch(0o600)
    path.write_text(text)
    return path


def command_of(python: str, cwd: Path) -> tuple[str, ...]:
    """Return the installed command, except in the repository: tests of another Python run the code there."""
    return (python, "-m", "smolsessions") if cwd == ROOT else (str(Path(python).with_name("smolsessions")),)


def spawn(
    folder: Path,
    settings: dict[str, str],
    environment: dict[str, str] | None = None,
    *command: str,
    cwd: Path = ROOT,
    wrapper: tuple[str, ...] = (),
    python: str = sys.executable,
    output: TextIO | None = None,
) -> subprocess.Popen[str]:
    """Start the command line with its output in `folder`. A failed start leaves its error sentence in service.log.

    Outside the repository, `cwd` selects the installed command, as users have it.
    """
    with _log(folder) as log:
        return subprocess.Popen(
            [*wrapper, *command_of(python, cwd), *(command or ("serve",))],
            cwd=cwd,
            env=_variables(folder, settings, environment or {}),
            stdout=output or subprocess.PIPE,
            stderr=log,
            text=True,
        )


def run(
    folder: Path, settings: dict[str, str], *command: str, cwd: Path = ROOT, **environment: str
) -> tuple[int, str, str]:
    """Run a command to its end, within a time limit. Return status, output and errors."""
    command = command or ("serve",)
    with _log(folder) as log, (folder / "service.out").open("w+") as output:
        process: Process
        if _is_forkable(command, environment):
            process = fork(command, _variables(folder, settings, environment), cwd, log, output)
        else:
            process = spawn(folder, settings, environment, *command, cwd=cwd, output=output)
        try:
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()  # a command that serves instead of ending
        output.seek(0)
        return status, output.read(), (folder / "service.log").read_text()


def _log(folder: Path) -> TextIO:
    folder.mkdir(parents=True, exist_ok=True)
    note_log(folder / "service.log")
    return (folder / "service.log").open("a")


def _variables(folder: Path, settings: dict[str, str], environment: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SMOLSESSIONS_")}
    defaults = {"PORT": "0", "DATA_DIR": str(folder / "data"), "AGENTS": AGENTS, "DEMO_AGENTS": "1", "LEASE_S": "1"}
    defaults["ALLOW_CODE_IN_SERVICE"] = "1"  # most tests with API keys serve all agents
    named = {f"SMOLSESSIONS_{name}": value for name, value in (defaults | settings).items()}
    return inherited | {"PYTHONPATH": PYTHONPATH} | named | environment


def _is_forkable(command: tuple[str, ...], environment: dict[str, str]) -> bool:
    """Return whether a forked process is like a started one: Python reads its own variables at its start.

    A supervisor loads little.
    """
    is_python_as_here = not any(name.startswith("PYTHON") for name in environment)
    return is_python_as_here and "--processes" not in command


def samples(service: Service) -> dict[tuple[str, str], float]:
    """Return the samples of a scrape by name and process, summed over all agents and outcomes."""
    text = httpx2.get(service.client.base_url.join("/metrics"), timeout=PATIENCE_S).text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = (sample.name.removeprefix("smolsessions_"), sample.labels.get("process", ""))
            found[name] = found.get(name, 0.0) + sample.value
    return found


def totals(service: Service) -> dict[str, float]:
    text = service.client.get("/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(smolsessions_\S+) (\S+)$", text, re.MULTILINE)}
