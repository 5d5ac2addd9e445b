"""Chat Completions, as the library of OpenAI speaks it."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.answering import mail, read, wait_for_requests
from tests.support.service import Service
from tests.support.turns import DONE, PROMPT, SHOWN, png, submit_turn
from tests.web.dialects.clients import WHERE, openai_of

pytestmark = pytest.mark.timeout(120)
User = dict[str, Any]


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai_of(service) as client:
        yield client


def user(*script: Any) -> User:
    return {"role": "user", "content": json.dumps(script)}


def said(text: str | None) -> User:
    return {"role": "assistant", "content": text}


def ask(client: openai.OpenAI, *messages: Any, model: str = "plain", **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=list(messages), **options)


def conversations(service: Service) -> int:
    return len(service.get("/conversations", limit=100)["items"])


def test_models_are_agents(client: openai.OpenAI) -> None:
    assert "plain" in [model.id for model in client.models.list()]
    assert client.models.retrieve("plain").object == "model"
    with pytest.raises(openai.NotFoundError) as refused:
        ask(client, user(DONE), model="nobody")
    assert refused.value.code == "agent_not_found"


def test_a_history_goes_on_in_its_conversation(client: openai.OpenAI, service: Service) -> None:
    first = user({"call": [["echo", {"text": "ü"}]]}, {"say": "one"})
    answer = ask(client, first)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("one", "stop")
    assert answer.usage.total_tokens > 0
    count = conversations(service)
    second = ask(client, first, said("one"), user(SHOWN))
    shown = second.choices[0].message.content
    assert "echo" in shown, "the agent remembers its own call, which no message of the client names"
    assert conversations(service) == count
    other = ask(client, first, said("one"), user({"say": "edited"}))
    assert (other.choices[0].message.content, conversations(service)) == ("edited", count + 1)


def test_a_stream_has_the_answer_and_the_thoughts(client: openai.OpenAI) -> None:
    call = {"call": [["echo", {"text": "ü"}]]}
    with ask(client, user(call, {"say": "streamed"}), stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "streamed"
    assert "echo(" in "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert not any(delta.tool_calls for delta in deltas), "the client would run the tools of the agent"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.prompt_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_repeat_is_no_second_turn(client: openai.OpenAI, service: Service) -> None:
    message = user({"say": "once"})
    first = ask(client, message)
    count = conversations(service)
    again = ask(client, message, extra_headers={"X-Stainless-Retry-Count": "1"})
    assert (again.id, conversations(service)) == (first.id, count)
    asked_again = ask(client, message)
    assert (asked_again.id != first.id, conversations(service)) == (True, count + 1)
    service.client.delete(f"/conversations/{asked_again.id.split('-')[1]}")
    assert ask(client, message, extra_headers={"X-Stainless-Retry-Count": ""}).id != asked_again.id


def test_equal_questions_have_chats_of_their_own(client: openai.OpenAI) -> None:
    hello = user(PROMPT)  # the answer differs between conversations
    for first in [ask(client, hello, model="personal") for _ in range(3)]:
        second = ask(client, hello, said(first.choices[0].message.content), user(DONE), model="personal")
        assert second.id.rpartition("-")[0] == first.id.rpartition("-")[0]


def test_ids_of_others_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError):
        ask(client, user(DONE), extra_headers={"X-Conversation-Id": "a b"})
    result = {"role": "tool", "tool_call_id": "another:1:1.1", "content": "x"}
    with pytest.raises(openai.NotFoundError):
        ask(client, user(DONE), said("?"), result)


def test_an_unknown_history_becomes_earlier_steps(client: openai.OpenAI) -> None:
    answer = ask(client, {"role": "user", "content": "Who are you?"}, said("A parrot."), user(SHOWN))
    assert "A parrot." in answer.choices[0].message.content
    assert "Who are you?" in answer.choices[0].message.content


def test_a_tool_of_the_client(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": WHERE}
    asked = user({"call": [["where", {"thing": "key"}]]}, SHOWN)
    answer = ask(client, asked, tools=[tool]).choices[0]
    assert answer.finish_reason == "tool_calls"
    call = answer.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("where", {"thing": "key"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "in the hall"}
    history = [asked, answer.message.model_dump(exclude_none=True), result]
    assert "in the hall" in ask(client, *history, tools=[tool]).choices[0].message.content
    with ask(client, *history, tools=[tool], stream=True) as stream:  # a repeat
        assert "in the hall" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)


@pytest.mark.parametrize(("words", "made"), [("Yes.", True), ("too many", False)])
def test_an_approval_in_words(client: openai.OpenAI, words: str, made: bool) -> None:
    asked = user({"call": [mail(f"ann-{made}")]}, SHOWN)
    question = ask(client, asked, model="mailer").choices[0].message.content
    assert "May I call send_email" in question
    reply = {"role": "user", "content": words}
    answer, again = (
        ask(client, asked, said(question), reply, model="mailer", extra_headers={"X-Stainless-Retry-Count": str(nth)})
        .choices[0]
        .message.content
        for nth in range(2)
    )
    assert again == answer
    assert (f"sent to ann-{made}" in answer, words in answer) == (made, not made)


def test_a_picture_is_read(client: openai.OpenAI) -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png('blue')}"}}
    content = [{"type": "text", "text": json.dumps([SHOWN])}, picture]
    assert ask(client, {"role": "user", "content": content}).choices[0].message.content
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        ask(client, {"role": "user", "content": [*content, {"type": "video", "text": "x"}]})
    assert "/messages/0/content/2" in str(refused.value)


@pytest.mark.parametrize("busy_s", [0, pytest.param(21, marks=pytest.mark.deep)])  # a blank is sent after 20 s
def test_a_failed_turn_raises(client: openai.OpenAI, busy_s: int) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        ask(client.with_options(max_retries=1), user({"raise": "broken", "busy_s": busy_s}))
    assert failed.value.code == "model_error"
    with pytest.raises(openai.APIError), ask(client, user({"raise": "broken twice"}), stream=True) as stream:
        list(stream)


def test_open_webui_asks_for_a_title(client: openai.OpenAI, service: Service) -> None:
    count = conversations(service)
    task = {"role": "user", "content": "### Task:\nGenerate a title"}
    assert ask(client, task).choices[0].message.content == "{}"
    assert conversations(service) == count


def test_a_chat_of_open_webui(service: Service) -> None:
    chat = secrets.token_hex(8)

    def send(*messages: User, task: str = "", **body: Any) -> tuple[str, str]:
        headers = {"X-OpenWebUI-Chat-Id": chat, "X-OpenWebUI-Task": task}
        body = {"model": "personal", "messages": messages, "stream": not task, **body}
        answer = service.client.post("/openai/v1/chat/completions", json=body, headers=headers)
        if task:
            return answer.json()["choices"][0]["message"]["content"], ""
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        text = "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])
        return text, answer.headers["X-Conversation-Id"]

    first, second = user({"say": "one"}), user(PROMPT)  # the answer differs between conversations
    assert send(first) == ("one", chat)
    for task in ("title_generation", "tags_generation", "follow_up_generation"):
        assert send(user(DONE), task=task) == ("{}", "")
    history = [first, said("one")]
    assert send(*history, second)[1] == chat
    again, fork = send(*history, second)
    assert fork != chat, "the answer is generated again"
    shown, same = send(*history, second, said(again), user(SHOWN))
    assert (again in shown, same) == (True, fork)
    edited, other = send(*history, user(SHOWN))
    assert ("one" in edited, again in edited, other in {chat, fork}) == (True, False, False)
    assert service.get(f"/conversations/{chat}")["turn_count"] == 2


def test_an_equal_history_stops_no_turn(client: openai.OpenAI, service: Service) -> None:
    first = user({"say": "shared"})
    conversation_id = ask(client, first, model="mailer").id.split("-")[1]
    turn = wait_for_requests(
        service, submit_turn(service, {"call": [mail("bo")]}, agent="mailer", conversation_id=conversation_id)
    )
    other = ask(client, first, said("shared"), user(SHOWN), model="mailer")
    assert "shared" in other.choices[0].message.content
    assert (other.id.split("-")[1] != conversation_id, read(service, turn)["status"]) == (True, "waiting")
