"""Several processes on one port: starts them, starts again what dies, and ends with the last of them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from smolsessions.agents.sandbox.confinement.levels import keep_memory_private
from smolsessions.core.errors import StartError
from smolsessions.roles import ProcessSlot
from smolsessions.runtime.parent_link import HURRY, STOP, ChildLink
from smolsessions.runtime.process import CLOSE_S, say
from smolsessions.runtime.shutdown import Shutdown
from smolsessions.settings import PREFIX
from smolsessions.store.embedded.data_folder import SOCKET_PATH_BYTES
from smolsessions.store.embedded.server import embedded_server
from smolsessions.store.seal import keys_in

if TYPE_CHECKING:
    from smolsessions.settings import Settings

log = logging.getLogger("smolsessions.runtime.supervisor")

CALM_S = 60.0  # a process that lived so long is started again at once
PAUSE_S = 0.2  # doubled with each death that comes sooner; none before the first restart
LONGEST_PAUSE_S = 30.0
REFUSED = 2  # the status of a process that cannot start as it is configured; it has said why


def supervise(settings: Settings, count: int, listening: socket.socket) -> int:
    """Run `count` processes of this program until told to end; give the exit status."""
    keep_memory_private()  # it holds the same secrets as they do
    with asyncio.Runner() as runner:
        return runner.run(_supervise(settings, count, listening))


async def _supervise(settings: Settings, count: int, listening: socket.socket) -> int:
    ending = Shutdown()
    ending.on_signals()  # first of all: in a container, whoever has no handler hears nothing
    environment = dict(os.environ)
    with ExitStack() as stack:
        store: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not settings.redis_url:
            server = stack.enter_context(embedded_server(settings.data_dir))
            store = asyncio.wrap_future(server.ended)
            environment[f"{PREFIX}REDIS_URL"] = f"unix://{server.socket_path}"
            if not (settings.seal_keys or settings.seal_keys_file):
                path = settings.data_dir.absolute() / "seal.key"
                keys_in(path, create=True)
                environment[f"{PREFIX}SEAL_KEYS_FILE"] = str(path)
        folder = stack.enter_context(TemporaryDirectory(prefix="smolsessions-", ignore_cleanup_errors=True))
        if len(os.fsencode(folder)) + len("/00.sock") > SOCKET_PATH_BYTES:
            raise StartError(f"{folder} is too long for sockets in it; set TMPDIR to a shorter path")
        all_of_them = _Set(count, folder, listening, environment, embedded=not settings.redis_url)
        return await all_of_them.run(ending, store, settings.drain_s)


@dataclass(frozen=True)
class _Child:
    process: asyncio.subprocess.Process
    hand: ChildLink


class _Set:
    """The processes, by their numbers."""

    def __init__(
        self, count: int, folder: str, listening: socket.socket, environment: dict[str, str], *, embedded: bool
    ) -> None:
        self._count = count
        self._folder = folder
        self._listening = listening
        self._environment = environment
        self._embedded = embedded
        loop = asyncio.get_running_loop()
        self._ready: list[asyncio.Future[str]] = [loop.create_future() for _ in range(count)]
        self._failed: asyncio.Future[int] = loop.create_future()
        self._ending = Shutdown()
        self._children: dict[int, _Child] = {}
        self._keepers: set[asyncio.Task[None]] = set()
        self._has_started = self._is_up = False

    async def run(self, ending: Shutdown, store: asyncio.Future[None], drain_s: float) -> int:
        """Give the exit status; `store` is done when the embedded store is given up."""
        self._ending = ending
        asked = asyncio.create_task(ending.asked.wait())
        coming_up = asyncio.create_task(self._come_up())
        reasons: set[asyncio.Future[Any]] = {asked, self._failed, store}
        await asyncio.wait({coming_up, *reasons}, return_when=asyncio.FIRST_COMPLETED)
        if coming_up.done() and not coming_up.exception():
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        coming_up.cancel()
        await self._end(drain_s)
        asked.cancel()
        for reason in (coming_up, store):
            if reason.done() and not reason.cancelled() and (error := reason.exception()):
                raise error
        return self._failed.result() if self._failed.done() else 0

    async def _come_up(self) -> None:
        """Start the first process alone: what it cannot do no other could, and it finds the store as it was left."""
        self._keep(0)
        text = await self._ready[0]
        for number in range(1, self._count):
            self._keep(number)
        await asyncio.gather(*self._ready)
        self._is_up = True
        say(text)

    def _keep(self, number: int) -> None:
        keeper = asyncio.create_task(self._keep_alive(number))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._see)

    def _see(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) and not self._failed.done():
            self._failed.set_exception(error)

    async def _keep_alive(self, number: int) -> None:
        """Let a process live, again and again, with a growing pause where it dies soon."""
        deaths = 0
        while not self._ending.asked.is_set():
            born = time.monotonic()
            status = await self._live(number)
            if self._ending.asked.is_set():
                return
            how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
            if not self._is_up:
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
                    await self._ending.asked.wait()

    async def _live(self, number: int) -> int:
        """Run a process to its end; give its status."""
        try:
            child = await self._start(number)
        except OSError as error:
            log.error("process %d cannot be started: %s", number, error, extra={"action": "start.failed"})  # noqa: TRY400 - the system's refusal is no defect of ours
            return 1
        self._children[number] = child
        log.info("process %d is pid %d", number, child.process.pid, extra={"action": "start"})
        try:
            if self._ending.asked.is_set():  # while it was started
                child.hand.tell(HURRY if self._ending.hurried.is_set() else STOP)
            text = await child.hand.ready()
            if text is not None and not self._ready[number].done():
                self._ready[number].set_result(text)
            return await child.process.wait()
        finally:
            del self._children[number]
            child.hand.close()

    async def _start(self, number: int) -> _Child:
        mine, theirs = socket.socketpair()
        with theirs, ExitStack() as unless_started:
            unless_started.callback(mine.close)
            place = self._place(number, theirs.fileno())
            self._has_started = True
            process = await asyncio.create_subprocess_exec(
                # The very command that this process was started with, and its place.
                *(sys.executable, *sys.orig_argv[1:], "--place", place.text()),
                env=self._environment,
                pass_fds=(place.listening, place.leash),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C comes to the supervisor alone, which passes it on once
            )
            unless_started.pop_all()
        return _Child(process, ChildLink(mine))

    def _place(self, number: int, leash: int) -> ProcessSlot:
        return ProcessSlot(
            number,
            self._count,
            self._folder,
            self._listening.fileno(),
            leash,
            embedded=self._embedded,
            comes_first=not self._has_started,
        )

    async def _end(self, drain_s: float) -> None:
        """Tell all to end, in a hurry when asked to; kill what does not."""
        log.info("stopping %d processes", len(self._children), extra={"action": "stop"})
        self._ending.ask()
        self._listening.close()  # else who connects when they have gone would wait
        self._tell(STOP)
        hurried = asyncio.create_task(self._ending.hurried.wait())
        over: asyncio.Future[Any] = asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.wait((over, hurried), timeout=drain_s + CLOSE_S, return_when=asyncio.FIRST_COMPLETED)
        if hurried.done():
            self._tell(HURRY)
            await asyncio.wait({over}, timeout=CLOSE_S)
        hurried.cancel()
        for number, child in self._children.items():
            log.error("process %d does not end; killing it", number, extra={"action": "stop.kill"})
            child.process.kill()
        await asyncio.wait({over}, timeout=CLOSE_S)

    def _tell(self, word: bytes) -> None:
        for child in self._children.values():
            child.hand.tell(word)
