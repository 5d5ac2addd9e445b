"""The objects of a turn are freed at its end. A collection of garbage takes long, and all threads stand still."""

from pathlib import Path

from tests.support.service import Service
from tests.support.streaming import Event
from tests.support.turns import DONE, ECHO

TURNS = 10
COLLECT: Event = {"call": [["collect", {}]]}
SETTINGS = {"AGENTS": "collector=tests.support.collectors:make_collector", "DEMO_AGENTS": "0"}


def test_no_turn_leaves_objects_to_the_garbage_collector(tmp_path: Path) -> None:
    with Service(tmp_path, SETTINGS) as service:
        first = service.play(COLLECT, DONE, agent="collector")
        for _ in range(TURNS):
            service.play(ECHO, DONE, agent="collector")
            service.follow_up(first, ECHO, DONE)
        service.follow_up(first, COLLECT, DONE)
        steps = service.steps(first)

    observed = [step["observations"] for step in steps if step["type"] == "action"]
    assert int(observed[-2]) < TURNS, "objects that only the collector freed, less than one a turn"
