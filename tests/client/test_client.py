"""The Python client against real services: every operation, errors, and words that a later release adds."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smolsessions import ApiError, AsyncClient, Client
from smolsessions.wire.events import ToolCalled, ToolReturned, TurnEvent, event_of
from tests.support.openapi import description
from tests.support.proxy import LATER_WORDS, proxy
from tests.support.service import PLAIN, ROOT, Service, run_program
from tests.support.turns import DONE, ECHO, png

SERVER_LIBRARIES = set("fastapi starlette uvicorn sse_starlette redis smolagents cryptography zstandard".split())


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


def said(*script: dict[str, Any]) -> str:
    return json.dumps(script)


def test_the_client_loads_no_library_of_the_server() -> None:
    program = "import sys; from smolsessions import Client, AsyncClient; print(*{n.split('.')[0] for n in sys.modules})"
    loaded = run_program([sys.executable, "-c", program], check=True).stdout.split()
    assert "httpx2" in loaded
    assert not SERVER_LIBRARIES & set(loaded)


def test_the_synchronous_client_has_the_methods_of_the_asynchronous_one() -> None:
    public = [{name for name in vars(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)]
    assert public[0] - {"close"} == public[1] - {"aclose"}


def test_a_conversation_goes_through_all_operations(client: Client) -> None:
    sent: Any = {"images": [png("red")], "files": [ROOT / "README.md", ("a b.csv", "text/csv", b"a,b\n")]}
    first = client.turn(said(ECHO, DONE), agent="scripted", metadata={"team": "a"}, **sent)
    assert (first.status, first.reply, first.tool_call_names) == ("finished", "done", ["echo"])
    name = first.conversation_id
    second = client.turn(said(DONE), conversation_id=name)
    assert [turn.turn for turn in client.list_turns(name)] == [1, 2]
    assert client.get_turn(name, 1, include_internal_tools=True).tool_call_names == ["echo", "final_answer"]
    assert client.cancel_turn(name, second.turn, wait_s=1).status == "finished"
    assert client.get_image(name, first.images[0].url.rpartition("/")[2])[:4] == b"\x89PNG"
    assert [(f.name, f.media_type) for f in first.files] == [("README.md", "text/markdown"), ("a b.csv", "text/csv")]
    assert client.get_file(name, first.files[1].url.rpartition("/")[2]) == b"a,b\n"
    assert [step.type for step in client.list_steps(name)] == ["task", "action", "action", "task", "action"]
    assert len(client.get_prompt(name).messages) > 3
    assert list(client.list_turn_effects(name, 1)) == []  # its journal is deleted
    assert [each.name for each in client.list_variables(name)] == ["README.md", "a b.csv"]

    assert client.update_conversation(name, {"metadata": {"team": "b"}}).metadata == {"team": "b"}
    assert client.prune_conversation(name, policy={"name": "keep_last_n_steps", "n": 1}, dry_run=True).left_out == 2
    fork = client.fork_conversation(name, turn=1)
    assert fork.forked_from
    assert fork.forked_from.conversation_id == name
    assert client.roll_back_conversation(name, 1).step_counts["task"] == 1
    copy = client.import_conversation(client.export_conversation(name), id="a-copy")
    assert client.get_conversation(copy.id).turn_count == 2
    made = client.create_conversation(agent="scripted", policy="no_pruning", ttl_s=60)
    assert {fork.id, copy.id, made.id, name} <= {each.id for each in client.list_conversations()}
    client.delete_conversation(made.id)
    with pytest.raises(ApiError) as refused:
        client.get_conversation(made.id)
    assert (refused.value.code, refused.value.status) == ("conversation_not_found", 404)

    assert client.list_agents()[0].default
    assert client.get_agent("scripted").limits.max_deadline_s == 3600
    with pytest.raises(ApiError) as unknown:
        client.get_agent("../livez")
    assert unknown.value.status in {404, 422}
    client.get_liveness()
    client.get_readiness()
    assert "smolsessions_" in client.get_metrics()


def test_a_turn_is_waited_for_longer_than_the_service_answers(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN | {"WAIT_S": "0.1"}) as service, Client(service.url) as client:
        turn = client.turn(said({"call": [["compute", {"seconds": 0.5}]]}, DONE))
    assert (turn.status, turn.reply) == ("finished", "done")
    assert turn.timing.duration_ms
    assert turn.timing.duration_ms > 300


def test_a_refused_stream_raises_its_code(client: Client) -> None:
    with pytest.raises(ApiError) as refused:
        list(client.stream("hello", agent="nobody"))
    assert refused.value.code == "unknown_agent"


def test_each_operation_is_a_method() -> None:
    described = description()["paths"].values()
    names = {operation["operationId"] for path in described for operation in path.values()}
    # A client's `submit` and `turn` are these two, which differ by the place of the conversation's id.
    operations = {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in names}
    operations -= {"create_turn", "create_conversation_turn"}
    for client in (Client, AsyncClient):
        assert [name for name in sorted(operations) if not callable(getattr(client, name, None))] == []


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
