"""Conversations over their whole life, their lists, and the service's metrics and pages."""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.support.data import table
from tests.support.problems import OF_A_CONVERSATION, problem, strict_json
from tests.support.service import AGENTS, CODELESS, PATIENCE_S, PLAIN, Gate, Service, shared_service, totals, wait_until
from tests.support.turns import DONE, held_turn, pages, wait_for_end

BAD_PAGES = [
    *({"limit": value} for value in ("0", "101", "-1", "ten", "1e1", "9" * 5000)),
    *({"cursor": value} for value in ("abc", "", "-1", "1.5", "+inf", "(1", "٣", "1\n", "2147483648", "9" * 5000)),
]
MERGES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = table("conversations merges")
# A service for this module alone. It forgets deleted conversations after a second.
brief = shared_service(CODELESS | {"ID_REUSE_S": "1"})


@pytest.fixture(scope="module")
def planned(service: Service) -> dict[str, Any]:
    turn = service.play({"call": [["echo", {"text": "a"}]]}, {"say": "one"}, agent="planner")
    turn = service.follow_up(turn, {"call": [["fail", {"reason": "b"}]]}, {"say": "two"})
    return service.follow_up(turn, {"say": "three"})


def test_a_new_conversation_is_empty_and_its_location_is_returned(service: Service) -> None:
    response = service.client.post("/conversations", json={"agent": "demo", "metadata": {"user": {"name": "Ada"}}})
    made = response.json()
    assert (response.status_code, response.headers["location"]) == (201, f"/conversations/{made['id']}")
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made["id"])
    empty: Any = dict.fromkeys(["title", "running_turn", "policy", "ttl_s", "expires_at", "forked_from"])
    empty |= dict.fromkeys(["turn_count", "queued_turns", "archived_steps"], 0)
    empty |= {"step_counts": {"task": 0, "planning": 0, "action": 0, "note": 0, "summary": 0}}
    given = {"id": made["id"], "agent": "demo", "metadata": {"user": {"name": "Ada"}}}
    given |= {"status": "idle", "approve": [], "client_tools": []}
    assert made == empty | given | dict.fromkeys(["created_at", "updated_at"], made["created_at"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made["created_at"])
    assert service.get(response.headers["location"]) == made
    assert service.get(f"/conversations/{made['id']}/turns") == {"items": [], "next_cursor": None}
    assert service.get(f"/conversations/{made['id']}/steps") == {"items": [], "next_cursor": None}


def test_a_page_that_cannot_be_is_refused(service: Service, planned: dict[str, Any]) -> None:
    where = f"/conversations/{planned['conversation_id']}"
    for query in BAD_PAGES:
        for path in ("/conversations", f"{where}/steps", f"{where}/turns", f"{where}/turns/1/effects"):
            found = problem(service.client.get(path, params=query), 422, "invalid_request")
            assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("query", next(iter(query)))


def test_a_conversation_counts_and_pages_its_steps_and_turns(service: Service, planned: dict[str, Any]) -> None:
    where = f"/conversations/{planned['conversation_id']}"
    shown, steps, turns = service.get(where), service.steps(planned), service.get(f"{where}/turns")["items"]
    assert (shown["turn_count"], shown["agent"]) == (3, "planner")
    assert shown["updated_at"] > shown["created_at"]
    types = [step["type"] for step in steps]
    assert shown["step_counts"] == {kind: types.count(kind) for kind in shown["step_counts"]}
    assert min(types.count(kind) for kind in ("task", "planning", "action")) >= 3
    assert [step["index"] for step in steps] == list(range(len(steps)))
    assert sorted(step["turn"] for step in steps) == [step["turn"] for step in steps]
    assert [(turn["turn"], turn["reply"]) for turn in turns] == [(1, "one"), (2, "two"), (3, "three")]
    assert (turns[-1], service.get(f"{where}/turns/2")) == (planned, turns[1])
    empty = service.post("/conversations").json()["id"]
    for part, whole in (("steps", steps), ("turns", turns)):
        for limit in (1, 2, len(whole) - 1, len(whole), 100):
            for order, wanted in (("asc", whole), ("desc", whole[::-1])):
                found = pages(service, f"{where}/{part}", limit=limit, order=order)
                assert [item for page in found for item in page] == wanted
                assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
        assert len(pages(service, f"{where}/{part}", limit=len(whole))) == 1
        assert pages(service, f"/conversations/{empty}/{part}", order="desc") == [[]]
    tasks = service.get(f"{where}/steps", type="task")["items"]
    assert [step["type"] for step in tasks] == ["task"] * 3
    assert service.get(f"{where}/steps", type="task", order="desc")["items"] == tasks[::-1]


def test_a_turn_beyond_the_last_is_not_found(service: Service, planned: dict[str, Any]) -> None:
    path = f"/conversations/{planned['conversation_id']}/turns"
    for number in (4, 5, 100, 2**31 - 1):
        problem(service.client.get(f"{path}/{number}"), 404, "turn_not_found")
    for word in ("0", "-1", "x", "1.5", str(2**31), "9" * 30):
        problem(service.client.get(f"{path}/{word}"), 422, "invalid_request")


def test_metadata_is_changed_by_a_merge_patch(service: Service) -> None:
    for before, patch, after in MERGES:
        made = service.post("/conversations", metadata=before).json()
        where = f"/conversations/{made['id']}"
        patched = service.client.patch(where, json={"metadata": patch})
        assert (patched.status_code, patched.json()["metadata"]) == (200, after)
        assert service.get(where) == patched.json()
        assert patched.json() | {"metadata": before, "updated_at": made["updated_at"]} == made
    headers = {"Content-Type": "application/merge-patch+json"}
    response = service.client.patch(where, content='{"metadata": {"a": 1}}', headers=headers)
    assert (response.status_code, response.json()["metadata"]["a"]) == (200, 1)


def test_a_patch_may_depend_on_the_state_that_was_read(service: Service) -> None:
    made = service.client.post("/conversations", json={"agent": "demo"})
    where, first = made.headers["location"], made.headers["etag"]
    assert service.client.get(where).headers["etag"] == first
    changed = service.client.patch(where, json={"title": "one"}, headers={"If-Match": f'"other", {first}'})
    assert changed.status_code == 200
    assert changed.headers["etag"] == service.client.get(where).headers["etag"] != first
    for stale in (first, f"W/{changed.headers['etag']}", ""):
        refused = service.client.patch(where, json={"title": "two"}, headers={"If-Match": stale})
        problem(refused, 412, "precondition_failed")
    assert service.get(where)["title"] == "one"
    assert service.client.patch(where, json={"title": "two"}, headers={"If-Match": "*"}).json()["title"] == "two"
    service.post(f"{where}/turns", message="hello")
    refused = service.client.patch(where, json={"title": "3"}, headers={"If-Match": changed.headers["etag"]})
    problem(refused, 412, "precondition_failed")


def test_the_first_message_titles_a_conversation(service: Service) -> None:
    long = "  What   is\n" + "the answer to everything, " * 40
    began = service.post("/turn", agent="demo", message=long).json()
    title = service.get(f"/conversations/{began['conversation_id']}")["title"]
    assert title.startswith("What is the answer to everything, the answer")
    assert (len(title) <= 80, title[-1]) == (True, "…")
    made = service.post("/conversations", agent="demo").json()
    where = f"/conversations/{made['id']}"
    assert made["title"] is None
    for message in ("What is 12 * 7?", "And 12 * 8?"):
        service.post("/turn", conversation_id=made["id"], message=message)
        assert service.get(where)["title"] == "What is 12 * 7?"


def test_a_patched_title_stays(service: Service) -> None:
    where = f"/conversations/{service.post('/conversations', agent='demo').json()['id']}"
    assert service.client.patch(where, json={"title": "Sums"}).json()["title"] == "Sums"
    service.post(f"{where}/turns", message="What is 12 * 7?")
    assert service.client.patch(where, json={"metadata": {"a": 1}}).json()["title"] == "Sums"
    assert service.client.patch(where, json={"title": None}).json()["title"] is None
    service.post(f"{where}/turns", message="And 12 * 8?")
    assert service.get(where)["title"] is None
    other = f"/conversations/{service.post('/conversations', agent='demo').json()['id']}"
    assert service.client.patch(other, json={"title": None, "ttl_s": 900}).json()["title"] is None
    service.post(f"{other}/turns", message="hello")
    assert service.client.patch(other, json={"ttl_s": None}).json()["title"] == "hello"


def test_a_title_goes_with_a_fork_and_an_export(service: Service) -> None:
    where = f"/conversations/{service.post('/conversations', agent='demo').json()['id']}"
    service.post(f"{where}/turns", message="What is 12 * 7?")
    for patch, title in (({}, "What is 12 * 7?"), ({"title": "Sums"}, "Sums"), ({"title": None}, None)):
        if patch:
            service.client.patch(where, json=patch)
        for body in ({}, {"turn": 0}):
            assert service.post(f"{where}/fork", **body).json()["title"] == title
        document = service.get(f"{where}/export")
        assert document["title"] == title
        assert service.post("/imports", **document).json()["title"] == title
        del document["title"]
        assert service.post("/imports", **document).json()["title"] == "What is 12 * 7?"


def test_a_patch_leaves_a_running_turn_and_the_steps_alone(service: Service, gate: Gate) -> None:
    made = service.post("/conversations", agent="scripted", metadata={}).json()
    where = f"/conversations/{made['id']}"
    with held_turn(service, gate.path, conversation_id=made["id"]) as held:
        patched = service.client.patch(where, json={"metadata": {"while": "running"}}).json()
        assert (patched["metadata"], patched["running_turn"], patched["turn_count"]) == ({"while": "running"}, 1, 1)
    assert wait_for_end(service, held)["reply"] == "done"
    assert service.get(where)["metadata"] == {"while": "running"}


async def test_patches_at_once_lose_nothing(service: Service) -> None:
    made = service.post("/conversations", metadata={"old": {"kept": True}}).json()
    where, count = f"/conversations/{made['id']}", 40
    async with httpx2.AsyncClient(base_url=service.client.base_url, timeout=PATIENCE_S) as client:
        await asyncio.gather(*(client.get("/livez") for _ in range(count)))  # opens all connections
        patches = [{"metadata": {"old": {str(number): number}}} for number in range(count)]
        answers = await asyncio.gather(*(client.patch(where, json=patch) for patch in patches))
    assert [answer.status_code for answer in answers] == [200] * count
    wanted = {"old": {"kept": True} | {str(number): number for number in range(count)}}
    assert service.get(where)["metadata"] == wanted


def test_the_id_of_a_deleted_conversation_is_free_after_a_while_and_not_before(brief: Service) -> None:
    _made(brief, "phoenix")
    brief.play({"say": "of the old one"}, conversation_id="phoenix")
    deleted = brief.client.delete("/conversations/phoenix")
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(brief.post("/conversations", id="phoenix"), 409, "conversation_exists")
    _assert_gone(brief, "phoenix")
    wait_until(lambda: _is_free(brief, "phoenix", agent="demo"))
    shown = brief.get("/conversations/phoenix")
    assert (shown["turn_count"], shown["agent"], shown["step_counts"]["task"]) == (0, "demo", 0)
    response = brief.post("/turn", message="What did I ask first?", conversation_id="phoenix", agent="demo")
    assert response.status_code == 200, response.text
    assert (response.json()["turn"], response.json()["agent"]["name"]) == (1, "demo")
    assert "old" not in response.json()["reply"]


def test_a_turn_of_a_deleted_conversation_writes_nothing_to_its_namesake(brief: Service, gate: Gate) -> None:
    new = Gate(gate.path.with_name("new"))
    with held_turn(brief, gate.path, conversation_id=_made(brief, "twin")):
        assert brief.client.delete("/conversations/twin").status_code == 204
        wait_until(lambda: _is_free(brief, "twin"))
        with held_turn(brief, new.path, conversation_id="twin") as held:
            gate.open()
            wait_until(lambda: totals(brief)["smolsessions_threads_busy"] == 1)
            assert brief.get("/conversations/twin")["running_turn"] == 1
            steps = brief.get("/conversations/twin/steps")["items"]
            assert [str(new.path) in step["task"] for step in steps] == [True]
    ended = wait_for_end(brief, held)
    assert (ended["status"], ended["reply"]) == ("finished", "done")
    steps = brief.steps(held)
    assert [step["type"] for step in steps] == ["task", "action", "action"]
    assert str(new.path) in steps[0]["task"]


def test_agents_are_listed_with_their_properties(service: Service) -> None:
    agents = {agent["name"]: agent for agent in service.get("/agents")["items"]}
    named = {agent.partition("=")[0] for agent in AGENTS.split(",")}
    assert set(agents) == {*named, "demo", "demo-code"}
    assert next(iter(agents)) == "scripted"
    assert [name for name, agent in agents.items() if agent["default"]] == ["scripted"]
    assert (agents["code"]["kind"], agents["scripted"]["kind"]) == ("CodeAgent", "ToolCallingAgent")
    assert {agent["smolagents"] for agent in agents.values()} == {"1.26.0"}
    scripted, manager = ({tool["name"]: tool for tool in agents[name]["tools"]} for name in ("scripted", "manager"))
    assert "final_answer" not in scripted
    assert scripted["echo"]["parameters"]["properties"]["text"]["type"] == "string"
    assert scripted["echo"]["parameters"]["required"] == ["text"]
    assert manager["helper"]["description"]
    assert "task" in manager["helper"]["parameters"]["properties"]
    assert agents["scripted"]["max_steps"] == 6


def test_figures_count_turns_by_how_they_ended(brief: Service) -> None:
    before = totals(brief)
    brief.play({"say": "fine"})
    brief.follow_up(brief.play({"raise": "not fine"}, agent="streamed"), {"say": "fine again"})
    grown = {
        'smolsessions_turns_total{agent="scripted",code="",status="finished"}': 1,
        'smolsessions_turns_total{agent="streamed",code="",status="finished"}': 1,
        'smolsessions_turns_total{agent="streamed",code="model_error",status="failed"}': 1,
        'smolsessions_turn_seconds_count{agent="streamed"}': 2,
        "smolsessions_turn_queued_seconds_count": 3,
        'smolsessions_tokens_total{agent="scripted",part="output"}': 5,
    }
    wait_until(lambda: {name: totals(brief).get(name, 0) - before.get(name, 0) for name in grown} == grown)
    assert totals(brief)['smolsessions_store_errors_total{cause="lost"}'] == 0


def test_a_live_service_answers_its_health_checks_and_scrapes(service: Service) -> None:
    for path in ("/livez", "/readyz"):
        assert service.get(path) == {"status": "ok"}
    response = service.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE smolsessions_turns_total counter" in response.text


def test_pages_and_the_description_name_no_other_host(service: Service) -> None:
    for path in ("/", "/docs", "/openapi.json"):
        assert re.findall(r"https?://[^\s\"'<>]+", service.client.get(path).text) == []
    for path in ("/", "/docs"):
        assert service.client.get(path).headers["content-type"] == "text/html; charset=utf-8"
        assert re.findall(r"(?:src|href)=[\"']//", service.client.get(path).text) == []
    strict_json(service.client.get("/openapi.json").text)


def _made(service: Service, conversation_id: str) -> str:
    assert _is_free(service, conversation_id)
    return conversation_id


def _is_free(service: Service, conversation_id: str, agent: str = "scripted") -> bool:
    """Try to create the conversation. Return true if its id was free."""
    return service.post("/conversations", id=conversation_id, agent=agent).status_code == 201


def _assert_gone(service: Service, conversation_id: str) -> None:
    for method, path, body in OF_A_CONVERSATION:
        response = service.client.request(method, path.format(conversation_id), json=body)
        problem(response, 404, "conversation_not_found")
    for agent in ({}, {"agent": "scripted"}):
        response = service.post("/turn", message="hi", conversation_id=conversation_id, **agent)
        problem(response, 404, "conversation_not_found")
    assert conversation_id not in [item["id"] for item in service.get("/conversations", limit=100)["items"]]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with seven conversations, of which `c1` changed last."""
    with Service(tmp_path_factory.mktemp("shelf"), PLAIN) as running:
        for number in range(7):
            agent = "demo" if number % 2 else "scripted"
            metadata = {"n": number, "team": "Red" if number < 3 else "blue", "even": number % 2 == 0}
            running.post("/conversations", id=f"c{number}", agent=agent, metadata=metadata).raise_for_status()
        running.client.patch("/conversations/c4", json={"title": "Straße nach Rom"}).raise_for_status()
        running.post("/turn", conversation_id="c1", message="What is 12 * 7?").raise_for_status()
        yield running


LISTS: list[tuple[dict[str, str], str]] = table("conversations lists")


def test_a_list_is_sorted_and_filtered(shelf: Service) -> None:
    for query, ids in LISTS:
        for limit in (1, 2, 7, 100):
            found = pages(shelf, "/conversations", limit=limit, **query)
            assert "".join(item["id"][1] for page in found for item in page) == ids, query
    many = {f"metadata[{number}]": "x" for number in range(11)}
    unknown: list[dict[str, str]] = [{"metadata": "x"}, {"metadata.team": "blue"}, {"metadata[team": "blue"}]
    for wrong in ({"sort": "title"}, {"order": "up"}, {"status": "new"}, {"q": ""}, many, *unknown):
        problem(shelf.client.get("/conversations", params=wrong), 422, "invalid_request")
    refused = shelf.client.get("/conversations", params={"team": "blue"})  # of a client without `deepObject`
    assert ", metadata[KEY]" in problem(refused, 422, "invalid_request")["detail"]


def test_a_search_of_messages_reads_a_bounded_part_and_goes_on(service: Service) -> None:
    said = service.play({"say": "Once."})
    export = service.get(f"/conversations/{said['conversation_id']}/export")
    (one,), steps = export["turns"], export["steps"]
    replies = ["x" * 150_000 + " A Needle in\nhay", *["x" * 150_000] * 29]
    export["turns"] = [one | {"turn": number, "reply": reply} for number, reply in enumerate(replies, 1)]
    export["steps"] = [step | {"turn": number} for number in range(1, 31) for step in steps]
    for name in ("large-1", "large-2", "large-3"):  # two of them are beyond the bound of one page
        made = service.client.post("/imports", params={"id": name}, json=export)
        assert made.status_code == 201, made.text
    found = pages(service, "/conversations", q="needle IN", search_in="messages")
    assert [[item["id"] for item in page] for page in found if page] == [["large-3"], ["large-2", "large-1"]]
    assert not any(pages(service, "/conversations", q="no such text", search_in="messages"))
    assert found[0][0]["match"] == {"turn": 1, "excerpt": f"{'x' * 37} A Needle in hay"}


def test_a_cursor_belongs_to_one_list(shelf: Service, planned: dict[str, Any], service: Service) -> None:
    cursors: dict[str, Any] = {}
    other = service.follow_up(service.play(DONE), DONE)
    here, there = (f"/conversations/{turn['conversation_id']}" for turn in (planned, other))
    for query in ({}, {"sort": "created"}, {"order": "asc"}, {"agent": "demo"}, {"metadata[team]": "blue"}, {"q": "a"}):
        cursors[str(query)] = shelf.get("/conversations", limit=1, **query)["next_cursor"] or "none"
    for query in ({}, {"order": "desc"}, {"type": "task"}, {"archived": "true"}):
        cursors[f"steps {query}"] = service.get(f"{here}/steps", limit=1, **query)["next_cursor"]
    cursors["turns"] = service.get(f"{here}/turns", limit=1)["next_cursor"]
    cursors["turns desc"] = service.get(f"{here}/turns", limit=1, order="desc")["next_cursor"]
    cursors["turns of another one"] = service.get(f"{there}/turns", limit=1)["next_cursor"]
    accepted: dict[str, list[str]] = {name: [] for name in cursors}
    for name, cursor in cursors.items():
        for of, response in {
            "{}": shelf.client.get("/conversations", params={"cursor": cursor}),
            "steps {}": service.client.get(f"{here}/steps", params={"cursor": cursor}),
            "turns": service.client.get(f"{here}/turns", params={"cursor": cursor}),
        }.items():
            if response.status_code == 200:
                accepted[name].append(of)
            else:
                problem(response, 422, "invalid_request")
    assert {n: of for n, of in accepted.items() if of} == {n: [n] for n in ("{}", "steps {}", "turns")}
    cursor = cursors["{}"]
    for damaged in (cursor[:-1], cursor + "A", cursor[1:], cursor[:-2] + "AA", cursor + "=", "é" + cursor):
        problem(shelf.client.get("/conversations", params={"cursor": damaged}), 422, "invalid_request")


def test_a_turn_begins_the_conversation_that_it_names(service: Service) -> None:
    body: Any = {"conversation_id": "of-a-ticket-7", "message": '[{"say": "one"}]', "metadata": {"ticket": 7}}
    assert problem(service.post("/turn", **body), 404, "conversation_not_found")
    first = service.client.post("/turn", json=body | {"create": True}, headers={"Idempotency-Key": "ticket"}).json()
    again = service.client.post("/turn", json=body | {"create": True}, headers={"Idempotency-Key": "ticket"}).json()
    second = service.post("/turn", **body | {"create": True, "metadata": {}}).json()
    assert [(turn["conversation_id"], turn["turn"], turn["status"]) for turn in (first, again, second)] == [
        ("of-a-ticket-7", number, "finished") for number in (1, 1, 2)
    ]
    assert service.get("/conversations/of-a-ticket-7")["metadata"] == {"ticket": 7}
    assert service.client.delete("/conversations/of-a-ticket-7").status_code == 204
    assert problem(service.post("/turn", **body | {"create": True}), 409, "conversation_exists")


def test_turns_that_begin_one_conversation_at_once_are_all_taken(service: Service) -> None:
    def post(number: int) -> httpx2.Response:
        body = {"conversation_id": "raced", "create": True, "message": json.dumps([DONE]), "on_busy": "enqueue"}
        key = {"Idempotency-Key": f"raced-{number}"} if number % 2 else {}
        return service.client.post("/turn", json=body, headers=key)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert sorted(answer.json()["turn"] for answer in answers) == list(range(1, 9))
