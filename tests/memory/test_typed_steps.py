"""Steps by type: pages of one type alone, and counts that are up to date."""

from typing import Any

import pytest

from smolsessions.web.cursors import cursor_at
from tests.support.policies import LAST_TWO, echo_call, path_of, prune
from tests.support.service import Service
from tests.support.transfer import export, import_document
from tests.support.turns import DONE

Json = dict[str, Any]
TYPES = ("task", "planning", "action", "note", "summary")


def pages(service: Service, turn: Json, limit: int = 7, **query: Any) -> list[list[Json]]:
    found: list[list[Json]] = []
    while True:
        page = service.get(path_of(turn, "/steps"), limit=limit, **query)
        found.append(page["items"])
        query["cursor"] = page["next_cursor"]
        if query["cursor"] is None:
            return found
        assert len(found) < 200


def indexes(service: Service, turn: Json, **query: Any) -> list[list[int]]:
    return [[step["index"] for step in page] for page in pages(service, turn, **query)]


def check(service: Service, turn: Json) -> None:
    """Compare counts and every type's pages with all steps."""
    everything = [step for page in pages(service, turn) for step in page]
    counts = service.get(path_of(turn))["step_counts"]
    assert set(counts) == set(TYPES)
    for kind in TYPES:
        of_kind = [step["index"] for step in everything if step["type"] == kind]
        assert counts[kind] == len(of_kind)
        for limit in (1, 100):
            got = indexes(service, turn, type=kind, limit=limit)
            assert [index for page in got for index in page] == of_kind
            assert all(len(page) == limit for page in got[:-1])


def test_steps_of_a_type_are_paged_and_counted(service: Service) -> None:
    turn = service.play(DONE, agent="planner")
    for number in range(3):
        turn = service.follow_up(turn, echo_call(str(number)), DONE)
        check(service, turn)
    noted = service.play({"call": [["note_write", {"text": "one"}]]}, DONE, agent="plain")
    check(service, noted)
    prune(service, turn)
    check(service, turn)
    assert service.get(path_of(turn))["archived_steps"] == 12
    prune(service, turn, {"name": "keep_last_n_steps", "n": 1}, destroy=True)
    check(service, turn)
    assert service.get(path_of(turn))["archived_steps"] == 0
    turn = service.follow_up(turn, echo_call("x"), DONE)
    check(service, turn)


def test_archived_steps_of_a_type_are_included_on_request(service: Service) -> None:
    turn = service.play(echo_call("1"), DONE, agent="plain")
    turn = service.follow_up(turn, echo_call("2"), DONE)
    prune(service, turn)
    assert indexes(service, turn, type="action", limit=1) == [[4], [5]]
    assert indexes(service, turn, type="action", limit=1, archived=True) == [[1], [2], [4], [5]]
    assert indexes(service, turn, type="task", limit=1, archived=True)[:2] == [[0], [3]]


def test_a_missing_type_and_a_cursor_past_the_end_yield_an_empty_page(service: Service) -> None:
    turn = service.play(DONE, agent="plain")
    assert pages(service, turn, type="summary") == [[]]
    cursor = cursor_at("99", "steps", "local", turn["conversation_id"], "asc", "action", "False")
    beyond = service.get(path_of(turn, "/steps"), type="action", cursor=cursor)
    assert beyond == {"items": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"type": "actions"}, "type"),
        ({"type": ""}, "type"),
        ({"type": "action", "limit": 0}, "limit"),
        ({"type": "action", "cursor": "x"}, "cursor"),
        ({"archived": "maybe"}, "archived"),
    ],
    ids=str,
)
def test_an_unknown_type_is_refused(service: Service, query: Json, parameter: str) -> None:
    turn = {"conversation_id": service.post("/conversations", agent="plain").json()["id"]}
    answer = service.client.get(path_of(turn, "/steps"), params=query)
    assert answer.status_code == 422, answer.text
    assert [(error["in"], error["parameter"]) for error in answer.json()["errors"]] == [("query", parameter)]


def test_a_rare_type_is_found_across_pages(service: Service) -> None:
    document = export(service, service.play(DONE, agent="plain")["conversation_id"])
    task, action = document["steps"]
    note = {"type": "note", "turn": 1, "number": 1, "text": "late"}
    made = import_document(service, document | {"steps": [task, *[action] * 2100, note]})
    turn = {"conversation_id": made["id"], "agent": {"name": "plain"}}
    assert indexes(service, turn, type="note") == [[], [2101]], "the search of one request is bounded"
    assert sum(map(len, pages(service, turn, type="action", limit=100))) == 2100
    assert prune(service, turn)["archived"] == prune(service, turn, LAST_TWO, destroy=True)["destroyed"] == 2098
    assert indexes(service, turn, type="note") == [[], [2101]]
    assert indexes(service, turn, type="action") == [[], [2099, 2100]]
    assert service.follow_up(turn, {"notes": True})["reply"] == "Note 1:\nlate"
