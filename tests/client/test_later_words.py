"""Words that a later release adds, to the client: it passes them on. A proxy puts them into real answers."""

import json

import pytest

from smolsessions import ApiError, Client
from smolsessions.wire.events import ToolCalled, ToolReturned, TurnEvent, event_of
from tests.support.proxy import LATER_WORDS, proxy
from tests.support.service import Service
from tests.support.turns import DONE, ECHO


def test_words_that_the_client_does_not_know_are_passed_on(service: Service) -> None:
    with proxy(service.url, words=LATER_WORDS) as address, Client(address) as client:
        turn = client.turn(json.dumps([ECHO, DONE]), agent="scripted")
        assert (turn.status, turn.outcome, turn.reply) == ("adjourned", "partial", "done")
        assert client.get_conversation(turn.conversation_id).status == "waiting"
        assert "dream" in [step.type for step in client.list_steps(turn.conversation_id)]
        assert "orbit" in [agent.code_runs_in for agent in client.list_agents()]
        failed = client.turn(json.dumps([{"raise": "model_error"}]), agent="scripted")
        assert (failed.status, failed.error and failed.error.code) == ("failed", "model_asleep")
        with pytest.raises(ApiError) as caught:
            client.get_conversation("nothing")
        assert (caught.value.code, caught.value.status) == ("conversation_moved", 404)


def test_events_that_the_client_does_not_know_are_passed_on(service: Service) -> None:
    with proxy(service.url, words=LATER_WORDS) as address, Client(address) as client:
        events = list(client.stream(json.dumps([ECHO, DONE]), agent="scripted"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert any(isinstance(event, ToolCalled) for event in events)
    assert not any(isinstance(event, ToolReturned) for event in events)
    unknown = next(event for event in events if event.type == "tool.rejected")
    assert type(unknown) is TurnEvent, event_of
    assert unknown.model_dump()["result"] == "ü"
    data = {"type": "turn.dreamed", "seq": 3, "conversation_id": "c", "turn": 1, "attempt": 1, "of": "sheep"}
    assert event_of(json.dumps(data)).model_dump() == data
