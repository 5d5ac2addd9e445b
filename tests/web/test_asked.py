"""Arguments and options in the record of a turn."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.support.openapi import assert_described
from tests.support.paging import pages
from tests.support.service import PLAIN, Service
from tests.support.store_server import StoreServer
from tests.support.streaming import log_of
from tests.support.tiers import mostly_deep
from tests.support.transfer import export, import_document
from tests.support.turns import DONE, ENDLESS, submit_next, submit_turn, wait_for_end

ARGUMENTS = {"city": "Kyōto", "wells": [1, 2.5, None, True], "deep": {"a": {}}}
OPTIONS = {"max_steps": 7, "deadline_s": 30.5, "reset": True, "on_busy": "enqueue", "approve": []}
NONE: dict[str, object] = {"max_steps": None, "deadline_s": None, "reset": False, "on_busy": "reject", "approve": []}


def asked(turn: dict[str, Any]) -> tuple[Any, Any]:
    return turn["additional_args"], turn["options"]


def test_a_turn_shows_its_arguments_and_options_everywhere(service: Service) -> None:
    played = service.play(DONE, additional_args=ARGUMENTS, **OPTIONS)
    bare = service.follow_up(played, DONE)
    at = f"/conversations/{played['conversation_id']}"
    listed = service.get(f"{at}/turns")["items"]
    final = log_of(service, played)[-1].data["result"]

    assert [asked(turn) for turn in (played, listed[0], final, service.get(f"{at}/turns/1"))] == [
        (ARGUMENTS, OPTIONS)
    ] * 4
    assert [asked(turn) for turn in (bare, listed[1])] == [({}, NONE)] * 2
    for turn in (played, bare):
        assert_described("Turn", turn)


def test_a_turn_that_waits_shows_them_and_uses_them_later(service: Service) -> None:
    first = submit_turn(service, ENDLESS, agent="streamed")
    waiting = submit_next(service, first, {"shown": True}, additional_args=ARGUMENTS, on_busy="interrupt")
    assert asked(waiting) == (ARGUMENTS, NONE | {"on_busy": "interrupt"})
    ended = wait_for_end(service, waiting)
    assert asked(ended) == asked(waiting)
    assert "wells" in ended["reply"]


def test_an_agent_that_changes_its_arguments_leaves_the_record(service: Service) -> None:
    code = {"code": "wells.append(3)\nfinal_answer(wells)"}
    turn = service.play(code, agent="threaded", additional_args={"wells": [1]})
    assert (turn["output"], turn["additional_args"]) == ([1, 3], {"wells": [1]})


def test_copies_and_documents_hold_them(service: Service) -> None:
    turn = service.play(DONE, additional_args=ARGUMENTS, **OPTIONS)
    at = f"/conversations/{turn['conversation_id']}"
    document = export(service, turn["conversation_id"])
    brought = import_document(service, document)
    forked = service.post(f"{at}/fork").json()
    assert [asked(document["turns"][0])] == [(ARGUMENTS, OPTIONS)]
    for copy in (brought, forked):
        assert asked(service.get(f"/conversations/{copy['id']}/turns/1")) == (ARGUMENTS, OPTIONS)
    assert export(service, brought["id"])["turns"] == document["turns"]


def test_they_are_sealed_and_outlive_the_process(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN) as service:
        turn = service.play(DONE, additional_args={"secret": "Tamarind"})
        service.kill()
        service.start()
        found = service.get(f"/conversations/{turn['conversation_id']}/turns/1")
    assert found["additional_args"] == {"secret": "Tamarind"}
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(b"".join(files)) > 1000
    assert not [data for data in files if b"Tamarind" in data]


@pytest.mark.parametrize("order", mostly_deep(["asc", "desc"], fast={"desc"}))
def test_a_page_of_large_turns_is_all_that_the_store_sends(tmp_path: Path, outside: StoreServer, order: str) -> None:
    with Service(tmp_path, PLAIN | outside.settings) as service, outside.client() as store:
        turn = service.play(DONE)
        for _ in range(11):
            service.follow_up(turn, DONE, additional_args={"text": secrets.token_urlsafe(750_000)})
        before = store.info("stats")["total_net_output_bytes"]
        page = service.get(f"/conversations/{turn['conversation_id']}/turns", limit=100, order=order)
        sent = store.info("stats")["total_net_output_bytes"] - before
    assert page["next_cursor"]
    assert 2_000_000 < sent < 6_000_000


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_of_large_turns_is_short_and_goes_on(service: Service, order: str) -> None:
    turn = service.play(DONE, additional_args={"text": "x" * 1_000_000})
    for _ in range(5):
        service.follow_up(turn, DONE, additional_args=turn["additional_args"])
    found = pages(service, f"/conversations/{turn['conversation_id']}/turns", limit=100, order=order)
    expected = [[1, 2, 3, 4], [5, 6]] if order == "asc" else [[6, 5, 4, 3], [2, 1]]
    assert [[each["turn"] for each in page] for page in found] == expected
