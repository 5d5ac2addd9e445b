"""What code has defined lasts: over turns, processes, stops and deaths; what is changed in the store is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.test_code import BUSY, DONE, children, code, played, printed, shown, until_none
from tests.store.test_store import P, begin, code_of, over, running, until
from tests.support.service import Service
from tests.worker.test_stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.store.test_store import Raw, Server
    from tests.support.streaming import Event

pytest_plugins = ["tests.support.streaming"]

GONE = "These variables of earlier code could not be kept and are gone"
LOCK = "import threading\nlock = threading.Lock()\nlocks = 1"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("outside")) as server:
        yield server


@pytest.fixture(scope="module")
def cold(outside: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Give a service that loads every conversation anew, from a store that can be looked into."""
    with Service(tmp_path_factory.mktemp("cold"), outside.settings | {"WARM_SESSIONS": "0", "WAIT_S": "10"}) as service:
        yield service


def then(service: Service, turn: Event, *blocks: str, **body: Any) -> list[str]:
    """Play blocks as the next turn; give what each printed, or its error."""
    return [printed(text) or text for text in shown(service, service.follow_up(turn, *code(*blocks), DONE, **body))]


def pieces(raw: Raw, turn: Event) -> dict[bytes, bytes]:
    """Give the sealed pieces of a conversation; the one without a name is the list of all."""
    found: dict[bytes, bytes] = raw.hgetall(f"{P}:variables:local/{turn['conversation_id']}:0")
    return found


def test_aliases_stay_aliases_in_another_process(cold: Service) -> None:
    turn, _ = played(
        cold, "one = [1]\nother = one\nheld = {'in': one}", "class Box:\n    pass\nbox = Box()\nbox.own = one"
    )
    assert then(cold, turn, "other.append(2)", "print(one, held, box.own is one)") == [
        "Execution logs:\nLast output from code snippet:\nNone",
        "[1, 2] {'in': [1, 2]} True",
    ]
    assert then(cold, turn, "box.own.append(3)\nprint(one is other, held['in'])") == ["True [1, 2, 3]"]


def test_functions_see_later_values_in_another_process(cold: Service) -> None:
    turn, _ = played(
        cold, "rate = 2\ndef tax(n):\n    return n * rate\nhalve = lambda n: tax(n) / 2\nkeep = {'by name': tax}"
    )
    assert then(cold, turn, "rate = 4\nprint(tax(1), halve(1), keep['by name'](1))") == ["4 2.0 4"]
    assert then(cold, turn, "def tax(n):\n    return 0", "print(halve(1), keep['by name'](1))")[-1] == "0.0 4"


def test_only_what_a_turn_changed_is_written(cold: Service, outside: Server) -> None:
    raw = outside.client()
    names = [f"name_{number}" for number in range(50)]
    turn, _ = played(cold, *(f"{name} = [{name!r}]" for name in names[:10]), "\n".join(f"{n} = [{n!r}]" for n in names))
    before = pieces(raw, turn)
    assert len(before) > len(names)
    then(cold, turn, "name_7.append(1)")
    changed = {name for name, blob in pieces(raw, turn).items() if before.get(name) != blob}
    assert len(changed) == 2  # the piece and the list
    assert len(pieces(raw, turn)) == len(before)
    middle = pieces(raw, turn)
    then(cold, turn, "print(name_7)", "1 + 1")
    assert {name: blob for name, blob in pieces(raw, turn).items() if middle.get(name) != blob} == {}
    then(cold, turn, "del name_7")
    assert len(pieces(raw, turn)) == len(before) - 1


def test_nothing_of_a_variable_can_be_read_in_the_store(cold: Service, outside: Server) -> None:
    turn, _ = played(cold, "password_name = 'password-value'")
    for name, blob in pieces(outside.client(), turn).items():
        assert b"password" not in name + blob


def test_what_cannot_be_kept_is_named_once_and_is_an_error_until_it_is_defined_again(cold: Service) -> None:
    turn, _ = played(cold, f"{LOCK}\nsources = [lock, 1]\nkept = 1")
    assert turn["dropped_variables"] == ["lock", "sources"]
    second = cold.follow_up(turn, *code("print(kept, locks)", "lock", "print(sources)", "sources = 5"), DONE)
    first, *errors, defined = shown(cold, second)
    assert printed(first) == "1 1"
    for name, error in zip(("lock", "sources"), errors, strict=True):
        assert f"The variable `{name}` is gone" in error
    assert "5" in defined
    assert second["dropped_variables"] == []
    third = cold.follow_up(turn, *code("print(sources)", "lock"), DONE)
    shows, still = shown(cold, third)
    assert (printed(shows), "is gone" in still, third["dropped_variables"]) == ("5", True, [])
    told = tasks(cold, turn)
    assert [text.count(GONE) for text in told] == [0, 1, 0]
    assert "lock, sources" in told[1]


def tasks(service: Service, turn: Event) -> list[str]:
    return [str(step["task"]) for step in service.steps(turn) if step["type"] == "task"]


def test_a_managed_agents_variables_last_and_what_it_loses_is_named_with_its_path(cold: Service) -> None:
    turn, _ = played(cold, ask("count = 1\nimport threading\nlock = threading.Lock()"), "count = 100", agent="whole")
    assert turn["dropped_variables"] == ["helper.lock"]
    blocks = [ask("count += 1", "final_answer(count)", show=True), ask("lock", "final_answer(count)", show=True)]
    assert then(cold, turn, *blocks) == ["2", "2"]
    assert then(cold, turn, "print(count)", ask("final_answer(count + 1)", show=True)) == ["100", "3"]


def ask(*blocks: str, show: bool = False) -> str:
    """Give a block that has the helper run blocks."""
    call = f"helper(task={json.dumps([*code(*blocks), DONE])!r})"
    return f"print({call})" if show else call


def test_a_helper_of_an_agent_that_calls_tools_keeps_its_variables(cold: Service) -> None:
    turn = cold.play({"call": [["helper", {"task": json.dumps([*code("count = 7"), DONE])}]]}, DONE, agent="lead")
    later = cold.follow_up(turn, {"call": [["helper", {"task": json.dumps(code("final_answer(count + 1)"))}]]}, DONE)
    results = [step["observations"] for step in cold.steps(later) if step["type"] == "action" and step["turn"] == 2]
    assert "8" in results[0]


def test_the_largest_are_dropped_where_all_are_too_much(cold: Service) -> None:
    turn, _ = played(cold, "large_one = 'x' * 600_000\nsmall = 1\nmedium = 'y' * 100_000", agent="small")
    assert turn["dropped_variables"] == ["large_one"]
    shows, error = then(cold, turn, "print(small, len(medium))", "len(large_one)")
    assert shows == "1 100000"
    assert "The variable `large_one` is gone" in error


def test_state_that_was_given_lasts_and_is_given_anew(cold: Service) -> None:
    turn, _ = played(cold, "items.append(2)\nlimit = 9", additional_args={"items": [1], "limit": 5})
    assert then(cold, turn, "print(items, limit)") == ["[1, 2] 5"]
    assert then(cold, turn, "print(items, limit)", additional_args={"limit": 6}) == ["[1, 2] 6"]


@pytest.mark.parametrize("how", ["cancelled", "failed", "deadline"])
def test_a_turn_that_does_not_finish_keeps_the_variables_of_its_finished_steps(
    cold: Service, tmp_path: Path, how: str
) -> None:
    turn, _ = played(cold, "kept = [1]\nother = kept")
    gate = tmp_path / "gate"
    blocks = code("kept.append(2)", f"kept.append(3)\nwait_for(path={str(gate)!r})\n{BUSY}")
    script = [*code("kept.append(2)"), {"raise": "no more"}] if how == "failed" else blocks
    more = {"deadline_s": 1} if how == "deadline" else {}
    broken = begin(cold, *script, agent="coder", conversation_id=turn["conversation_id"], **more)
    if how != "failed":
        until(gate.with_name("gate.started").exists)
        gate.touch()
    if how == "cancelled":
        stop(cold, broken)
    ended = over(cold, broken)
    assert (ended["status"], ended["steps"]) == ("cancelled" if how == "cancelled" else "failed", 1)
    until_none(cold)
    assert then(cold, turn, "print(kept, other is kept)") == ["[1, 2] True"]


def test_a_reset_hides_steps_and_keeps_variables(cold: Service) -> None:
    turn, _ = played(cold, "kept = 1")
    assert then(cold, turn, "print(kept)", reset=True) == ["1"]


def test_a_deleted_conversation_leaves_no_variables_and_its_name_gives_none(cold: Service, outside: Server) -> None:
    raw = outside.client()
    turn, _ = played(cold, "kept = 1")
    assert pieces(raw, turn)
    assert cold.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    assert pieces(raw, turn) == {}
    left = [name for name in raw.keys(f"*{turn['conversation_id']}*") if b"variables" in name or b"fresh" in name]
    assert left == []


def test_a_turn_that_is_over_leaves_no_fresh_pieces(cold: Service, outside: Server) -> None:
    turn, _ = played(cold, "kept = 1", "kept = 2")
    assert [name for name in outside.client().keys(f"*{turn['conversation_id']}*") if b"fresh" in name] == []


def test_conversations_at_the_same_time_do_not_mix(service: Service) -> None:
    def converse(number: int) -> list[str]:
        turn, _ = played(service, f"mine = [{number}]\ndef own():\n    return mine[0]", agent="coder")
        return [then(service, turn, f"mine.append({step})\nprint(own(), mine[1:])")[0] for step in range(2)]

    with ThreadPoolExecutor(20) as pool:
        told = list(pool.map(converse, range(20)))
    assert told == [[f"{number} [0]", f"{number} [0, 1]"] for number in range(20)]
    until_none(service)


def test_a_worker_that_dies_leaves_the_variables_of_finished_steps(outside: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    settings = outside.settings | {"WARM_SESSIONS": "0"}
    with Service(tmp_path / "b", settings) as other, Service(tmp_path / "a", settings) as dies:
        turn, _ = played(dies, "kept = [1]\nother = kept\ngone = 1")
        waits = begin(
            dies,
            *code("kept.append(2)\ndel gone", f"kept.append(3)\nwait_for(path={str(gate)!r})"),
            DONE,
            agent="coder",
            conversation_id=turn["conversation_id"],
        )
        until(gate.with_name("gate.started").exists)
        player, survivor = (dies, other) if children(dies) else (other, dies)
        player.kill()
        gate.touch()
        ended = over(survivor, waits)
        assert (ended["status"], ended["attempts"]) == ("finished", 2)
        assert then(survivor, turn, "print(kept, other is kept)")[0] == "[1, 2, 3] True"
        assert "not defined" in then(survivor, turn, "gone")[0]


@dataclass
class Tampering:
    """A conversation with variables, and what is done to them in the store."""

    service: Service
    raw: Raw
    turn: Event
    older: dict[bytes, bytes]

    @property
    def key(self) -> str:
        return f"{P}:variables:local/{self.turn['conversation_id']}:0"

    def names(self) -> list[bytes]:
        return sorted(name for name in self.raw.hkeys(self.key) if name)

    def edit(self, name: bytes, at: int) -> None:
        blob = bytearray(self.raw.hget(self.key, name))
        blob[at] ^= 1
        self.raw.hset(self.key, name, bytes(blob))

    def swap(self) -> None:
        one, other, *_ = self.names()
        first, second = self.raw.hmget(self.key, one, other)
        self.raw.hset(self.key, mapping={one: second, other: first})

    def older_piece(self) -> None:
        now = self.raw.hgetall(self.key)
        name = next(name for name in self.older if name and now[name] != self.older[name])
        self.raw.hset(self.key, name, self.older[name])

    def of_another(self, *, whole: bool) -> None:
        other, _ = played(self.service, "first = [1]\nsecond = [2]\nthird = 3")
        theirs = pieces(self.raw, other)
        if whole:
            self.raw.delete(self.key)
        for name, blob in theirs.items():
            if whole or name:
                self.raw.hset(self.key, name, blob)


TAMPERINGS: dict[str, Callable[[Tampering], object]] = {
    "a bit of a piece": lambda it: it.edit(it.names()[0], -1),
    "a piece's version": lambda it: it.edit(it.names()[0], 0),
    "pieces swapped": Tampering.swap,
    "an older piece": Tampering.older_piece,
    "all of an older turn": lambda it: it.raw.hset(it.key, mapping=it.older),
    "a piece missing": lambda it: it.raw.hdel(it.key, it.names()[0]),
    "all missing": lambda it: it.raw.delete(it.key),
    "a piece added": lambda it: it.raw.hset(it.key, "another", it.raw.hget(it.key, it.names()[0])),
    "an empty piece": lambda it: it.raw.hset(it.key, it.names()[0], b""),
    "pieces of another conversation": lambda it: it.of_another(whole=False),
    "all of another conversation": lambda it: it.of_another(whole=True),
    "a bit of the list": lambda it: it.edit(b"", -1),
    "no list": lambda it: it.raw.hdel(it.key, ""),
    "an older list": lambda it: it.raw.hset(it.key, "", it.older[b""]),
    "a piece as the list": lambda it: it.raw.hset(it.key, "", it.raw.hget(it.key, it.names()[0])),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_variables_that_were_tampered_with_are_refused_and_nothing_else_is_touched(
    cold: Service, outside: Server, what: str
) -> None:
    raw = outside.client()
    other, _ = played(cold, "first = [1]")
    turn, _ = played(cold, "first = [1]\nsecond = [2]\nthird = 3")
    it = Tampering(cold, raw, turn, pieces(raw, turn))
    then(cold, turn, "second.append(3)")
    TAMPERINGS[what](it)
    now = raw.hgetall(it.key)
    for _ in range(2):
        answer = cold.post("/turn", message=json.dumps(code("print(first)")), conversation_id=turn["conversation_id"])
        assert code_of(answer) == "seal_broken", answer.text
    assert raw.hgetall(it.key) == now
    assert then(cold, other, "print(first)") == ["[1]"]
    until_none(cold)
    assert cold.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
