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
from typing import Any, cast

import uvicorn

from smolsessions import __version__
from smolsessions.agents.compatibility import check_smolagents
from smolsessions.core.errors import StartError
from smolsessions.roles import ProcessSlot, Role
from smolsessions.runtime.address import address_of, page_address
from smolsessions.runtime.parent_link import ParentLink
from smolsessions.runtime.shutdown import FORCED_S, STREAMS_S, Shutdown
from smolsessions.settings import Settings
from smolsessions.store.embedded.data_folder import record_address

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
    """Serve as the role says until asked to end, and return the exit status. `on_ready` is called in a thread."""
    gc.disable()  # until the service is up: it saves 0.1 s of 1.1 s of imports
    # The format names no thread, process or caller, and a search for the caller costs as much as the rest of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - as the documentation of `logging` advises
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Each stream is an open file, and most systems start at 1,024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a system with a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    # By default glibc raises its threshold to the largest block freed so far, up to 32 MB, and keeps smaller blocks.
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # not on every platform
        import uvloop  # noqa: PLC0415 - see above

        loop_factory = uvloop.new_event_loop

    def log_defect(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != "Fatal error on SSL protocol":  # its peer closed it, and its user learns of that
            loop.default_exception_handler(context)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(log_defect)
        return runner.run(_run(settings, role, listening, slot, on_ready))


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

    is_embedded = slot.embedded if slot else not settings.redis_url
    async with make_service(settings, role, slot) as service:
        # Warm sessions are many live objects, and scanning them often costs a fifth of a turn.
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()
        if role.serves_http and is_embedded:
            record_address(settings.data_dir, address_of(listening))
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
        does = "serves on" if role.serves_http else "runs turns; health and metrics on"
        width = max(map(len, lines))
        text = f"{name} {__version__} {does} {address_of(listening)}\n"
        text += "".join(f"  {label:<{width}} {value}\n" for label, value in lines.items())
        if link:
            link.announce_ready(text)  # the supervisor prints it, once for all processes
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
            if on_ready:
                asyncio.get_running_loop().run_in_executor(None, on_ready)
        status = await _serve(settings, service, listening, shutdown)
    if slot and link and link.is_lost:
        shutil.rmtree(slot.folder, ignore_errors=True)  # the dead supervisor cannot
    return status


async def _serve(settings: Settings, service: Any, listening: socket.socket, shutdown: Shutdown) -> int:
    """Serve a `wiring.Service` until asked to end. Then drain the worker, end the streams, close the connections."""
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
        for each in server.servers:  # new connections go to the processes that take over, open streams continue
            each.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()  # at the end of its answer
        if service.worker:
            service.worker.retire()
            await asyncio.wait((requested, *vital), return_when=asyncio.FIRST_COMPLETED)
    busy = service.threads.busy
    waits = f": {busy} turns finish their step, {settings.drain_s:g} s at most; a second signal ends them at once"
    log.info("stopping%s", waits if busy else "", extra={"action": "stop"})
    service.app.state.draining = True
    if service.worker and worker:
        # The running steps finish in time. Then their turns are handed back in the middle of a step.
        service.worker.drain()
        forced = asyncio.create_task(shutdown.forced.wait())
        await asyncio.wait({worker, forced}, timeout=settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        service.worker.hand_back_all()
        await asyncio.wait({worker}, timeout=FORCED_S)
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


class _Server(uvicorn.Server):
    """Server that leaves the signals to the process, which drains before it closes connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
