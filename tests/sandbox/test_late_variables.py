"""Variables with plain data are loaded when code uses their names, and keep their values and aliases."""

import contextlib
import sys
from typing import Any

from smolagents.local_python_executor import LocalPythonExecutor

from smolsessions.agents.sandbox.variable_chunks import chunk_id
from smolsessions.agents.sandbox.variables import SavedVariables, Variables
from tests.support.executors import MAX_BYTES, new_executor, said


def resumed(code: str) -> tuple[LocalPythonExecutor, Variables, dict[str, bytes]]:
    """Run a block, and return another executor with its variables, their owner and their chunks."""
    executor = new_executor()
    executor(code)
    chunks = Variables(executor, MAX_BYTES).save().changed
    executor = new_executor()
    variables = Variables(executor, MAX_BYTES)
    assert variables.load(chunks) == []
    return executor, variables, chunks


def test_plain_data_is_loaded_when_code_uses_its_name() -> None:
    executor, variables, chunks = resumed("a = [1]\nb = [2]\nc = [3]\nd = 4\nlast = 5")
    executor("a.append(2)\nb = 0\ndel c\nlst = [d for _ in a if d]")
    saved = variables.save()
    assert not saved.dropped
    assert [len(saved.changed), saved.removed] == [3, [chunk_id(("c",))]]
    assert said(executor, "print(a, b, d, lst, last)") == "[1, 2] 0 4 [4, 4] 5\n"
    assert variables.save() == SavedVariables({}, [], [])
    assert saved.changed.keys() - chunks.keys() == {chunk_id(("lst",))}


def test_scopes_share_the_value_that_the_first_of_them_loaded() -> None:
    executor, variables, _ = resumed("def add():\n    a.append(2)\n    return a\na = [1]")
    executor("b = add()")
    assert said(executor, "print(a, a is b)") == "[1, 2] True\n"
    executor, variables, _ = resumed("def add():\n    a.append(2)\na = [1]")
    executor("add()")
    (chunk,) = variables.save().changed
    assert chunk == chunk_id(("a",))
    assert said(executor, "print(a)") == "[1, 2]\n"


def test_a_plain_chunk_that_cannot_be_loaded_is_gone() -> None:
    executor = new_executor()
    variables = Variables(executor, MAX_BYTES)
    assert variables.load({chunk_id((name,)): b'[["%s"],[],true]\nbad' % name.encode() for name in "abc"}) == []
    assert "The variable `a` is gone" in said(executor, "print(a)")
    assert "The variable `b` is gone" in said(executor, "b += 1")
    saved = variables.save()
    assert (sorted(saved.removed), saved.dropped) == (sorted(chunk_id((name,)) for name in "ab"), ["a", "b"])


def test_a_variable_that_is_first_used_near_the_limit_of_recursion_is_kept() -> None:
    executor, variables, chunks = resumed("d = []\nfor _ in range(300):\n    d = [d]")

    def first_use(frames: int) -> Any:
        return first_use(frames - 1) if frames else executor.state["d"]

    for frames in range(sys.getrecursionlimit(), 0, -1):
        with contextlib.suppress(RecursionError):
            assert len(first_use(frames)) == 1
            break
    saved = variables.save()
    assert [saved.removed, saved.dropped] == [[], []]
    executor = new_executor()
    assert Variables(executor, MAX_BYTES).load({**chunks, **saved.changed}) == []
    assert said(executor, "print(len(d))") == "1\n"
