"""The Python client and turns that wait for a person, against a real service."""

import asyncio
import datetime as dt
import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from smolsessions import AsyncClient, Client
from smolsessions.evaluation import ServiceAdapter, TurnFailedError
from smolsessions.wire.events import InputAnswered, TurnEnded, TurnWaiting
from tests.support.answering import asking_service, mail, sent
from tests.support.data import table
from tests.support.relay import Relay
from tests.support.service import Gate, Service, shared_service, wait_until
from tests.support.turns import DONE

QUESTION = {"call": [["ask_user", {"question": "Which tea?", "choices": ["green", "black"]}]]}
asking = shared_service(asking_service, WAIT_S="0.5")


@pytest.fixture
def client(asking: Service) -> Iterator[Client]:
    with Client(asking.url) as client:
        yield client


def emails(*receivers: str) -> dict[str, Any]:
    return {"call": [mail(to, "hello") for to in receivers]}


def said(*script: dict[str, Any]) -> str:
    return json.dumps(script)


def test_a_waiting_turn_is_returned_and_answered_one_by_one(asking: Service, client: Client) -> None:
    turn = client.turn(said(emails("ada", "bob"), QUESTION, {"shown": True}), agent="mailer")
    first, second = turn.requests
    assert (turn.status, first.tool, first.arguments) == ("waiting", "send_email", {"to": "ada", "text": "hello"})
    assert turn.conversation_id in [each.id for each in client.list_conversations(status="waiting")]
    turn = client.answer(turn, first.request_id, "approve", arguments={"to": "eve", "text": "hello"})
    assert (turn.status, [each.request_id for each in turn.requests]) == ("waiting", [second.request_id])
    assert not {"ada: hello", "eve: hello"} & {*sent(asking)}
    turn = client.answer(turn, second.request_id, "reject", reason="Bob is away")
    (question,) = turn.requests
    assert (question.kind, question.question, question.choices) == ("question", "Which tea?", ["green", "black"])
    turn = client.answer(turn, question.request_id, text="green")
    assert turn.status == "finished"
    assert turn.reply
    assert "Reason: Bob is away" in turn.reply
    assert [call.approval and call.approval.decision for call in turn.tool_calls[:2]] == ["edited", "rejected"]
    assert {"ada: hello", "eve: hello", "bob: hello"} & {*sent(asking)} == {"eve: hello"}
    kept = client.get_turn(client.import_conversation(client.export_conversation(turn.conversation_id)).id, 1)
    assert [call.approval for call in kept.tool_calls] == [call.approval for call in turn.tool_calls]


def test_streams_end_at_a_wait_and_go_on_with_the_answers(client: Client) -> None:
    events = list(client.stream(said(emails("other"), QUESTION, DONE), agent="mailer", until="waiting"))
    waits = events[-1]
    assert isinstance(waits, TurnWaiting)
    place, name = (waits.conversation_id, waits.turn), waits.requests[0].request_id
    later = list(client.stream_answers(*place, [{"request_id": name, "decision": "approve"}], until="waiting"))
    assert (type(later[0]), type(later[-1])) == (InputAnswered, TurnWaiting)
    assert list(client.get_turn_events(*place, until="waiting")) == [*events, *later]  # the first wait is over
    assert list(client.get_turn_events(*place, after=later[-1].seq, until="waiting")) == []
    question: Any = later[-1]
    rest = list(client.stream_answers(*place, [{"request_id": question.requests[0].request_id, "text": "black"}]))
    assert isinstance(rest[-1], TurnEnded)
    assert rest[-1].result.reply == "done"
    assert [event.seq for event in events + later + rest] == [*range(1, rest[-1].seq + 1)]


def test_a_turn_is_followed_past_a_wait_that_is_over(asking: Service, client: Client, gate: Gate) -> None:
    message = said(emails("other"), gate.script, DONE)
    options: Any = {"agent": "mailer", "idempotency_key": "followed"}
    waiting = client.turn(message, **options)
    answer: Any = {"request_id": waiting.requests[0].request_id, "decision": "approve"}
    client.answer_turn(waiting.conversation_id, 1, [answer], wait_s=0)
    gate.reached()
    paths: list[str] = []
    http = httpx2.Client(timeout=30, event_hooks={"request": [lambda request: paths.append(request.url.path)]})
    with Client(asking.url, http=http) as other, ThreadPoolExecutor(1) as pool:
        follower = pool.submit(other.turn, message, **options)
        wait_until(lambda: any(path.endswith("/events") for path in paths))
        gate.open()
        assert follower.result().reply == "done"
    assert [path.rpartition("/")[2] for path in paths].count("events") == 1


def test_an_answer_whose_reply_is_lost_is_sent_again_and_counts_once(asking: Service, client: Client) -> None:
    plan = [40, 40]
    for each in ("lost1", "lost2"):
        waiting = client.turn(said(emails(each), DONE), agent="mailer")
        name = waiting.requests[0].request_id
        with Relay(asking.url, [plan.pop()]) as relay, Client(relay.address) as cut:
            if each == "lost1":
                assert cut.answer(waiting, name, "approve").reply == "done"
            else:
                answers: Any = [{"request_id": name, "decision": "approve"}]
                events = list(cut.stream_answers(waiting.conversation_id, 1, answers))
                assert (type(events[0]), type(events[-1])) == (InputAnswered, TurnEnded)
        assert relay.connections > 1
    assert sorted(line for line in sent(asking) if line.startswith("lost")) == ["lost1: hello", "lost2: hello"]


def test_approvals_of_a_conversation_are_set_and_changed(client: Client) -> None:
    made = client.create_conversation(agent="plain", approve=["send_*"])
    assert made.approve == ["send_*"]
    assert client.turn(said(emails("other"), DONE), conversation_id=made.id).status == "waiting"
    assert client.cancel_turn(made.id, 1, wait_s=20).status == "cancelled"
    copy = client.import_conversation(client.export_conversation(made.id))
    assert (client.fork_conversation(made.id).approve, copy.approve) == (["send_*"], ["send_*"])
    assert client.update_conversation(made.id, {"approve": []}).approve == []
    assert client.turn(said(emails("other"), DONE), conversation_id=made.id).status == "finished"


async def test_an_evaluation_names_a_turn_that_waits(asking: Service) -> None:
    adapter = ServiceAdapter(asking.url, agent="mailer")
    with pytest.raises(TurnFailedError, match="waiting: it waits for a person") as failed:
        await adapter([{"role": "user", "content": said(QUESTION)}])
    assert failed.value.code == "waiting"


class Desk:
    """Tools of the program that owns the client."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.meeting = threading.Barrier(2)

    def where(self, thing: str, at: dt.date | None = None) -> dict[str, Any]:
        """Return the place of a thing.

        Args:
            thing: name
                of it.
            at: day.
        """
        self.calls.append(thing)
        match thing:
            case "nothing":
                raise LookupError(thing)
            case "death":
                raise KeyboardInterrupt
            case "all":
                return {"things": thing * 500_000}
        return {"thing": thing, "week": at and at.isocalendar().week, "size": math.nan}

    async def find(self, thing: str) -> str:
        """Find a thing."""
        await anyio.to_thread.run_sync(self.meeting.wait, 60)
        return thing

    def seek(self, thing: str) -> str:
        """Seek a thing."""
        self.meeting.wait(60)
        return thing


def finding(*things: str, tool: str = "where", **more: Any) -> dict[str, Any]:
    return {"call": [[tool, {"thing": thing, **more}] for thing in things]}


SHOWN = {"shown": True}
PLACED = "{'thing': 'pen', 'week': 53, 'size': None}"


def test_functions_are_tools_of_a_turn(client: Client) -> None:
    desk, script = Desk(), said(finding("key", "nothing"), finding("pen", at="2027-01-03"), finding("all"), SHOWN)
    turn = client.turn(script, agent="mailer", tools=[desk.where])
    assert PLACED in str(turn.reply)
    assert "LookupError: nothing" in str(turn.reply)
    assert "the result is larger than 1 MiB" in str(turn.reply)
    assert (sorted(desk.calls), turn.timing.waited_ms > 0) == (["all", "key", "nothing", "pen"], True)
    assert [tool.model_dump() for tool in turn.options.client_tools] == table("answering tools")
    waits = [event for event in client.get_turn_events(turn.conversation_id, 1) if isinstance(event, TurnWaiting)]
    assert [len(wait.requests) for wait in waits] == [2, 1, 1]  # both results of a message came in one request


@pytest.mark.parametrize("until", [None, "waiting"])
def test_a_stream_calls_functions_once(client: Client, until: Any) -> None:
    desk = Desk()
    options: Any = {"agent": "mailer", "idempotency_key": f"streamed-{until}", "tools": [desk.where]}
    script = said(finding("key"), finding("pen"), emails("other"), DONE)
    events = list(client.stream(script, until="waiting", **options))
    assert [event.tool for each in events if isinstance(each, TurnWaiting) for event in each.requests] == [
        *("where", "where", "send_email")
    ]
    last: Any = events[-1]
    if not until:
        client.cancel_turn(last.conversation_id, last.turn)
    assert list(client.stream(script, until=until, **options))[: len(events)] == events
    assert desk.calls == ["key", "pen"]


def test_a_client_that_ended_goes_on(client: Client) -> None:
    desk, options = Desk(), {"agent": "mailer", "idempotency_key": "ended"}
    script, tools = said(finding("key"), finding("death", "pen"), SHOWN), {"tools": [desk.where]}
    with pytest.raises(KeyboardInterrupt):
        client.turn(script, **options, **tools)  # type: ignore[arg-type]
    waiting = client.get_turn(next(iter(client.list_conversations(status="waiting"))).id, 1)
    assert {request.tool for request in waiting.requests} == {"where"}

    def where(thing: str) -> str:
        """Another function of this name."""
        return f"found {thing}"

    turn = client.run_tools(waiting, [where])
    assert turn == client.turn(script, **options, **tools)  # type: ignore[arg-type]
    assert desk.calls == ["key", "death"]
    assert "found death\\nfound pen" in str(turn.reply)


def test_functions_of_a_message_run_at_the_same_time(asking: Service) -> None:
    async def play() -> Any:
        desk = Desk()
        async with AsyncClient(asking.url) as client:
            script = said({"call": [["find", {"thing": "key"}], ["seek", {"thing": "pen"}]]}, SHOWN)
            return await client.turn(script, agent="mailer", tools=[desk.find, desk.seek])

    assert "key\\npen" in asyncio.run(play()).reply


def test_functions_that_are_no_tools_are_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="the tool '<lambda>' has no docstring"):
        client.turn(said(DONE), tools=[lambda: 1])
    desk, known = Desk(), [each.id for each in client.list_conversations()]
    script = said({"call": [["seek", {"thing": "key"}], ["find", {"thing": "pen"}]]}, SHOWN)
    sends: tuple[Any, ...] = (client.turn, client.submit, client.stream)
    for send in sends:
        with pytest.raises(TypeError, match="the tool find is asynchronous; use AsyncClient"):
            send(script, agent="mailer", tools=[desk.seek, desk.find])
    assert not desk.calls
    assert [each.id for each in client.list_conversations()] == known
