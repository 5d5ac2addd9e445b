"""The service below `tini`, as in the image: orphans are reaped, signals arrive once, the exit status is passed on."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.debian import path_or_skip
from tests.support.killed_turns import WITHOUT_CODE, make_killed_turn, submit_killed_turn
from tests.support.service import PATIENCE_S, Service, wait_until
from tests.support.tiers import deep
from tests.support.turns import wait_for_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers and pid namespaces")

TINI = ("tini", "-s", "--")
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
MAY_UNSHARE = os.getuid() == 0 and shutil.which("unshare")


@pytest.fixture(autouse=True)
def _tini() -> None:
    path_or_skip("tini")


@contextmanager
def running(service: Service) -> Iterator[None]:
    """Run the service. `unshare` ignores signals, so a failed test needs a kill."""
    with service:
        try:
            yield
        finally:
            service.process.kill()


def first_of(service: Service) -> psutil.Process:
    process = psutil.Process(service.process.pid)
    return process if service.wrapper == TINI else process.children()[0]


def zombies(service: Service) -> list[psutil.Process]:
    below = first_of(service).children(recursive=True)
    return [process for process in below if process.status() == psutil.STATUS_ZOMBIE]


@deep
def test_the_children_of_a_killed_process_are_reaped(tmp_path: Path) -> None:
    settings = {"AGENTS": "scripted=tests.support.agents:make_scripted"}
    service = Service(tmp_path, settings, command=("serve", "--processes", "2"), wrapper=TINI)
    with running(service):
        (supervisor,) = first_of(service).children()
        victim = next(child for child in supervisor.children() if "--slot" in child.cmdline())
        left = victim.children(recursive=True)
        assert left, "the server of processes for code"
        victim.kill()
        wait_until(lambda: "died of signal 9; starting it again" in service.log())
        wait_until(lambda: not any(process.is_running() for process in left))
        wait_until(lambda: service.log().count(" is pid ") == 3)
        wait_until(lambda: not zombies(service))
        assert service.play({"say": "hi"})["reply"] == "hi"
        first_of(service).send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in service.log()


def test_a_signal_arrives_once_and_the_exit_status_is_that_of_the_service(tmp_path: Path) -> None:
    """In a pid namespace if this user may make one: the kernel drops signals that its first process does not handle."""
    it = make_killed_turn(tmp_path, 2)
    settings = WITHOUT_CODE | {"DRAIN_S": "600"}
    wrapper = (*NEW_NAMESPACE, *TINI) if MAY_UNSHARE else TINI
    service = Service(tmp_path / "service", settings, wrapper=wrapper)
    with running(service):
        submit_killed_turn(service, it)
        wait_until(lambda: it.ledger.stands)
        first_of(service).send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping: 1 turns finish their step" in service.log())
        it.ledger.go()
        assert service.process.wait(PATIENCE_S) == 0
        assert "is handed back" in service.log()
    with running(service):
        assert wait_for_end(service, it.turn)["reply"] == "done"
        (child,) = first_of(service).children()
        child.kill()
        assert service.process.wait(PATIENCE_S) == 128 + signal.SIGKILL
