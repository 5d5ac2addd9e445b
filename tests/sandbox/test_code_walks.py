"""Ways out of the interpreter: walks over attributes, known escapes, and attacks made from a grammar."""

import multiprocessing
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smolsessions.agents.sandbox import guard
from tests.support.attacks import attacks, reached
from tests.support.code_turns import play_code, printed
from tests.support.data import data
from tests.support.service import Service
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
REFLECTED = "class E:\n    def __radd__(*a):\n        return list(map(dict.get, map(list.pop, [list(a)]), ['ast']))\n"
ESCAPES = {
    "a function's globals in an augmented assignment": f"{REFLECTED}f = lambda: 0\nf.__globals__ += E()",
    "a generator's frame in an augmented assignment": f"{REFLECTED}(n for n in [1]).gi_frame += E()",
    "a tool's closure in an augmented assignment": f"{REFLECTED}lose.__closure__ += E()",
    "all classes": f"{REFLECTED}int.__subclasses__ += E()",
    "a traceback in an augmented assignment": (
        f"{REFLECTED}class Catch:\n    def __enter__(self):\n        return self\n"
        "    def __exit__(self, *seen):\n        seen = list(seen)\n        seen[3] += E()\n"
        "with Catch():\n    1 / 0"
    ),
    "a traceback among unpacked arguments": (
        "class Catch:\n    def __enter__(self):\n        return self\n"
        "    def __exit__(self, *seen):\n        print(*seen)\n        return True\n"
        "with Catch():\n    1 / 0"
    ),
    "a UserString's format": "from collections import UserString\nUserString('{0.__globals__}').format(lambda: 0)",
    "a class that others use": "import queue\nqueue.Queue.get = len",
    "a function that others call": "import statistics\nstatistics.mean.__defaults__ = (1,)",
    "a tool's attribute": "lose._runner._executor.authorized_imports.append('*')",
    "a generator's frame": "(n for n in [1]).gi_frame.f_locals['authorized_imports'].append('*')",
    "a generator's frame in a call": "(n for n in [1]).gi_frame.f_globals.get('ast')",
    "a name that denies its underscores": (
        "class Name(str):\n    def startswith(self, *_):\n        return False\n"
        "getattr(lambda: 0, Name('__globals__'))['ast']"
    ),
    "a traceback": (
        "class Catch:\n    def __enter__(self):\n        return self\n"
        "    def __exit__(self, kind, error, trace):\n        trace.tb_frame.f_back\n        return True\n"
        "with Catch():\n    1 / 0"
    ),
    "a traceback's frame through map": (
        "class Catch:\n    def __enter__(self):\n        return self\n    def __exit__(self, *seen):\n"
        "        list(map(getattr, seen, ['args', 'args', 'tb_frame']))[2].f_back\n"
        "with Catch():\n    1 / 0"
    ),
    "a module's loader": "import itertools\nlist(map(itertools.__loader__().load_module, ['posix']))",
    "a module through map": "import random\nlist(map(getattr, [random], ['_os']))[0].getpid()",
    "a module's new name": (
        "import re\nlist(map(setattr, map(getattr, [re], ['enum']), ['__name__'], ['re']))\nre.enum.sys"
    ),
    "a format's field": "import re\nprint('{0.enum.sys.modules[os].environ}'.format(re))",
    "a format's dunder": "print('{0.__globals__}'.format(lambda: 0))",
    "a format's frame": "print(str.format('{0.gi_frame.f_locals}', (n for n in [1])))",
    "a format through map": "print(list(map('{0.__globals__}'.format, [lambda: 0])))",
    "a mapping's format": "print('{f.__globals__}'.format_map({'f': lambda: 0}))",
    "a format's field in a width": "print('{0:{1.__globals__}}'.format(1, lambda: 0))",
}


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
        yield request.param, lambda blocks: pool.submit(act, blocks).result(timeout=50)


@pytest.mark.parametrize("run", [False], indirect=True)
def test_the_attacks_succeed_without_the_guard(run: tuple[bool, Run]) -> None:
    assert len(run[1](attacks()[-200:])) > 50


@deep
@pytest.mark.parametrize("run", [True], indirect=True)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=st.lists(st.sampled_from(attacks()), min_size=40, max_size=80))
def test_no_attack_reaches_a_hidden_thing(run: tuple[bool, Run], blocks: list[str]) -> None:
    assert run[1](blocks) == []


@pytest.mark.parametrize("run", [True], indirect=True)
def test_none_of_some_attacks_reaches_a_hidden_thing(run: tuple[bool, Run]) -> None:
    assert run[1](attacks()[::31]) == []
