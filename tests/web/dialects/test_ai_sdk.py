"""The Vercel AI SDK: its chats of the versions 6 and 7, without a page."""

import json
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.answering import asking_service, mail, sent
from tests.support.service import Service, wait_until
from tests.support.turns import DONE, SHOWN, delegate, held_turn, png, submit_turn, wait_for_end
from tests.web.dialects.ai_sdk_chats import Chats
from tests.web.dialects.clients import WHERE

pytestmark = pytest.mark.timeout(120)

ECHO = {"call": [["echo", {"text": "ü"}]]}


@pytest.fixture(scope="module", params=["ai", "ai6"])
def chats(service: Service, request: pytest.FixtureRequest) -> Iterator[Chats]:
    with Chats(service, request.param) as chats:
        yield chats


@pytest.fixture
def chat() -> str:
    return secrets.token_hex(8)


def test_a_message_has_text_thoughts_and_tools(chats: Chats, chat: str) -> None:
    chats.open("plain", chat).send(ECHO, {"say": "one"})
    assert (chats.status, chats.text, chats.requests) == ("ready", "one", ["POST"])
    assert chats.tools == [("echo", "output-available", "ü")]
    assert [part["text"] for part in chats.of("reasoning")] == ["I call."] * 2
    assert len(chats.of("step-start")) == 2
    assert chats.messages[-1]["metadata"]["usage"]["totalTokens"] > 0
    chats.send(SHOWN)
    assert "echo" in chats.text, "the agent remembers its own call"
    assert [message["id"] for message in chats.messages[1::2]] == [f"{chat}:1", f"{chat}:2"]


def test_an_edited_message_and_another_answer_go_on_in_forks(chats: Chats, chat: str, service: Service) -> None:
    chats.open("plain", chat).send({"say": "first"})
    chats.send({"say": "second"})
    user, before = chats.messages[2]["id"], [message["id"] for message in chats.messages]
    chats("regenerate")
    assert (chats.text, len(chats.messages)) == ("second", 4)
    assert chats.messages[-1]["id"] not in before
    chats.send({"say": "edited"}, messageId=user)
    assert (chats.text, len(chats.messages)) == ("edited", 4)
    newest = chats.messages[-1]["id"].partition(":")[0]
    chats.send(SHOWN)
    assert [said in chats.text for said in ("first", "second", "edited")] == [True, False, True]
    assert chats.messages[-1]["id"] == f"{newest}:3"
    assert service.get(f"/conversations/{chat}")["turn_count"] == 2
    last = chats.messages[-1]
    chats.open("plain", chat, finished=True)("resume")
    assert chats.messages == [last], "the chat leads to its newest branch"


def test_a_message_that_comes_twice_is_one_turn(chat: str, service: Service) -> None:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": json.dumps([{"say": "once"}])}]}
    answers = [service.post("/ai-sdk/plain", id=chat, messages=[message]).text for _ in range(2)]
    assert answers[0] == answers[1]
    assert "once" in answers[0]
    answer = service.post("/ai-sdk/plain", id=chat, message={**message, "id": "m2"}).text
    assert f'"{chat}:2"' in answer, "a client that sends its last message alone goes on in its chat"


def test_answered_approvals_go_on_in_the_same_message(chats: Chats, chat: str, service: Service) -> None:
    chats.open("mailer", chat).send({"call": [mail(f"ann-{chat}"), mail(f"bob-{chat}")]}, {"say": "sent"})
    assert [state for _, state, _ in chats.tools] == ["approval-requested"] * 2
    first, second = (part["approval"]["id"] for part in chats.of("dynamic-tool"))
    chats("approve", id=first, approved=True)
    assert chats.requests == [], "the other one is open"
    chats("approve", id=second, approved=False, reason="too many")
    assert (chats.status, chats.requests, chats.text) == ("ready", ["POST"], "sent")
    assert [state for _, state, _ in chats.tools] == ["output-available", "output-denied"]
    assert [line for line in sent(service) if chat in line] == [f"ann-{chat}: hi"]
    assert len(chats.messages) == 2
    live = chats.messages[-1]
    chats.open("mailer", chat, finished=True)("resume")
    assert [part["type"] for part in chats.parts] == [part["type"] for part in live["parts"]]


def test_an_approval_is_answered_later_by_another_client(chats: Chats, chat: str) -> None:
    chats.open("mailer", chat).send({"call": [mail(f"zoe-{chat}")]}, {"raise": "broken"})
    chats.open("mailer", chat)("resume")
    assert (chats.status, [state for _, state, _ in chats.tools]) == ("ready", ["approval-requested"])
    chats("approve", id=chats.of("dynamic-tool")[0]["approval"]["id"], approved=True)
    assert (chats.status, chats.requests) == ("error", ["POST"])
    assert str(chats.error).startswith("model_error: ")
    assert [state for _, state, _ in chats.tools] == ["output-available"]


def test_a_client_runs_its_tool_and_answers_a_question(chats: Chats, chat: str) -> None:
    question = ["ask_user", {"question": "Which?", "choices": ["a", "b"]}]
    script = [{"call": [["where", {"thing": "key"}], mail(f"tim-{chat}")]}, {"call": [question]}, SHOWN]
    chats.open("mailer", chat, body={"client_tools": [WHERE]}).send(*script)
    where, mailed = chats.of("dynamic-tool")
    assert (where["state"], where["input"], where["providerExecuted"]) == ("input-available", {"thing": "key"}, False)
    chats("output", tool="where", toolCallId=where["toolCallId"], output={"room": "hall"})
    chats("approve", id=mailed["approval"]["id"], approved=True)
    asked = chats.of("dynamic-tool")[-1]
    assert (asked["toolName"], asked["input"]["choices"], chats.status) == ("ask_user", ["a", "b"], "ready")
    chats("output", tool="ask_user", toolCallId=asked["toolCallId"], output="b")
    assert chats.requests == ["POST"]
    assert "hall" in chats.text
    assert [output for name, _, output in chats.tools if name != "send_email"] == [{"room": "hall"}, "b"]


def test_an_answer_is_posted_once_whatever_follows(chats: Chats, chat: str, service: Service) -> None:
    def approval() -> str:
        return str(chats.of("dynamic-tool")[-1]["approval"]["id"])

    chats.open("mailer", chat, body={"max_steps": 1, "client_tools": [WHERE]}).send({"call": [mail(f"eve-{chat}")]})
    tab = chats.messages
    for messages in (tab, tab):  # the second one is another tab, which is late
        chats.open("mailer", chat, messages=messages)("approve", id=approval(), approved=True)
        assert (chats.requests, chats.status, chats.text) == (["POST"], "ready", "forced answer")
    assert [line for line in sent(service) if chat in line] == [f"eve-{chat}: hi"]
    chats.open("mailer", chat, messages=chats.messages).send({"call": [mail(f"eva-{chat}")]}, DONE)
    service.client.post(f"/conversations/{chat}/turns/2/cancel")
    chats("approve", id=approval(), approved=True)
    assert (chats.requests, chats.status) == (["POST"], "error")
    chats.open("mailer", chat, body={"client_tools": [WHERE]}).send({"call": [["where", {"thing": "key"}]]}, DONE)
    call = chats.of("dynamic-tool")[0]["toolCallId"]
    chats("output", tool="where", toolCallId=call, state="output-error", errorText="lost")
    assert (chats.requests, chats.text) == (["POST"], "done")


def test_a_stop_before_the_outcome_of_an_answer_ends_the_posts(chats: Chats, chat: str, tmp_path: Path) -> None:
    with asking_service(tmp_path, THREADS="1") as service:
        chats.open("mailer", chat, api=f"{service.url}/ai-sdk").send({"call": [mail("nobody")]})
        approval = chats.of("dynamic-tool")[0]["approval"]["id"]
        with ThreadPoolExecutor(1) as pool:
            with held_turn(service, tmp_path / "go", agent="plain"):
                answered = pool.submit(chats, "approve", id=approval, approved=True)
                wait_until(lambda: not service.get(f"/conversations/{chat}/turns/1")["requests"])
                service.client.post(f"/ai-sdk/mailer/{chat}/stop")
            answered.result()
        assert [state for _, state, _ in chats.tools] == ["approval-responded"]
        assert (chats.requests, chats.status, len(chats.messages)) == (["POST"], "ready", 2)


def test_a_failed_turn_is_an_error(chats: Chats, chat: str) -> None:
    chats.open("plain", chat).send({"raise": "broken"})
    assert (chats.status, str(chats.error).partition(":")[0]) == ("error", "model_error")
    assert "agent_not_found" in str(chats.open("nobody", chat).send(DONE).error)


def test_an_image_comes_and_goes(chats: Chats, chat: str) -> None:
    picture = {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{png('blue')}"}
    chats.open("plain", chat).send({"call": [["picture", {}]]}, {"say": "image.png"}, files=[picture])
    (image,) = chats.of("file")
    assert image["mediaType"] == "image/png"
    assert image["url"].startswith("data:image/png;base64,")
    link = {**picture, "url": "https://example.org/a.png"}
    assert "/messages/2/parts/0/url" in str(chats.send(DONE, files=[link]).error)


def test_steps_of_inner_agents_are_data(chats: Chats, chat: str) -> None:
    inner = delegate("deputy", {"call": [["echo", {"text": "in"}]]}, {"say": "inner"})
    chats.open("office", chat).send({"call": [delegate("lead", {"call": [inner]}, {"say": "led"})]}, DONE)
    chats("approve", id=chats.of("dynamic-tool")[0]["approval"]["id"], approved=True)
    steps = [part["data"] for part in chats.of("data-step")]
    assert {step["state"] for step in steps} == {"done"}
    (call,) = [call for step in steps for call in step["calls"] if call["toolName"] == "echo"]
    assert (call["input"], call["output"]) == ({"text": "in"}, "in")
    assert chats.text.endswith("done")


def message(name: str, *script: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": json.dumps(script)}]}


def test_an_edit_stops_the_turns_behind_the_message(chat: str, service: Service) -> None:
    history = [message("m1", {"say": "one"}), {"id": f"{chat}:1", "role": "assistant", "parts": []}]
    assert "one" in service.post("/ai-sdk/code-mailer", id=chat, messages=history[:1]).text
    of_chat = {"agent": "code-mailer", "conversation_id": chat, "on_busy": "enqueue"}
    turns = [submit_turn(service, {"code": "import time\ntime.sleep(60)"}, **of_chat) for _ in range(2)]
    answer = service.post("/ai-sdk/code-mailer", id=chat, messages=[*history, message("m2", {"say": "edited"})])
    assert "edited" in answer.text
    assert [wait_for_end(service, turn)["status"] for turn in turns] == ["cancelled"] * 2


def test_messages_that_come_at_once_keep_their_turns(chat: str, service: Service) -> None:
    history = [message("m1", {"say": "one"}), {"id": f"{chat}:1", "role": "assistant", "parts": []}]
    service.post("/ai-sdk/plain", id=chat, messages=history[:1])

    def send(number: int) -> list[str]:
        last = message(f"n{number}", {"say": "two"})
        answer = service.post("/ai-sdk/plain", id=chat, messages=[*history, last], on_busy="enqueue")
        return re.findall(r'"messageId":"([^"]+)"', answer.text)

    with ThreadPoolExecutor(8) as pool:
        found = dict(enumerate(pool.map(send, range(8))))
    accepted = {number: ids for number, ids in found.items() if ids}  # a fork is refused while a turn waits
    assert {number: send(number) for number in accepted} == accepted
    assert len({each for (each,) in accepted.values()}) == len(accepted) > 1
