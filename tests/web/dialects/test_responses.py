"""OpenAI's Responses and Conversations, as the library of OpenAI speaks them."""

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from smolsessions.core.records import Owner, Ref, Timing, Turn, TurnOptions
from smolsessions.core.requests import InputRequest
from smolsessions.web.dialects.gateway import is_repeat
from tests.support.answering import mail, sent
from tests.support.owners import ADA, BOB, owner_line
from tests.support.service import PLAIN, Gate, Service, wait_until, write_private
from tests.support.stores import AGENT, version_of
from tests.support.turns import DONE, ECHO, SHOWN, delegate, png
from tests.web.dialects.clients import WHERE, openai_of

Library: Any = openai.OpenAI
pytestmark = pytest.mark.timeout(120)
Client = Any  # the types of its parameters are those of literals
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Weather(BaseModel):
    city: str
    degrees: int


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with openai_of(service) as client:
        yield client


def script(*entries: Any) -> str:
    return json.dumps(entries)


def ask(client: Client, *entries: Any, model: str = "plain", **options: Any) -> Any:
    return client.responses.create(model=model, input=script(*entries), **options)


def approval(item: Any, *, approve: bool = True, **more: Any) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": approve, **more}


def kinds(answer: Any) -> list[str]:
    return [item.type for item in answer.output]


def conversation_of(response_id: str) -> str:
    return response_id.removeprefix("resp_").split(".")[0]


def events_of(service: Service, response_id: str, starting_after: int = -1) -> list[Any]:
    """Return the events of a response behind one, as a client without the library reads them."""
    query: dict[str, Any] = {"stream": "true", "starting_after": starting_after}
    text = service.client.get(f"/openai/v1/responses/{response_id}", params=query).text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_a_response_has_text_thoughts_and_tools(client: Client, service: Service) -> None:
    answer = ask(client, ECHO, {"say": "one"}, metadata={"about": "ü"})
    assert (answer.output_text, answer.status, answer.error) == ("one", "completed", None)
    assert kinds(answer) == ["reasoning", "mcp_call", "reasoning", "message"]
    call = answer.output[1]
    assert (call.name, json.loads(call.arguments), call.output) == ("echo", {"text": "ü"}, "ü")
    assert (answer.output[0].summary[0].text, answer.metadata) == ("I call.", {"about": "ü"})
    assert answer.usage.total_tokens > 0
    assert client.responses.retrieve(answer.id) == answer
    events = events_of(service, answer.id)
    assert [EVENT.validate_python(event).type for event in events] == [event["type"] for event in events]
    assert Response.model_validate(events[-1]["response"], strict=True) == answer
    numbers = [event["sequence_number"] for event in events]
    assert (numbers, len(events_of(service, answer.id, numbers[9]))) == (sorted(set(numbers)), len(events) - 10)
    first = client.responses.input_items.list(answer.id).data[0]
    assert json.loads(first.content[0].text) == [ECHO, {"say": "one"}]


def test_an_answer_that_is_not_accepted_is_left_out(client: Client, service: Service) -> None:
    early = {"call": [["final_answer", {"answer": "too early"}], ["echo", {"text": "x"}]]}
    answer = ask(client, early, {"say": "one"})
    assert answer.output_text == "one"
    dropped = [event for event in events_of(service, answer.id) if event.get("item", {}).get("status") == "incomplete"]
    assert [event["item"]["content"][0]["text"] for event in dropped] == ["too early"]


def test_a_stream_is_the_response(client: Client) -> None:
    with client.responses.stream(model="plain", input=script(ECHO, {"say": "streamed"})) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert ("".join(texts), final.output_text) == ("streamed", "streamed")
    with client.responses.stream(response_id=final.id, starting_after=5000) as stream:
        assert stream.get_final_response().output == final.output


def test_code_and_inner_agents_are_items(client: Client) -> None:
    block = {"code": "print(echo(text='in code'))\nfinal_answer('coded')"}
    answer = ask(client, block, model="code-mailer")
    code = next(item for item in answer.output if item.type == "code_interpreter_call")
    assert ("in code" in code.outputs[0].logs, "final_answer" in code.code) == (True, True)
    assert answer.output_text == "coded"
    inner = delegate("clerk", {"code": "final_answer(echo(text='deep'))"})
    answer = ask(client, {"call": [inner]}, DONE, model="office")
    calls = {item.name: item for item in answer.output if item.type == "mcp_call"}
    assert (calls["echo"].output, calls["echo"].agent) == ("deep", "office/clerk")
    assert "deep" in calls["clerk"].output
    assert answer.output_text == "done"


def test_images_come_and_go(client: Client) -> None:
    url = f"data:image/png;base64,{png('blue')}"
    said = {"type": "input_text", "text": script({"call": [["picture", {}]]}, {"say": "image.png"})}
    table = {"type": "input_file", "filename": "a.csv", "file_data": "data:text/csv;base64,YTtiCg=="}
    content: Any = [said, {"type": "input_image", "image_url": url}, table]
    answer = client.responses.create(model="plain", input=[{"role": "user", "content": content}])
    image = answer.output[-1]
    assert image.type == "image_generation_call"
    assert image.result
    assert image.result.startswith("iVBOR")
    message: Any = client.responses.input_items.list(answer.id).data[0]
    assert [part.type for part in message.content] == ["input_text", "input_image", "input_file"]
    link: Any = {"type": "input_image", "file_id": "file-1"}
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.responses.create(model="plain", input=[{"role": "user", "content": [said, link]}])
    wrong = refused.value.message
    assert ("/input/0/content/1: " in wrong, wrong.count("has no content")) == (True, 1)


def test_a_file_of_the_answer_is_cited(client: Client, service: Service) -> None:
    answer = ask(client, {"call": [["report", {}]]}, {"say": "report.csv"})
    (cited,) = answer.output[-1].content[0].annotations
    assert (cited.type, cited.filename) == ("container_file_citation", "report.csv")
    content = client.containers.files.content.retrieve(cited.file_id, container_id=cited.container_id)
    assert content.read() == b"a;b\n1;2\n"
    assert Response.model_validate(events_of(service, answer.id)[-1]["response"], strict=True) == answer
    with pytest.raises(openai.NotFoundError):
        client.containers.files.content.retrieve("another.csv", container_id=cited.container_id)


def test_a_failed_turn_raises(client: Client) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        ask(client, {"raise": "broken"})
    assert "model_error" in failed.value.message
    with client.responses.stream(model="plain", input=script({"raise": "broken"})) as stream:
        last = list(stream)[-1]
        assert last.type == "response.failed"
        with pytest.raises(RuntimeError):
            stream.get_final_response()
    with pytest.raises(openai.NotFoundError) as refused:
        ask(client, DONE, model="nobody")
    assert refused.value.code == "agent_not_found"


def test_a_background_response_is_polled_and_cancelled(client: Client, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    answer = ask(client, gate.script, {"say": "late"}, background=True)
    assert (answer.status in {"queued", "in_progress"}, answer.background) == (True, True)
    gate.reached()
    with pytest.raises(openai.ConflictError):
        ask(client, DONE, conversation=answer.conversation.id)
    assert client.responses.retrieve(answer.id).status == "in_progress"
    gate.open()
    wait_until(lambda: client.responses.retrieve(answer.id).status == "completed")
    assert client.responses.retrieve(answer.id).output_text == "late"
    answer = ask(client, {"code": "import time\ntime.sleep(60)"}, model="code-mailer", background=True)
    wait_until(lambda: client.responses.retrieve(answer.id).status == "in_progress")
    stopped = client.responses.cancel(answer.id)
    assert (stopped.status, stopped.id, stopped.output_text) == ("cancelled", answer.id, "")


def test_an_approval_comes_later(client: Client, service: Service) -> None:
    answer = ask(client, {"call": [mail("ann"), mail("bob")]}, {"say": "sent"}, model="mailer")
    ann, bob = (item for item in answer.output if item.type == "mcp_approval_request")
    assert (answer.status, ann.name, json.loads(ann.arguments)["to"]) == ("completed", "send_email", "ann")
    shown = {event["type"] for event in events_of(service, answer.id)}
    assert "response.mcp_call.in_progress" not in shown, "a client would take it for one that ran"
    rest = client.responses.create(model="mailer", previous_response_id=answer.id, input=[approval(ann)])
    assert [item.id for item in rest.output] == [bob.id]
    history: Any = [{"role": "user", "content": "no words"}, *answer.output, approval(bob, approve=False, reason="no")]
    with openai_of(service) as fresh:
        done, again = (fresh.responses.create(model="mailer", input=history) for _ in range(2))
    assert (done.output_text, again) == ("sent", done)
    calls = {item.approval_request_id: item for item in done.output if item.type == "mcp_call"}
    assert (calls[ann.id].output, calls[bob.id].status) == ("sent to ann", "failed")
    assert [line for line in sent(service) if "ann" in line or "bob" in line].count("bob: hi") == 0
    usage = service.get(f"/conversations/{conversation_of(done.id)}/turns/1")["usage"]
    assert answer.usage.input_tokens + (done.usage.input_tokens if done.usage else 0) == usage["input_tokens"]
    response: Any = client.responses.input_items.list(done.id).data[0]
    assert (response.type, response.approve, response.reason) == ("mcp_approval_response", False, "no")
    new = client.responses.create(
        model="mailer", input=[*history, *done.output, {"role": "user", "content": script({"say": "next"})}]
    )
    assert (new.output_text, conversation_of(new.id)) == ("next", conversation_of(done.id)), "old answers are history"
    held = {"call": [["echo", {"text": "a"}], mail("cid"), ["echo", {"text": "b"}]]}
    whole = ask(client, held, DONE, model="mailer", conversation=client.conversations.create().id)
    listed = client.conversations.items.list(conversation_of(whole.id), order="asc").data[1:]
    assert [item.id for item in listed] == [item.id for item in whole.output], "calls wait for the approval in both"


def test_a_question_is_a_message(client: Client) -> None:
    question = ["ask_user", {"question": "Which?", "choices": ["a", "b"]}]
    answer = ask(client, {"call": [question]}, SHOWN, model="mailer")
    assert answer.output_text == "Which? (a, b)"
    options: Any = {"model": "mailer", "previous_response_id": answer.id, "input": "b"}
    done, again = (
        client.responses.create(**options, extra_headers={"X-Stainless-Retry-Count": str(nth)}) for nth in range(2)
    )
    assert (again, kinds(done)) == (done, ["reasoning", "message"])
    assert '"b"' in done.output_text or "b" in done.output_text
    assert client.responses.input_items.list(done.id).data[0].content[0].text == "b"


def test_a_client_runs_its_tool(client: Client) -> None:
    options: Any = {"model": "plain", "tools": [{"type": "function", **WHERE}]}
    entries = {"call": [["where", {"thing": "key"}]]}, {"say": {"city": "Ulm", "degrees": 7}}
    answer = client.responses.parse(**options, input=script(*entries), text_format=Weather)
    call = answer.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments), answer.tools[0].name) == ("where", {"thing": "key"}, "where")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "in the hall"}
    with client.responses.stream(
        **options, previous_response_id=answer.id, input=[output], text_format=Weather
    ) as stream:
        done = stream.get_final_response()
    assert (done.output_parsed, kinds(done)[-1]) == (Weather(city="Ulm", degrees=7), "message")
    assert "mcp_call" not in kinds(done)
    given: Any = client.responses.input_items.list(done.id).data[0]
    assert (given.type, given.output) == ("function_call_output", "in the hall")


def test_responses_form_a_chain_and_fork(client: Client, service: Service) -> None:
    first = ask(client, {"say": "one"})
    second = ask(client, {"say": "two"}, previous_response_id=first.id)
    assert conversation_of(second.id) == conversation_of(first.id)
    other = ask(client, SHOWN, previous_response_id=first.id)
    assert conversation_of(other.id) != conversation_of(first.id)
    assert [said in other.output_text for said in ("one", "two")] == [True, False]
    count = len(service.get("/conversations", limit=100)["items"])
    again = ask(client, {"say": "two"}, previous_response_id=first.id, extra_headers={"X-Stainless-Retry-Count": "1"})
    assert (again, len(service.get("/conversations", limit=100)["items"])) == (second, count)
    with pytest.raises(openai.ConflictError):
        client.responses.delete(first.id)
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.NotFoundError):
        ask(client, SHOWN, previous_response_id=second.id)
    assert "two" not in ask(client, SHOWN, conversation=conversation_of(first.id)).output_text
    lone = ask(client, {"say": "one"})
    client.responses.delete(lone.id)
    assert list(client.conversations.items.list(conversation_of(lone.id))) == [], "the conversation stays"


def test_equal_requests_at_once_are_turns_of_their_own(client: Client) -> None:
    with ThreadPoolExecutor(12) as pool:
        found = [*pool.map(lambda _: ask(client, {"say": "the same"}).id, range(60))]
    assert len(set(found)) == 60


def test_a_history_in_the_input_goes_on(client: Client) -> None:
    first = ask(client, ECHO, {"say": "one"})
    history: Any = [{"role": "user", "content": script(ECHO, {"say": "one"})}, *first.output]
    second = client.responses.create(model="plain", input=[*history, {"role": "user", "content": script(SHOWN)}])
    assert conversation_of(second.id) == conversation_of(first.id)
    assert "echo" in second.output_text
    foreign: Any = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A parrot."}]
    third = client.responses.create(model="plain", input=[*foreign, {"role": "user", "content": script(SHOWN)}])
    assert "A parrot." in third.output_text
    assert len(client.conversations.items.list(conversation_of(third.id)).data) == 5


def test_a_conversation_has_items(client: Client) -> None:
    made = client.conversations.create(metadata={"topic": "a"})
    assert client.conversations.update(made.id, metadata={"topic": "b"}).metadata == {"topic": "b"}
    assert list(client.conversations.items.list(made.id)) == []
    ask(client, ECHO, {"say": "one"}, model="mailer", conversation=made.id)
    ask(client, {"say": "two"}, model="mailer", conversation={"id": made.id})
    assert client.conversations.retrieve(made.id).metadata == {"topic": "b"}
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [
        item.type for item in items
    ] == "message reasoning mcp_call reasoning message message reasoning message".split()
    assert items[::-1] == list(client.conversations.items.list(made.id, limit=3))
    assert len({item.id for item in items}) == len(items)
    assert client.conversations.items.retrieve(items[2].id or "", conversation_id=made.id) == items[2]
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.list(made.id)
    begun = client.conversations.create(
        items=[{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A parrot."}],
        metadata={"agent": "plain"},
    )
    assert "A parrot." in ask(client, SHOWN, conversation=begun.id).output_text


def test_a_page_of_items_is_bounded_by_bytes(client: Client) -> None:
    made, data = client.conversations.create(), base64.b64encode(b"a;b\n" * 1_300_000).decode()
    table = {"type": "input_file", "filename": "a.csv", "file_data": f"data:text/csv;base64,{data}"}
    said: Any = [{"role": "user", "content": [{"type": "input_text", "text": script(DONE)}, table]}]
    for _ in range(3):
        client.responses.create(model="plain", conversation=made.id, input=said)
    page = client.conversations.items.list(made.id, order="asc", limit=100)
    assert (len(page.data), page.has_more) == (6, True)
    assert len(list(page)) == 9


def test_an_unmarked_repeat_is_no_answer(client: Client, service: Service) -> None:
    options: Any = {"extra_headers": {"X-Stainless-Retry-Count": ""}, "model": "mailer"}
    question = ["ask_user", {"question": "Which?"}]
    first = ask(client, {"call": [question]}, SHOWN, **options)
    assert ask(client, {"call": [question]}, SHOWN, **options) == first
    found = service.get(f"/conversations/{conversation_of(first.id)}")
    assert (found["turn_count"], found["status"]) == (1, "waiting")


@pytest.mark.parametrize(("ago_s", "is_known"), [(5, True), (15, False)])
def test_the_same_words_answer_a_question_that_came_before_them(ago_s: float, is_known: bool) -> None:
    now = time.time()
    request = InputRequest("c:1:1.1", "question", "1.1", "ask_user", "", "1", now - ago_s, now + 60)
    turn = Turn(Ref(Owner("ada"), "c"), 1, version_of(AGENT), "hi", TurnOptions(), Timing(now), requests=(request,))
    assert is_repeat(turn, {}) is is_known
    assert is_repeat(turn, {"x-stainless-retry-count": "1"})


def test_ids_of_others_are_unknown(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB))
    with Service(tmp_path / "service", PLAIN | {"API_KEYS_FILE": str(keys)}) as service:
        url = f"{service.url}/openai/v1"
        ada, bob = (Library(base_url=url, api_key=key, max_retries=0) for key in (ADA, BOB))
        answer = ask(ada, {"say": "mine"}, model="scripted")
        conversation_id, item = conversation_of(answer.id), answer.output[-1].id
        calls: list[Any] = [
            lambda: bob.responses.retrieve(answer.id),
            lambda: bob.responses.retrieve(answer.id, stream=True),
            lambda: bob.responses.cancel(answer.id),
            lambda: bob.responses.delete(answer.id),
            lambda: bob.responses.input_items.list(answer.id),
            lambda: ask(bob, DONE, model="scripted", previous_response_id=answer.id),
            lambda: ask(bob, DONE, model="scripted", conversation=conversation_id),
            lambda: bob.conversations.items.list(conversation_id),
            lambda: bob.conversations.items.retrieve(item, conversation_id=conversation_id),
            lambda: ada.responses.retrieve(f"{answer.id[:-1]}7"),
            lambda: ada.responses.retrieve("resp_none"),
            lambda: ada.conversations.items.retrieve("msg_none", conversation_id=conversation_id),
        ]
        for call in calls:
            with pytest.raises(openai.NotFoundError):
                call()
        assert ada.responses.retrieve(answer.id).output_text == "mine"
