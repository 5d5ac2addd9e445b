"""Calls that ask from within code, and within inner agents."""

import json
import secrets
from typing import Any

import pytest

from tests.support.answering import mail, sent
from tests.support.service import Service
from tests.support.turns import DONE, delegate
from tests.web.dialects.ag_ui_clients import Client
from tests.web.dialects.ai_sdk_chats import Chats
from tests.web.dialects.clients import WHERE, openai_of
from tests.web.dialects.test_ag_ui import yes

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("version", ["ai", "ai6"])
def test_approvals_within_code_are_posted(service: Service, version: str) -> None:
    chat = secrets.token_hex(8)
    code = f"print(send_email('ann-{chat}', 'hi'))\nprint(send_email('bob-{chat}', 'hi'))"
    with Chats(service, version) as chats:
        chats.open("code-mailer", chat).send({"code": code}, {"say": "sent"})
        for _ in range(2):
            (asked,) = [part for part in chats.of("dynamic-tool") if part["state"] == "approval-requested"]
            chats("approve", id=asked["approval"]["id"], approved=True)
            assert (chats.requests, chats.status) == (["POST"], "ready")
        assert chats.text == "sent"
        assert {(state, bool(output)) for _, state, output in chats.tools} == {("output-available", True)}
        assert len([line for line in sent(service) if chat in line]) == 2
        live = chats.messages[-1]
        chats.open("code-mailer", chat, finished=True)("resume")
        assert [part["type"] for part in chats.parts] == [part["type"] for part in live["parts"]]


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_within_an_inner_agent_is_posted(service: Service, approved: bool) -> None:
    chat = secrets.token_hex(8)
    inner = delegate("clerk", {"code": f"print(send_email('ann-{chat}', 'hi'))"}, {"say": "inner"})
    with Chats(service, "ai") as chats:
        chats.open("office", chat).send({"call": [inner]}, DONE)
        (asked,) = [part for part in chats.of("dynamic-tool") if part["state"] == "approval-requested"]
        chats("approve", id=asked["approval"]["id"], approved=approved)
        assert (chats.requests, chats.text) == (["POST"], "done")
        state = "output-available" if approved else "output-denied"
        assert [(name, each) for name, each, _ in chats.tools] == [("clerk", "output-available"), ("send_email", state)]
        live = chats.messages[-1]
        chats.open("office", chat, finished=True)("resume")
        assert [part["type"] for part in chats.parts] == [part["type"] for part in live["parts"]]


@pytest.mark.parametrize("version", ["@ag-ui/client", "ag-ui-0"])
def test_an_interrupt_beside_a_result_of_the_agents_own_call(service: Service, version: str) -> None:
    thread = secrets.token_hex(8)
    with Client(service, version) as client:
        client.open("mailer", thread).send({"call": [["echo", {"text": "x"}], mail(f"ann-{thread}")]}, DONE)
        client("run", resume=[yes(client.interrupts[0])])
        assert (client.failed, client.outcome, client.role("tool")) == ({}, "success", ["x", f"sent to ann-{thread}"])
        code = f"send_email('ann-{thread}', 'hi')\nsend_email('bob-{thread}', 'hi')"
        client.open("code-mailer", f"{thread}-2").send({"code": code}, DONE)
        for _ in range(2):
            client("run", resume=[yes(client.interrupts[0])])
        assert (client.failed, client.outcome) == ({}, "success")
        client.open("plain", f"{thread}-3", tools=[WHERE])
        client.send({"call": [["echo", {"text": "x"}], ["where", {"thing": "key"}]]}, DONE)
        run = client.of("RUN_STARTED")[0]["runId"]
        call = next(call for call, name in client.calls.items() if name == "where")
        client("output", id=call, content="in the hall")
        assert (client.error, client.outcome, client.pending) == (None, "success", [])
        client.open("plain", f"{thread}-3", messages=client.messages[:1])("run", runId=run)
        assert "in the hall" in client.role("tool"), "another client has the result, too"


def test_an_item_of_an_inner_agent_is_retrieved(service: Service) -> None:
    uid = secrets.token_hex(4)
    inner = delegate("clerk", {"code": f"print(send_email('ann-{uid}', 'hi'))"}, {"say": "inner"})
    with openai_of(service) as client:
        asked = client.responses.create(model="office", input=json.dumps([{"call": [inner]}, DONE]))
        item: Any = asked.output[-1]
        assert item.type == "mcp_approval_request"
        assert client.conversations.items.retrieve(item.id, conversation_id=item.id.partition(":")[0]).id == item.id
