"""Checks of services that run on the stored data of earlier releases."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smolsessions.core.times import seconds_of
from tests.support import old_data
from tests.support.old_data import OldData
from tests.support.service import Service
from tests.support.store_server import StoreServer, running_store

ALL = sorted((Path(__file__).parents[1] / "data").glob("format-*.json.gz"))
FILES = [path for path in ALL if "-memory" not in path.name]
RENAMED = {
    "state": ("outcome",),
    "steps": ("step_count",),
    "turns": ("turn_count",),
    "gone": ("lost", "removed"),
    "told": ("reported",),
}
MORE: dict[str, list[tuple[old_data.Json, str]]] = {
    "code": [
        ({"code": "final_answer(f'{x} {twice(y)} {day.year}')"}, "{'ü': [1, 2.5, None]} 4 2026"),
        ({"code": "x['ü'] = 'новое'\nfinal_answer(x)"}, '{"ü": "новое"}'),
        ({"code": "final_answer(x['ü'])"}, "новое"),
    ],
    "carried": [({"code": "final_answer(m.amount)"}, "7")],
}


@contextmanager
def restored(old: OldData, folder: Path) -> Iterator[tuple[StoreServer, dict[str, str]]]:
    """Yield a store that holds the old data, and the settings of a service on it."""
    with running_store(folder) as server:
        with server.client() as raw:
            old.put(raw)
        yield server, server.settings | {"SEAL_KEYS": old.seal_key}


def assert_holds(now: Any, then: Any, where: str) -> None:
    """Check that all earlier answers still hold. An object may have additional members.

    The files are older than the names of now, and than errors with a code. A system prompt is not stored: it is made
    of the agent's tools of now.
    """
    if isinstance(then, dict) and then.get("role") == "system":
        assert now["role"] == "system", where
    elif isinstance(then, dict):
        assert isinstance(now, dict), where
        for name, member in then.items():
            if not (where.endswith(" error") and name == "type"):
                shown = next(each for each in (name, *RENAMED.get(name, ())) if each in now)
                assert_holds(now[shown], member, f"{where} {name}")
    elif where.endswith(" error") and then is not None:
        assert now["message"] == then, where
    elif isinstance(then, float) and isinstance(now, str):  # a time of an export
        assert abs(seconds_of(now) - then) < 1e-6, where
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for place, (one, other) in enumerate(zip(now, then, strict=True)):
            assert_holds(one, other, f"{where} {place}")
    elif not re.search("left_out (characters|tokens)$", where):  # a forced answer is shown in other words since
        assert now == then, where


def assert_says_all(service: Service, old: OldData, *, memory: bool = False) -> old_data.Json:
    """Check that a service gives all answers of an earlier release, and return its own."""
    now = old_data.say_all(service, memory=memory)
    assert now.keys() == old.said.keys()
    for path, then in old.said.items():
        assert_holds(now[path], then, path)
    return now


def messages_of(service: Service, turn: old_data.Json) -> str:
    """Return the messages that the model is shown next, without the name of the conversation."""
    name = turn["conversation_id"]
    shown = service.get(f"/conversations/{name}/prompt")["messages"]
    return json.dumps(shown).replace(f"/conversations/{name}/", "/")
