"""Callbacks of an agent's author change the memory: the record stays whole, and the changes last, on any process."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from tests.support import editors
from tests.support.service import Service, wait_until
from tests.support.streaming import Event, place
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import pages, wait_for_end

MESSAGES = [f"message {number}" for number in range(6)]


WARM = "mix turn_around edit_newest shorten_code ruin_none foreign_timing"
COLD = """
    put_in_place insert_first edit_in_place drop_images double reset at_the_end mix_code ruin_tuple ruin_raise
    foreign_error foreign_calls foreign_message
"""
FAST = dict.fromkeys(WARM.split(), "warm") | dict.fromkeys(COLD.split(), "cold")


def of_both(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test with names of agents, and with both temperatures of sessions."""
    cases = product(names, ("warm", "cold"))
    marked = [pytest.param(*case, marks=() if FAST.get(case[0]) == case[1] else deep) for case in cases]
    return pytest.mark.parametrize(("name", "temperature"), marked)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    """Yield a service that keeps sessions warm, and one that rebuilds each."""
    names = {"warm": {}, "cold": {"WARM_SESSIONS": "0"}}
    running = {n: Service(tmp_path_factory.mktemp(n), {"AGENTS": editors.AGENTS} | more) for n, more in names.items()}
    for service in running.values():
        service.start()
    yield running
    for service in running.values():
        service.stop()


def actions(service: Service, turn: Event) -> list[int]:
    found = pages(service, f"/conversations/{turn['conversation_id']}/steps", limit=100)
    return [step["turn"] for page in found for step in page if step["type"] == "action"]


def play(service: Service, message: str, turn: Event | None, agent: str) -> Event:
    body = {"conversation_id": turn["conversation_id"]} if turn else {}
    played: Event = service.post("/turn", message=message, agent=agent, **body).json()
    assert played["status"] == "finished", played
    return played


@of_both(editors.FACTORIES)
def test_edited_prompts_equal_those_in_one_process(services: dict[str, Service], name: str, temperature: str) -> None:
    service, bare, turn = services[temperature], editors.FACTORIES[name](), None
    expected: list[int] = []
    for number, message in enumerate(MESSAGES, 1):
        turn = play(service, message, turn, name)
        assert turn["reply"] == str(bare.run(message, reset=False))
        expected += [number] * (bare.step_number - 1)
        assert turn["step_count"] == bare.step_number - 1
    assert turn
    assert actions(service, turn) == expected
    assert service.get(f"/conversations/{turn['conversation_id']}")["step_counts"]["action"] == len(expected)


MOVED = ["keep_last", "put_in_place", "insert_first", "drop_images", "mix", "reset"]


@pytest.mark.parametrize("name", mostly_deep(MOVED, fast=["put_in_place", "mix"]))
def test_edits_follow_a_rollback_a_fork_and_an_export(services: dict[str, Service], name: str) -> None:
    service, bare, turn = services["cold"], editors.FACTORIES[name](), None
    for message in MESSAGES[:2]:
        bare.run(message, reset=False)
    for message in MESSAGES[:3]:
        turn = play(service, message, turn, name)
    assert turn
    at = f"/conversations/{turn['conversation_id']}"
    copies = [service.post(f"{at}/fork", turn=2).json()["id"], turn["conversation_id"]]
    assert service.post(f"{at}/rollback", turn=2).status_code == 200
    expected = str(bare.run(MESSAGES[3], reset=False))
    for conversation in copies:
        assert play(service, MESSAGES[3], {"conversation_id": conversation}, name)["reply"] == expected
    made = service.post("/imports", **service.get(f"{at}/export") | {"id": None})  # now without a gap
    assert made.status_code == 201, made.text
    shown = service.get(f"{at}/prompt")["messages"]
    expected = str(bare.run(MESSAGES[4], reset=False))
    for conversation in (made.json()["id"], *copies):
        if name != "drop_images":  # an image's link names its conversation
            assert service.get(f"/conversations/{conversation}/prompt")["messages"] == shown
        assert play(service, MESSAGES[4], {"conversation_id": conversation}, name)["reply"] == expected


@pytest.mark.parametrize("destroy", [False, True])
def test_a_prune_archives_edited_steps(services: dict[str, Service], *, destroy: bool) -> None:
    service, name, turn = services["cold"], "put_in_place", None
    for message in MESSAGES[:4]:
        turn = play(service, message, turn, name)
    assert turn
    at = f"/conversations/{turn['conversation_id']}"
    before = len(actions(service, turn))
    pruned = service.post(f"{at}/prune", policy=[{"name": "keep_last_n_steps", "n": 2}], destroy=destroy).json()
    assert pruned["destroyed" if destroy else "archived"] == pruned["left_out"] == before - 2
    messages = service.get(f"{at}/prompt")["messages"]
    shown = [str(message["content"]) for message in messages if message["role"] == "tool-response"]
    assert ["~" in text for text in shown] == [True, False]  # the older one has the callback's edit
    assert play(service, MESSAGES[4], turn, name)["status"] == "finished"


def test_an_export_closes_the_gaps_of_destroyed_steps(services: dict[str, Service]) -> None:
    service, name, turn = services["cold"], "turn_around", None
    for message in MESSAGES[:3]:
        turn = play(service, message, turn, name)
    assert turn
    at = f"/conversations/{turn['conversation_id']}"
    pruned = service.post(f"{at}/prune", policy=[{"name": "keep_last_n_steps", "n": 2}], destroy=True).json()
    assert pruned["destroyed"]
    play(service, MESSAGES[3], turn, name)
    made = service.post("/imports", **service.get(f"{at}/export") | {"id": None}).json()
    shown = [service.get(f"{path}/prompt")["messages"] for path in (at, f"/conversations/{made['id']}")]
    assert shown[0] == shown[1]


@of_both(editors.RUINS)
def test_a_broken_memory_loses_no_step(services: dict[str, Service], name: str, temperature: str) -> None:
    service = services[temperature]
    script = {"call": [["add", {"a": 1, "b": 2}]]}
    turn = service.play(script, agent=name)
    again = service.follow_up(turn, script)
    for played in (turn, again):
        assert (played["status"], played["error"]["code"], played["step_count"]) == ("failed", "agent_error", 1)
    assert actions(service, turn) == [1, 2]
    assert service.get("/conversations")["items"]  # the service still runs


@of_both(editors.FOREIGN)
def test_a_foreign_value_in_a_step_breaks_no_route(services: dict[str, Service], name: str, temperature: str) -> None:
    service = services[temperature]
    script = {"call": [["add", {"a": 1, "b": 2}]]}, {"call": [["final_answer", {"answer": "done"}]]}
    turn = service.play(*script, agent=name)
    again = service.follow_up(turn, *script)
    fails = name in {"foreign_timing", "foreign_usage"}  # smolagents' own monitor reads them after the callback
    for one in (turn, again):
        found = (one["status"], one["error"]["code"]) if fails else (one["status"], one["reply"])
        assert found == (("failed", "agent_error") if fails else ("finished", "done")), one
    at = f"/conversations/{turn['conversation_id']}"
    assert actions(service, turn) == ([1, 2] if fails else [1, 1, 2, 2])
    service.get(f"{at}/prompt")
    service.get(f"{at}/prompt", summary_mode=True)
    assert "step.finished" in service.client.get(f"{at}/turns/1/events").text
    document = service.get(f"{at}/export")
    made = service.post("/imports", **document | {"id": None})
    assert made.status_code == 201, made.text
    if name == "foreign_error":
        assert "too much" in str(next(step for step in document["steps"] if step["type"] == "action")["error"])


@pytest.mark.parametrize("temperature", mostly_deep(["warm", "cold"], fast=["warm"]))
def test_edited_prompts_are_the_same_after_a_killed_process(tmp_path: Path, temperature: str) -> None:
    names = [name for name in editors.FACTORIES if not name.endswith("_code")]
    bare, folder = {name: editors.FACTORIES[name]() for name in names}, tmp_path / "calls"
    folder.mkdir()
    settings = {"AGENTS": editors.AGENTS, "WARM_SESSIONS": "100" if temperature == "warm" else "0", "THREADS": "64"}
    with Service(tmp_path / "service", settings, {editors.FOLDER: str(folder)}) as service:
        turns: dict[str, Event] = {}
        amid: Counter[str] = Counter()
        taken: Counter[str] = Counter()
        for message in MESSAGES:
            expected = {name: str(bare[name].run(message, reset=False)) for name in names}
            taken.update({name: bare[name].step_number - 1 for name in names})
            stops = {name: folder / f"{name}.{calls(folder, name) + 2}" for name in names}
            for name, stop in stops.items():
                stop.touch()
                body: Event = {"conversation_id": turns[name]["conversation_id"]} if name in turns else {}
                turns[name] = service.client.post(
                    "/turn", json={"message": message, "agent": name} | body, headers={"Prefer": "respond-async"}
                ).json()
            for name, stop in stops.items():
                wait_until(partial(stands, service, turns[name], stop))
            if temperature == "cold" or message == MESSAGES[2]:
                amid.update(name for name in names if not is_over(service, turns[name]))
                service.kill()
            for stop in stops.values():
                stop.unlink()
            if service.process.poll() is not None:
                service.start()
            ended = {name: wait_for_end(service, turns[name]) for name in names}
            assert {name: turn["reply"] for name, turn in ended.items()} == expected
        assert sum(amid.values()) > len(names) / 3  # some callbacks end the turn before its second call
        for name in names:
            assert len(actions(service, turns[name])) == taken[name]


def calls(folder: Path, name: str) -> int:
    return len((folder / name).read_text().splitlines()) if (folder / name).exists() else 0


def stands(service: Service, turn: Event, stop: Path) -> bool:
    return calls(stop.parent, stop.stem) >= int(stop.suffix[1:]) or is_over(service, turn)


def is_over(service: Service, turn: Event) -> bool:
    return bool(service.get(place(turn))["status"] == "finished")
