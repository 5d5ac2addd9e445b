"""Steps besides those of turns: summaries of older ones, each made once and counted, and notes that agents write."""

import json
from pathlib import Path
from typing import Any

import pytest

from smolsessions.agents.memory.scratchpad import Scratchpad
from smolsessions.agents.run.effects import Effect
from smolsessions.agents.values import dumps
from tests.support.policies import LONG, Json, echo_call, message_texts, patch_policy, path_of, predicted, requested
from tests.support.service import Gate, Service
from tests.support.streaming import log_of
from tests.support.turns import DONE, PROMPT, SHOWN, submit_turn, wait_for_end

AFTER_600: Json = {"name": "summarize", "after_tokens": 600}


def talk(service: Service, turns: int, agent: str = "plain", more: str = "") -> Json:
    """Play turns of a call and an answer each: about 400 tokens."""
    turn = service.play(echo_call(f"1 {more}{LONG}"), DONE, agent=agent)
    for number in range(2, turns + 1):
        turn = service.follow_up(turn, echo_call(f"{number} {more}{LONG}"), DONE)
    return turn


def summaries(service: Service, turn: Json) -> list[Json]:
    return list(service.get(path_of(turn, "/steps"), type="summary", limit=100)["items"])


def test_a_summary_is_made_once_and_replaces_the_steps_it_covers(service: Service, folder: Path) -> None:
    turn = talk(service, 3)
    whole = service.steps(turn)
    patch_policy(service, turn, AFTER_600)
    turn = service.follow_up(turn, SHOWN)
    (given,) = requested(folder)
    assert given.count("New task:") == 3
    assert "Observation:\n2 long" in given
    shown = json.loads(turn["reply"])
    assert [text.partition("\n")[0] for _, text in shown] == ["Summary of the conversation so far:", "New task:"]
    assert shown[0][1].endswith(f"Summary 1 of {len(given)} characters.")
    steps = service.steps(turn)
    assert [step["type"] for step in steps[len(whole) :]] == ["task", "summary", "action"]
    assert steps[: len(whole)] == whole
    assert turn["usage"]["input_tokens"] == 1000 + 10
    assert turn["usage"]["output_tokens"] == 100 + 5
    assert turn["left_out"]["steps"] == 9
    assert turn["tool_call_names"] == []
    expected = predicted(service, turn, PROMPT)
    assert service.follow_up(turn, PROMPT)["reply"] == expected
    assert len(requested(folder)) == 1
    assert service.get(path_of(turn))["step_counts"]["summary"] == 1
    assert summaries(service, turn)[0]["text"] == f"Summary 1 of {len(given)} characters."
    (exported,) = [step for step in service.get(path_of(turn, "/export"))["steps"] if step["type"] == "summary"]
    assert (exported["input_tokens"], exported["output_tokens"]) == (1000, 100)


def test_events_do_not_show_the_making_of_a_summary(service: Service) -> None:
    turn = talk(service, 3)
    patch_policy(service, turn, AFTER_600)
    turn = service.follow_up(turn, DONE)
    log = service.client.get(
        path_of(turn, f"/turns/{turn['turn']}/events"), headers={"Accept": "text/event-stream"}
    ).text
    assert summaries(service, turn)[0]["text"] not in log.partition("event: step.finished")[0]
    assert log.count("event: step.started") == 1


def test_a_second_summary_includes_the_first(service: Service, folder: Path) -> None:
    turn = talk(service, 3)
    patch_policy(service, turn, AFTER_600)
    for number in range(4, 9):
        turn = service.follow_up(turn, echo_call(f"{number} {LONG}"), DONE)
    given = requested(folder)
    assert len(given) > 1
    for number, text in enumerate(given[1:], 1):
        assert f"Summary {number} of " in text
    shown = message_texts(service, turn)
    assert sum(text.startswith("Summary of") for text in shown) == 1
    assert shown[1].startswith("Summary of")
    numbers = [n for n in range(1, 9) if not any(f"Observation:\n{n} long" in text for text in [*given, *shown])]
    assert not numbers, "what is neither summed up nor shown is lost"
    assert len(summaries(service, turn)) == len(given)
    counts = service.get(path_of(turn))["step_counts"]
    assert (counts["task"], counts["action"]) == (8, 16)


def test_a_long_conversation_is_summarized_in_parts(service: Service, folder: Path) -> None:
    turn = talk(service, 8, more=LONG * 4)
    patch_policy(service, turn, AFTER_600)
    turn = service.follow_up(turn, DONE)
    given = requested(folder)
    assert len(given) > 1
    for number, text in enumerate(given[1:], 1):
        assert text.startswith(f"Summary of what was before:\nSummary {number} of ")
    assert len(summaries(service, turn)) == 1
    assert turn["usage"]["input_tokens"] == 1000 * len(given) + 10
    assert all(f"Observation:\n{number} long" in "\n".join(given) for number in range(1, 9))


@pytest.mark.parametrize("agent", ["failing", "empty"])
def test_after_a_failed_summary_all_steps_are_shown(service: Service, folder: Path, agent: str) -> None:
    before = service.log()
    turn = talk(service, 3, agent)
    patch_policy(service, turn, AFTER_600)
    turn = service.follow_up(turn, echo_call("4"), SHOWN)
    assert turn["status"] == "finished", turn["error"]
    assert len([text for _, text in json.loads(turn["reply"]) if text.startswith("New task:")]) == 4
    assert summaries(service, turn) == []
    assert len(requested(folder)) == 1, "a model that fails is asked once a turn"
    log = service.log().removeprefix(before)
    assert "no summary could be made" in log
    assert "hunter2" not in log
    service.follow_up(turn, DONE)
    assert len(requested(folder)) == 2


def test_a_failed_summary_is_not_retried_in_its_turn(service: Service, folder: Path) -> None:
    notes = {"call": [["note_write", {"text": f"{number} " + "note " * 390}] for number in range(10)]}
    turn = service.play(notes, DONE, agent="plain")
    turn = service.follow_up(turn, DONE)
    patch_policy(service, turn, {"name": "summarize", "after_tokens": 3000})
    turn = service.follow_up(turn, DONE)
    before = len(requested(folder))
    for _ in range(6):
        turn = service.follow_up(turn, DONE)
    assert len(requested(folder)) <= before + 3, "the notes alone are more than that"


def test_a_stop_interrupts_a_summary(service: Service, gate: Gate) -> None:
    path = gate.path.with_suffix(".gate")
    turn = talk(service, 3, more=f"{path} ")
    patch_policy(service, turn, AFTER_600)
    stopped = submit_turn(service, DONE, agent="plain", conversation_id=turn["conversation_id"])
    Gate(path).reached()
    answer = service.client.post(path_of(stopped, f"/turns/{stopped['turn']}/cancel"))
    assert answer.status_code in {200, 202}, answer.text
    assert wait_for_end(service, stopped)["status"] == "cancelled"
    path.touch()  # after the end: otherwise the summary might be made before the stop arrives
    assert summaries(service, turn) == []
    assert service.follow_up(turn, DONE)["status"] == "finished"
    assert len(summaries(service, turn)) == 1


def test_a_prune_of_summaries_keeps_the_newest(service: Service) -> None:
    turn = talk(service, 3)
    patch_policy(service, turn, AFTER_600)
    for number in range(4, 8):
        turn = service.follow_up(turn, echo_call(f"{number} {LONG}"), DONE)
    before = message_texts(service, turn)
    pruned = service.post(path_of(turn, "/prune")).json()
    assert pruned["archived"] == pruned["left_out"] > 0
    assert message_texts(service, turn) == before
    assert len(summaries(service, turn)) == 1
    expected = predicted(service, turn, PROMPT)
    assert service.follow_up(turn, PROMPT)["reply"] == expected


SEEN = {"notes": True}


def writing(*texts: str, **more: Any) -> dict[str, Any]:
    return {"call": [["note_write", {"text": text} | more] for text in texts]}


def notes_of(service: Service, turn: dict[str, Any]) -> list[tuple[int, str, int | None]]:
    where = f"/conversations/{turn['conversation_id']}"
    items = [step for step in service.steps(turn) if step["type"] == "note"]
    assert service.get(where)["step_counts"].get("note", 0) == len(items)
    return [(item["number"], item["text"], item["replaces"]) for item in items]


def types_of(service: Service, turn: dict[str, Any]) -> list[str]:
    return [step["type"] for step in service.steps(turn)]


def test_a_note_is_a_step_in_front_of_its_call_and_is_shown_from_then_on(service: Service) -> None:
    first = service.play(writing("Ann likes pears"), SEEN, agent="noter")
    assert (first["reply"], first["step_count"]) == ("Note 1:\nAnn likes pears", 2)
    assert types_of(service, first) == ["task", "note", "action", "action"]
    assert notes_of(service, first) == [(1, "Ann likes pears", None)]
    assert [frame.event for frame in log_of(service, first)].count("step.finished") == 2
    assert service.follow_up(first, SEEN)["reply"] == "Note 1:\nAnn likes pears"
    second = service.follow_up(first, writing("Grüße, 世界, שלום 🌍"), {"call": [["note_read", {}]]}, DONE)
    assert second["tool_call_names"] == ["note_write", "note_read"]
    assert service.steps(second)[-2]["observations"] == "Note 1:\nAnn likes pears\n\nNote 2:\nGrüße, 世界, שלום 🌍"
    assert notes_of(service, second)[1:] == [(2, "Grüße, 世界, שלום 🌍", None)]


@pytest.mark.parametrize("agent", ["code-noter", "thread-noter"])
def test_code_writes_and_reads_notes(service: Service, agent: str) -> None:
    code = "n = note_write('one')\nm = note_write('uno', replaces=1)\nprint(n, m, note_read())"
    turn = service.play({"code": code}, DONE, agent=agent)
    assert types_of(service, turn) == ["task", "note", "note", "action", "action"]
    assert notes_of(service, turn) == [(1, "one", None), (2, "uno", 1)]
    assert "Written as note 1. Written as note 2. Note 2:\nuno" in service.steps(turn)[-2]["observations"]
    failed = service.follow_up(turn, {"code": "note_write('', 7)"}, DONE)
    assert "a note needs a text" in service.steps(failed)[-2]["error"]["message"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"text": " \n "}, "a note needs a text"),
        ({"text": "x" * 2001}, "2000 characters, this one has 2001; make it shorter"),
        ({"text": "x", "replaces": 1}, "there is no note 1 to replace; note_read shows"),
    ],
)
def test_an_invalid_note_is_refused_with_a_sentence(service: Service, call: dict[str, Any], told: str) -> None:
    turn = service.play({"call": [["note_write", call]]}, SEEN, agent="noter")
    assert told in service.steps(turn)[1]["error"]["message"]
    assert (turn["reply"], notes_of(service, turn)) == ("", [])


def test_a_full_scratchpad_accepts_a_replacement(service: Service) -> None:
    full = service.play(writing(*[f"{number} " + "x" * 1900 for number in range(50)]), DONE, agent="noter")
    refused = service.follow_up(full, writing("one too many"), DONE)
    assert "there are 50 notes, and no room for more; replace one" in service.steps(refused)[-2]["error"]["message"]
    assert len(notes_of(service, refused)) == 50
    turn = service.follow_up(full, writing("in the place of 7", replaces=7), {"call": [["note_read", {}]]}, DONE)
    assert notes_of(service, turn)[50:] == [(51, "in the place of 7", 7)]
    read = service.steps(turn)[-2]["observations"]
    assert "Note 7:" not in read
    assert read.endswith("Note 51:\nin the place of 7")


def test_an_existing_note_is_not_written_twice(service: Service) -> None:
    turn = service.play(writing("one"), writing("one "), writing("one", replaces=1), DONE, agent="noter")
    assert notes_of(service, turn) == [(1, "one", None)]
    assert {step["observations"] for step in service.steps(turn)[2:5]} == {"Written as note 1."}


def test_a_reset_hides_notes_and_their_numbers_continue(service: Service) -> None:
    before = service.play(writing("one"), DONE, agent="noter")
    after = service.follow_up(before, {"call": [["note_read", {}]]}, writing("two"), SEEN, reset=True)
    assert service.steps(after)[-4]["observations"] == "There are no notes."
    assert after["reply"] == service.follow_up(after, SEEN)["reply"] == "Note 2:\ntwo"
    assert notes_of(service, after) == [(1, "one", None), (2, "two", None)]
    refused = service.follow_up(after, writing("uno", replaces=1), DONE)
    assert "there is no note 1" in service.steps(refused)[-2]["error"]["message"]


def test_an_unfinished_step_leaves_no_note(service: Service) -> None:
    both = {"call": [*writing("never")["call"], ["leave", {}]]}
    turn = service.play(both, DONE, agent="noter")
    assert (turn["status"], turn["step_count"]) == ("failed", 0)
    assert [call["ok"] for call in turn["tool_calls"] if call["name"] == "note_write"] == [True]
    assert types_of(service, turn) == ["task"]
    again = service.follow_up(turn, writing("first"), both, SEEN)
    assert types_of(service, again) == ["task", "task", "note", "action"]
    assert service.follow_up(turn, writing("second"), SEEN)["reply"] == "Note 1:\nfirst | Note 2:\nsecond"


def test_managed_agents_have_no_scratchpad_tools(service: Service) -> None:
    tools = {agent["name"]: {tool["name"] for tool in agent["tools"]} for agent in service.get("/agents")["items"]}
    assert {"note_write", "note_read"} <= tools["noter"]
    task = json.dumps([writing("helper's"), DONE])
    turn = service.play({"call": [["helper", {"task": task}]]}, writing("boss's"), SEEN, agent="boss")
    assert turn["reply"] == "Note 1:\nboss's"


def test_a_repeated_call_finds_its_note_if_only_its_sibling_was_journaled() -> None:
    """Two parallel calls: the second effect holds the state of both when the process died."""
    before = Scratchpad()
    assert [before.write(text, None) for text in ("one", "two")] == [1, 2]
    effects = [Effect(dumps("Written as note 2."), changes={":tool:note_write": dumps(before.state())})]
    for first_comes in ("made again", "given back"):
        pad = Scratchpad()
        pad.expect(effects)
        if first_comes == "given back":
            pad.add_state(before.state())
        assert pad.write("one", None) == 1
        assert pad.write("three", None) == 3
        if first_comes == "made again":
            pad.add_state(before.state())
        last, notes = pad.state()
        assert (last, sorted(notes)) == (3, [[1, "one", None], [2, "two", None], [3, "three", None]])
