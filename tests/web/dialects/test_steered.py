"""Streams of other protocols pass over a message that joins their turn."""

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.turns import DONE, submit_next, wait_for_end
from tests.support.waiting import Gate


@pytest.mark.parametrize("dialect", ["ag-ui", "ai-sdk"])
def test_a_stream_goes_on_after_a_message_that_joins(service: Service, dialect: str, tmp_path: Path) -> None:
    gate, name = Gate(tmp_path / "gate"), secrets.token_hex(8)
    said = json.dumps([gate.script])
    message = {"id": "u1", "role": "user", "content": said, "parts": [{"type": "text", "text": said}]}
    body = {"id": name, "trigger": "submit-message", "threadId": name, "runId": "r1", "messages": [message]}
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(service.client.post, f"/{dialect}/plain", json=body, timeout=60)
        gate.reached()
        turn: Any = service.get(f"/conversations/{name}/turns/1")
        joins = submit_next(service, turn, DONE, on_busy="steer")
        gate.open()
        ended = stream.result().text
    assert "RUN_FINISHED" in ended if dialect == "ag-ui" else "[DONE]" in ended
    assert wait_for_end(service, joins)["error"]["code"] == "steered"
