"""A caller that waits for the end of its turn learns that it was accepted, even if the store falls silent meanwhile."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.service import PLAIN, Service
from tests.support.store_server import StoreServer
from tests.support.turns import DONE, wait_for_end
from tests.support.waiting import Gate


def test_a_turn_whose_end_the_store_does_not_tell_is_answered_as_accepted(
    tmp_path: Path, server: StoreServer, gate: Gate
) -> None:
    body = {"agent": "scripted", "message": json.dumps([gate.script, DONE])}
    with Service(tmp_path / "service", PLAIN | server.settings) as service, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(service.client.post, "/turn", json=body, headers={"Prefer": "wait=2"})
        gate.reached()
        server.freeze()
        try:
            answer = answering.result()
        finally:
            server.thaw()
        assert (answer.status_code, answer.json()["turn"]) == (202, 1), answer.text
        gate.open()
        assert wait_for_end(service, answer.json())["reply"] == "done"
