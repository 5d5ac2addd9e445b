"""The service as the first process of a container: it reaps what nobody waits for, and ends as it does elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.doomed import SETTINGS, Doomed, noting
from tests.support.ledgers import Ledger
from tests.support.service import Service
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to whom a program chooses")

SOON_S = 20.0
SUBREAPER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
GIVEN_ORPHANS = (sys.executable, "-c", SUBREAPER)
FIRST_OF_ALL = ("unshare", "--pid", "--fork", "--kill-child")
CAN_BE_FIRST = os.getuid() == 0 and shutil.which("unshare")


@contextmanager
def running(service: Service) -> Iterator[None]:
    """Run it; `unshare` heeds no signal, so what a failed test leaves is killed."""
    with service:
        try:
            yield
        finally:
            service.process.kill()


def first_of(service: Service) -> psutil.Process:
    """Give the process that orphans come to; there it is the wrapper, or the wrapper's child."""
    process = psutil.Process(service.process.pid)
    return process.children()[0] if service.wrapper == FIRST_OF_ALL else process


def zombies(service: Service) -> list[psutil.Process]:
    below = first_of(service).children(recursive=True)
    return [process for process in below if process.status() == psutil.STATUS_ZOMBIE]


def test_what_a_killed_process_of_a_set_leaves_behind_is_reaped(tmp_path: Path) -> None:
    settings = {"AGENTS": "scripted=tests.support.agents:make_scripted"}
    service = Service(tmp_path, settings, command=("serve", "--processes", "2"), wrapper=GIVEN_ORPHANS)
    with running(service):
        (supervisor,) = first_of(service).children()
        victim = next(child for child in supervisor.children() if "--place" in child.cmdline())
        left = victim.children(recursive=True)
        assert left, "the server of processes for code"
        victim.kill()
        wait_until(lambda: "died of signal 9; starting it again" in service.log(), SOON_S)
        wait_until(lambda: not any(process.is_running() for process in left), SOON_S)
        wait_until(lambda: service.log().count(" is pid ") == 3, SOON_S)
        wait_until(lambda: not zombies(service))
        assert service.play({"say": "hi"})["reply"] == "hi"
        first_of(service).send_signal(signal.SIGTERM)
        assert service.process.wait(SOON_S) == 0
    assert "Traceback" not in service.log()


def test_a_signal_is_passed_on_once_and_the_status_is_the_services(tmp_path: Path) -> None:
    """Really as the first of all processes, where this user may: the system keeps signals from one that has no use."""
    ledger = Ledger.at(tmp_path / "turn.ledger", 2)
    it = Doomed(ledger, "teller", [noting(str(ledger.path), "a"), noting(str(ledger.path), "b"), DONE])
    settings = SETTINGS | {"DRAIN_S": "600"}
    wrapper = FIRST_OF_ALL if CAN_BE_FIRST else GIVEN_ORPHANS
    service = Service(tmp_path / "service", settings, wrapper=wrapper)
    with running(service):
        it.turn = submit_turn(service, *it.script, agent=it.agent)
        wait_until(lambda: ledger.stands)
        first_of(service).send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping: 1 turns finish their step" in service.log())
        ledger.go()
        assert service.process.wait(SOON_S) == 0
        assert "is handed back" in service.log()
    with running(service):
        assert wait_for_end(service, it.turn)["reply"] == "done"
        (child,) = first_of(service).children()
        child.kill()
        assert service.process.wait(SOON_S) == 128 + signal.SIGKILL
