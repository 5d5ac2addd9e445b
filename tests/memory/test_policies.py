"""Memory policies through HTTP: they bound the prompt, while all steps stay on record."""

import json
from pathlib import Path
from typing import Any

import pytest

from smolsessions.agents.catalog import Catalog
from smolsessions.core.errors import StartError
from tests.support import agents, remembering
from tests.support.data import table
from tests.support.documents import REFUSED
from tests.support.killed_turns import KilledTurn, kill_when_blocked
from tests.support.ledgers import Ledger
from tests.support.policies import (
    CODELESS,
    LONG,
    OWN,
    echo_call,
    message_texts,
    patch_policy,
    path_of,
    play_turns,
    predicted,
    prompt_of,
)
from tests.support.problems import problem
from tests.support.service import Service, wait_until
from tests.support.tiers import mostly_deep
from tests.support.transfer import export, import_document
from tests.support.turns import DONE, PROMPT, SHOWN, png, submit_turn, wait_for_end

Json = dict[str, Any]
POLICIES: list[Any] = [
    "no_pruning",
    {"name": "keep_last_n_steps", "n": 3},
    {"name": "prune_old_observations", "keep_last_n": 1, "max_length": 20},
    {"name": "token_budget", "max_tokens": 2600},
    {"name": "summarize", "after_tokens": 100_000},
    f"{OWN}tasks_alone",
    f"{OWN}shout",
    [{"name": "prune_old_observations", "keep_last_n": 1}, {"name": "keep_last_n_steps", "n": 4}],
]


def images_of(service: Service, turn: Json) -> int:
    messages = service.get(path_of(turn, "/prompt"))["messages"]
    return sum(part["type"] == "image" for message in messages for part in message["content"])


# The prompt


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: json.dumps(policy)[:40])
def test_the_messages_route_equals_the_prompt_under_every_policy(service: Service, policy: Any) -> None:
    turn = play_turns(service, policy=policy)
    before = service.steps(turn)
    for _ in range(2):  # the session is cold after the patch, then warm
        expected = predicted(service, turn, PROMPT)
        turn = service.follow_up(turn, PROMPT)
        assert turn["reply"] == expected, turn["error"]
    after = service.steps(turn)
    assert after[: len(before)] == before
    assert [step["type"] for step in after] == ["task", "action", "action"] * 4 + ["task", "action"] * 2


def test_keep_last_n_steps_shows_all_tasks_and_notes_and_the_last_steps(service: Service) -> None:
    turn = service.play({"call": [["note_write", {"text": "pears"}]]}, echo_call("a"), DONE, agent="plain")
    turn = service.follow_up(turn, echo_call("b"), DONE)
    patch_policy(service, turn, {"name": "keep_last_n_steps", "n": 2})
    texts = message_texts(service, turn)
    assert [text.partition("\n")[0] for text in texts[1:]] == [
        *("New task:", "Note 1:", "New task:"),
        *("I call.", "Calling tools:", "Observation:") * 2,
    ]
    assert "Observation:\nb" in texts
    left = service.get(path_of(turn, "/prompt"))["left_out"]
    assert (left["steps"], left["shortened"]) == (3, 0)
    assert left["characters"] > 0 < left["tokens"]
    assert all(message["tokens"] > 0 for message in service.get(path_of(turn, "/prompt"))["messages"])


def test_prune_old_observations_cuts_all_but_the_last_and_omits_their_images(service: Service) -> None:
    turn = service.play(echo_call(f"1 {LONG}"), DONE, agent="plain", images=[png("red")])
    turn = service.follow_up(turn, echo_call("x" * 111), echo_call("x" * 110), DONE)
    turn = service.follow_up(turn, echo_call(f"2 {LONG}"), DONE)
    whole = [text for text in message_texts(service, turn) if text.startswith("Observation:")]
    patch_policy(service, turn, {"name": "prune_old_observations", "keep_last_n": 2, "max_length": 10})
    cut = [text for text in message_texts(service, turn) if text.startswith("Observation:")]
    assert cut[3:] == whole[3:], "at most 100 characters more are not worth a cut"
    more = len(whole[0]) - len("Observation:\n") - 10
    told = f"Observation:\n1 long lon… ({more} more characters were left out)\n(1 images of this step were left out)"
    assert cut[:2] == [told, "Observation:\ndone\n(1 images of this step were left out)"]
    assert cut[2] == "Observation:\nxxxxxxxxxx… (101 more characters were left out)"
    assert images_of(service, turn) == 1  # that of the task
    left = service.get(path_of(turn, "/prompt"))["left_out"]
    assert (left["steps"], left["shortened"]) == (0, 3)


def test_rules_are_chained_in_order(service: Service) -> None:
    turn = play_turns(service, 4)
    last, own = {"name": "keep_last_n_steps", "n": 2}, f"{OWN}tasks_alone"
    patch_policy(service, turn, [last, own])
    assert len(message_texts(service, turn)) == 1 + 4
    cut = {"name": "prune_old_observations", "keep_last_n": 0, "max_length": 200}
    patch_policy(service, turn, [cut, cut | {"max_length": 5}, f"{OWN}shout"])
    left = service.get(path_of(turn, "/prompt"))["left_out"]
    assert (left["steps"], left["shortened"]) == (0, 8)  # a copy of a copy belongs to the same step
    pruned = service.post(path_of(turn, "/prune"), dry_run=True).json()
    assert (pruned["left_out"], pruned["shortened"], pruned["archived"]) == (0, 8, 0)
    patch_policy(service, turn, f"{OWN}replace_actions")
    left = service.get(path_of(turn, "/prompt"))["left_out"]
    assert (left["steps"], left["shortened"]) == (0, 8), "a changed copy of a step counts as the step"


def test_an_agents_policy_applies_until_the_conversation_has_one(service: Service) -> None:
    listed = {agent["name"]: agent["policy"] for agent in service.get("/agents")["items"]}
    assert (listed["last"], listed["plain"]) == ([{"name": "keep_last_n_steps", "n": 2}], [])
    turn = play_turns(service, 3, "last")
    assert service.get(path_of(turn))["policy"] is None
    assert len(message_texts(service, turn)) == 1 + 3 + 2 * 3
    assert patch_policy(service, turn, "no_pruning")["policy"] == [{"name": "no_pruning"}]
    assert len(message_texts(service, turn)) == 1 + 3 + 6 * 3
    assert service.follow_up(turn, DONE)["left_out"]["steps"] == 0
    assert patch_policy(service, turn, None)["policy"] is None
    assert service.follow_up(turn, DONE)["left_out"]["steps"] > 0


def test_the_prompts_of_managed_agents_are_not_bounded(service: Service) -> None:
    task = json.dumps([echo_call("a"), echo_call("b"), echo_call("c"), SHOWN])
    turn = service.play({"call": [["helper", {"task": task}]]}, DONE, agent="manager")
    assert turn["status"] == "finished", turn["error"]
    assert turn["left_out"]["steps"] == 0


@pytest.mark.parametrize(
    ("policy", "pointer"),
    [*REFUSED["policies"], ({"name": None}, "/policy/0/name"), (["no_pruning"] * 9, "/policy")],
    ids=lambda value: json.dumps(value)[:50],
)
def test_an_invalid_policy_is_refused_at_its_place(service: Service, policy: Any, pointer: str) -> None:
    turn = {"conversation_id": service.post("/conversations", agent="plain").json()["id"]}
    for answer in (
        service.client.patch(path_of(turn), json={"policy": policy}),
        service.post("/conversations", agent="plain", policy=policy),
        service.post(path_of(turn, "/prune"), policy=policy),
    ):
        assert answer.status_code == 422, answer.text
        assert pointer in [error["pointer"] for error in answer.json()["errors"]], answer.text
    assert service.get(path_of(turn))["policy"] is None


@pytest.mark.parametrize("wrong", table("policies wrong"), ids=str)
def test_an_agent_with_an_invalid_policy_stops_the_start(wrong: Json) -> None:
    with pytest.raises(StartError, match="wrong"):
        Catalog([("wrong", lambda: remembering.make_wrong(**wrong))])


def test_an_agent_whose_class_builds_its_messages_has_no_policy(service: Service) -> None:
    turn = service.play(DONE, agent="own")
    assert service.get(path_of(turn, "/prompt"))["left_out"] is None
    refused = problem(service.post(path_of(turn, "/prune"), dry_run=True), 422, "invalid_request")
    assert refused["errors"][0]["pointer"] == "/policy"
    with pytest.raises(StartError, match="overrides write_memory_to_messages"):
        Catalog([("own", lambda: remembering.with_policy(agents.make_broken(), "no_pruning"))])


# The operator's own policies


def test_steps_changed_by_an_own_policy_are_shown_changed_and_stored_unchanged(service: Service) -> None:
    turn = service.play({"call": [["picture", {}]]}, DONE, agent="plain", images=[png("red")])
    turn = service.follow_up(turn, echo_call("a"), DONE)
    whole, record = predicted(service, turn, PROMPT), service.steps(turn)
    patch_policy(service, turn, f"{OWN}shout")
    for _ in range(2):
        texts = "\n".join(message_texts(service, turn))
        assert "Observation:\nA" in texts
        assert "'changed': True" in texts
        assert images_of(service, turn) == 0
        turn = service.follow_up(turn, DONE)
        assert turn["status"] == "finished", turn["error"]
    assert service.steps(turn)[: len(record)] == record
    patch_policy(service, turn, None)
    assert not any("changed" in json.dumps(step) for step in service.steps(turn)[len(record) :])
    assert whole != predicted(service, turn, PROMPT)  # two turns more
    reply, prompt = service.follow_up(turn, PROMPT)["reply"], prompt_of(service, turn)
    tasks = [place for place, message in enumerate(prompt) if agents.text_of(message).startswith("New task:")]
    assert reply == agents.digest(prompt[: tasks[-1] + 1])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fail_always", "failed (RuntimeError)"),
        ("leave_process", "failed (SystemExit)"),
        ("tear", "tore a tool call and its result apart"),
        ("orphan", "tore a tool call and its result apart"),
        ("double", "shows the same tool call twice"),
        ("foreign", "gave str among the steps"),
    ],
)
def test_a_failing_own_policy_fails_only_its_turn(service: Service, name: str, told: str) -> None:
    turn = play_turns(service, 2, policy=f"{OWN}{name}")
    record = service.steps(turn)
    failed = service.follow_up(turn, DONE)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "agent_error")
    assert f"The memory policy {OWN}{name} " in failed["error"]["message"]
    assert told in failed["error"]["message"]
    for answer in (service.client.get(path_of(turn, "/prompt")), service.post(path_of(turn, "/prune"), dry_run=True)):
        assert (answer.status_code, answer.json()["code"]) == (409, "agent_error"), answer.text
        assert told in answer.text
        assert "hunter2" not in answer.text
    *kept, task = service.steps(turn)
    assert kept == record
    assert (task["type"], task["turn"], task["unanswered"]) == ("task", failed["turn"], True)
    patch_policy(service, turn, None)
    assert service.follow_up(turn, DONE)["status"] == "finished"


def test_an_own_policy_cannot_omit_notes(service: Service) -> None:
    turn = service.play({"call": [["note_write", {"text": "pears"}]]}, DONE, agent="plain")
    patch_policy(service, turn, f"{OWN}noteless")
    assert service.follow_up(turn, {"notes": True})["reply"] == "Note 1:\npears"
    assert "Note 1:\npears" in message_texts(service, turn)


def test_a_policy_no_longer_listed_fails_the_turn_with_a_sentence(tmp_path: Path) -> None:
    service = Service(tmp_path, CODELESS)
    with service:
        turn = play_turns(service, 2, policy=f"{OWN}shout")
    service.settings["AGENTS"] = "plain=tests.support.agents:make_scripted"
    with service:
        failed = service.follow_up(turn, DONE)
        assert "is none of this agent's own_policies any more" in failed["error"]["message"]
        patch_policy(service, turn, None)
        assert service.follow_up(turn, DONE)["status"] == "finished"


# Ids


def test_repeated_call_ids_become_unique_under_a_policy(service: Service) -> None:
    turn = service.play(echo_call("a"), echo_call("b"), DONE, agent="repeating")
    before = ids_of(service, turn)
    assert before == ["call_0"] * 3
    for policy in ("no_pruning", f"{OWN}shout"):  # the own policy is not blamed for earlier duplicates
        patch_policy(service, turn, policy)
        turn = service.follow_up(turn, {"call": [["echo", {"text": "c"}], ["echo", {"text": "d"}]]}, DONE)
        assert turn["status"] == "finished", turn["error"]
    fresh = ids_of(service, turn)[len(before) :]
    assert len(set(fresh)) == len(fresh) == 6
    assert "call_0" not in fresh


def ids_of(service: Service, turn: Json, **query: Any) -> list[str]:
    steps = service.get(path_of(turn, "/steps"), limit=100, **query)["items"]
    return [call["id"] for step in steps if step["type"] == "action" for call in step["tool_calls"]]


# Time at which a prompt is bounded


DOOMED: list[Any] = [
    {"name": "keep_last_n_steps", "n": 5},
    {"name": "prune_old_observations", "keep_last_n": 1, "max_length": 5},
    {"name": "token_budget", "max_tokens": 6000},
    {"name": "summarize", "after_tokens": 5000},
]


@pytest.mark.parametrize("policy", mostly_deep(DOOMED, fast=DOOMED[3:]), ids=lambda policy: policy["name"])
def test_a_killed_turn_has_the_prompts_of_an_uninterrupted_one(tmp_path: Path, policy: Any) -> None:
    """Kill the turn at every call. A policy that changed since applies from the next turn on."""

    def script(ledger: Ledger) -> list[Json]:
        return [{"call": [["note", {"what": what * 30, "ledger": str(ledger.path)}]]} for what in "ab"] + [SHOWN]

    def start(ledger: Ledger) -> Json:
        made = import_document(service, json.loads(history.replace(str(past.path), str(ledger.path))))
        return submit_turn(service, *script(ledger), agent="teller", conversation_id=made["id"])

    with Service(tmp_path / "service", CODELESS) as service:
        past, spared = Ledger.at(tmp_path / "p.ledger"), Ledger.at(tmp_path / "0.ledger")
        turn = service.play(echo_call(f"{LONG * 10} {past.path}"), DONE, agent="teller")
        turn = service.follow_up(turn, echo_call(f"{LONG * 10} {past.path}"), DONE)
        patch_policy(service, turn, policy)
        history = json.dumps(export(service, turn["conversation_id"]))
        turn = wait_for_end(service, start(spared))
        assert turn["status"] == "finished", turn["error"]
        assert turn["left_out"]["steps"] + turn["left_out"]["shortened"]
        calls = [line.split()[0] for line in spared.calls]
        assert calls.count("summary") == (policy["name"] == "summarize"), calls
        killed_turns = []
        for number in range(1, len(calls) + 1):
            ledger = Ledger.at(tmp_path / f"{number}.ledger", number)
            killed_turns.append(KilledTurn(ledger, "teller", script(ledger)))
            killed_turns[-1].turn = start(ledger)
            wait_until(lambda: ledger.stands)  # noqa: B023 - called at once
            patch_policy(service, killed_turns[-1].turn, "no_pruning")
        kill_when_blocked(service, killed_turns)
        service.start()
        for each in killed_turns:
            again = wait_for_end(service, each.turn)
            assert (again["status"], again["attempts"]) == ("finished", 2), again["error"]
            assert again["reply"].replace(str(each.ledger.path), str(spared.path)) == turn["reply"]
            assert again["left_out"] == turn["left_out"]
            made = [line.split()[0] for line in each.ledger.calls]
            assert made.count("summary") == calls.count("summary") + (each.calls[-1] == "summary")
