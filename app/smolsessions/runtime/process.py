"""One process of the service: its HTTP server, its worker, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from smolsessions import __version__
from smolsessions.agents.compatibility import check_smolagents
from smolsessions.core.errors import StartError
from smolsessions.roles import ProcessSlot, Role
from smolsessions.runtime.address import address_of, page_address
from smolsessions.runtime.parent_link import ParentLink
from smolsessions.runtime.shutdown import HURRY_S, STREAMS_S, Shutdown
from smolsessions.settings import Settings
from smolsessions.store.embedded.data_folder import record_address

if TYPE_CHECKING:  # loaded after the check of smolagents
    from smolsessions.wiring import Service
    from smolsessions.worker.worker import Worker

log = logging.getLogger("smolsessions")

SWITCH_INTERVAL_S = 0.001  # how long a computing agent may keep the interpreter from the event loop
OPEN_FILES = 65_536
M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE_BYTES = 1024 * 1024


def run_process(
    settings: Settings,
    role: Role,
    listening: socket.socket,
    slot: ProcessSlot | None,
    on_ready: Callable[[], object] | None = None,
) -> int:
    """Serve as the role says until told to end, and return the exit status. `on_ready` is called in a thread."""
    gc.disable()  # until the service is up: imports make many objects and hardly any garbage
    # The format has none of these, and the search for the caller costs as much as the rest of a log line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - as the documentation of `logging` advises
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_file_limit()
    _return_large_blocks()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(_log_unless_reset)
        return runner.run(_run(settings, role, listening, slot, on_ready))


def _raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows. Each stream is one. Most systems start at 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a system with a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _return_large_blocks() -> None:
    """Make glibc return every large block to the system when it is freed.

    By default it raises its threshold to the largest block freed so far, up to 32 MB, and keeps smaller blocks.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


async def _run(
    settings: Settings,
    role: Role,
    listening: socket.socket,
    slot: ProcessSlot | None,
    on_ready: Callable[[], object] | None,
) -> int:
    shutdown = Shutdown()
    shutdown.on_signals()  # first of all: the first process of a container gets no signal that it does not handle
    link = ParentLink(slot.parent_fd) if slot else None
    if link:
        link.follow(shutdown)
    check_smolagents()
    from smolsessions.wiring import make_service  # noqa: PLC0415 - it imports smolagents, after the check

    async with make_service(settings, role, slot) as service:
        _collect_rarely()
        if role.serves_http and (slot.embedded if slot else not settings.redis_url):
            record_address(settings.data_dir, address_of(listening))
        text = _start_text(settings, role, service, listening, slot)
        if link:
            link.announce_ready(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
            if on_ready:
                asyncio.get_running_loop().run_in_executor(None, on_ready)
        status = await _serve(settings, service, listening, shutdown)
    if slot and link and link.is_lost:
        shutil.rmtree(slot.folder, ignore_errors=True)  # the dead supervisor cannot
    return status


async def _serve(settings: Settings, service: Service, listening: socket.socket, shutdown: Shutdown) -> int:
    """Serve until told to end. Then drain the worker, end the streams and close the connections."""
    server = _Server(
        uvicorn.Config(
            service.app,
            http=cast("Any", service.protocol),
            interface="asgi3",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=STREAMS_S,
            timeout_keep_alive=settings.keep_alive_s,
            lifespan="off",
            proxy_headers=False,
        )
    )
    web = asyncio.create_task(server.serve([listening]))
    worker = asyncio.create_task(service.worker.run()) if service.worker else None
    requested: asyncio.Future[Any] = asyncio.create_task(shutdown.requested.wait())
    retired: asyncio.Future[Any] = asyncio.create_task(shutdown.retired.wait())
    vital: tuple[asyncio.Future[None], ...] = (web, *service.running, *([worker] if worker else []))
    await asyncio.wait((requested, retired, *vital), return_when=asyncio.FIRST_COMPLETED)
    defect = next((task for task in vital if task.done()), None)
    if retired.done() and not requested.done():
        service.app.state.draining = True
        _stop_accepting(server)
        if service.worker:
            service.worker.retire()
            await asyncio.wait((requested, *vital), return_when=asyncio.FIRST_COMPLETED)
    waits = f": {service.threads.busy} turns finish their step, {settings.drain_s:g} s at most; a second signal hurries"
    log.info("stopping%s", waits if service.threads.busy else "", extra={"action": "stop"})
    service.app.state.draining = True
    if service.worker and worker:
        await _drain(service.worker, worker, shutdown, settings.drain_s)
    service.turns.stop_waiting()
    server.should_exit = True
    await asyncio.wait({web}, timeout=STREAMS_S + 1)
    left = {task for task in (worker, web, requested, retired) if task}
    for task in left:
        task.cancel()
    await asyncio.wait(left, timeout=2)
    if defect and (error := defect.exception()):
        if isinstance(error, StartError):
            raise error
        log.error("the service met a defect and ends", exc_info=error, extra={"action": "stop.defect"})
        return 1
    return 0


def _stop_accepting(server: uvicorn.Server) -> None:
    """Leave new connections to the processes that take over. Open streams continue."""
    for each in server.servers:
        each.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()  # at the end of its answer


async def _drain(worker: Worker, running: asyncio.Task[None], shutdown: Shutdown, drain_s: float) -> None:
    """Let the running steps finish in time. Then hand their turns back in the middle of a step."""
    worker.drain()
    hurried = asyncio.create_task(shutdown.hurried.wait())
    await asyncio.wait({running, hurried}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    worker.hand_back_all()
    await asyncio.wait({running}, timeout=HURRY_S)


class _Server(uvicorn.Server):
    """Server that leaves the signals to the process, which drains before it closes connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _start_text(
    settings: Settings, role: Role, service: Service, listening: socket.socket, slot: ProcessSlot | None
) -> str:
    """Return the lines that an operator sees at the start, for all processes together."""
    is_embedded = slot.embedded if slot else not settings.redis_url
    lines = {
        "data": str(settings.data_dir.absolute()) if is_embedded else "in the store",
        "store": service.store,
        "agents": ", ".join(service.agents),
    }
    if role.serves_http:
        page = page_address(listening)
        lines = {"page": page, "docs": f"{page}docs", **lines, "who": service.authenticator.sentence}
    if slot:
        lines["processes"] = str(slot.count)
    name = "smolsessions" if role is Role.SERVE else f"smolsessions {role.value}"
    does = "serves on" if role.serves_http else "plays turns; health and metrics on"
    width = max(map(len, lines))
    text = "".join(f"  {name:<{width}} {value}\n" for name, value in lines.items())
    return f"{name} {__version__} {does} {address_of(listening)}\n{text}"


def _collect_rarely() -> None:
    """Collect garbage rarely. Warm sessions are many live objects, and scanning them cost a fifth of a turn."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def _log_unless_reset(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio reports, except a TLS connection that its peer closed, whose user learns of it anyway."""
    if context.get("message") != "Fatal error on SSL protocol":
        loop.default_exception_handler(context)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
