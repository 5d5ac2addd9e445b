"""AG-UI: runs of its own client, without a page."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.answering import mail, sent
from tests.support.service import Service, wait_until
from tests.support.turns import DONE, ECHO, SHOWN, delegate, png
from tests.web.dialects.ag_ui_clients import Client
from tests.web.dialects.clients import WHERE

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["@ag-ui/client", "ag-ui-0"])
def client(service: Service, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(service, request.param) as client:
        yield client


@pytest.fixture
def thread() -> str:
    return secrets.token_hex(8)


def yes(interrupt: dict[str, Any], **payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload or {"approved": True}}


def test_a_run_has_text_thoughts_tools_and_steps(client: Client, thread: str) -> None:
    client.open("plain", thread).send(ECHO, {"say": "one"})
    assert (client.error, client.outcome, client.role("assistant")) == (None, "success", ["one"])
    assert client.role("reasoning") == ["I call."] * 2
    assert (client.role("tool"), list(client.calls)) == (["ü"], [f"{thread}:1:1.1"])
    assert [event["stepName"] for event in client.of("STEP_STARTED")] == ["1", "2"]
    assert client.of("RUN_FINISHED")[0]["usage"][0]["totalTokens"] > 0
    client.send(SHOWN)
    assert "echo" in client.role("assistant")[-1], "the agent remembers its own call"
    ids = [message["id"] for message in client.messages]
    assert len(ids) == len(set(ids))


def test_an_edited_message_and_another_answer_go_on_in_forks(client: Client, thread: str, service: Service) -> None:
    client.open("plain", f"a/{thread}").send({"say": "first"})
    at = len(client.messages)
    client.send({"say": "second"})
    before = {message["id"] for message in client.messages}
    client("edit", at=at + 1)
    assert client.role("assistant") == ["first", "second"]
    assert client.messages[-1]["id"] not in before
    client("edit", at=at, text=json.dumps([{"say": "edited"}]))
    client.send(SHOWN)
    shown = client.role("assistant")[-1]
    assert [said in shown for said in ("first", "second", "edited")] == [True, False, True]
    newest = client.messages[-1]["id"].partition(":")[0]
    client.open("plain", f"a/{thread}").send(SHOWN)
    assert client.messages[-1]["id"].startswith(f"{newest}:4:"), "the thread leads to its newest branch"
    assert service.get(f"/conversations/{newest}")["turn_count"] == 4


def test_a_run_comes_once(client: Client, thread: str, service: Service) -> None:
    message = {"id": "m1", "role": "user", "content": json.dumps([ECHO, {"say": "once"}])}
    body = {"threadId": thread, "runId": "r1", "messages": [message]}
    first, again = (service.post("/ag-ui/plain", **body) for _ in range(2))
    assert first.headers["content-type"].startswith("text/event-stream")
    assert ("\r" in first.text, "null" in first.text, "\nid:" in first.text) == (False, False, False)
    kinds = [json.loads(line[6:])["type"] for line in again.text.splitlines() if line.startswith("data: ")]
    assert kinds[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert service.get(f"/conversations/{thread}")["turn_count"] == 1
    client.open("plain", thread, messages=[message])("run", runId="r1")
    joined = client.messages
    client.open("plain", f"{thread}-2").send(ECHO, {"say": "once"}, id="m1")
    assert json.loads(json.dumps(client.messages).replace(f"{thread}-2", thread)) == joined


def test_interrupts_are_answered_together(client: Client, thread: str, service: Service) -> None:
    question = ["ask_user", {"question": "Which?", "choices": ["a", "b"]}]
    calls = [mail(f"ann-{thread}"), mail(f"bob-{thread}"), question]
    client.open("mailer", thread).send({"call": calls}, {"say": "sent"})
    assert (client.outcome, [each["reason"] for each in client.interrupts]) == (
        "interrupt",
        ["tool_call", "tool_call", "input_required"],
    )
    first, second, asked = client.interrupts
    assert client.calls[first["toolCallId"]] == "send_email"
    client("run", resume=[yes(first)])
    assert "pending" in str(client.error), "the client knows that it must answer all"
    body = {"threadId": thread, "runId": "partial", "messages": client.messages, "resume": [yes(first)]}
    assert "leaves an interrupt open" in service.post("/ag-ui/mailer", **body).text
    no = {"interruptId": second["id"], "status": "cancelled"}
    client("run", resume=[yes(first), no, yes(asked, answer="b")])
    assert (client.outcome, client.role("assistant")) == ("success", ["sent"])
    results = dict(
        zip([m["toolCallId"] for m in client.messages if m["role"] == "tool"], client.role("tool"), strict=True)
    )
    assert (results[first["toolCallId"]], results[asked["toolCallId"]]) == (f"sent to ann-{thread}", "b")
    assert [line for line in sent(service) if thread in line] == [f"ann-{thread}: hi"]


def test_an_approval_is_answered_later_by_another_client(client: Client, thread: str, service: Service) -> None:
    calls = [mail(f"zoe-{thread}"), mail(f"ann-{thread}")]
    client.open("mailer", thread).send({"call": calls}, {"raise": "broken"})
    interrupt, other = client.interrupts
    reject = {"request_id": other["id"], "decision": "reject"}
    service.post(f"/conversations/{thread}/turns/1/answers", answers=[reject]).raise_for_status()
    client.open("mailer", thread).send(DONE)
    assert (client.interrupts, list(client.calls)) == ([interrupt], [interrupt["toolCallId"]])
    client("run", resume=[yes(interrupt, approved=True, editedArgs={"to": f"kim-{thread}", "text": "yo"})])
    assert client.failed["code"] == "model_error"
    assert f"sent to kim-{thread}" in client.role("tool")
    client("run", resume=[yes(interrupt, approved=False)])
    assert client.failed["code"] == "already_answered"


def test_a_client_runs_its_tool(client: Client, thread: str) -> None:
    script = [
        {"call": [["where", {"thing": "key"}], mail(f"tim-{thread}")]},
        {"call": [["where", {"thing": "x"}]]},
        SHOWN,
    ]
    client.open("mailer", thread, tools=[WHERE]).send(*script)
    (approval,) = client.interrupts
    call = next(call for call, name in client.calls.items() if name == "where")
    client("output", id=call, content="in the hall", resume=[yes(approval)])
    assert (client.outcome, client.role("tool")) == ("success", ["in the hall", f"sent to tim-{thread}"])
    assert client.pending in ([list(client.calls)[-1]], []), "a client before 1.0 does not name them"
    client("output", id=list(client.calls)[-1], content="nowhere")
    assert ["in the hall" in client.role("assistant")[-1], "nowhere" in client.role("assistant")[-1]] == [True, True]
    assert set(client.role("reasoning")) == {"I call."}, "an answered run repeats no part of the one before"
    client.open("plain", f"{thread}-2", tools=[WHERE]).send({"call": [["where", {"thing": "key"}]]}, DONE)
    client("state")
    client.send(SHOWN)
    assert "where" in client.role("assistant")[-1], "a new message ends the wait for a tool"


def test_failed_and_refused_runs(client: Client, thread: str) -> None:
    client.open("plain", thread).send({"raise": "broken"})
    assert (client.failed["code"], client.error) == ("model_error", None)
    client.open("nobody", thread).send(DONE)
    assert (client.status, "agent_not_found" in str(client.error)) == (404, True)


def test_an_image_comes_and_goes(client: Client, thread: str) -> None:
    source = {"type": "data", "mimeType": "image/png", "value": png("blue")}
    script = ({"call": [["picture", {}]]}, {"say": "image.png"})
    client.open("plain", thread).send(*script, parts=[{"type": "image", "source": source}])
    content = client.role("tool")[-1]
    (image,) = json.loads(content) if isinstance(content, str) else content
    assert (image["type"], image["source"]["mimeType"]) == ("image", "image/png")
    link = {"type": "image", "source": {"type": "url", "value": "https://example.org/a.png"}}
    client.send(DONE, parts=[link])
    assert "/content/1/source" in str(client.error)


def test_inner_agents_are_subagents(client: Client, thread: str) -> None:
    inner = delegate("deputy", {"call": [["echo", {"text": "in"}]]}, {"say": "inner"})
    client.open("office", thread).send({"call": [delegate("lead", {"call": [inner]}, {"say": "led"})]}, DONE)
    client("run", resume=[yes(client.interrupts[0])])
    assert (client.outcome, client.error) == ("success", None)
    started = client.of("SUBAGENT_STARTED")
    assert [event["name"] for event in started] == ["office/lead", "office/lead/deputy"]
    assert started[1]["parentSubagentRunId"] == started[0]["subagentRunId"]
    echoed = next(event for event in client.of("TOOL_CALL_RESULT") if event["content"] == "in")
    assert echoed["subagentRunId"] == started[1]["subagentRunId"]
    assert len(client.of("SUBAGENT_FINISHED")) == 2


def test_state_has_variables_beside_those_of_the_client(client: Client, thread: str) -> None:
    client.open("code-mailer", thread, state={"theme": "dark"}).send(
        {"code": "x = [3]"}, {"code": "final_answer({'y': 1})"}
    )
    assert client.state == {"theme": "dark", "variables": {"x": "[3]"}}
    assert client.result == {"y": 1}
    client.send({"code": f"send_email('ann-{thread}', 'hi')"}, {"code": "final_answer(x)"})
    assert (client.outcome, len(client.interrupts)) == ("interrupt", 1)
    client("run", resume=[yes(client.interrupts[0])])
    assert client.result == [3]


def test_a_stop_cancels_and_a_disconnect_does_not(client: Client, thread: str, service: Service) -> None:
    is_new = client.version == "@ag-ui/client"
    script = json.dumps([{"call": [["echo", {"text": "x"}]], "busy_s": 0.4}] * 20)
    client.open("plain", thread)("begin", text=script)
    wait_until(lambda: service.client.get(f"/conversations/{thread}").status_code == 200)
    client("abort")
    assert service.get(f"/conversations/{thread}")["running_turn"] == 1
    assert service.client.post(f"/ag-ui/plain/{thread}/stop").status_code == 204
    client("edit", at=1)  # the same message again follows its turn
    assert (client.error, client.outcome) == (None, "cancelled" if is_new else "success")
    assert service.get(f"/conversations/{thread}")["turn_count"] == 1
