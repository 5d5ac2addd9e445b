"""Variables of code outlive turns, processes, stops and crashes. Those that cannot be kept are dropped and named."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from smolagents.local_python_executor import LocalPythonExecutor

from smolsessions.agents.sandbox.variable_chunks import chunk_id
from smolsessions.agents.sandbox.variables import SavedVariables, Variables
from tests.support.code_turns import (
    BUSY,
    GONE,
    code_script,
    play_code,
    printed,
    shown_outputs,
    tasks,
    variable_chunks,
    wait_until_no_code_runs,
)
from tests.support.executors import MAX_BYTES, new_executor, said
from tests.support.killed_turns import WITHOUT_CODE, kill_and_resume, make_killed_turn
from tests.support.service import Gate, Service, shared_service
from tests.support.store_server import PARTITION, StoreServer
from tests.support.streaming import Event
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, cancel, error_code, submit_turn, wait_for_end

Chunks = dict[bytes, bytes]
LOCK = "import threading\nlock = threading.Lock()\nlocks = 1"
# A service that reloads every conversation, from a store that the test can read.
cold = shared_service({"WARM_SESSIONS": "0", "WAIT_S": "10"}, on_outside=True)


def then(service: Service, turn: Event, *blocks: str, **body: Any) -> list[str]:
    """Play blocks as the next turn. Return the output of each, or its error."""
    return [
        printed(text) or text
        for text in shown_outputs(service, service.follow_up(turn, *code_script(*blocks), DONE, **body))
    ]


def test_only_what_a_turn_changed_is_written(cold: Service, outside: StoreServer) -> None:
    raw = outside.client()
    names = [f"name_{number}" for number in range(50)]
    turn, _ = play_code(cold, *(f"{n} = [{n!r}]" for n in names[:10]), "\n".join(f"{n} = [{n!r}]" for n in names))
    before = variable_chunks(raw, turn)
    assert len(before) > len(names)
    then(cold, turn, "name_7.append(1)")
    changed = {name for name, blob in variable_chunks(raw, turn).items() if before.get(name) != blob}
    assert len(changed) == 2  # the piece and the list
    assert len(variable_chunks(raw, turn)) == len(before)
    middle = variable_chunks(raw, turn)
    then(cold, turn, "print(name_7)", "1 + 1")
    assert {name: blob for name, blob in variable_chunks(raw, turn).items() if middle.get(name) != blob} == {}
    then(cold, turn, "del name_7")
    assert len(variable_chunks(raw, turn)) == len(before) - 1


def test_a_dropped_variable_is_named_once_and_is_an_error_until_it_is_defined_again(cold: Service) -> None:
    turn, _ = play_code(cold, f"{LOCK}\nsources = [lock, 1]\nkept = 1")
    assert turn["dropped_variables"] == ["lock", "sources"]
    second = cold.follow_up(turn, *code_script("print(kept, locks)", "lock", "print(sources)", "sources = 5"), DONE)
    first, *errors, defined = shown_outputs(cold, second)
    assert printed(first) == "1 1"
    for name, error in zip(("lock", "sources"), errors, strict=True):
        assert f"The variable `{name}` is gone" in error
    assert "5" in defined
    assert second["dropped_variables"] == []
    third = cold.follow_up(turn, *code_script("print(sources)", "lock"), DONE)
    shows, still = shown_outputs(cold, third)
    assert (printed(shows), "is gone" in still, third["dropped_variables"]) == ("5", True, [])
    told = tasks(cold, turn)
    assert [text.count(GONE) for text in told] == [0, 1, 0]
    assert "lock, sources" in told[1]


def test_a_value_calls_no_tool_while_it_is_kept_or_restored(cold: Service) -> None:
    counted = "class Counted:\n    def __hash__(self):\n        return len(echo(text='x'))\nheld={Counted()}\nkept = 1"
    turn, _ = play_code(cold, counted)
    assert turn["tool_call_names"].count("echo") == 1
    assert then(cold, turn, "print(kept)") == ["1"]


def test_a_managed_agents_variables_last_and_dropped_ones_are_named_with_its_path(cold: Service) -> None:
    turn, _ = play_code(cold, ask("count = 1\nimport threading\nlock = threading.Lock()"), "count = 100", agent="whole")
    assert turn["dropped_variables"] == ["helper.lock"]
    blocks = [ask("count += 1", "final_answer(count)", show=True), ask("lock", "final_answer(count)", show=True)]
    assert then(cold, turn, *blocks) == ["2", "2"]
    assert then(cold, turn, "print(count)", ask("final_answer(count + 1)", show=True)) == ["100", "3"]


def ask(*blocks: str, show: bool = False) -> str:
    """Return a block that lets the helper run blocks."""
    call = f"helper(task={json.dumps([*code_script(*blocks), DONE])!r})"
    return f"print({call})" if show else call


def test_a_helper_of_an_agent_that_calls_tools_keeps_its_variables(cold: Service) -> None:
    turn = cold.play({"call": [["helper", {"task": json.dumps([*code_script("count=7"), DONE])}]]}, DONE, agent="lead")
    later = cold.follow_up(
        turn, {"call": [["helper", {"task": json.dumps(code_script("final_answer(count + 1)"))}]]}, DONE
    )
    results = [step["observations"] for step in cold.steps(later) if step["type"] == "action" and step["turn"] == 2]
    assert "8" in results[0]


def test_the_largest_variables_are_dropped_if_all_are_too_large(cold: Service) -> None:
    turn, _ = play_code(cold, "large_one = 'x' * 600_000\nsmall = 1\nmedium = 'y' * 100_000", agent="small")
    assert turn["dropped_variables"] == ["large_one"]
    shows, error = then(cold, turn, "print(small, len(medium))", "len(large_one)")
    assert shows == "1 100000"
    assert "The variable `large_one` is gone" in error


def test_additional_arguments_last_and_can_be_replaced(cold: Service) -> None:
    turn, _ = play_code(cold, "items.append(2)\nlimit = 9", additional_args={"items": [1], "limit": 5})
    assert then(cold, turn, "print(items, limit)") == ["[1, 2] 5"]
    assert then(cold, turn, "print(items, limit)", additional_args={"limit": 6}) == ["[1, 2] 6"]


@pytest.mark.parametrize("how", mostly_deep(["cancelled", "failed", "deadline"], fast=["cancelled", "failed"]))
def test_an_unfinished_turn_keeps_the_variables_of_its_finished_steps(cold: Service, gate: Gate, how: str) -> None:
    turn, _ = play_code(cold, "kept = [1]\nother = kept")
    blocks = code_script("kept.append(2)", f"kept.append(3)\nwait_for(path={str(gate.path)!r})\n{BUSY}")
    script = [*code_script("kept.append(2)"), {"raise": "no more"}] if how == "failed" else blocks
    more = {"deadline_s": 5} if how == "deadline" else {}
    broken = submit_turn(cold, *script, agent="coder", conversation_id=turn["conversation_id"], **more)
    if how != "failed":
        gate.reached()
        gate.open()
    if how == "cancelled":
        cancel(cold, broken)
    ended = wait_for_end(cold, broken)
    assert (ended["status"], ended["step_count"]) == ("cancelled" if how == "cancelled" else "failed", 1)
    wait_until_no_code_runs(cold)
    assert then(cold, turn, "print(kept, other is kept)") == ["[1, 2] True"]


def test_a_reset_hides_steps_and_keeps_variables(cold: Service) -> None:
    turn, _ = play_code(cold, "kept = 1")
    assert then(cold, turn, "print(kept)", reset=True) == ["1"]


def test_deleted_conversations_and_finished_turns_leave_no_variables(cold: Service, outside: StoreServer) -> None:
    raw = outside.client()
    turn, _ = play_code(cold, "kept = 1", "kept = 2")
    assert [name for name in raw.keys(f"*{turn['conversation_id']}*") if b"pending" in name] == []
    assert variable_chunks(raw, turn)
    assert cold.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    assert variable_chunks(raw, turn) == {}
    left = [name for name in raw.keys(f"*{turn['conversation_id']}*") if b"variables" in name or b"pending" in name]
    assert left == []


def test_conversations_at_the_same_time_do_not_mix(service: Service) -> None:
    def converse(number: int) -> list[str]:
        turn, _ = play_code(service, f"mine = [{number}]\ndef own():\n    return mine[0]", agent="coder")
        return [then(service, turn, f"mine.append({step})\nprint(own(), mine[1:])")[0] for step in range(2)]

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(converse, range(8)))
    assert told == [[f"{number} [0]", f"{number} [0, 1]"] for number in range(8)]


def swapped(now: Chunks) -> Chunks:
    _, one, other, *_ = sorted(now)
    return {one: now[other], other: now[one]}


TAMPERINGS: dict[str, Callable[[Chunks, Chunks], Chunks]] = {
    "pieces swapped": lambda _, now: swapped(now),
    "older pieces": lambda older, _: {name: data for name, data in older.items() if name},
    "a piece twice": lambda _, now: {b"another": now[max(now)]},
    "all of an older turn": lambda older, _: older,
    "an older list": lambda older, _: {b"": older[b""]},
}
"""Fields to write over the variables, made of an older turn and of the present ones. See also store/test_damage."""


@pytest.mark.parametrize("what", mostly_deep(TAMPERINGS, fast=["pieces swapped", "older pieces"]))
def test_tampered_variables_alone_are_refused(cold: Service, outside: StoreServer, what: str) -> None:
    raw = outside.client()
    other, _ = play_code(cold, "first = [1]")
    turn, _ = play_code(cold, "first = [1]\nsecond = [2]\nthird = 3")
    older = variable_chunks(raw, turn)
    then(cold, turn, "second.append(3)")
    key = f"{PARTITION}:variables:local/{turn['conversation_id']}:0"
    raw.hset(key, mapping=TAMPERINGS[what](older, raw.hgetall(key)))
    now = raw.hgetall(key)
    body = {"message": json.dumps(code_script("print(first)")), "conversation_id": turn["conversation_id"]}
    for _ in range(2):
        assert error_code(cold.post("/turn", **body)) == "seal_broken"
    assert raw.hgetall(key) == now
    assert then(cold, other, "print(first)") == ["[1]"]
    wait_until_no_code_runs(cold)
    assert cold.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204


AGENTS = ",".join(f"{n}=tests.support.coders:make_{n}" for n in ("caller", "keeper", "threaded", "threaded_keeper"))
KEPT = [("db", "connection"), ("cash", "money"), ("box", "parcel"), ("word", "text")]
warm_keeper = shared_service({"AGENTS": AGENTS})
cold_keeper = shared_service({"AGENTS": AGENTS, "WARM_SESSIONS": "0"})


@pytest.fixture(params=mostly_deep(["warm_keeper", "cold_keeper"], fast=["cold_keeper"]))
def either(request: pytest.FixtureRequest) -> Service:
    service: Service = request.getfixturevalue(request.param)
    return service


def keeping(agent: str, *things: tuple[str, str]) -> list[Event]:
    if agent == "caller":
        return [{"call": [["keep", {"under": under, "what": what}]]} for under, what in things]
    return code_script(*(f"keep(under={under!r}, what={what!r})" for under, what in things))


def told(service: Service, turn: Event) -> list[str]:
    steps = [step for step in service.steps(turn) if step["type"] == "action" and step["turn"] == turn["turn"]]
    return [str(step["observations"]).rpartition("\n")[2] for step in steps[:-1]]


@pytest.mark.parametrize("agent", ["caller", "keeper"])
def test_state_of_an_agent_that_cannot_be_kept_is_dropped_and_named(either: Service, agent: str) -> None:
    look = keeping(agent, *((name, "") for name in ("db", "cash", "box", "word", "made")))
    first = either.play(*keeping(agent, *KEPT), *look[:2], DONE, agent=agent, max_steps=9)
    assert first["dropped_variables"] == ["my_cash", "my_db"]
    assert told(either, first)[-2:] == ["db is Connection", "cash is Money"]
    second = either.follow_up(first, *look, DONE)
    kinds = {"db": "NoneType", "cash": "NoneType", "box": "Parcel", "word": "str", "made": "Connection"}
    assert told(either, second) == [f"{name} is {kind}" for name, kind in kinds.items()]
    assert second["dropped_variables"] == []
    third = either.follow_up(first, *keeping(agent, ("db", "text"), ("word", "connection")), DONE)
    assert third["dropped_variables"] == ["my_word"]
    assert told(either, either.follow_up(first, *look[:1], DONE)) == ["db is str"]
    tellings = tasks(either, first)
    assert [text.count(GONE) for text in tellings] == [0, 1, 0, 1]
    assert tellings[1].endswith(": my_cash, my_db.)")
    assert tellings[3].endswith(": my_word.)")


def test_code_cannot_use_dropped_state(either: Service) -> None:
    first = either.play(*keeping("keeper", ("db", "connection")), DONE, agent="keeper")
    second = either.follow_up(first, *code_script("print(my_db)", "my_db = 5", "print(my_db)"), DONE)
    error, _, defined = shown_outputs(either, second)
    assert "The variable `my_db` is gone" in error
    assert printed(defined) == "5"


def test_a_replayed_call_drops_the_same_state(tmp_path: Path) -> None:
    killed_turn = make_killed_turn(tmp_path, 5, agent="caller")
    killed_turn.script[:0] = keeping("caller", ("db", "connection"))
    with Service(tmp_path / "service", WITHOUT_CODE) as service:
        kill_and_resume(service, [killed_turn])
    assert killed_turn.turn["attempts"] == 2
    assert killed_turn.turn["dropped_variables"] == ["my_db"]


@pytest.mark.parametrize("agent", ["threaded", "threaded_keeper"])
def test_lost_variables_of_code_in_a_thread_are_named_by_the_next_turn(cold_keeper: Service, agent: str) -> None:
    first = cold_keeper.play(*code_script("count = 41\ndef more():\n    return 1", "counts = 1"), DONE, agent=agent)
    assert first["dropped_variables"] == []
    second = cold_keeper.follow_up(first, *code_script("print(count)", "more()", "count = 5\nprint(count)"), DONE)
    assert second["dropped_variables"] == ["count", "counts", "more"]
    *errors, defined = shown_outputs(cold_keeper, second)
    assert all(f"`{name}` is gone" in error for name, error in zip(("count", "more"), errors, strict=True))
    assert printed(defined) == "5"
    assert cold_keeper.follow_up(first, *code_script("print(1)"), DONE)["dropped_variables"] == ["count"]
    assert [text.count(GONE) for text in tasks(cold_keeper, first)] == [0, 1, 1]


def test_variables_of_code_in_a_thread_last_as_long_as_its_session(service: Service) -> None:
    first = service.play(*code_script("count = 41"), DONE, agent="threaded")
    second = service.follow_up(first, *code_script("print(count)"), DONE)
    assert [printed(text) for text in shown_outputs(service, second)] == ["41"]
    assert (second["dropped_variables"], GONE in tasks(service, first)[1]) == ([], False)


def resumed(code: str) -> tuple[LocalPythonExecutor, Variables, dict[str, bytes]]:
    """Run a block, and return another executor with its variables, their owner and their chunks."""
    executor = new_executor()
    executor(code)
    chunks = Variables(executor, MAX_BYTES).save().changed
    executor = new_executor()
    variables = Variables(executor, MAX_BYTES)
    assert variables.load(chunks) == []
    return executor, variables, chunks


def test_only_variables_that_a_block_used_are_loaded_and_those_that_it_changed_written_again() -> None:
    executor, variables, chunks = resumed("a = [1]\nb = [2]\nc = [3]\nd = 4\nlast = 5")
    executor("a.append(2)\nb = 0\ndel c\nlst = [d for _ in a if d]")
    assert executor.state.late.keys() == {"a", "b", "d", "last"}  # type: ignore[attr-defined]
    assert executor.state.loaded.keys() == {"a", "d"}  # type: ignore[attr-defined]
    saved = variables.save()
    assert not saved.dropped
    assert [len(saved.changed), saved.removed] == [3, [chunk_id(("c",))]]
    assert said(executor, "print(a, b, d, lst, last)") == "[1, 2] 0 4 [4, 4] 5\n"
    assert variables.save() == SavedVariables({}, [], [])
    assert saved.changed.keys() - chunks.keys() == {chunk_id(("lst",))}
    assert executor.state.late.keys() == set()  # type: ignore[attr-defined]


def test_a_function_and_a_variable_share_what_pickling_loads() -> None:
    executor, variables, _ = resumed("a = [1]\ndef make():\n    def add():\n        a.append(2)\n    return add")
    executor("add = make()")
    saved = variables.save()
    assert [*saved.changed] == [chunk_id(("a", "add", "add()"))]
    assert saved.removed == [chunk_id(("a",))]
    assert said(executor, "add()\nprint(a)") == "[1, 2]\n"


def test_a_forged_variable_is_an_error_until_it_is_defined_again() -> None:
    executor = new_executor()
    variables = Variables(executor, MAX_BYTES)
    assert variables.load({chunk_id((name,)): b'[["%s"],[],true]\nbad' % name.encode() for name in "abc"}) == []
    assert "The variable `a` is gone" in said(executor, "print(a)")
    assert "The variable `b` is gone" in said(executor, "b += 1")
    executor("a = 1\ndel b")
    saved = variables.save()
    assert [[*saved.changed], saved.removed] == [[chunk_id(("a",))], [chunk_id(("b",))]]


def test_an_unused_variable_counts_for_the_limit_and_the_largest_is_dropped() -> None:
    executor, variables, chunks = resumed("big = 'b' * 3_000_000\nsmall = 's'")
    forged = chunk_id(("forged",))
    assert variables.load({**chunks, forged: b'[["forged"],[],true]\n' + b"x" * 3_500_000}) == []
    executor("new = 'n' * 2_000_000")
    saved = variables.save()
    assert saved.dropped == ["big", "forged"]
    assert [[*saved.changed], sorted(saved.removed)] == [[chunk_id(("new",))], sorted([chunk_id(("big",)), forged])]
    assert said(executor, "print(len(big), small)") == "3000000 s\n"
    executor("new = 0")
    assert chunk_id(("big",)) in variables.save().changed
