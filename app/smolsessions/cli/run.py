"""Commands `serve`, `web` and `work`: one process, or a supervisor of several."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.sandbox.code_group import settle
from smolsessions.cli.remote import printable
from smolsessions.core.errors import StartError
from smolsessions.core.request_id import request_id
from smolsessions.roles import ProcessSlot, Role
from smolsessions.runtime.address import page_address
from smolsessions.runtime.parent_link import inherited
from smolsessions.runtime.supervisor import SharedStore, supervise
from smolsessions.settings import PREFIX, Settings, read_settings, unknown_setting_warnings

log = logging.getLogger("smolsessions")

MAX_PROCESSES = 64


def run(settings: Settings, role: Role, processes: int, *, open_page: bool = False, reload: bool = False) -> int:
    """Run a role in one process or several, and return the exit status."""
    _log_to_stderr(settings, None)
    for warning in unknown_setting_warnings():
        log.warning(warning)
    if role is not Role.SERVE and not settings.redis_url:
        raise StartError(
            f"`smolsessions {role.value}` needs a store that other processes reach too: set "
            "SMOLSESSIONS_REDIS_URL, the same for all, or run `smolsessions serve`, which has a store of its own"
        )
    listening = _listen(settings)
    if role is not Role.WEB:
        settle()  # before another process starts in the service's control group
    on_ready = (lambda: webbrowser.open(page_address(listening))) if open_page else None
    if processes == 1 and not reload:
        return _run_process(settings, role, listening, None, on_ready)
    from smolsessions.agents.sandbox.confinement.levels import keep_memory_private  # noqa: PLC0415 - no other needs it

    keep_memory_private()  # the supervisor holds the same secrets as its processes
    open_store = None if settings.redis_url else lambda: _embedded_store(settings)
    return asyncio.run(
        supervise(
            processes,
            listening,
            settings.drain_s,
            open_store=open_store,
            on_ready=on_ready,
            changes=_changes if reload else None,
        )
    )


def end_with_stdin() -> None:
    """Stop this process once its standard input ends, which is when the program that started it has ended."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="standard input", daemon=True).start()


def _changes() -> AsyncIterator[object]:
    """Yield whenever agents.toml changes, or Python files in its folder, this folder, and those of agents by file."""
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - only with --reload

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # the supervisor logs each change
    files = re.findall(r"=([^,=]+\.py):", os.environ.get(f"{PREFIX}AGENTS", ""))
    agents_file = str(Path(os.environ.get(f"{PREFIX}AGENTS_FILE") or "agents.toml").absolute())
    folders = {Path.cwd(), *(Path(file).absolute().parent for file in (*files, agents_file))}
    is_python = PythonFilter()
    folders = {folder for folder in folders if folder.is_dir()}  # a start with another one fails
    return awatch(*folders, watch_filter=lambda change, path: path == agents_file or is_python(change, path))


def run_slot(role: str, slot: str) -> int:
    settings, place = read_settings(), ProcessSlot.from_json(slot)
    _log_to_stderr(settings, place)
    return _run_process(settings, Role(role), inherited(place.listening_fd), place)


def _run_process(
    settings: Settings,
    role: Role,
    listening: socket.socket,
    slot: ProcessSlot | None,
    on_ready: Callable[[], object] | None = None,
) -> int:
    from smolsessions.runtime.process import run_process  # noqa: PLC0415 - a supervisor needs no HTTP server

    return run_process(settings, role, listening, slot, on_ready)


@contextmanager
def _embedded_store(settings: Settings) -> Iterator[SharedStore]:
    """Run the embedded store for all processes, which find it and its key by their environment."""
    from smolsessions.store.embedded.server import embedded_server  # noqa: PLC0415 - not with a store elsewhere
    from smolsessions.store.seal import keys_in  # noqa: PLC0415 - as above

    with embedded_server(settings.data_dir) as server:
        environment = {f"{PREFIX}REDIS_URL": f"unix://{server.socket_path}"}
        if not (settings.seal_keys or settings.seal_keys_file):
            path = settings.data_dir.absolute() / "seal.key"
            keys_in(path, create=True)
            environment[f"{PREFIX}SEAL_KEYS_FILE"] = str(path)
        yield SharedStore(environment, server.ended)


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family[0], socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(family[4])
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no host name"
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port} ({reason}); stop what listens there, or set "
            "SMOLSESSIONS_PORT to another port or SMOLSESSIONS_HOST to an address of this machine"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # the connection of a dropped reader must not wait for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.send_timeout_s * 1000))
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def _log_to_stderr(settings: Settings, slot: ProcessSlot | None) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_RedactingFormatter(slot))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    for library in ("httpx", "httpx2"):  # they log each request at info, beside the service's line of a model call
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.root.level))


class _RedactingFormatter(logging.Formatter):
    """Formatter that masks the keys which this process has read, as an exception may repeat one."""

    def __init__(self, slot: ProcessSlot | None) -> None:
        process = f"process={slot.number} " if slot else ""
        super().__init__(f"%(asctime)s {process}%(request)s%(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.request = f"request={request_id.get()} " if request_id.get() else ""
        return without_secrets(printable(super().format(record)).replace("\r", "␍"))
