"""Turns of code agents, and the processes that run their code."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.service import Service, wait_until
from tests.support.store_server import PARTITION, Raw
from tests.support.streaming import Event
from tests.support.turns import DONE

ENDED_S = 1.5  # how long a stop or a deadline may take, whatever the code does
BUSY = "while True:\n    for i in range(100_000):\n        pass"
GONE = "These variables of earlier code could not be kept and are gone"


def code_script(*blocks: str) -> list[Event]:
    return [{"code": block} for block in blocks]


def play_code(service: Service, *blocks: str, agent: str = "coder", **body: Any) -> tuple[Event, list[str]]:
    """Play blocks as one turn. Return it with the output that the model was shown for each block."""
    turn = service.play(*code_script(*blocks), DONE, agent=agent, **body)
    return turn, shown_outputs(service, turn)


def shown_outputs(service: Service, turn: Event) -> list[str]:
    """Return the output that the model was shown for each block of a turn except the last one, which answers."""
    steps = [step for step in service.steps(turn) if step["type"] == "action" and step["turn"] == turn["turn"]]
    texts = [step["error"]["message"] if step["error"] else step["observations"] for step in steps]
    return texts[:-1] if turn["status"] == "finished" else texts


def printed(text: str) -> str:
    return text.removeprefix("Execution logs:\n").rpartition("\nLast output")[0]


def fork_servers(service: Service) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(service.process.pid).children()
        return [process for process in own if "smolsessions.agents.sandbox.fork_server" in process.cmdline()]
    return []


def code_processes(service: Service) -> list[psutil.Process]:
    found = []
    for fork_server in fork_servers(service):
        with suppress(psutil.NoSuchProcess):
            found += [child for child in fork_server.children() if runs_code(child)]
    return found


def runs_code(process: psutil.Process) -> bool:
    """Return whether a process of a fork server runs code. It is confined before: it can write no file."""
    with suppress(OSError):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        return any(line.split()[:4] == ["Max", "file", "size", "0"] for line in limits.splitlines())
    return False


def wait_until_no_code_runs(service: Service) -> None:
    wait_until(lambda: not code_processes(service), within_s=15)  # its own limits end code after 20 s and more


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def wait_gone(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not any(map(lives, processes)))


def variable_chunks(raw: Raw, turn: Event) -> dict[bytes, bytes]:
    """Return the sealed chunks of a conversation. The chunk without a name lists all of them."""
    found: dict[bytes, bytes] = raw.hgetall(f"{PARTITION}:variables:local/{turn['conversation_id']}:0")
    return found


def tasks(service: Service, turn: Event) -> list[str]:
    return [str(step["task"]) for step in service.steps(turn) if step["type"] == "task"]
