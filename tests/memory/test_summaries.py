"""Summaries of older steps: a model makes each once, it is journaled before a prompt uses it, and usage counts it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.policies import LONG, echo_call, message_texts, patch_policy, path_of, predicted, requested
from tests.support.service import Gate, Service
from tests.support.turns import DONE, PROMPT, SHOWN, submit_turn, wait_for_end

Json = dict[str, Any]
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
    again = service.follow_up(turn, DONE)
    assert again["status"] == "finished"
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
