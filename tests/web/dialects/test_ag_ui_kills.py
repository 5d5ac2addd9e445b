"""Runs of AG-UI whose stream is cut, and whose process is killed: another process has the same messages."""

import json
import secrets
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import CODELESS, Service
from tests.support.store_server import running_store
from tests.support.streaming import Event
from tests.web.dialects.ag_ui_clients import Client, client_of

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

EVERY = 5  # events
MOST_RUNS = 10
SCRIPT: list[Event] = [
    {"call": [["echo", {"text": "first"}]], "pace_s": 0.01},
    {"call": [["echo", {"text": "second"}]], "pace_s": 0.02},
    {"say": "It is said in the end.", "pace_s": 0.05},
]


def messages_of(client: Client, thread: str) -> Any:
    return json.loads(json.dumps(client.messages).replace(thread, "THREAD"))


def test_a_run_that_was_cut_is_whole_in_another_process(tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as store, ExitStack() as stack:
        settings = CODELESS | store.settings
        here, there = Service(tmp_path / "a", settings), Service(tmp_path / "b", settings)
        stack.callback(lambda: here.stop())  # noqa: PLW0108 - whichever runs then
        here.start()
        client = stack.enter_context(client_of(here))
        thread = secrets.token_hex(8)
        client.open("streamed", thread).send(*SCRIPT, id="m", runId="r")
        assert client.outcome == "success"
        whole, attempts = messages_of(client, thread), []
        for after in range(1, len(client.events), EVERY):
            there.start()
            there.process.send_signal(signal.SIGSTOP)  # it takes no turn
            thread = secrets.token_hex(8)
            client.open("streamed", thread, api=api_of(here))("cut", after=after)
            assert client.send(*SCRIPT, id="m", runId="r").error
            here.kill()
            there.process.send_signal(signal.SIGCONT)
            here, there = there, here
            client.open("streamed", thread, api=api_of(here), messages=client.messages)("cut")
            for _ in range(MOST_RUNS):
                if client("run", runId="r").outcome:
                    break
            assert messages_of(client, thread) == whole, after
            attempts.append(here.get(f"/conversations/{thread}/turns/1")["attempts"])
        assert attempts.count(2) > len(attempts) / 2, "few turns were still running"


def api_of(service: Service) -> str:
    return f"{str(service.client.base_url).rstrip('/')}/ag-ui"
