"""The service's processes: started, ended by signals, and followed until they exit."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos import agents, ledger
from tests.support.service import spawn

START_S = 30
DRAIN_S = 20
GONE_S = 10  # how long the children of a dead process may live
LEASE_S = 1
TRACEBACK = "Traceback (most recent call last)"
UNMEASURED = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}  # a killed process has no coverage to report


@dataclass(frozen=True)
class Harm:
    """Harm to a process. `kind` is kill, blackout, stop or term. `until` is the time at which a stopped one resumed."""

    at: float
    kind: str
    pid: int
    until: float = 0


@dataclass
class Member:
    folder: Path
    process: subprocess.Popen[str]
    url: str = ""
    frozen: bool = False
    condemned: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass
class Fleet:
    """Places that each hold a process, running or starting. `settings` has the settings of each place."""

    folder: Path
    settings: list[dict[str, str]]
    members: list[Member | None] = field(init=False)
    harms: list[Harm] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    starts: int = 0
    _leaving: set[asyncio.Task[None]] = field(default_factory=set)
    _children: list[psutil.Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [None] * len(self.settings)

    @property
    def up(self) -> list[int]:
        return [place for place, member in enumerate(self.members) if member and member.url and not member.frozen]

    @property
    def urls(self) -> list[str]:
        """Return the addresses of the serving processes, including frozen ones, which a client cannot recognize."""
        return [member.url for member in self.members if member and member.url]

    def pid(self, place: int) -> int:
        member = self.members[place]
        assert member
        return member.pid

    async def start(self, place: int) -> None:
        """Start a process in a place that has none, and wait until it serves."""
        self.starts += 1
        folder = self.folder / f"process-{self.starts}"
        settings = {
            "AGENTS": agents.SETTING,
            "DEMO_AGENTS": "0",
            "LEASE_S": f"{LEASE_S}",
            "DRAIN_S": f"{DRAIN_S}",
            **self.settings[place],
        }
        environment = {ledger.FOLDER: str(self.folder / "ledger"), **UNMEASURED}
        member = self.members[place] = Member(folder, spawn(folder, settings, environment))
        assert member.process.stdout
        first = await asyncio.to_thread(member.process.stdout.readline)
        if "serves on" in first:
            member.url = f"http://{first.split()[-1]}"
        elif not member.condemned:  # the store may be away: try again
            await asyncio.to_thread(member.process.wait, START_S)
            _close(member)
            self.members[place] = None

    async def start_all(self) -> None:
        await asyncio.gather(*(self.start(place) for place, member in enumerate(self.members) if not member))

    async def kill(self, place: int, kind: str = "kill") -> None:
        member = self._take_out(place, kind)
        member.process.kill()
        self._follow(self._bury(member))
        await self.start(place)

    async def stop(self, place: int, for_s: float) -> None:
        member = self.members[place]
        assert member
        at = time.time()
        member.frozen = True
        member.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        member.process.send_signal(signal.SIGCONT)
        member.frozen = False
        self.harms.append(Harm(at, "stop", member.pid, time.time()))

    async def term(self, place: int, grace_s: float | None = None) -> None:
        """Terminate a process as a rolling update does, and start another meanwhile. Kill it after `grace_s`."""
        member = self._take_out(place, "term")
        member.process.terminate()
        self._follow(self._see_off(member) if grace_s is None else self._hurry(member, grace_s))
        await self.start(place)

    async def settle(self) -> None:
        await asyncio.gather(*self._leaving)
        for _ in range(5):
            await self.start_all()

    def look(self) -> None:
        for member in self.members:
            if member and member.url and not member.condemned and member.process.poll() is not None:
                member.condemned, member.url = True, ""
                last = "\n".join((member.folder / "service.log").read_text().splitlines()[-5:])
                self.complaints.append(f"process {member.pid} ended by itself: {last}")

    def tracebacks(self) -> list[str]:
        """Return a complaint for each traceback in the processes' logs."""
        logs = [(folder.name, (folder / "service.log").read_text()) for folder in self.folder.glob("process-*")]
        return [
            f"{name} logs a traceback: {text[text.index(TRACEBACK) :][-300:]}"
            for name, text in logs
            if TRACEBACK in text
        ]

    async def orphans(self) -> list[str]:
        """Return the children of dead processes that are still alive after a while."""
        end = time.monotonic() + GONE_S
        alive = self._children
        while alive and time.monotonic() < end:
            await asyncio.sleep(0.1)
            alive = [child for child in alive if child.is_running()]
        named = []
        for child in alive:
            with suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    named.append(f"process {child.pid} outlived its parent: {' '.join(child.cmdline())[:100]}")
        return named

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for member in self.members:
            if member:
                member.process.kill()
                await asyncio.to_thread(member.process.wait, GONE_S)
                _close(member)
        for child in self._children:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def _take_out(self, place: int, kind: str) -> Member:
        member = self.members[place]
        assert member
        member.condemned = True
        self.members[place] = None
        with suppress(psutil.NoSuchProcess):
            self._children += psutil.Process(member.pid).children(recursive=True)
        self.harms.append(Harm(time.time(), kind, member.pid))
        return member

    def _follow(self, end: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(end)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _bury(self, member: Member) -> None:
        await asyncio.to_thread(_wait, member.process, GONE_S)
        _close(member)

    async def _hurry(self, member: Member, grace_s: float) -> None:
        if await asyncio.to_thread(_wait, member.process, grace_s) is None:
            member.process.kill()
            self.harms.append(Harm(time.time(), "kill", member.pid))
        await self._bury(member)

    async def _see_off(self, member: Member) -> None:
        try:
            status = await asyncio.to_thread(_wait, member.process, DRAIN_S + GONE_S)
            if status:
                self.complaints.append(f"process {member.pid} was asked to go and ended with {status}")
        finally:
            if member.process.poll() is None:
                self.complaints.append(f"process {member.pid} was asked to go and did not")
                member.process.kill()
                member.process.wait(GONE_S)
            _close(member)


def _wait(process: subprocess.Popen[str], timeout_s: float) -> int | None:
    """Wait in steps, so that the thread of an abandoned wait ends soon."""
    end = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return process.poll()


def _close(member: Member) -> None:
    if member.process.stdout:
        member.process.stdout.close()
