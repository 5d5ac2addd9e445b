"""Seeds of model-written code and the logs of its last block persist as in one uninterrupted agent."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from smolagents import tool

from tests.support import coders
from tests.support.code_turns import code_script, play_code, variable_chunks
from tests.support.killed_turns import SETTINGS, KilledTurn, kill_and_resume
from tests.support.ledgers import Ledger
from tests.support.service import Service
from tests.support.store_server import StoreServer
from tests.support.streaming import Event
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, SHOWN


@tool
def note(what: str, ledger: str) -> str:  # noqa: ARG001
    """Answer as the tool of the service does.

    Args:
        what: it is.
        ledger: where.
    """
    return f"noted {what}"


DRAWN = "print(random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal())"
SEEDED = [
    [*code_script("import random\nimport numpy as np", f"random.seed(5)\nnp.random.seed(3)\n{DRAWN}", DRAWN), DONE],
    code_script(DRAWN, f"{DRAWN}\nfinal_answer('drawn')"),
    code_script("print(sum([random.random() for i in range(700)]), np.random.rand(700).sum())\nfinal_answer('many')"),
    code_script("saved = random.getstate()", f"random.seed('another')\n{DRAWN}\nmissing"),
    code_script(DRAWN, f"random.setstate(saved)\n{DRAWN}\nfinal_answer('back')"),
    [
        *code_script("own = np.random.default_rng(2)\nprint(own.random())", "print(own.random(), random.random())"),
        SHOWN,
    ],
]
SKIPPED: Event = {"text": "an error that is shown with logs takes two places of the script"}
BROKEN = [*code_script("def broken(:"), SKIPPED]
TASK = json.dumps(code_script("print('by the helper')\nfinal_answer(1)"))
BROKEN_TASK = json.dumps([*BROKEN, SHOWN])
LOGGED = [
    [*code_script("print('first')"), *BROKEN, *code_script("print('last')\nfinal_answer('done')")],
    [*BROKEN, *BROKEN, *code_script("1 + 1", "def broken(:", "print('late')\n1 / 0"), SKIPPED, DONE],
    [*code_script("def broken(:", f"print('outer')\nfirst = helper({TASK!r})"), {"text": "no code"}],
    [*BROKEN, *code_script(f"final_answer(helper({BROKEN_TASK!r}))")],
    [*code_script("def broken(:"), SHOWN],
]


@pytest.fixture(scope="module")
def cold(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("cold"), outside.settings | {"WARM_SESSIONS": "0"}) as service:
        yield service


@pytest.fixture(params=mostly_deep(["warm", "cold"], fast=["cold"]))
def either(request: pytest.FixtureRequest, cold: Service) -> Service:
    service: Service = request.getfixturevalue("service") if request.param == "warm" else cold
    return service


@pytest.mark.parametrize("script", [SEEDED, LOGGED], ids=["seeds", "logs"])
def test_prompts_equal_those_of_one_agent(either: Service, script: list[list[Event]]) -> None:
    bare = coders.make_whole()
    turn: Event | None = None
    for number, entries in enumerate(script):
        expected = str(bare.run(json.dumps(entries), reset=False, max_steps=5))
        turn = (
            either.follow_up(turn, *entries, max_steps=5) if turn else either.play(*entries, agent="whole", max_steps=5)
        )
        assert turn["reply"] == expected, number


def test_logs_of_code_in_a_thread_equal_those_of_one_agent(cold: Service) -> None:
    bare = coders.make_coder()
    bare.run(json.dumps(LOGGED[0]), reset=False)
    turn = cold.follow_up(cold.play(*LOGGED[0], agent="threaded"), *BROKEN, SHOWN)
    assert turn["reply"] == bare.run(json.dumps([*BROKEN, SHOWN]), reset=False)


def test_states_of_unseeded_generators_are_not_stored(cold: Service, outside: StoreServer) -> None:
    draws = "import random\nimport numpy as np\nn = random.random() + random.gauss(0, 1) + np.random.rand()"
    drawn, _ = play_code(cold, draws, agent="whole")
    seeded, _ = play_code(cold, draws, "random.seed(5)", agent="whole")
    raw = outside.client()
    assert len(variable_chunks(raw, seeded)) == len(variable_chunks(raw, drawn)) + 1


def test_seeds_and_logs_outlive_a_killed_process(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "a.ledger", 4)
    seeded = "import random\nrandom.seed(5)\nprint(random.random())"
    note_call = f"one = random.random()\nnote(str(one), {str(ledger.path)!r})\nprint(one)"
    script = [*code_script(seeded), *BROKEN, *code_script(note_call, "print(random.random())"), SHOWN]
    killed_turn = KilledTurn(ledger, "writer", script)
    with Service(tmp_path / "service", SETTINGS) as service:
        kill_and_resume(service, [killed_turn])
    assert killed_turn.turn["attempts"] == 2
    bare = coders.make_coder(("random",), tools=[note])
    expected = bare.run(json.dumps(script), reset=False)
    assert killed_turn.turn["reply"] == expected
    first, again = (call for call in ledger.calls if call.startswith("note"))
    assert again == first
