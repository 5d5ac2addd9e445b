"""Takeovers of calls that cannot be kept, must not be repeated, or have another result the second time.

All turns of `resumed` block, each at its chosen calls, when their one process is killed.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from redis import Redis

from tests.support import ledgers
from tests.support.killed_turns import SETTINGS, KilledTurn, Script, kill_when_blocked, note_call
from tests.support.ledgers import Ledger
from tests.support.service import Service, wait_until
from tests.support.store_server import PARTITION
from tests.support.streaming import Event
from tests.support.turns import DONE, png, submit_turn, wait_for_end


@dataclass
class Case:
    """A turn that blocks at its calls number `at`, after `before` earlier turns."""

    agent: str
    script: Callable[[str], Script]
    at: tuple[int, ...]
    body: Event = field(default_factory=dict)
    before: int = 0


def calling(tool: str, ledger: str, **arguments: str) -> Event:
    return {"call": [[tool, {**arguments, "ledger": ledger}]]}


def coded(*blocks: str) -> Callable[[str], Script]:
    """Return a script of code blocks as a function of the ledger's path. `L` in a block stands for that path."""
    return lambda ledger: [*({"code": block.replace("L)", f"{ledger!r})")} for block in blocks), DONE]


def _two(ledger: str) -> Script:
    return [note_call(ledger, "a"), note_call(ledger, "b"), DONE]


def _charged(ledger: str) -> Script:
    return [calling("charge", ledger, what="x"), note_call(ledger, "a"), DONE]


NEW_GENERATOR = "import random\ndrawn = random.Random().random()\n"  # seeded by the kernel, anew in a replay
CASES = {
    "same ids": Case("teller", lambda at: [note_call(at, "a", "b", "a") | {"same_ids": True}, DONE], (5,)),
    "opaque": Case("teller", lambda at: [calling("bring", at, what="opaque"), *_two(at)], (6,)),
    "generator": Case("teller", lambda at: [calling("bring", at, what="generator"), *_two(at)], (6,)),
    "unsafe": Case("teller", _charged, (2,)),
    "unsafe, twice": Case("teller", _charged, (2, 4)),
    "unsafe, over": Case("teller", _charged, (3,)),
    "unsafe to the agent": Case("wary", lambda at: [note_call(at, "a"), DONE], (2,)),
    "unsafe in code": Case(
        "writer", coded("note('a', L)\ntry:\n    charge('x', L)\nexcept RuntimeError as e:\n    print(e)"), (3,)
    ),
    "unsafe by chance": Case("writer", coded(f"{NEW_GENERATOR}charge(str(drawn), L)"), (2,)),
    "chance": Case(
        "writer",
        coded(
            "import uuid, random, secrets\n"
            "drawn = [str(uuid.uuid4()), str(random.random()), secrets.token_hex(4)]\n"
            "for one in drawn:\n    note(one, L)",
            "final_answer(note(' '.join(drawn), L))",
        ),
        (4,),
    ),
    "state": Case("keeper", lambda p: [*[calling("count", p)] * 2, note_call(p, "a"), calling("count", p), DONE], (6,)),
    "lasting tool": Case(
        "keeper", lambda at: [calling("lasting", at, word="one"), calling("lasting", at, word="two"), DONE], (4,)
    ),
    "forgetful tool": Case(
        "keeper", lambda at: [calling("notebook", at, word="one"), calling("notebook", at, word="two"), DONE], (4,)
    ),
    "images": Case("teller", _two, (4,), {"images": [png("red"), png("blue")]}),
    "given": Case(
        "writer",
        coded("numbers.append(2)\nnote(city, L)", "note(str(numbers), L)"),
        (4,),
        {"additional_args": {"city": "Bern", "numbers": [1]}},
    ),
    "max steps": Case("teller", _two, (5,), {"max_steps": 2}),
    "model error": Case("teller", lambda at: [note_call(at, "a"), {"raise": f"kaputt {at}"}], (3,)),
    "agents at once": Case(
        "boss", lambda at: [{"call": [["helper", {"task": json.dumps([*_two(at)[:2], {"say": at}])}]] * 3}, DONE], (12,)
    ),
    "many turns": Case("teller", _two, (4,), before=4),
    "half written": Case("writer", coded("x = 41", "note('a', L)"), (2,)),
    "reset": Case("teller", _two, (4,), {"reset": True}, before=2),
}


@dataclass
class Resumed:
    """Turns that were taken over, by case. Their service loads every conversation anew."""

    service: Service
    cases: dict[str, KilledTurn]

    def turn(self, name: str, *, repeated: list[bool], status: str = "finished") -> tuple[Event, Ledger]:
        """Check the turn of a case, and return it with its ledger."""
        it = self.cases[name]
        assert it.turn["status"] == status, (it.turn["error"], it.turn["tool_calls"])
        assert it.turn["attempts"] == 1 + len(CASES[name].at)
        assert [call["repeated"] for call in it.turn["tool_calls"]] == repeated, it.turn["tool_calls"]
        return it.turn, it.ledger

    def is_shown_the_same(self, name: str, *before: Script) -> bool:
        """Return whether the next turn's prompt equals a bare agent's. `before` holds the turns before this one."""
        it = self.cases[name]
        bare = getattr(ledgers, f"make_{it.agent}")()
        for script in before:
            bare.run(json.dumps(script), reset=False)
        images = [PIL.Image.open(io.BytesIO(base64.b64decode(image))) for image in it.body.get("images", ())]
        given = json.loads(json.dumps(it.body.get("additional_args")))
        most = it.body.get("max_steps")
        written = {path: path.read_bytes() for path in (it.ledger.path / "calls", it.ledger.path / "ends")}
        bare.run(json.dumps(it.script), reset=False, images=[*images] or None, additional_args=given, max_steps=most)
        for path, before_that in written.items():  # calls of the bare agent do not belong to the turn
            path.write_bytes(before_that)
        shown = self.service.follow_up(it.turn, {"prompt": True})["reply"]
        return bool(shown == bare.run(json.dumps([{"prompt": True}]), reset=False))


@pytest.fixture(scope="module")
def resumed(folder: Path) -> Iterator[Resumed]:
    earlier = Ledger.at(folder / "earlier.ledger")
    service = Service(folder / "service", SETTINGS | {"WARM_SESSIONS": "0"})
    service.start()
    killed_turns = {}
    for number, (name, case) in enumerate(CASES.items()):
        ledger = Ledger.at(folder / f"{number}.ledger", *case.at)
        it = killed_turns[name] = KilledTurn(ledger, case.agent, case.script(str(ledger.path)), dict(case.body))
        turn: Event = {}
        for _ in range(case.before):
            script = _early(earlier)
            turn = service.follow_up(turn, *script) if turn else service.play(*script, agent=case.agent)
        if turn:
            it.body["conversation_id"] = turn["conversation_id"]
        it.turn = submit_turn(service, *it.script, agent=it.agent, **it.body)
    with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
        half = killed_turns["half written"].turn["conversation_id"]
        steps, pending = (f"{PARTITION}:{what}:local/{half}:0" for what in ("steps", "pending"))
        wait_until(lambda: raw.llen(steps) == 2)
        assert raw.rpop(steps)
        assert raw.delete(pending)
    twice = [killed_turns[name] for name, case in CASES.items() if len(case.at) > 1]
    for those in (list(killed_turns.values()), twice):
        kill_when_blocked(service, those)
        service.start()
        for it in killed_turns.values():
            if those is twice or it not in twice:
                it.turn = wait_for_end(service, it.turn)
    yield Resumed(service, killed_turns)
    service.stop()


def _early(earlier: Ledger) -> Script:
    return [note_call(str(earlier.path), "early"), DONE]


def test_calls_that_a_provider_gives_one_id_are_told_apart(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("same ids", repeated=[False, False, False])
    assert Counter(call for call in ledger.calls if call.startswith("note")) == {"note a": 2, "note b": 1}
    assert [call["arguments"]["what"] for call in turn["tool_calls"]] == ["a", "b", "a"]
    assert len({call["call_id"] for call in turn["tool_calls"]}) == 3


@pytest.mark.parametrize("what", ["opaque", "generator"])
def test_a_call_whose_result_cannot_be_kept_is_made_again_and_marked(resumed: Resumed, what: str) -> None:
    _, ledger = resumed.turn(what, repeated=[True, False, True])
    made = Counter(call for call in ledger.calls if not call.startswith("model"))
    assert made == {f"bring {what}": 2, "note a": 1, "note b": 2}
    assert what != "opaque" or resumed.is_shown_the_same("opaque")


@pytest.mark.parametrize("name", ["unsafe", "unsafe, twice", "unsafe to the agent"])
def test_a_call_that_is_unsafe_to_repeat_is_not_and_the_model_is_told_so(resumed: Resumed, name: str) -> None:
    others = {"unsafe": [False], "unsafe, twice": [True], "unsafe to the agent": []}[name]
    turn, ledger = resumed.turn(name, repeated=[False, *others])
    tool = "note" if name == "unsafe to the agent" else "charge"
    assert len([call for call in ledger.calls if call.startswith(tool)]) == 1
    assert not turn["tool_calls"][0]["ok"]
    first = next(step for step in resumed.service.steps(turn) if step["type"] == "action")
    assert "it is not known whether this call of" in first["error"]["message"]
    assert turn["reply"] == "done"


def test_a_call_that_is_unsafe_to_repeat_and_was_over_is_given_back(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("unsafe, over", repeated=[False, False])
    assert [call for call in ledger.calls if call.startswith("charge")] == ["charge x"]
    assert [call["ok"] for call in turn["tool_calls"]] == [True, True]
    assert resumed.is_shown_the_same("unsafe, over")


def test_code_is_told_of_a_call_that_is_unsafe_to_repeat_by_an_error(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("unsafe in code", repeated=[False, False])
    assert ledger.calls.count("charge x") == ledger.calls.count("note a") == 1
    first = next(step for step in resumed.service.steps(turn) if step["type"] == "action")
    assert "it is not known whether this call of charge had its effect" in first["observations"]


def test_a_replay_draws_the_same_random_numbers(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("chance", repeated=[False, False, True, False])
    drawn = turn["reply"].removeprefix("noted ").split(" ")
    assert len(set(drawn)) == 3
    made = Counter(call.removeprefix("note ") for call in ledger.calls if call.startswith("note"))
    assert made == {drawn[0]: 1, drawn[1]: 1, drawn[2]: 2, " ".join(drawn): 1}
    again = resumed.service.follow_up(turn, {"code": f"final_answer(note(drawn[0], {str(ledger.path)!r}))"})
    assert again["reply"] == f"noted {drawn[0]}"


def test_what_a_tool_changed_in_its_agents_state_is_changed(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("state", repeated=[False, False, True, False])
    assert ledger.calls.count("count") == 3
    assert _observed(resumed, turn) == "count 3"
    following = resumed.service.follow_up(turn, calling("count", str(ledger.path)), DONE)
    assert _observed(resumed, following) == "count 4"


def test_a_tool_that_gives_its_state_has_it_again(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("lasting tool", repeated=[False, True])
    assert _observed(resumed, turn) == "one two"
    assert turn["dropped_variables"] == []
    following = resumed.service.follow_up(turn, calling("lasting", str(ledger.path), word="three"), DONE)
    assert _observed(resumed, following) == "one two three"
    assert following["dropped_variables"] == []


def test_a_tool_that_cannot_give_its_state_is_named_by_the_turn_that_lost_it(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("forgetful tool", repeated=[False, True])
    assert _observed(resumed, turn) == "two"
    assert turn["dropped_variables"] == ["tool:notebook"]
    following = resumed.service.follow_up(turn, note_call(str(ledger.path), "x"), DONE)
    assert following["dropped_variables"] == ["tool:notebook"]  # lost again, because no session was warm


@pytest.mark.parametrize("name", ["images", "given"])
def test_what_came_with_the_message_is_there_in_the_replay(resumed: Resumed, name: str) -> None:
    _, ledger = resumed.turn(name, repeated=[False, True])
    if name == "given":
        noted = Counter(call for call in ledger.calls if call.startswith("note"))
        assert noted == {"note Bern": 1, "note [1, 2]": 2}
    assert resumed.is_shown_the_same(name)


def test_an_answer_that_is_forced_is_forced_in_the_replay(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("max steps", repeated=[False, False])
    assert (turn["reply"], turn["outcome"], turn["step_count"]) == ("forced answer", "max_steps_error", 3)
    assert [call for call in ledger.calls if call.startswith("note")] == ["note a", "note b"]
    assert resumed.is_shown_the_same("max steps")


def test_a_model_that_fails_again_fails_the_turn_with_its_finished_steps(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("model error", repeated=[False], status="failed")
    assert (turn["error"]["code"], turn["step_count"]) == ("model_error", 1)
    assert ledger.calls.count("note a") == 1
    assert len(resumed.service.steps(turn)) == 2


def test_one_managed_agent_that_was_called_three_times_at_once_has_three_runs(resumed: Resumed) -> None:
    turn, ledger = resumed.turn("agents at once", repeated=[False] * 9)
    (in_flight,) = resumed.cases["agents at once"].in_flight
    assert in_flight.startswith("model")  # the third run's first call
    assert Counter(call.split(" ", 1)[-1] for call in ledger.calls if call.startswith("note")) == {"a": 3, "b": 3}
    assert len(ledger.calls) == 2 + 3 * 5 + 1
    calls = [(call["name"], call["arguments"].get("what"), call["ok"]) for call in turn["tool_calls"]]
    assert calls == [("helper", None, True), ("note", "a", True), ("note", "b", True)] * 3
    assert _observed(resumed, turn) == "\n".join([str(ledger.path)] * 3)


@pytest.mark.parametrize(("name", "shown"), [("many turns", 4), ("reset", 0)])
def test_a_turn_is_taken_over_behind_others_which_a_reset_hides(resumed: Resumed, name: str, shown: int) -> None:
    turn, ledger = resumed.turn(name, repeated=[False, True])
    assert turn["turn"] == 1 + CASES[name].before
    early = _early(Ledger(ledger.path.with_name("earlier.ledger")))
    assert resumed.is_shown_the_same(name, *[early] * shown)


def test_variables_last_though_of_their_steps_only_the_task_was_written(resumed: Resumed) -> None:
    """A task is stored with the step after it, but not atomically: a process may die in between."""
    turn, ledger = resumed.turn("half written", repeated=[False])
    after = resumed.service.follow_up(turn, {"code": f"final_answer(x + 1)  # {ledger.path}"})
    assert after["output"] == 42


def _observed(resumed: Resumed, turn: Event) -> Any:
    """Return the observations of a turn's last step before its answer."""
    steps = [step for step in resumed.service.steps(turn) if step["turn"] == turn["turn"]]
    return steps[-2]["observations"]
