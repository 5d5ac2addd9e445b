"""Calls that authors' tools and predicates make themselves, over a crash. Models that give no ids to calls."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import data
from tests.support.service import Service, wait_until
from tests.support.turns import DONE, wait_for_end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the agents' file, in which another file has the name of a standard module."""
    folder = tmp_path_factory.mktemp("authors")
    (folder / "authors.py").write_text(data("authors.txt"))
    (folder / "json.py").write_text("raise RuntimeError('this is not the json of Python')\n")
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    agents = ",".join(f"{name}={folder / 'authors.py'}:make_{name}" for name in ("coder", "judged", "nameless"))
    with Service(folder / "service", {"AGENTS": agents, "DEMO_AGENTS": "0"}, {"FOLDER": str(folder)}) as running:
        yield running


def consult(text: str) -> dict[str, Any]:
    return {"call": [["consult", {"text": text}]]}


@pytest.mark.parametrize(
    ("agent", "crash", "script"),
    [
        ("coder", "crash1", [{"code": "final_answer(consult('first') + ', ' + consult('crash1'))"}]),
        ("judged", "crash2", [consult("first"), consult("crash2"), {"say": "heard first, heard crash2"}]),
    ],
)
def test_replays_inner_calls(
    service: Service, folder: Path, agent: str, crash: str, script: list[dict[str, Any]]
) -> None:
    (folder / "asked").write_text("")
    body = {"agent": agent, "message": json.dumps(script)}
    turn = service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).json()
    wait_until(lambda: (folder / crash).exists() and service.process.poll() is not None)
    service.stop()
    service.start()
    ended = wait_for_end(service, turn)
    assert (ended["status"], ended["reply"]) == ("finished", f"heard first, heard {crash}"), ended["error"]
    assert (folder / "asked").read_text().split() == ["first", crash, crash]


def test_parallel_calls_without_ids_are_made(service: Service) -> None:
    calls = {"call": [["echo", {"text": "one"}], ["echo", {"text": "two"}]]}
    turn = service.play(calls, DONE, agent="nameless")
    assert (turn["status"], turn["tool_call_names"]) == ("finished", ["echo", "echo"]), turn["error"]
    assert service.steps(turn)[1]["observations"] == "one\ntwo"
