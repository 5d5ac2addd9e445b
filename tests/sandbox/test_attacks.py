"""Ways out of the interpreter: walks over attributes, known escapes, and attacks made from a grammar."""

import multiprocessing
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smolsessions.agents.sandbox import guard
from tests.support.attacks import attacks, reached, wild_attack
from tests.support.code_turns import play_code, printed
from tests.support.data import data, named
from tests.support.service import PATIENCE_S, Service
from tests.support.tiers import deep, mostly_deep

MODULES = "import collections, datetime, itertools, math, queue, random, re, stat, statistics, time, unicodedata"
THINGS = data("walked_things.txt")
LIBRARIES = """
import numpy, pandas
from json import decoder
import json, decimal, fractions, string, functools
grid = numpy.arange(6).reshape(2, 3)
view = grid[0]
frame = pandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})
column = frame['a']
groups = frame.groupby('b')
"""
WALK = "from tests.support.walks import walk\nprint(walk())"
ESCAPES = named(data("escapes.txt"))


@pytest.mark.parametrize("agent", mostly_deep(["walker", "walker-libraries", "walker-thread"], fast=["walker"]))
def test_no_path_of_attributes_leads_out_of_the_interpreter(service: Service, agent: str) -> None:
    library = LIBRARIES if agent == "walker-libraries" else ""
    _, texts = play_code(service, MODULES.replace(", ", "\nimport "), THINGS, library or "x = 1", WALK, agent=agent)
    assert printed(texts[-1]).startswith("nothing among"), "\n".join(texts)
    assert {"held", "lose", "final_answer", "helper", "items"} <= set(printed(texts[-1]).split())


@pytest.mark.parametrize("agent", ["coder", "threaded"])
def test_each_known_way_out_of_the_interpreter_is_refused(service: Service, agent: str) -> None:
    blocks = [block for escape in ESCAPES.values() for block in (escape, "import os")]
    _, texts = play_code(service, *blocks, agent=agent, max_steps=len(blocks) + 1)
    for name, tried, after in zip(ESCAPES, texts[::2], texts[1::2], strict=True):
        assert "Forbidden" in tried or "has no attribute" in tried or "no plain text" in tried, (name, tried)
        assert "Import of os is not allowed" in after, name


def test_an_arrays_memory_is_out_of_reach(service: Service) -> None:
    _, texts = play_code(service, "import numpy\nnumpy.arange(3).ctypes.shape.from_address(8)", agent="whole")
    assert "Forbidden access to an object of the module ctypes" in texts[0]


def test_formats_are_those_of_python(service: Service) -> None:
    block = (
        "class Point:\n    def __init__(self):\n        self.x, self._y = 3, [4, 5]\n"
        "p = Point()\n"
        "print('{} {:>4} {{}} {}'.format(1, 2, 3), '{0.x:{1}}|{p._y[1]!r:>3}'.format(p, 5, p=p))\n"
        "print('{.x}{}'.format(p, 1))\n"
        "print('{a[k]}'.format_map({'a': {'k': 1}}), str.format('{0[1]}', 'xyz'))\n"
        "show = '{0.x:>3}'.format"
    )
    _, (text, again) = play_code(service, block, "print(show(p), list(map('{}!'.format, [1, 2])))")
    assert printed(text) == "1    2 {} 3     3|  5\n31\n1 y"
    assert printed(again) == "  3 ['1!', '2!']"


def test_no_method_of_a_plain_value_would_be_refused() -> None:
    """The guard does not check them when they are called."""
    for kind in guard._PLAIN - {types.NoneType, types.EllipsisType}:  # noqa: SLF001 - nothing else shows the shortcut
        for name in dir(kind):
            if not name.startswith("__"):
                guard.check(getattr(kind(), name), {}, [])


Run = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module", params=[True, False], ids=["guarded", "bare"])
def run(request: pytest.FixtureRequest) -> Iterator[tuple[bool, Run]]:
    """Return a function that runs blocks in a process of its own, which the blocks may change."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        act = partial(reached, is_guarded=request.param)
        yield request.param, lambda blocks: pool.submit(act, blocks).result(PATIENCE_S)


@pytest.mark.parametrize("run", [False], indirect=True)
def test_the_attacks_succeed_without_the_guard(run: tuple[bool, Run]) -> None:
    assert len(run[1](attacks()[-200:])) > 50
    assert len(run[1]([wild_attack(Random(seed)) for seed in range(300)])) > 10


@deep
@pytest.mark.parametrize("run", [True], indirect=True)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False), blocks=st.lists(st.sampled_from(attacks()), min_size=20, max_size=40))
def test_no_attack_reaches_a_hidden_thing(run: tuple[bool, Run], random: Random, blocks: list[str]) -> None:
    assert run[1](blocks + [wild_attack(random) for _ in range(40)]) == []


@pytest.mark.parametrize("run", [True], indirect=True)
def test_none_of_some_attacks_reaches_a_hidden_thing(run: tuple[bool, Run]) -> None:
    assert run[1](attacks()[::31]) == []
