"""Chats of the AI SDK whose stream is cut, and whose process is killed: another process has the same message."""

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
from tests.web.dialects.ai_sdk_chats import Chats, api_of, chats_of

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

EVERY = 4  # events
MOST_RESUMED = 10
SCRIPT: list[Event] = [
    {"call": [["echo", {"text": "first"}]], "pace_s": 0.01},
    {"call": [["echo", {"text": "second"}], ["echo", {"text": "third"}]], "pace_s": 0.01},
    {"say": "It is said in the end.", "pace_s": 0.05},
]


def message_of(chats: Chats, chat: str) -> Any:
    assert [message["role"] for message in chats.messages] == ["user", "assistant"], "a tail is a message of its own"
    parts = json.dumps([chats.messages[1]["id"], chats.parts])
    return json.loads(parts.replace(chat, "CHAT"))


@pytest.mark.parametrize("version", ["ai", "ai6"])
def test_a_message_that_was_cut_is_whole_in_another_process(version: str, tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as store, ExitStack() as stack:
        settings = CODELESS | store.settings
        here, there = Service(tmp_path / "a", settings), Service(tmp_path / "b", settings)
        stack.callback(lambda: here.stop())  # noqa: PLW0108 - whichever runs then
        here.start()
        chats = stack.enter_context(chats_of(here, version))
        chat = secrets.token_hex(8)
        whole = message_of(chats.open("streamed", chat).send(*SCRIPT), chat)
        events = here.client.get(f"/ai-sdk/streamed/{chat}/stream?finished=true").text.count("\n\n")
        attempts = []
        for after in range(1, events, EVERY):
            there.start()
            there.process.send_signal(signal.SIGSTOP)  # it takes no turn
            chat = secrets.token_hex(8)
            chats.open("streamed", chat, api=api_of(here))("cut", after=after)
            assert chats.send(*SCRIPT).status == "error"
            here.kill()
            there.process.send_signal(signal.SIGCONT)
            here, there = there, here
            chats.open("streamed", chat, api=api_of(here), messages=chats.messages, finished=True)("cut")
            for _ in range(MOST_RESUMED):
                if chats("resume").status == "ready":
                    break
            assert message_of(chats, chat) == whole, after
            attempts.append(here.get(f"/conversations/{chat}/turns/1")["attempts"])
        assert attempts.count(2) > len(attempts) / 2, "few turns were still running"
