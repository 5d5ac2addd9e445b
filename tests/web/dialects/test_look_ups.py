"""Look-ups in the store before a turn begins: each is a round trip by which the first token comes later."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from smolsessions.store.scripts.loader import script
from tests.support.pipelines import monitored
from tests.support.service import PLAIN, Service
from tests.support.store_server import StoreServer, running_store
from tests.support.turns import DONE

NAMES = {script(name).sha: name for name in "reserve find_key next_turn turns read read_log submit".split()}
TEXT = json.dumps([DONE])
OPENAI = {"X-Stainless-Retry-Count": "0"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with running_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(scope="module")
def service(store: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), PLAIN | store.settings) as service:
        yield service


def look_ups(store: StoreServer, service: Service, path: str, **body: Any) -> tuple[list[str], str]:
    """Return the scripts that a request runs before its turn is submitted, and its answer."""
    with monitored(store) as lines:
        answer = service.client.post(path, json=body, headers=OPENAI)
    assert answer.status_code == 200, answer.text
    ran = scripts_in(lines)
    return sorted(ran[: ran.index("submit")]), answer.text


def scripts_in(lines: list[str]) -> list[str]:
    return [NAMES[word] for line in lines for word in line.split()[:2] if word in NAMES]


def test_a_message_of_a_chat_needs_few_look_ups(store: StoreServer, service: Service) -> None:
    users = [{"id": f"u{nth}", "role": "user", "parts": [{"type": "text", "text": TEXT}]} for nth in range(2)]
    assistant = {"id": "c1:1", "role": "assistant", "parts": [{"type": "text", "text": "done"}]}
    for messages in (users[:1], [users[0], assistant, users[1]]):
        found, text = look_ups(store, service, "/ai-sdk/scripted", id="c1", messages=messages)
        assert found == ["read", "reserve", "reserve", "reserve"]
        assert f'"c1:{len(messages) // 2 + 1}"' in text


def test_a_run_of_a_thread_needs_few_look_ups(store: StoreServer, service: Service) -> None:
    users = [{"id": f"u{nth}", "role": "user", "content": TEXT} for nth in range(2)]
    assistant = {"id": "t1:1:1", "role": "assistant", "content": "done"}
    for messages in (users[:1], [users[0], assistant, users[1]]):
        run = {"threadId": "t1", "runId": f"r{len(messages)}", "messages": messages}
        found, text = look_ups(store, service, "/ag-ui/scripted", **run)
        assert found == ["read", "reserve", "reserve", "reserve", "reserve"]
        assert f'"t1:{len(messages) // 2 + 1}:' in text


def test_a_request_of_openais_library_needs_few_look_ups(store: StoreServer, service: Service) -> None:
    found, text = look_ups(store, service, "/openai/v1/responses", model="scripted", input=TEXT)
    assert found == ["reserve"]
    more = {"model": "scripted", "input": TEXT, "previous_response_id": json.loads(text)["id"]}
    assert look_ups(store, service, "/openai/v1/responses", **more)[0] == ["read", "reserve", "turns"]
    messages = [{"role": "user", "content": TEXT}]
    chat = "/openai/v1/chat/completions"
    assert look_ups(store, service, chat, model="scripted", messages=messages)[0] == ["reserve"]
    messages += [{"role": "assistant", "content": "done"}, *messages]
    assert look_ups(store, service, chat, model="scripted", messages=messages)[0] == ["read", "reserve", "reserve"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_items_are_read_past_many_turns_that_were_rolled_back(store: StoreServer, service: Service, order: str) -> None:
    turn = service.play(DONE)
    for _ in range(30):
        service.follow_up(turn, DONE)
    conversation = f"/conversations/{turn['conversation_id']}"
    service.post(f"{conversation}/rollback", turn=1)
    with monitored(store) as lines:
        page = service.client.get(f"/openai/v1{conversation}/items", params={"order": order}).json()
    assert (len(page["data"]), page["has_more"]) == (3, False)
    assert len(scripts_in(lines)) < 10
