"""Conversations move between environments: another Python reads and continues them, and writes no less."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import old_data
from tests.environments import debians
from tests.old_data import TALKS, OldData
from tests.service import AGENTS, Service
from tests.test_old_data import FILES, MORE, assert_holds, messages_of, restored
from tests.test_store import running

if TYPE_CHECKING:
    from pathlib import Path

WITH_ENUMS = {"AGENTS": f"{AGENTS},coloured=tests.odd:make_coloured"}
OF_LIBRARIES = "import re, datetime\nfrom math import floor\nflag, day = re.IGNORECASE, datetime.date(2026, 4, 1)\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return debians(tmp_path_factory.mktemp("debian"))


@pytest.mark.parametrize("first", ["other", "own"])
def test_one_python_continues_what_the_other_wrote(first: str, python: str, tmp_path: Path) -> None:
    pythons = [python, sys.executable] if first == "other" else [sys.executable, python]
    with running(tmp_path / "store") as server:
        settings = server.settings | WITH_ENUMS
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


def test_another_python_reads_and_continues_data_of_earlier_releases(python: str, tmp_path: Path) -> None:
    old = OldData.at(FILES[0])
    with (
        restored(old, tmp_path / "store") as (_, settings),
        Service(tmp_path / "service", settings, python=python) as service,
    ):
        now: Any = old_data.say_all(service)
        for path, then in old.said.items():
            assert_holds(now[path], then, path)
        assert service.play({"say": "on"}, conversation_id="tools")["reply"] == "on"
