"""Starts the contenders' processes and the store, each on its core, and reads what they use."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import psutil
from redis import Redis

from benchmarks.cpu import OTHER_CORE, SERVER_CORE, cpu_ms
from smolsessions.settings import Settings
from smolsessions.store.embedded.server import embedded_server, find_binary
from smolsessions.store.seal import new_key

ROOT = Path(__file__).parent.parent
START_TIMEOUT_S = 60
SERVE = [sys.executable, "-m", "smolsessions", "serve"]
DEFAULT_THREADS: int = Settings.model_fields["threads"].default
PEER_THREADS = {"floor": 1, "trimmed": 40, "naive": 40}  # the loop's, or those of FastAPI's pool
BENCH = {"AGENTS": "bench=benchmarks.agents:make_agent", "DEFAULT_AGENT": "bench"}
SPEAKER = {"AGENTS": "speaker=benchmarks.speaker:make_speaker", "DEFAULT_AGENT": "speaker"}


@dataclass(frozen=True)
class Server:
    """Process of a contender that listens on a port."""

    pid: int
    port: int
    threads: int
    """That play turns."""

    def cpu_ms(self) -> float:
        return cpu_ms(self.pid)

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


@contextmanager
def store() -> Iterator[Path]:
    """Run an empty embedded store, with its own options, on the caller's core. Yield its socket."""
    with TemporaryDirectory(prefix="smolbench-") as folder, embedded_server(Path(folder)) as server:
        yield server.socket_path


def store_pid(socket_path: Path) -> int:
    with Redis(unix_socket_path=str(socket_path)) as redis:
        info: Any = redis.info("server")
        return int(info["process_id"])


@contextmanager
def server(
    contender: str,
    socket_path: Path,
    more: Mapping[str, str] = MappingProxyType({}),
    cores: Sequence[int] = (SERVER_CORE,),
) -> Iterator[Server]:
    """Run the service or one of its peers on its core, with that store. `more` are settings of the service."""
    if threads := PEER_THREADS.get(contender):
        command = [sys.executable, "-m", "benchmarks.peer", contender, str(socket_path)]
        more = {"THREADS": str(threads)}
    else:
        command = SERVE
    settings = {"REDIS_URL": f"unix://{socket_path}", "SEAL_KEYS": new_key(), "PORT": "0", **BENCH, **more}
    with running(command, cores, settings) as found:
        yield found


@contextmanager
def embedding_server() -> Iterator[tuple[Server, int]]:
    """Run the service without a store's address. Yield it and the pid of its store, which is on the other core."""
    with TemporaryDirectory(prefix="smolbench-") as folder:
        settings = {"DATA_DIR": f"{folder}/data", "PORT": "0", **BENCH}
        with running(SERVE, (SERVER_CORE,), settings) as found:
            stores = [each for each in psutil.Process(found.pid).children() if Path(each.exe()).samefile(find_binary())]
            for thread in stores[0].threads():
                os.sched_setaffinity(thread.id, [OTHER_CORE])
            yield found, stores[0].pid


@contextmanager
def running(
    command: Sequence[str], cores: Sequence[int], settings: dict[str, str], cwd: Path = ROOT
) -> Iterator[Server]:
    """Run a server until the block ends. Its first line names its port."""
    with TemporaryDirectory(prefix="smolbench-") as folder, Path(folder, "log").open("w+b") as log:
        process = subprocess.Popen(command, cwd=cwd, env=_environment(settings), stdout=subprocess.PIPE, stderr=log)
        try:
            os.sched_setaffinity(process.pid, cores)
            yield Server(process.pid, _port(process), int(settings.get("THREADS", DEFAULT_THREADS)))
        except Exception as error:
            error.add_note(f"the last the contender said:\n{Path(log.name).read_text()[-4000:]}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
    line = process.stdout.readline().decode() if ready else ""
    if not (" serves on " in line or " metrics on " in line):
        raise RuntimeError("a contender did not start")
    return int(line.rpartition(":")[2])


def _environment(settings: dict[str, str]) -> dict[str, str]:
    """Return this process's environment, with these settings as the only ones of the service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMOLSESSIONS_")}
    return kept | {f"SMOLSESSIONS_{name}": value for name, value in settings.items()}
