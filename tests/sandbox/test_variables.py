"""Variables, functions and classes that code made behave in the next process as in the first."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smolagents.local_python_executor import LocalPythonExecutor

from smolsessions.agents.sandbox.variables import SavedVariables, Variables, use_state
from tests.support.data import CARRIED, CARRIED_WITH_PANDAS, HOSTILE, data
from tests.support.executors import MAX_BYTES, comparable, new_executor, said
from tests.support.waiting import PATIENCE_S


def in_another_process(chunks: dict[str, bytes], code: str) -> tuple[list[str], str, SavedVariables]:
    executor = new_executor()
    variables = Variables(executor, MAX_BYTES)
    lost = variables.load(chunks)
    unchanged = variables.save()
    return lost, said(executor, code), unchanged


@pytest.fixture(scope="module")
def another_process() -> Iterator[Callable[..., Any]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda *arguments: pool.submit(in_another_process, *arguments).result(PATIENCE_S)


@pytest.fixture
def executor() -> LocalPythonExecutor:
    return new_executor()


def carried(another_process: Callable[..., Any], first: str, then: str) -> str:
    """Run two blocks in two processes and, uninterrupted, in one. Their output must be equal."""
    executor = new_executor()
    executor(first)
    saved = Variables(executor, MAX_BYTES).save()
    assert saved.dropped == []
    uninterrupted = said(executor, then)
    lost, resumed, unchanged = another_process(saved.changed, then)
    assert lost == []
    assert resumed == uninterrupted
    assert unchanged == SavedVariables({}, [], [])
    return str(resumed)


@pytest.mark.parametrize("kind", [*CARRIED, *CARRIED_WITH_PANDAS])
def test_values_of_code_behave_the_same_in_another_process(another_process: Callable[..., Any], kind: str) -> None:
    carried(another_process, *(CARRIED | CARRIED_WITH_PANDAS)[kind])


def test_an_input_is_saved_only_if_the_code_binds_its_name_again(executor: LocalPythonExecutor) -> None:
    executor.send_variables({"photo": [1], "user": "ann"})
    variables = Variables(executor, MAX_BYTES)
    variables.exclude(["photo", "user"])
    executor("photo.append(2)")
    assert variables.save() == SavedVariables({}, [], [])
    executor("user = 'bob'")
    (chunk,) = variables.save().changed.values()
    assert b"bob" in chunk
    executor.send_variables({"user": "cleo"})
    variables.exclude(["user"])
    assert len(variables.save().removed) == 1


def test_neither_a_tool_nor_its_secret_is_in_the_bytes(executor: LocalPythonExecutor) -> None:
    executor(
        "f = fetch; g = [fetch, echo]\ndef h():\n    return fetch(1)\n"
        "def mk(t):\n    def u():\n        return t(1)\n    return u\nk = mk(fetch)"
    )
    saved = Variables(executor, MAX_BYTES).save()
    assert saved.dropped == []
    assert not any(b"sk-secret" in chunk or b"Fetch" in chunk for chunk in saved.changed.values())


def bare_executor() -> LocalPythonExecutor:
    executor = LocalPythonExecutor([], timeout_seconds=None)
    use_state(executor)
    executor.send_tools({})
    return executor


def test_a_reference_to_a_missing_tool_is_lost_and_named(executor: LocalPythonExecutor) -> None:
    executor("f = fetch; n = 1")
    chunks = Variables(executor, MAX_BYTES).save().changed
    other = bare_executor()
    variables = Variables(other, MAX_BYTES)
    assert variables.load({**chunks, "odd": b"no chunk"}) == ["f", "odd"]
    assert said(other, "print(n)") == "1\n"
    assert len(variables.save().removed) == 2


def test_a_module_is_restored_only_if_it_is_authorized(executor: LocalPythonExecutor) -> None:
    executor("import socket")
    chunks = Variables(executor, MAX_BYTES).save().changed
    assert Variables(bare_executor(), MAX_BYTES).load(chunks) == ["socket"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_value_breaks_a_save(another_process: Callable[..., Any], executor: LocalPythonExecutor, kind: str) -> None:
    executor("def boom():\n    return None\nsafe = [1]; also = safe")
    executor(HOSTILE[kind])
    executor("def boom():\n    raise KeyError('boom')")
    variables = Variables(executor, MAX_BYTES)
    saved = variables.save()
    assert not {"safe", "also", "boom"} & set(saved.dropped)
    assert variables.save() == SavedVariables({}, [], saved.dropped)
    lost, resumed, _ = another_process(saved.changed, "safe.append(2); print(also)")
    assert lost == []
    assert resumed == "[1, 2]\n"


@pytest.mark.parametrize("kind", ["deep", "deep in a class"])
def test_deeply_nested_values_are_pickled(another_process: Callable[..., Any], kind: str) -> None:
    count = "n = 0\nwhile h:\n    h = h.next if hasattr(h, 'next') else h[0]; n += 1\nprint(n)"
    carried(another_process, HOSTILE[kind], count)


NAMES = "abcde"
name = st.sampled_from(NAMES)
STATEMENTS = [line.replace(r"\n", "\n") for line in data("statements.txt").splitlines()]


@st.composite
def statement(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(STATEMENTS))
    for place in "XYZ":
        text = text.replace(place, draw(name))
    return text


class Shape:
    """Comparable form of all values that the names reach, with the identity of each mutable one."""

    def __init__(self, executor: LocalPythonExecutor) -> None:
        self._seen: dict[int, int] = {}
        self.parts = [self._of(executor.state.get(name)) for name in [*NAMES, "Node", "Leaf"]]

    def _of(self, value: Any) -> object:
        if isinstance(value, int | str | None) or getattr(value, "__name__", "") == "echo":
            return comparable(str(value)) if not callable(value) else "the tool"
        if isinstance(value, set):
            return sorted(map(str, value))
        if not isinstance(value, tuple):
            if id(value) in self._seen:
                return ("seen", self._seen[id(value)])
            self._seen[id(value)] = len(self._seen)
        return (type(value).__name__, getattr(value, "__name__", ""), [self._of(part) for part in self._inside(value)])

    @staticmethod
    def _inside(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [*value, *value.values()]
        if isinstance(value, list | tuple):
            return list(value)
        if isinstance(value, type):
            return [value.__dict__.get("shared"), value.__dict__.get("mark")]
        if hasattr(value, "__self__"):
            return [value.__self__]
        return [] if callable(value) else [type(value), vars(value)]


PROGRAMS = st.lists(st.tuples(statement(), st.booleans()), min_size=1, max_size=30)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(PATIENT, max_examples=60)
@given(PROGRAMS)
def test_a_program_behaves_the_same_however_often_it_is_interrupted(program: list[tuple[str, bool]]) -> None:
    whole, parts = new_executor(), new_executor()
    variables = Variables(parts, MAX_BYTES)
    stored: dict[str, bytes] = {}
    for executor in (whole, parts):
        executor(data("statements_prelude.txt"))
    for code, interrupted in program:
        if interrupted:
            saved = variables.save()
            assert saved.dropped == []
            stored = {chunk: data for chunk, data in {**stored, **saved.changed}.items() if chunk not in saved.removed}
            parts = new_executor()
            variables = Variables(parts, MAX_BYTES)
            assert variables.load(stored) == []
        assert said(parts, code) == said(whole, code)
        assert Shape(parts).parts == Shape(whole).parts


def test_one_instance_of_many_is_one_small_chunk(executor: LocalPythonExecutor) -> None:
    executor("class P:\n    def __init__(self, v):\n        self.v = v\nmany = 0")
    executor("\n".join(f"p{i} = P([{i}])" for i in range(50)))
    variables = Variables(executor, MAX_BYTES)
    assert len(variables.save().changed) == 52
    executor("p7.v.append('new')")
    (chunk,) = variables.save().changed.values()
    assert b"new" in chunk
    assert len(chunk) < 220
    executor("P.note = 'class'")
    (chunk,) = variables.save().changed.values()
    assert b"__init__" in chunk


def test_instances_of_a_class_that_cannot_be_pickled_are_dropped_too(executor: LocalPythonExecutor) -> None:
    executor("class P:\n    pass\np = P(); n = [1]")
    variables = Variables(executor, MAX_BYTES)
    assert len(variables.save().changed) == 3
    executor("P.source = (i for i in n)")
    saved = variables.save()
    assert (saved.changed, len(saved.removed), saved.dropped) == ({}, 2, ["P", "p"])
    executor("P.source = None")
    assert len(variables.save().changed) == 2
