"""One process of the service: its HTTP server, its worker, what it says of itself, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import shutil
import socket
import sys
from typing import TYPE_CHECKING, cast

import uvicorn

from smolsessions import __version__
from smolsessions.agents.compatibility import check_smolagents
from smolsessions.core.errors import StartError
from smolsessions.roles import Role
from smolsessions.runtime.parent_link import ParentLink
from smolsessions.runtime.shutdown import Shutdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from smolsessions.roles import ProcessSlot
    from smolsessions.settings import Settings
    from smolsessions.wiring import Service

log = logging.getLogger("smolsessions")

SWITCH_INTERVAL_S = 0.001  # how long a computing agent may keep the interpreter from the event loop
OPEN_FILES = 65_536
M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE_BYTES = 1024 * 1024
STREAMS_S = 5
HURRY_S = 5  # for a thread that heeds no stop, and for giving its lease back
CLOSE_S = HURRY_S + STREAMS_S + 8  # from the end of the drain to the process's, at most


def run_process(settings: Settings, role: Role, listening: socket.socket, place: ProcessSlot | None) -> int:
    """Do what the role asks for until told to end; give the exit status."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not in the format: not looked up
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _open_many_files()
    _give_memory_back()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings, role, listening, place))


def _open_many_files() -> None:
    """Take what the system allows: each stream is an open file, and most engines and shells begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a system with a bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _give_memory_back() -> None:
    """Let glibc return every large block to the system when it is freed.

    By default it raises its threshold to the largest block that was freed, up to 32 MB, and keeps blocks below it.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def log_to_stderr(settings: Settings, place: ProcessSlot | None) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Discreet(os.environ.get(settings.model_api_key_env or "", "").strip(), place))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


class _Discreet(logging.Formatter):
    """Formats log lines without the model's key, which a provider's exception may repeat."""

    def __init__(self, secret: str, place: ProcessSlot | None) -> None:
        who = f"process={place.number} " if place else ""
        super().__init__(f"%(asctime)s {who}%(levelname)s %(name)s %(message)s")
        self._secret = secret

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line.replace(self._secret, "***") if self._secret else line


async def _run(settings: Settings, role: Role, listening: socket.socket, place: ProcessSlot | None) -> int:
    ending = Shutdown()
    ending.on_signals()  # first of all: in a container, whoever has no handler hears nothing
    leash = ParentLink(place.leash) if place else None
    if leash:
        leash.heed(ending)
    check_smolagents()
    from smolsessions.wiring import make_service  # noqa: PLC0415 - smolagents and all; the other commands need none of it

    async with make_service(settings, role, place) as service:
        _calm_collector()
        text = _sentences(settings, role, service, listening, place)
        if leash:
            leash.tell_ready(text)
        else:
            say(text)
        status = await _until_ended(settings, service, listening, ending)
    if place and leash and leash.is_lost:
        shutil.rmtree(place.folder, ignore_errors=True)  # its supervisor was killed and cannot
    return status


async def _until_ended(settings: Settings, service: Service, listening: socket.socket, ending: Shutdown) -> int:
    """Serve; when asked to end claim nothing more, let running turns end in time, then close the connections."""
    server = _Server(
        uvicorn.Config(
            service.app,
            http=cast("Any", service.protocol),
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=STREAMS_S,
            timeout_keep_alive=settings.keep_alive_s,
            lifespan="off",
            proxy_headers=False,
        )
    )
    worker = asyncio.create_task(service.worker.run())
    web = asyncio.create_task(server.serve([listening]))
    asked: asyncio.Future[Any] = asyncio.create_task(ending.asked.wait())
    vital: tuple[asyncio.Future[None], ...] = (worker, web, *service.running)
    await asyncio.wait((asked, *vital), return_when=asyncio.FIRST_COMPLETED)
    defect = next((task for task in vital if task.done()), None)
    waits = f": {service.threads.busy} turns finish their step, {settings.drain_s:g} s at most; a second signal hurries"
    log.info("stopping%s", waits if service.threads.busy else "", extra={"action": "stop"})
    service.app.state.draining = True
    service.worker.drain()
    hurried = asyncio.create_task(ending.hurried.wait())
    await asyncio.wait({worker, hurried}, timeout=settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
    service.worker.hurry()
    await asyncio.wait({worker}, timeout=HURRY_S)
    service.turns.stop_waiting()
    server.should_exit = True
    await asyncio.wait({web}, timeout=STREAMS_S + 1)
    for task in (worker, web, asked, hurried):
        task.cancel()
    await asyncio.wait({worker, web, asked, hurried}, timeout=2)
    if defect and (error := defect.exception()):
        if isinstance(error, StartError):
            raise error
        log.error("the service met a defect and ends", exc_info=error, extra={"action": "stop.defect"})
        return 1
    return 0


class _Server(uvicorn.Server):
    """Leaves the signals to us: what runs is drained before connections are closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _sentences(
    settings: Settings, role: Role, service: Service, listening: socket.socket, place: ProcessSlot | None
) -> str:
    """Give what an operator is told: of the whole set, where this process is one of several."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    base = f"http://{'127.0.0.1' if shown in {'0.0.0.0', '[::]'} else shown}:{port}"  # noqa: S104 - compared, not bound
    is_embedded = place.embedded if place else not settings.redis_url
    lines = {
        "data": str(settings.data_dir.absolute()) if is_embedded else "in the store",
        "store": service.store,
        "agents": ", ".join(service.agents),
    }
    if role.serves_http:
        lines = {"page": f"{base}/", "docs": f"{base}/docs", **lines, "who": service.authenticator.sentence}
    if place:
        lines["processes"] = str(place.count)
    name = "smolsessions" if role is Role.SERVE else f"smolsessions {role.value}"
    does = "serves on" if role.serves_http else "plays turns; health and metrics on"
    width = max(map(len, lines))
    text = "".join(f"  {what:<{width}} {value}\n" for what, value in lines.items())
    return f"{name} {__version__} {does} {shown}:{port}\n{text}"


def _calm_collector() -> None:
    """Collect rarely: warm sessions are many objects that live, and looking through them cost a fifth of a turn."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def listen(settings: Settings) -> socket.socket:
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
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a dropped reader's connection must not wait for ever to be read
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.send_timeout_s * 1000))
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
