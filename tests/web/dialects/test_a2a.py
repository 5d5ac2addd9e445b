"""Agents as agents of A2A, as its own library calls them."""

import base64
import secrets
from pathlib import Path
from typing import Any

import httpx2
import pytest
from a2a.client import Client
from a2a.client.errors import AgentCardResolutionError
from a2a.types import a2a_pb2 as types
from a2a.utils import errors

from smolsessions.core import events
from smolsessions.core.records import Owner, Ref, Timing, Turn, TurnOptions
from smolsessions.web.dialects.a2a.fold import TaskFold
from tests.support.answering import mail, sent
from tests.support.owners import ADA, BOB, owner_line
from tests.support.service import PLAIN, Gate, Service, write_private
from tests.support.stores import AGENT, version_of
from tests.support.streaming import Event
from tests.support.turns import DONE, SHOWN, png, submit_turn
from tests.web.dialects.a2a_tasks import COMPLETED, INPUT_REQUIRED, Joined, get, message, send, with_client

pytestmark = pytest.mark.timeout(120)

ECHO: Event = {"call": [["echo", {"text": "ü"}]]}


def rpc(service: Service, method: str, version: str | None = "1.0", **params: Any) -> Any:
    headers = {"A2A-Version": version} if version else {}
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer: httpx2.Response = service.client.post("/a2a/plain", json=body, headers=headers)
    assert (answer.status_code, answer.json()["id"]) == (200, 7)
    return answer.json().get("result") or answer.json()["error"]


def test_a_task_streams_its_answer_and_its_progress(service: Service) -> None:
    asked = message("m1", ECHO, {"say": "one two"}, context_id=(context := secrets.token_hex(8)))
    task = send(service, "plain", asked)
    assert (task.state, task.text, task.task.context_id) == (COMPLETED, "one two", context)
    assert task.said == ["I call.", 'echo({"text":"ü"})', "echo: ü", "I call."]
    assert task.events[0].task.status.state == types.TASK_STATE_SUBMITTED
    assert [event.artifact_update.last_chunk for event in task.events if event.HasField("artifact_update")][-1]
    whole = send(service, "plain", asked, streaming=False)
    assert whole.task.id == task.task.id, "a repeat of the message is no second task"
    assert (get(service, "plain", task.task.id).task, whole.text) == (whole.task, task.text)
    again = send(service, "plain", asked)
    assert [str(event) for event in again.events] == [str(event) for event in task.events], "ids are those of the task"
    parts = [{"text": asked.message.parts[0].text}]
    params = {"message": {"messageId": "m1", "role": "ROLE_USER", "contextId": context, "parts": parts}}
    raw = service.post("/a2a/plain?A2A-Version=1.0", jsonrpc="2.0", method="SendStreamingMessage", params=params).text
    assert ({line.partition(": ")[0] for line in raw.split("\n")}, f"{context}:1" in raw) == ({"data", ""}, True)
    follow = send(service, "plain", message("m2", SHOWN, context_id=context), streaming=False)
    assert ("echo" in follow.text, follow.task.id) == (True, f"{context}:2")


def test_a_thought_that_a_crash_cut_is_never_sent() -> None:
    turn = Turn(Ref(Owner("ada"), "c"), 1, version_of(AGENT), "hi", TurnOptions(), Timing(0.0))
    where, fold = events.StepPlace("1", 1, AGENT), TaskFold(turn, 1, 1)
    thought = events.MessageDelta(where, "1", "thought", "I ca")
    log: list[events.Event] = [
        events.TurnStarted(1, 0.0),
        thought,
        events.TurnStarted(2, 0.0),
        events.MessageRestarted(where, "1"),
    ]
    frames = [b"".join(fold.frames(events.Logged(nth, each), waits=False)) for nth, each in enumerate(log, 1)]
    assert [b"statusUpdate" in frame for frame in frames] == [False, False, True, False]
    assert not any(b"I ca" in frame for frame in frames)


def test_tasks_are_listed_by_context_and_state(service: Service) -> None:
    contexts = [secrets.token_hex(8) for _ in range(2)]
    for nth, context in enumerate([*contexts, *contexts, contexts[0]]):
        send(service, "judging", message(f"m{nth}", {"say": str(nth)}, context_id=context), streaming=False)
    names = [f"{contexts[place]}:{number}" for place, number in ((0, 3), (1, 2), (0, 2), (1, 1), (0, 1))]

    async def work(client: Client) -> list[types.ListTasksResponse]:
        ask = types.ListTasksRequest
        pages = [await client.list_tasks(ask(page_size=2, include_artifacts=True))]
        while token := pages[-1].next_page_token:
            pages.append(await client.list_tasks(ask(page_size=2, page_token=token)))
        filters: list[Event] = [{"context_id": contexts[1]}, {"status": types.TASK_STATE_FAILED}]
        return [*pages, *[await client.list_tasks(ask(**each)) for each in filters]]

    *pages, of_context, failed = with_client(service, "judging", work)
    assert [[task.id for task in page.tasks] for page in pages] == [names[:2], names[2:4], names[4:]]
    assert [page.total_size for page in pages] == [5] * 3
    assert pages[0].tasks[0].artifacts[0].parts[0].text == "4"
    assert ([task.id for task in of_context.tasks], list(failed.tasks)) == ([names[1], names[3]], [])


def test_a_list_has_artifacts_up_to_a_bound_of_bytes(tmp_path: Path) -> None:
    script = {"call": [["write_report", {"lines": 1_300_000}]]}, {"say": "report.csv"}
    with Service(tmp_path, {"AGENTS": "teller=tests.support.sounds:make_teller", "DEMO_AGENTS": "0"}) as service:
        for nth in range(3):
            send(service, "teller", message(f"m{nth}", *script), streaming=False)
        ask = types.ListTasksRequest(include_artifacts=True)
        tasks = with_client(service, "teller", lambda client: client.list_tasks(ask)).tasks
        assert [len(task.artifacts) for task in tasks] == [1, 1, 0]
        assert len(get(service, "teller", tasks[2].id).parts[1].raw) == 5_200_000


@pytest.mark.parametrize("streaming", [True, False])
def test_a_task_that_needs_input_is_answered_in_words(service: Service, streaming: bool) -> None:
    question = ["ask_user", {"question": "Which?", "choices": ["a", "b"]}]
    script = {"call": [mail(f"a2a-{streaming}")]}, {"call": [question]}, SHOWN
    waiting = send(service, "mailer", message("m1", *script), streaming=streaming)
    name, context = waiting.task.id, waiting.task.context_id
    assert waiting.state == INPUT_REQUIRED
    assert "May I call send_email" in waiting.task.status.message.parts[0].text
    with pytest.raises(errors.UnsupportedOperationError, match=name):
        send(service, "mailer", message("m2", DONE, context_id=context))
    asked = send(service, "mailer", message("m2", words="yes", task_id=name), streaming=streaming)
    assert (asked.state, asked.task.status.message.parts[0].text) == (INPUT_REQUIRED, "Which? (a, b)")
    assert sent(service).count(f"a2a-{streaming}: hi") == 1
    with pytest.raises(errors.InvalidParamsError, match="choices"):
        send(service, "mailer", message("m3", words="c", task_id=name))
    with pytest.raises(errors.InvalidParamsError, match="contextId"):
        send(service, "mailer", message("m3", words="b", task_id=name, context_id="another"))
    answered = message("m3", words="b", task_id=name, context_id=context)
    for _ in range(2):  # the second is a repeat
        ended = send(service, "mailer", answered, streaming=streaming)
        assert (ended.state, ended.task.id, "\\nb" in ended.text) == (COMPLETED, name, True)


def test_a_running_task_is_polled_watched_and_cancelled(service: Service, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")

    class Watched(Joined):
        def add(self, event: types.StreamResponse) -> None:
            gate.open()
            super().add(event)

    asked = message("m1", gate.script, {"say": "x"})
    begun = send(service, "plain", asked, streaming=False, polling=True)
    assert begun.state in {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}
    watched = Watched().read(service, "plain", begun.task.id)
    assert (watched.state, watched.text, watched.events[0].task.id) == (COMPLETED, "x", begun.task.id)
    turn = submit_turn(service, {"call": [mail("never")]}, agent="mailer")
    name = f"{turn['conversation_id']}:{turn['turn']}"
    cancelled = with_client(service, "mailer", lambda client: client.cancel_task(types.CancelTaskRequest(id=name)))
    assert cancelled.status.state == types.TASK_STATE_CANCELED
    with pytest.raises(errors.TaskNotCancelableError):
        with_client(service, "mailer", lambda client: client.cancel_task(types.CancelTaskRequest(id=name)))


def test_parts_come_and_go(service: Service) -> None:
    image = types.Part(raw=base64.b64decode(png("blue")), media_type="image/png")
    table = types.Part(raw=b"a;b", media_type="text/csv", filename="t.csv")
    drawn = send(
        service, "plain", message("m1", {"call": [["picture", {}]]}, {"say": "image.png"}, parts=[image, table])
    )
    kinds = [(part.media_type, part.raw[:4]) for part in drawn.parts if part.HasField("raw")]
    assert kinds == [("image/png", b"\x89PNG")]
    asked = message("m2", {"say": {"n": [1]}}, metadata={"output_schema": {"type": "object"}})
    assert send(service, "plain", asked).data[0]["n"][0] == 1
    with pytest.raises(errors.InvalidParamsError, match="/message/parts/1: "):
        send(service, "plain", message("m3", DONE, parts=[types.Part(url="https://example.org/a.png")]))


def test_errors_have_the_codes_of_the_protocol(service: Service) -> None:
    failed = send(service, "plain", message("m1", {"raise": "broken"}))
    assert failed.state == "TASK_STATE_FAILED"
    assert failed.task == get(service, "plain", failed.task.id).task
    for name in (failed.task.id.replace(":1", ":2"), "nothing"):
        with pytest.raises(errors.TaskNotFoundError):
            get(service, "plain", name)
    with pytest.raises(errors.TaskNotFoundError):
        get(service, "mailer", failed.task.id)
    with pytest.raises(errors.InvalidParamsError, match="belongs to the agent"):
        send(service, "mailer", message("m2", DONE, context_id=failed.task.context_id))
    assert rpc(service, "SubscribeToTask", id=failed.task.id)["code"] == -32004
    assert rpc(service, "CreateTaskPushNotificationConfig")["code"] == -32003
    assert rpc(service, "GetExtendedAgentCard")["code"] == -32004
    assert rpc(service, "message/send", version=None)["code"] == -32009
    assert "A2A-Version: 1.0" in rpc(service, "message/send", version="0.3")["message"]
    assert rpc(service, "Nothing")["code"] == -32601
    assert rpc(service, "ListTasks", pageSize=101)["code"] == -32602
    assert rpc(service, "ListTasks", pageToken="x")["code"] == -32602
    for body, code in ((b"{", -32700), (b"[]", -32600)):
        answer = service.client.post("/a2a/plain", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["error"]["code"] == code
    with pytest.raises(AgentCardResolutionError):
        get(service, "nobody", "x")


def test_a_task_of_another_owner_is_not_found(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB))
    with Service(tmp_path / "service", PLAIN | {"API_KEYS_FILE": str(keys)}) as service:
        name = send(service, "scripted", message("m1", DONE), key=ADA).task.id
        assert get(service, "scripted", name, key=ADA).text == "done"
        with pytest.raises(errors.TaskNotFoundError):
            get(service, "scripted", name, key=BOB)
        card = service.client.get(
            "/a2a/scripted/.well-known/agent-card.json", headers={"Authorization": f"Bearer {ADA}"}
        )
        assert card.json()["securityRequirements"]
        with pytest.raises(AgentCardResolutionError):
            get(service, "scripted", name)
