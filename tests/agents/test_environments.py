"""Environments: another Python or smolagents continues conversations, and an unknown smolagents starts no process."""

import importlib
import re
import shutil
import socket
import sys
import tomllib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import smolagents

from smolsessions.agents import compatibility
from smolsessions.core.errors import StartError
from tests.support import old_data
from tests.support.data import table
from tests.support.environments import OLDEST_SMOLAGENTS, debians, environment
from tests.support.killed_turns import SETTINGS, kill_when_blocked, make_killed_turn, submit_killed_turn
from tests.support.old_data import TALKS, OldData
from tests.support.old_data_checks import FILES, MORE, assert_holds, messages_of, restored
from tests.support.service import AGENTS, PLAIN, ROOT, Service, run, run_program, wait_until
from tests.support.store_server import SEAL_KEY, running_store
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import DONE, wait_for_end
from tests.topology.node import DURABLE, HOST, Node

OF_LIBRARIES = "import re, datetime\nfrom math import floor\nflag, day = re.IGNORECASE, datetime.date(2026, 4, 1)\n"
AS_BARE_SMOLAGENTS = (
    "tests/memory/test_step_bytes.py::test_every_step_of_a_run_is_finished_and_comes_back",
    "tests/agents/test_constructors.py",
    "tests/agents/test_partial_texts.py",
)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> str:
    return debians(tmp_path_factory.mktemp("debian"))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment with the oldest smolagents that is supported."""
    return environment(tmp_path_factory.mktemp("older"), OLDEST_SMOLAGENTS)


@pytest.fixture(params=mostly_deep(["debian", "older"], fast=["older"]))
def python(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@deep
@pytest.mark.parametrize("first", ["other", "own"])
def test_one_environment_continues_what_the_other_wrote(first: str, python: str, tmp_path: Path) -> None:
    pythons = [python, sys.executable] if first == "other" else [sys.executable, python]
    with running_store(tmp_path / "store") as server:
        settings = server.settings | {"AGENTS": f"{AGENTS},coloured=tests.support.odd:make_coloured"}
        with Service(tmp_path / "first", settings, python=pythons[0]) as service:
            turns = {name: old_data.play_as_new(service, name) for name in TALKS}
            coloured = service.play({"call": [["coloured", {}]]}, {"say": "done"}, agent="coloured")
            code = service.play({"code": f"{OF_LIBRARIES}final_answer(flag)"}, agent="code")
            said = old_data.say_all(service)
        assert {turn["status"] for turn in (*turns.values(), coloured, code)} == {"finished", "failed"}
        with Service(tmp_path / "second", settings, python=pythons[1]) as service:
            assert old_data.say_all(service) == said
            for name, turn in turns.items():
                again = old_data.play_as_new(service, name, f"{name}-again")
                assert messages_of(service, turn) == messages_of(service, again)
                for entry, reply in MORE.get(name, ()):
                    assert service.follow_up(turn, entry)["reply"] == reply
            assert service.follow_up(coloured, {"say": "on"})["reply"] == "on"
            entry = {"code": "final_answer([flag is re.IGNORECASE, str(day), floor(2.5)])"}
            assert service.follow_up(code, entry)["output"] == [True, "2026-04-01", 2]


def test_another_environment_reads_and_continues_data_of_earlier_releases(python: str, tmp_path: Path) -> None:
    old = OldData.at(FILES[0])
    with (
        restored(old, tmp_path / "store") as (_, settings),
        Service(tmp_path / "service", settings, python=python) as service,
    ):
        now: Any = old_data.say_all(service)
        for path, then in old.said.items():
            assert_holds(now[path], then, path)
        assert service.play({"say": "on"}, conversation_id="tools")["reply"] == "on"


@deep
@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", ["other", "own"])
def test_a_turn_that_another_smolagents_began_is_continued(first: str, older: str, tmp_path: Path) -> None:
    pythons = [older, sys.executable] if first == "other" else [sys.executable, older]
    for agent in ("teller", "writer"):
        (tmp_path / agent).mkdir()
    ledger = tmp_path / "writer" / "turn.ledger"
    script = [{"code": f"import time\nfor _ in range(2):\n    note(str(time.time()), {str(ledger)!r})"}, DONE]
    its = [
        make_killed_turn(tmp_path / "teller", 4, agent="teller"),
        make_killed_turn(tmp_path / "writer", 3, agent="writer", script=script),
    ]
    service = Service(tmp_path / "service", SETTINGS | {"DRAIN_S": "1"}, python=pythons[0])
    service.start()
    for it in its:
        submit_killed_turn(service, it)
    kill_when_blocked(service, its)
    service.python = pythons[1]
    with service:
        for it in its:
            ended = wait_for_end(service, it.turn)
            assert (ended["status"], ended["attempts"]) == ("finished", 2), ended["error"]
            notes = [call for call in it.ledger.calls if call.startswith("note")]
            assert sorted(Counter(notes).values()) == [1, 2]
            assert [call["repeated"] for call in ended["tool_calls"]] == [False, True]
            assert service.follow_up(it.turn, DONE)["status"] == "finished"


@deep
def test_the_oldest_smolagents_is_hosted_as_it_is(older: str) -> None:
    command = [older, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", *AS_BARE_SMOLAGENTS]
    ended = run_program(command, cwd=ROOT, timeout=580)
    assert not ended.returncode, ended.stdout[-5000:]


def test_an_older_python_outlives_an_address_of_the_store_that_takes_no_connection(tmp_path: Path, debian: str) -> None:
    node = Node(tmp_path / "store", DURABLE)
    node.start()
    settings = PLAIN | {"REDIS_URL": f"redis://{HOST}:{node.port}", "SEAL_KEYS": SEAL_KEY}
    try:
        with Service(tmp_path / "service", settings, python=debian) as service:
            node.kill()
            with ExitStack() as sockets:
                deaf = sockets.enter_context(socket.socket())
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                deaf.bind((HOST, node.port))
                deaf.listen(0)
                for _ in range(3):  # a full queue drops all connections after them
                    waiting = sockets.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex((HOST, node.port))
                wait_until(lambda: "Timeout connecting" in service.log() or service.process.poll() is not None)
            node.start()
            wait_until(lambda: "is back" in service.log() or service.process.poll() is not None)
            assert service.process.poll() is None, service.log()
            assert "met a defect" not in service.log()
    finally:
        node.kill()


def test_the_package_asks_for_the_releases_that_a_process_starts_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = f">={compatibility.OLDEST},<{compatibility.NEXT}"
    assert f"smolagents{asked}" in project["dependencies"]
    assert project["optional-dependencies"]["openai"] == [f"smolagents[openai]{asked}"]


@pytest.mark.parametrize("release", ["1.23.9", "1.27.0.dev0", "2.0"])
def test_a_release_out_of_range_is_refused(release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / f"smolagents-{release}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: smolagents\nVersion: {release}\n")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = f"smolagents {release} is installed, and this release supports 1.24 and later, before 1.27; install"
    with pytest.raises(StartError, match=re.escape(sentence)):
        compatibility.check_smolagents.__wrapped__()


BREAKS: Any = table("compatibility breaks")


@pytest.mark.parametrize("what", mostly_deep(BREAKS, fast=["a parameter", "the course of a run"]))
def test_a_smolagents_that_is_not_as_it_was_is_refused(what: str, tmp_path: Path) -> None:
    file, was, now, told = BREAKS[what]
    copy = tmp_path / "path" / "smolagents"
    shutil.copytree(Path(importlib.import_module("smolagents").__file__ or "").parent, copy)
    text = (copy / file).read_text()
    assert was in text
    (copy / file).write_text(text.replace(was, now))
    status, _, said = run(tmp_path / "service", {}, PYTHONPATH=str(tmp_path / "path"))
    assert status == 2
    assert f"smolagents {smolagents.__version__} is installed, but it is not as this release needs it" in said
    assert told in said
    assert "Traceback" not in said
