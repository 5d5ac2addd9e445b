"""Streams of other protocols that are cut while their process is killed: another one has the same turn."""

import itertools
import json
import secrets
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from a2a.client.errors import A2AClientError
from a2a.utils import errors

from tests.support.service import CODELESS, Service, wait_until
from tests.support.store_server import running_store
from tests.support.streaming import Event
from tests.support.turns import ENDLESS
from tests.web.dialects.a2a_tasks import COMPLETED, Joined, get, message, send
from tests.web.dialects.ag_ui_clients import Client
from tests.web.dialects.ai_sdk_chats import Chats
from tests.web.dialects.clients import openai_of

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

EVERY = 4  # events
MOST_RESUMED = 10
SCRIPT: list[Event] = [
    {"call": [["echo", {"text": "first"}]], "pace_s": 0.01},
    {"call": [["echo", {"text": "second"}], ["echo", {"text": "third"}]], "pace_s": 0.01},
    {"say": "It is said in the end.", "pace_s": 0.05},
]
ONE_BY_ONE: list[Event] = [SCRIPT[0], {"call": [["echo", {"text": "second"}]], "pace_s": 0.02}, SCRIPT[2]]


class Pair:
    """`here` runs. A `kill` starts the other one, and then they change places."""

    def __init__(self, here: Service, other: Service) -> None:
        self.here = here
        self._other = other
        self._attempts: list[int] = []

    @contextmanager
    def kill(self) -> Iterator[None]:
        """Kill the process at the end of the block. Until then the other one takes no turn."""
        self._other.start()
        self._other.process.send_signal(signal.SIGSTOP)
        yield
        self.here.kill()
        self._other.process.send_signal(signal.SIGCONT)
        self.here, self._other = self._other, self.here

    def count_attempts(self, conversation_id: str) -> None:
        self._attempts.append(self.here.get(f"/conversations/{conversation_id}/turns/1")["attempts"])

    def check_attempts(self) -> None:
        assert self._attempts.count(2) > len(self._attempts) / 2, "few turns were still running"


@contextmanager
def killed_in_turn(folder: Path) -> Iterator[Pair]:
    with running_store(folder / "store") as store:
        settings = CODELESS | store.settings
        pair = Pair(Service(folder / "a", settings), Service(folder / "b", settings))
        pair.here.start()
        try:
            yield pair
        finally:
            pair.here.stop()
    pair.check_attempts()


def test_a_task_that_was_cut_is_whole_in_another_process(tmp_path: Path) -> None:
    with killed_in_turn(tmp_path) as pair:
        whole = send(pair.here, "streamed", message("whole", *SCRIPT))
        assert (whole.state, whole.text) == (COMPLETED, "It is said in the end.")
        for most in range(1, len(whole.events), EVERY):
            asked = message(f"cut-{most}", *SCRIPT)
            with pair.kill():
                task = send(pair.here, "streamed", asked, most=most)
            name = task.task.id
            first = task.said
            try:
                task = task if most % 2 else Joined()
                task.read(pair.here, "streamed", name)
            except errors.UnsupportedOperationError:  # it is over
                task = get(pair.here, "streamed", name)
            again = send(pair.here, "streamed", asked)
            assert (task.state, task.text, task.task.id) == (COMPLETED, whole.text, name), most
            assert (again.text, sorted(again.said), again.task.id) == (whole.text, sorted(whole.said), name), most
            assert not set(first + task.said) - set(whole.said)
            assert get(pair.here, "streamed", name).text == whole.text
            pair.count_attempts(task.task.context_id)


def test_a_drain_breaks_the_stream(tmp_path: Path) -> None:
    with Service(tmp_path / "a", CODELESS) as service, ThreadPoolExecutor(1) as pool:
        task = Joined()
        reading = pool.submit(task.read, service, "streamed", message("drained", ENDLESS))
        wait_until(lambda: len(task.events) > 3)
        service.stop()
        with pytest.raises(A2AClientError, match="Network"):
            reading.result()


def messages_of(client: Client, thread: str) -> Any:
    return json.loads(json.dumps(client.messages).replace(thread, "THREAD"))


def test_a_run_that_was_cut_is_whole_in_another_process(tmp_path: Path) -> None:
    with killed_in_turn(tmp_path) as pair, Client(pair.here) as client:
        thread = secrets.token_hex(8)
        client.open("streamed", thread).send(*ONE_BY_ONE, id="m", runId="r")
        assert client.outcome == "success"
        whole = messages_of(client, thread)
        for after in range(1, len(client.events), EVERY):
            thread = secrets.token_hex(8)
            with pair.kill():
                client.open("streamed", thread, api=f"{pair.here.url}/ag-ui")("cut", after=after)
                assert client.send(*ONE_BY_ONE, id="m", runId="r").error
            client.open("streamed", thread, api=f"{pair.here.url}/ag-ui", messages=client.messages)("cut")
            for _ in range(MOST_RESUMED):
                if client("run", runId="r").outcome:
                    break
            assert messages_of(client, thread) == whole, after
            pair.count_attempts(thread)


def message_of(chats: Chats, chat: str) -> Any:
    assert [message["role"] for message in chats.messages] == ["user", "assistant"], "a tail is a message of its own"
    parts = json.dumps([chats.messages[1]["id"], chats.parts])
    return json.loads(parts.replace(chat, "CHAT"))


@pytest.mark.parametrize("version", ["ai", "ai6"])
def test_a_message_that_was_cut_is_whole_in_another_process(version: str, tmp_path: Path) -> None:
    with killed_in_turn(tmp_path) as pair, Chats(pair.here, version) as chats:
        chat = secrets.token_hex(8)
        whole = message_of(chats.open("streamed", chat).send(*SCRIPT), chat)
        events = pair.here.client.get(f"/ai-sdk/streamed/{chat}/stream?finished=true").text.count("\n\n")
        for after in range(1, events, EVERY):
            chat = secrets.token_hex(8)
            with pair.kill():
                chats.open("streamed", chat, api=f"{pair.here.url}/ai-sdk")("cut", after=after)
                assert chats.send(*SCRIPT).status == "error"
            api = f"{pair.here.url}/ai-sdk"
            chats.open("streamed", chat, api=api, messages=chats.messages, finished=True)("cut")
            for _ in range(MOST_RESUMED):
                if chats("resume").status == "ready":
                    break
            assert message_of(chats, chat) == whole, after
            pair.count_attempts(chat)


def test_a_stream_that_was_cut_is_whole_in_another_process(tmp_path: Path) -> None:
    with killed_in_turn(tmp_path) as pair:
        whole = read(pair.here, [])
        for after in range(1, len(whole), EVERY):
            with pair.kill():
                events = read(pair.here, [], after)
            assert output_in(read(pair.here, events)) == output_in(whole), after
            pair.count_attempts(events[0].response.conversation.id)


def read(service: Service, events: list[Any], most: int = sys.maxsize) -> list[Any]:
    """Read the rest of the events of a response, or the first ones of a new one."""
    with openai_of(service) as client:
        stream: Any
        if events:
            after = events[-1].sequence_number
            stream = client.responses.retrieve(events[0].response.id, stream=True, starting_after=after)
        else:
            stream = client.responses.create(model="streamed", input=json.dumps(SCRIPT), stream=True)
        with stream:
            return events + list(itertools.islice(stream, most))


def output_in(events: list[Any]) -> list[Any]:
    """Return the output without its ids, which the events before the last one have shown piece by piece."""
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    done = {event.item.id: event.item for event in events if event.type == "response.output_item.done"}
    texts = dict.fromkeys(done, "")
    for event in events:
        if event.type in {"response.output_text.delta", "response.reasoning_summary_text.delta"}:
            texts[event.item_id] += event.delta
    output = events[-1].response.output
    for item in output:
        assert item == done[item.id]
        if item.type == "message":
            assert texts[item.id] == item.content[0].text
    return [item.model_dump(exclude={"id"}) for item in output]
