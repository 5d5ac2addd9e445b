"""Status of a conversation: idle, queued behind other conversations, running."""

from pathlib import Path

from smolsessions import Client
from tests.support.openapi import assert_described
from tests.support.service import PLAIN, Service
from tests.support.turns import DONE, held_turn, submit_next, submit_turn, wait_for_end


def test_a_conversation_is_queued_while_its_turn_waits_for_a_thread(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN | {"THREADS": "1"}) as service, Client(str(service.client.base_url)) as client:
        idle = service.post("/conversations").json()
        with held_turn(service, tmp_path / "gate") as running:
            behind = submit_next(service, running, DONE)
            waiting = submit_turn(service, DONE)
            shown = {
                status: [each.id for each in client.list_conversations(status=status)]
                for status in ("idle", "queued", "running")
            }
            assert shown == {
                "idle": [idle["id"]],
                "queued": [waiting["conversation_id"]],
                "running": [running["conversation_id"]],
            }
            queued = service.get(f"/conversations/{waiting['conversation_id']}")
            assert (queued["status"], queued["running_turn"], queued["queued_turns"]) == ("queued", None, 1)
            assert_described("Conversation", queued)
        for turn in (behind, waiting):
            assert wait_for_end(service, turn)["status"] == "finished"
        assert {each.status for each in client.list_conversations()} == {"idle"}
        assert list(client.list_conversations(status="queued")) == []
