"""Values that cannot be kept are dropped and named."""

from pathlib import Path

import pytest
from smolagents.local_python_executor import LocalPythonExecutor

from smolsessions.agents.sandbox.variable_chunks import chunk_id
from smolsessions.agents.sandbox.variables import SavedVariables, Variables
from tests.support.code_turns import GONE, code_script, printed, shown_outputs, tasks
from tests.support.executors import MAX_BYTES, new_executor, said
from tests.support.killed_turns import WITHOUT_CODE, kill_and_resume, make_killed_turn
from tests.support.service import Service, shared_service
from tests.support.streaming import Event
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE

AGENTS = ",".join(f"{n}=tests.support.coders:make_{n}" for n in ("caller", "keeper", "threaded", "threaded_keeper"))
KEPT = [("db", "connection"), ("cash", "money"), ("box", "parcel"), ("word", "text")]
warm = shared_service({"AGENTS": AGENTS})
cold = shared_service({"AGENTS": AGENTS, "WARM_SESSIONS": "0"})


@pytest.fixture(params=mostly_deep(["warm", "cold"], fast=["cold"]))
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
    fourth = either.follow_up(first, *look[:1], DONE)
    assert told(either, fourth) == ["db is str"]
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
def test_lost_variables_of_code_in_a_thread_are_named_by_the_next_turn(cold: Service, agent: str) -> None:
    first = cold.play(*code_script("count = 41\ndef more():\n    return 1", "counts = 1"), DONE, agent=agent)
    assert first["dropped_variables"] == []
    second = cold.follow_up(first, *code_script("print(count)", "more()", "count = 5\nprint(count)"), DONE)
    assert second["dropped_variables"] == ["count", "counts", "more"]
    *errors, defined = shown_outputs(cold, second)
    assert all(f"`{name}` is gone" in error for name, error in zip(("count", "more"), errors, strict=True))
    assert printed(defined) == "5"
    third = cold.follow_up(first, *code_script("print(1)"), DONE)
    assert third["dropped_variables"] == ["count"]
    assert [text.count(GONE) for text in tasks(cold, first)] == [0, 1, 1]


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
