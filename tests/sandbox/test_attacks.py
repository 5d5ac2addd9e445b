"""A grammar of attacks on the interpreter reaches no hidden thing, and reaches many without the guard."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.attacks import attacks, reached, wild_attack
from tests.support.tiers import deep

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
