"""Supervisor of several processes on one port: starts them, restarts the dead, and ends after the last of them.

It loads no agent, no store and no HTTP library, so it costs little memory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smolsessions.core.errors import StartError
from smolsessions.core.files import SOCKET_PATH_BYTES
from smolsessions.roles import ProcessSlot
from smolsessions.runtime.parent_link import FORCE, RETIRE, STOP, ChildLink
from smolsessions.runtime.shutdown import CLOSE_S, Shutdown

log = logging.getLogger("smolsessions.runtime.supervisor")

CALM_S = 60.0  # a process that lived so long is restarted at once
PAUSE_S = 0.2  # doubled with each early death; the first restart is at once
LONGEST_PAUSE_S = 30.0
REFUSED = 2  # exit status of a process whose configuration is wrong; it has printed the reason


@dataclass(frozen=True)
class SharedStore:
    """Store that the supervisor runs for its processes: their settings for it, and a future of its end."""

    environment: dict[str, str] = field(default_factory=dict)
    ended: Future[None] | None = None


async def supervise(
    count: int,
    listening: socket.socket,
    drain_s: float,
    *,
    open_store: Callable[[], AbstractContextManager[SharedStore]] | None,
    on_ready: Callable[[], object] | None = None,
    changes: Callable[[], AsyncIterator[object]] | None = None,
) -> int:
    """Run `count` processes of this program until asked to end, and return the exit status.

    `open_store` starts the store that they share. None if the store is elsewhere. `on_ready` is called in a thread when
    all processes are up. With each of `changes` of the code, new processes take over.
    """
    shutdown = Shutdown()
    shutdown.on_signals()  # first of all: the first process of a container gets no signal that it does not handle
    with ExitStack() as stack:
        store = stack.enter_context(open_store()) if open_store else SharedStore()
        folder = stack.enter_context(TemporaryDirectory(prefix="smolsessions-", ignore_cleanup_errors=True))
        if len(os.fsencode(folder)) + len("/1000/00.sock") > SOCKET_PATH_BYTES:
            raise StartError(f"{folder} is too long for sockets in it; set TMPDIR to a shorter path")
        environment = os.environ | store.environment

        def generation(number: int) -> _Processes:
            place = Path(folder, str(number))
            place.mkdir(mode=0o700)
            embedded = open_store is not None
            return _Processes(count, str(place), listening, environment, shutdown, embedded, on_ready, number)

        ended = asyncio.wrap_future(store.ended) if store.ended else asyncio.get_running_loop().create_future()
        current = generation(0)
        if not changes:
            return await current.run(ended, drain_s)
        # New processes start with each change. Once they are up, the current ones finish their turns and end.
        changed, running = changes(), asyncio.create_task(current.run(ended, drain_s))
        others: set[asyncio.Task[int]] = set()
        change = asyncio.ensure_future(anext(changed))  # now: a watch reports only later changes
        await _first(running, current.up)
        for number in itertools.count(1):
            await _first(running, change)
            if running.done():
                change.cancel()
                break
            log.info("the code has changed; starting new processes", extra={"action": "reload"})
            new = generation(number)
            starting = asyncio.create_task(new.run(ended, drain_s))
            await _first(starting, new.up, running)
            if new.up.done():
                log.info("the changed code serves", extra={"action": "reload.done"})
                current.retired.set()
                current, running, starting = new, starting, running
            elif starting.done():
                log.error("the changed code does not start; the earlier code serves", extra={"action": "reload.failed"})
            others.add(starting)
            change = asyncio.ensure_future(anext(changed))
        await asyncio.gather(*others, return_exceptions=True)
        return await running


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


@dataclass
class _Processes:
    count: int
    folder: str
    listening: socket.socket
    environment: dict[str, str]
    shutdown: Shutdown
    embedded: bool
    on_ready: Callable[[], object] | None
    generation: int

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready: list[asyncio.Future[str]] = [loop.create_future() for _ in range(self.count)]
        self._failed: asyncio.Future[int] = loop.create_future()
        self._children: dict[int, tuple[asyncio.subprocess.Process, ChildLink]] = {}
        self._keepers: set[asyncio.Task[None]] = set()
        self._has_started = self.generation > 0
        self._over = asyncio.Event()
        self.retired = asyncio.Event()
        self.up: asyncio.Future[None] = loop.create_future()

    async def run(self, store_ended: asyncio.Future[None], drain_s: float) -> int:
        """Return the exit status, after a request, a failed start or the end of the embedded store."""
        requested = asyncio.create_task(self.shutdown.requested.wait())
        starting = asyncio.create_task(self._start_all())
        retired = asyncio.create_task(self.retired.wait())
        reasons: set[asyncio.Future[Any]] = {requested, retired, self._failed, store_ended}
        await asyncio.wait({starting, *reasons}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not starting.exception():
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        self._over.set()
        if retired.done():
            self._send_all(RETIRE)
            over: asyncio.Future[Any] = asyncio.gather(*self._keepers, return_exceptions=True)
            await asyncio.wait({over, requested, store_ended}, return_when=asyncio.FIRST_COMPLETED)
        if self._children:
            await self._end(drain_s)
        requested.cancel()
        retired.cancel()
        for reason in (starting, store_ended):
            if reason.done() and not reason.cancelled() and (error := reason.exception()):
                raise error
        return self._failed.result() if self._failed.done() else 0

    async def _start_all(self) -> None:
        """Start the first process alone: a wrong configuration is reported once, and it recovers the store."""
        self._keep(0)
        text = await self._ready[0]
        for number in range(1, self.count):
            self._keep(number)
        await asyncio.gather(*self._ready)
        self.up.set_result(None)
        if self.generation:
            return
        sys.stdout.write(text)
        sys.stdout.flush()
        if self.on_ready:
            await asyncio.to_thread(self.on_ready)

    def _keep(self, number: int) -> None:
        def note_failure(keeper: asyncio.Task[None]) -> None:
            if not keeper.cancelled() and (error := keeper.exception()) and not self._failed.done():
                self._failed.set_exception(error)

        keeper = asyncio.create_task(self._keep_alive(number))
        self._keepers.add(keeper)
        keeper.add_done_callback(note_failure)

    async def _keep_alive(self, number: int) -> None:
        """Restart a process whenever it ends, with a growing pause if it ends early."""
        deaths = 0
        while not self._is_over():
            born = time.monotonic()
            status = await self._run_process(number)
            if self._is_over():
                return
            how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
            if not self.up.done():
                if status != REFUSED:
                    log.error("process %d %s before all were up", number, how, extra={"action": "start.failed"})
                if not self._failed.done():
                    self._failed.set_result(REFUSED if status == REFUSED else 1)
                return
            deaths = 1 if time.monotonic() - born > CALM_S else deaths + 1
            pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(deaths - 2, 10)) if deaths > 1 else 0.0
            log.error("process %d %s; starting it again in %g s", number, how, pause_s, extra={"action": "restart"})
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._over.wait()

    def _is_over(self) -> bool:
        return self._over.is_set() or self.shutdown.requested.is_set()

    async def _run_process(self, number: int) -> int:
        with ExitStack() as stack:
            try:
                mine, theirs = socket.socketpair()
                link = ChildLink(mine)
                stack.callback(link.close)
                with theirs:
                    fds = self.listening.fileno(), theirs.fileno()
                    is_first, self._has_started = not self._has_started, True
                    slot = ProcessSlot(number, self.count, self.folder, *fds, self.embedded, is_first)
                    process = await asyncio.create_subprocess_exec(
                        # The same command that started this process, plus its slot.
                        *(sys.executable, *sys.orig_argv[1:], "--slot", slot.to_json()),
                        env=self.environment,
                        pass_fds=fds,
                        stdin=asyncio.subprocess.DEVNULL,
                        start_new_session=True,  # a terminal sends Ctrl-C to the supervisor alone
                    )
            except OSError as error:
                log.error("process %d cannot be started: %s", number, error, extra={"action": "start.failed"})  # noqa: TRY400 - the system refuses, the service has no defect
                return 1
            self._children[number] = process, link
            stack.callback(self._children.pop, number)
            log.info("process %d is pid %d", number, process.pid, extra={"action": "start"})
            if self._is_over():  # during the start
                link.send(FORCE if self.shutdown.forced.is_set() else STOP)
            text = await link.wait_ready()
            if text is not None and not self._ready[number].done():
                self._ready[number].set_result(text)
            return await process.wait()

    async def _end(self, drain_s: float) -> None:
        """Ask all processes to end, force them if requested, and kill those that do not end."""
        log.info("stopping %d processes", len(self._children), extra={"action": "stop"})
        if self.shutdown.requested.is_set() or not self.generation:
            self.listening.close()  # otherwise later connections would wait for ever
        self._send_all(STOP)
        forced = asyncio.create_task(self.shutdown.forced.wait())
        over: asyncio.Future[Any] = asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.wait((over, forced), timeout=drain_s + CLOSE_S, return_when=asyncio.FIRST_COMPLETED)
        if forced.done():
            self._send_all(FORCE)
            await asyncio.wait({over}, timeout=CLOSE_S)
        forced.cancel()
        for number, (process, _) in self._children.items():
            log.error("process %d does not end; killing it", number, extra={"action": "stop.kill"})
            process.kill()
        await asyncio.wait({over}, timeout=CLOSE_S)

    def _send_all(self, word: bytes) -> None:
        for _, link in self._children.values():
            link.send(word)
