"""Going back in time: forks and rollbacks are what a conversation is that stopped at that turn, and nothing else."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from tests import rememberers
from tests.problems import nothing_stored, problem
from tests.service import Service
from tests.streaming import log_of
from tests.test_busy import follow, held
from tests.test_owners import ADA, BOB, ask, line, make, say
from tests.test_stop import DONE, ECHO, stop, wait
from tests.test_store import P, Raw, Server, begin, keys_of, over, png, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.streaming import Event

pytest_plugins = ["tests.streaming"]

SETTINGS = {"AGENTS": rememberers.AGENTS, "DEMO_AGENTS": "0", "THREADS": "16"}
PROMPT: Event = {"prompt": True}
KINDS = ["rememberer", "code-rememberer"]
FAILED, STOPPED, UNBEGUN, REPLACED = "failed", "stopped", "unbegun", "replaced"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("store")) as outside:
        yield outside


@pytest.fixture(scope="module")
def service(store: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), SETTINGS | store.settings) as running_service:
        yield running_service


@pytest.fixture
def raw(store: Server) -> Iterator[Raw]:
    with Redis(unix_socket_path=str(store.socket_path)) as client:
        yield client


@dataclass
class Past:
    """The turns of a conversation: each a script, a body and how it comes to its end."""

    agent: str
    folder: Path
    gates: int = 0
    turns: list[tuple[list[Event], dict[str, Any], str]] = field(default_factory=list)

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def play(self, service: Service, conversation: str, first: int, last: int) -> None:
        """Play some of them, counted from 1; where a turn takes two numbers so does this."""
        for script, body, how in self.turns[first - 1 : last]:
            self._play(service, script, how, agent=self.agent, conversation_id=conversation, **body)

    def _play(self, service: Service, script: list[Event], how: str, **body: Any) -> None:
        if not how:
            assert service.play(*script, **body)["status"] == "finished"
            return
        if how == FAILED:
            assert service.play(*script, **body)["status"] == "failed"
            return
        for left in (self.gate, self.gate.with_name("gate.started")):
            left.unlink(missing_ok=True)
        with held(service, self.gate, **body) as turn:
            if how == STOPPED:
                stop(service, turn)
            elif how == UNBEGUN:
                second = follow(service, turn, DONE)
                assert stop(service, second).json()["status"] == "cancelled"
            elif how == REPLACED:
                second = follow(service, turn, *script, on_busy="rollback")
        assert over(service, turn)["status"] == ("finished" if how == UNBEGUN else "cancelled")
        if how == REPLACED:
            assert over(service, second)["status"] == "finished"


def past_of(kind: str, folder: Path) -> Past:
    """Give a past with all that can be in one."""

    def words(word: str) -> list[Event]:
        return [{"call": [["shelf", {"word": word}]]}, {"call": [["note_write", {"text": f"noted {word}"}]]}, DONE]

    def code(word: str) -> list[Event]:
        lines = f"n = n + 1 if 'n' in dir() else 1\nwords = {word!r}\nprint(shelf({word!r}), note_write({word!r}))"
        return [{"code": lines.replace("n = n + 1 if 'n' in dir() else 1\n", "")}, {"code": f"{word}_x = 1"}, DONE]

    does = code if kind == "code-rememberer" else words
    plain: list[tuple[list[Event], dict[str, Any], str]] = [
        (does("one"), {}, ""),
        (does("two"), {"images": [png("red")], "additional_args": {"who": "Ann"}}, ""),
        ([ECHO, {"raise": "no more"}], {}, FAILED),
        (does("three"), {"reset": True}, ""),
        ([ECHO, ECHO, DONE], {"max_steps": 1}, ""),
        ([DONE], {}, STOPPED),
        (does("four"), {"images": [png("blue")], "additional_args": {"who": "Bo", "age": 3}}, ""),
    ]
    return Past(kind, folder, turns=[(script, body, how) for script, body, how in plain])


def probe(service: Service, conversation: str, kind: str) -> Any:
    """Tell all that a conversation's next turn sees: its prompt, its variables, its tools' state."""
    shelf: Event = {"call": [["shelf", {"word": "probe"}]]}
    names = ("words", "one_x", "two_x", "three_x", "four_x", "who", "age")
    look = [{"code": f"print({name})"} for name in names] + [{"code": "print(shelf('probe'), note_read())"}]
    script = look if kind == "code-rememberer" else [shelf, {"call": [["note_read", {}]]}]
    body = {"agent": kind, "conversation_id": conversation, "max_steps": 20}
    first = service.play(PROMPT, **body)
    second = service.play(*script, PROMPT, **body)
    assert second["status"] == "finished", second
    told = [step.get("observations") or step.get("error") for step in service.steps(second)[-len(script) - 1 : -1]]
    return first["reply"], told


def new(service: Service, kind: str) -> str:
    made: str = service.post("/conversations", agent=kind).json()["id"]
    return made


def fork(service: Service, conversation: str, **body: Any) -> dict[str, Any]:
    response = service.post(f"/conversations/{conversation}/fork", **body)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/conversations/{made['id']}"
    return made


def roll_back(service: Service, conversation: str, turn: int) -> dict[str, Any]:
    response = service.post(f"/conversations/{conversation}/rollback", turn=turn)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def record_of(service: Service, conversation: str) -> tuple[Any, Any, Any]:
    """Give all that is on record of a conversation, but for its name."""
    where = f"/conversations/{conversation}"
    found = service.get(where)
    steps = service.get(f"{where}/steps", limit=100, archived="true")["items"]
    turns = service.get(f"{where}/turns", limit=100)["items"]
    plain = json.dumps([steps, turns]).replace(conversation, "")
    return found["step_counts"], found["archived_steps"], json.loads(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_at_any_turn_is_what_a_conversation_is_that_stopped_there(
    service: Service, tmp_path: Path, kind: str
) -> None:
    past = past_of(kind, tmp_path)
    whole = new(service, kind)
    expected = []
    for last in range(len(past.turns) + 1):
        short = new(service, kind)
        past.play(service, short, 1, last)
        expected.append(probe(service, short, kind))
    past.play(service, whole, 1, len(past.turns))
    before = record_of(service, whole)
    forks = [fork(service, whole, turn=turn) for turn in range(len(past.turns) + 1)]
    for turn, (made, probed) in enumerate(zip(forks, expected, strict=True)):
        assert made["turns"] == turn
        assert made["forked_from"] == {"conversation_id": whole, "turn": turn}
        assert probe(service, made["id"], kind) == probed, turn
    assert record_of(service, whole) == before
    assert probe(service, fork(service, whole)["id"], kind) == expected[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_to_any_turn_and_forward_again_is_what_the_conversation_was_then(
    service: Service, tmp_path: Path, kind: str
) -> None:
    past = past_of(kind, tmp_path)
    whole, expected = new(service, kind), []
    for last in range(len(past.turns) + 1):
        past.play(service, whole, last, last)
        expected.append(probe(service, fork(service, whole)["id"], kind))
    last = len(past.turns)
    steps = service.get(f"/conversations/{whole}/steps", limit=100)["items"]
    for turn in (6, 3, 0, 7, 4, 1, 5, 2):
        found = roll_back(service, whole, turn)
        assert found["turns"] == last
        assert probe(service, whole, kind) == expected[turn], turn
        last += 2
        assert service.get(f"/conversations/{whole}")["turns"] == last
    record = service.get(f"/conversations/{whole}/steps", limit=100, archived="true")["items"]
    assert [step["index"] for step in record] == [*range(len(record))]
    for was, now in zip(steps, record, strict=False):
        assert {**was, "rolled_back": 0, "hidden": 0} == {**now, "rolled_back": 0, "hidden": 0}


@pytest.mark.parametrize("how", [UNBEGUN, REPLACED])
def test_turns_that_were_cancelled_while_they_waited_or_taken_back_count_as_they_left_it(
    service: Service, tmp_path: Path, how: str
) -> None:
    past = Past("rememberer", tmp_path, turns=[([ECHO, DONE], {}, ""), ([ECHO, DONE], {}, how), ([DONE], {}, "")])
    whole, expected = new(service, "rememberer"), []
    for last, turns in enumerate((0, 1, 3, 4)):
        past.play(service, whole, last, last)
        assert service.get(f"/conversations/{whole}")["turns"] == turns
        expected.append(probe(service, fork(service, whole)["id"], "rememberer"))
    for turn, state in ((2, 2 if how == UNBEGUN else 1), (3, 2), (4, 3), (1, 1)):
        assert probe(service, fork(service, whole, turn=turn)["id"], "rememberer") == expected[state]
        roll_back(service, whole, turn)
        assert probe(service, whole, "rememberer") == expected[state]


def test_a_turn_that_was_cancelled_after_a_rollback_is_after_it(tmp_path: Path, store: Server, raw: Raw) -> None:
    with Service(tmp_path / "s", SETTINGS | store.settings | {"THREADS": "1"}) as narrow:
        turn = narrow.play({"say": "one"})
        name = turn["conversation_id"]
        narrow.follow_up(turn, {"say": "two"})
        roll_back(narrow, name, 1)
        with held(narrow, tmp_path / "gate"):
            unbegun = begin(narrow, DONE, conversation_id=name)
            assert stop(narrow, unbegun).json()["status"] == "cancelled"
        narrow.follow_up(turn, {"say": "four"})
        rolled_back = [each["rolled_back"] for each in narrow.get(f"/conversations/{name}/turns")["items"]]
        assert rolled_back == [False, True, False, False]
        for made in (fork(narrow, name, turn=3), roll_back(narrow, name, 3)):
            turns = narrow.get(f"/conversations/{made['id']}/turns")["items"]
            assert [each["rolled_back"] for each in turns] == [False, True, False, True][: len(turns)]
            assert [step["turn"] for step in narrow.get(f"/conversations/{made['id']}/steps")["items"]] == [1, 1]
    assert raw.hkeys(f"{P}:moments:local/{name}") == [b"1", b"2", b"3", b"4"]


def test_a_fork_of_a_conversation_that_was_rolled_back_is_as_that_one_is_now(service: Service) -> None:
    turn = service.play({"say": "one"})
    service.follow_up(turn, {"say": "two"})
    roll_back(service, turn["conversation_id"], 1)
    made = fork(service, turn["conversation_id"])
    assert record_of(service, made["id"]) == record_of(service, turn["conversation_id"])
    assert [each["rolled_back"] for each in service.get(f"/conversations/{made['id']}/turns")["items"]] == [False, True]
    early = fork(service, turn["conversation_id"], turn=2)
    turns = service.get(f"/conversations/{early['id']}/turns")["items"]
    assert [each["rolled_back"] for each in turns] == [False, False]
    assert early["step_counts"] == {"task": 2, "action": 2}
    assert roll_back(service, made["id"], 2)["step_counts"] == {"task": 2, "action": 2}


def test_numbers_are_not_used_again_and_records_say_what_became_of_them(service: Service) -> None:
    turn = service.play(ECHO, {"say": "one"})
    name = turn["conversation_id"]
    for text in ("two", "three"):
        service.follow_up(turn, ECHO, {"say": text})
    found = roll_back(service, name, 1)
    assert (found["turns"], found["step_counts"], found["archived_steps"]) == (3, {"task": 1, "action": 2}, 6)
    assert service.follow_up(turn, {"say": "four"})["turn"] == 4
    turns = service.get(f"/conversations/{name}/turns")["items"]
    assert [(each["turn"], each["reply"], each["rolled_back"]) for each in turns] == [
        (1, "one", False),
        (2, "two", True),
        (3, "three", True),
        (4, "four", False),
    ]
    assert service.get(f"/conversations/{name}/turns/2")["rolled_back"] is True
    assert [step["turn"] for step in service.get(f"/conversations/{name}/steps")["items"]] == [1, 1, 1, 4, 4]
    steps = service.get(f"/conversations/{name}/steps", archived="true")["items"]
    assert [(step["turn"], step["rolled_back"]) for step in steps] == [
        *[(1, False)] * 3,
        *[(2, True)] * 3,
        *[(3, True)] * 3,
        *[(4, False)] * 2,
    ]
    roll_back(service, name, 3)
    turns = service.get(f"/conversations/{name}/turns")["items"]
    assert [each["rolled_back"] for each in turns] == [False, False, False, True]
    roll_back(service, name, 0)
    assert service.get(f"/conversations/{name}/steps")["items"] == []
    assert service.get(f"/conversations/{name}/messages")["messages"][1:] == []
    assert [each["rolled_back"] for each in service.get(f"/conversations/{name}/turns")["items"]] == [True] * 4


def test_many_rollbacks_in_a_row_leave_one_trace(service: Service, raw: Raw) -> None:
    turn = service.play({"say": "one"})
    name = turn["conversation_id"]
    roll_back(service, name, 0)
    size = raw.hstrlen(f"{P}:conversation:local/{name}", "terms")
    for number in range(50):
        roll_back(service, name, number % 2)
    assert raw.hstrlen(f"{P}:conversation:local/{name}", "terms") <= size + 4
    assert roll_back(service, name, 1)["step_counts"] == {"task": 1, "action": 1}
    assert service.get(f"/conversations/{name}/turns/1")["rolled_back"] is False


def test_a_fork_lives_on_by_itself(service: Service, store: Server, tmp_path: Path, raw: Raw) -> None:
    kind = "code-rememberer"
    past = past_of(kind, tmp_path)
    whole = new(service, kind)
    past.play(service, whole, 1, 2)
    first = fork(service, whole, metadata={"branch": 1})
    assert first["metadata"] == {"branch": 1}
    past.play(service, whole, 3, 4)
    second = fork(service, fork(service, first["id"])["id"], turn=1)
    assert (first["forked_from"]["turn"], second["forked_from"]["turn"]) == (2, 1)
    record, kept = record_of(service, whole), record_of(service, first["id"])
    expected = probe(service, fork(service, first["id"])["id"], kind)
    before = log_of(service, {"conversation_id": first["id"], "turn": 2})
    assert [frame.event for frame in before] == ["turn.finished"]
    past.play(service, fork(service, whole, turn=2)["id"], 3, 7)
    assert record_of(service, whole) == record
    assert service.client.delete(f"/conversations/{whole}").status_code == 204
    (image,) = [
        step["images"][0] for step in service.get(f"/conversations/{first['id']}/steps")["items"] if step.get("images")
    ][:1]
    assert service.client.get(image["url"]).content[:4] == b"\x89PNG"
    with Service(tmp_path / "cold", SETTINGS | store.settings) as cold:
        assert record_of(cold, first["id"]) == kept
        assert cold.client.get(image["url"]).status_code == 200
        assert probe(cold, first["id"], kind) == expected
        assert probe(cold, second["id"], kind) == probe(cold, fork(cold, first["id"], turn=1)["id"], kind)
        roll_back(cold, first["id"], 1)
        assert probe(cold, first["id"], kind) == probe(cold, fork(cold, first["id"], turn=1)["id"], kind)
        for name in (first["id"], second["id"]):
            assert cold.client.delete(f"/conversations/{name}").status_code == 204
            assert {kept for kept in keys_of(raw, {"conversation_id": name}) if not kept.startswith("log:")} == {
                "conversation:C"
            }
