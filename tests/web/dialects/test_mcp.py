"""Agents as tools of the Model Context Protocol, as its own library calls them, and its suites of conformance."""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from playwright._impl._driver import compute_driver_executable

from smolsessions.web.dialects.mcp.tasks import EXTENSION, TaskParams
from tests.support.answering import mail, sent
from tests.support.data import table
from tests.support.debian import npm_packages
from tests.support.http_server import Handler, Server
from tests.support.owners import ADA, owner_line
from tests.support.service import PATIENCE_S, PLAIN, ROOT, Gate, Service, wait_until, write_private
from tests.support.streaming import Event
from tests.support.turns import DONE, ECHO, SHOWN, submit_turn
from tests.web.dialects.clients import WHERE

pytestmark = pytest.mark.timeout(120)


def with_client(
    service: Service, work: Callable[[Client], Coroutine[Any, Any, Any]], mode: Any = "auto", **options: Any
) -> Any:
    async def run() -> Any:
        async with Client(f"{service.url}/mcp", mode=mode, **options) as client:
            return await work(client)

    return asyncio.run(run())


def ask(
    service: Service, *script: Event, agent: str = "plain", conversation_id: str | None = None, **options: Any
) -> types.CallToolResult:
    arguments = {"message": json.dumps(script)} | ({"conversation_id": conversation_id} if conversation_id else {})
    progress = options.pop("progress_callback", None)
    result: types.CallToolResult = with_client(
        service, lambda client: client.call_tool(f"ask_{agent}", arguments, progress_callback=progress), **options
    )
    return result


def text_of(result: types.CallToolResult) -> str:
    content = result.content[0]
    assert isinstance(content, types.TextContent)
    return content.text


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
def test_an_agent_is_a_tool(service: Service, mode: str) -> None:
    listed = with_client(service, lambda client: client.list_tools(), mode)
    assert "ask_plain" in [tool.name for tool in listed.tools]
    called: list[str | None] = []

    async def progress(_done: float, _total: float | None, message: str | None) -> None:
        called.append(message)

    first = ask(service, {"call": [["echo", {"text": "ü"}]]}, DONE, mode=mode, progress_callback=progress)
    assert (text_of(first), first.is_error, called) == ("done", False, ["echo"])
    data = first.structured_content
    assert (data["status"], data["tool_call_names"], data["turn"]) == ("finished", ["echo"], 1)
    second = ask(service, SHOWN, conversation_id=data["conversation_id"], mode=mode)
    assert ("echo" in text_of(second), second.structured_content["turn"]) == (True, 2)


def test_an_approval_is_elicited(service: Service) -> None:
    async def allow(_context: Any, params: Any) -> types.ElicitResult:
        assert "send_email" in params.message
        return types.ElicitResult(action="accept", content={"approve": True})

    async def refuse(_context: Any, _params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    for callback, made in ((allow, True), (refuse, False)):
        asked = {"call": [mail(f"mcp-{made}")]}
        answer = ask(service, asked, SHOWN, agent="mailer", mode="2026-07-28", elicitation_callback=callback)
        assert (f"sent to mcp-{made}" in text_of(answer)) is made
        assert (f"mcp-{made}: hi" in sent(service)) is made


def test_a_client_without_forms_reads_how_to_answer(service: Service) -> None:
    waiting = ask(service, {"call": [mail("mcp-words")]}, SHOWN, agent="mailer", mode="legacy")
    data = waiting.structured_content
    assert (data["status"], "conversation_id" in text_of(waiting)) == ("waiting", True)
    arguments = {"message": "yes", "conversation_id": data["conversation_id"]}
    answered = with_client(service, lambda client: client.call_tool("ask_mailer", arguments), "legacy")
    assert "sent to mcp-words" in text_of(answered)


def test_a_tool_of_another_client_is_no_question(service: Service) -> None:
    made = service.post("/conversations", agent="plain", client_tools=[WHERE]).json()["id"]

    async def refuse(_context: Any, _params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    options: Any = {"mode": "2026-07-28", "elicitation_callback": refuse}
    waiting = ask(service, {"call": [["where", {"thing": "key"}]]}, SHOWN, conversation_id=made, **options)
    assert 'I wait for the result of where with {"thing":"key"}, which another client runs.' in text_of(waiting)


def test_errors_are_results_that_a_model_reads(service: Service) -> None:
    assert ask(service, {"raise": "broken"}).is_error
    unknown = ask(service, DONE, conversation_id="nobody")
    assert (unknown.is_error, "conversation" in text_of(unknown)) == (True, True)
    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match="No tool has the name"), flatten_subgroups=True):
        ask(service, DONE, agent="nobody")
    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match="No tool has the name"), flatten_subgroups=True):
        with_client(service, lambda client: client.call_tool("plain", {"message": "without the prefix"}))


def test_an_equal_message_is_a_new_turn(service: Service) -> None:
    first = ask(service, {"say": "again"}).structured_content
    turns = [
        ask(service, {"say": "again"}, conversation_id=first["conversation_id"]).structured_content["turn"]
        for _ in range(2)
    ]
    assert turns == [2, 3]


def test_a_client_whose_stream_broke_follows_the_running_turn(service: Service) -> None:
    script: tuple[Event, ...] = ({"busy_s": 2, "call": [["echo", {"text": "x"}]]}, DONE)
    turn = submit_turn(service, *script, agent="plain")
    result = ask(service, *script, conversation_id=turn["conversation_id"])
    assert (text_of(result), result.structured_content["turn"]) == ("done", turn["turn"])


class Polled(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str


class GetTask(types.Request[TaskParams, str]):
    method: str = "tasks/get"
    name_param = "taskId"


class TaskState(types.Result):
    status: str
    result: types.CallToolResult | None = None


class Tasks(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Polled, resolve=self._poll)]

    @staticmethod
    async def _poll(task: Polled, context: ClaimContext) -> types.CallToolResult:
        request = GetTask(params=TaskParams(task_id=task.task_id))
        while not (state := await context.session.send_request(request, TaskState)).result:
            assert state.status == "working"
        return state.result


def rpc(service: Service, method: str, params: Event, *, declares: bool = True) -> Event:
    """Send one request of 2026-07-28, as JSON."""
    extensions: Event = {"extensions": {EXTENSION: {}}} if declares else {}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, **extensions},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
    }
    if name := params.get("taskId") or params.get("name"):
        headers["Mcp-Name"] = name
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    answer = service.client.post("/mcp", json=body, headers=headers).text
    found: Event = json.loads(answer[answer.index("{") :])
    return found


def test_a_long_turn_is_a_task_for_a_client_that_knows_them(service: Service, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "go")
    script = [gate.script, {"call": [mail("mcp-task")]}, SHOWN]
    arguments = {"message": json.dumps(script)}
    task = rpc(service, "tools/call", {"name": "ask_mailer", "arguments": arguments})["result"]
    assert (task["resultType"], task["status"], task["ttlMs"]) == ("task", "working", None)
    named = {"taskId": task["taskId"]}

    def is_now(status: str) -> bool:
        task.update(rpc(service, "tasks/get", named)["result"])
        return bool(task["status"] == status)

    assert is_now("working")
    gate.open()
    wait_until(lambda: is_now("input_required"))
    ((key, asked),) = task["inputRequests"].items()
    assert (asked["method"], "send_email" in asked["params"]["message"]) == ("elicitation/create", True)
    accepted = {"action": "accept", "content": {"approve": True}}
    for responses in ({"unknown": {"any": True}}, {key: accepted}, {key: accepted}):
        answer = rpc(service, "tasks/update", {**named, "inputResponses": responses})
        assert answer["result"]["resultType"] == "complete"
    wait_until(lambda: is_now("completed"))
    assert "sent to mcp-task" in task["result"]["content"][0]["text"]
    assert sent(service).count("mcp-task: hi") == 1


def test_a_task_is_cancelled_and_unknown_ones_are_errors(service: Service, tmp_path: Path) -> None:
    arguments = {"message": json.dumps([Gate(tmp_path / "go").script, DONE])}
    task = rpc(service, "tools/call", {"name": "ask_plain", "arguments": arguments})["result"]
    named = {"taskId": task["taskId"]}
    assert rpc(service, "tasks/get", named, declares=False)["error"]["code"] == -32021
    for _ in range(2):
        assert rpc(service, "tasks/cancel", named)["result"]["resultType"] == "complete"
    wait_until(lambda: rpc(service, "tasks/get", named)["result"]["status"] == "cancelled")
    unknown: Event = {"taskId": "another:1:0", "inputResponses": {}}
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        assert rpc(service, method, unknown)["error"]["code"] == -32602


def test_the_library_polls_a_task(service: Service) -> None:
    script: tuple[Event, ...] = ({"busy_s": 3, "call": [["echo", {"text": "x"}]]}, DONE)
    result = ask(service, *script, mode="2026-07-28", extensions=[Tasks()])
    assert (text_of(result), result.structured_content["status"]) == ("done", "finished")


def test_the_entry_in_the_docs_connects(tmp_path: Path) -> None:
    (written,) = re.findall(r'^\{"mcpServers".*', (ROOT / "docs" / "dialects.md").read_text(), re.MULTILINE)
    entry = json.loads(written.replace("KEY", ADA))["mcpServers"]["agents"]
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA))
    with Service(tmp_path / "service", PLAIN | {"API_KEYS_FILE": str(keys)}) as service:

        async def tools() -> list[str]:
            url = entry["url"].replace("http://127.0.0.1:8000", service.url)
            async with (
                httpx2.AsyncClient(headers=entry["headers"]) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                return [tool.name for tool in (await client.list_tools()).tools]

        assert entry["type"] == "http"
        assert "ask_demo" in asyncio.run(tools())
        assert service.post("/mcp", jsonrpc="2.0", id=1, method="ping").status_code == 401


Script = list[Event]
SLOW_S = 3  # longer than a call without a task
SCRIPTS: dict[str, Callable[[Any], Script]] = {
    "greet": lambda given: [{"say": f"Hello, {given.get('name')}!"}],
    "slow_compute": lambda given: [{**ECHO, "busy_s": given["seconds"] and SLOW_S + given["seconds"]}, DONE],
    "failing_job": lambda _: [{**ECHO, "busy_s": SLOW_S}, {"raise": "failing"}],
    "confirm_delete": lambda _: [{**ECHO, "busy_s": SLOW_S}, {"call": [mail("one")]}, DONE],
    "multi_input": lambda _: [{**ECHO, "busy_s": SLOW_S}, {"call": [mail("one"), mail("two")]}, DONE],
    "test_simple_text": lambda _: [{"say": "This is a simple text response for testing."}],
    "test_image_content": lambda _: [{"call": [["picture", {}]]}, {"say": "image.png"}],
    "test_error_handling": lambda _: [{"raise": "This tool intentionally returns an error for testing"}],
    "test_tool_with_progress": lambda _: [ECHO, ECHO, ECHO, DONE],
}


@contextmanager
def with_fixtures(service: Service) -> Iterator[str]:
    """Yield the address of the proxy."""

    class Proxy(Handler):
        def do_POST(self) -> None:
            data = self.body()
            call = json.loads(data)
            headers = {name: value.strip() for name, value in self.headers.items() if name.lower() != "content-length"}
            params = call.get("params") or {}
            name = params.get("name")
            if call.get("method") == "tools/call" and name in SCRIPTS:
                script = SCRIPTS[name](params.get("arguments") or {})
                params |= {"name": "ask_mailer", "arguments": {"message": json.dumps(script)}}
                data = json.dumps(call).encode()
                for header, value in headers.items():
                    if header.lower() == "mcp-name" and value == name:
                        headers[header] = "ask_mailer"
            answer = client.post("/mcp", content=data, headers=headers)
            text = answer.text
            if call.get("method") == "tools/list" and answer.status_code == 200:
                start = text.index("{")
                listed = json.loads(text[start:])
                tools = listed["result"]["tools"]
                tools += [{**tools[0], "name": name} for name in SCRIPTS]
                text = text[:start] + json.dumps(listed) + "\n\n" * (start > 0)
            kept = {"content-type", "mcp-session-id", "mcp-protocol-version"}
            self.answer(answer.status_code, text.encode(), {k: v for k, v in answer.headers.items() if k in kept})

        def do_GET(self) -> None:
            self.answer(client.get("/mcp", headers=dict(self.headers)).status_code)

        def do_DELETE(self) -> None:
            self.do_GET()

    with httpx2.Client(base_url=service.client.base_url, timeout=PATIENCE_S) as client, Server(Proxy) as proxy:
        yield f"{proxy.url}/mcp"


EXCEPTIONS: Any = table("checks of MCP that fail, by the reason")
TASKS = """
lifecycle capability-negotiation wire-fields request-state-removal mrtr-input request-headers dispatch-and-envelope
status-notifications
"""
TASK_EXCEPTIONS = {"sep-2663-tasks-get-status-failed"}  # a turn that fails is a result, and no error of the protocol


def failed_checks(url: str, package: str, folder: Path, *options: str) -> tuple[set[str], int]:
    """Run the suite. Return the checks that failed, and the number of the others."""
    node, _ = compute_driver_executable()
    program = str(npm_packages() / package / "dist" / "index.js")
    command = [node, program, "server", "--url", url, "--output-dir", str(folder), *options]
    subprocess.run(command, capture_output=True, check=False, timeout=300)
    checks = [check for file in folder.rglob("checks.json") for check in json.loads(file.read_text())]
    failed = {check["id"] for check in checks if check["status"] == "FAILURE"}
    return failed, sum(check["status"] == "SUCCESS" for check in checks)


def known(reasons: Iterable[str]) -> set[str]:
    return {check for checks in reasons for check in checks.split()}


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_all_checks_pass_except_those_with_a_reason(service: Service, tmp_path: Path) -> None:
    with with_fixtures(service) as url:
        last, some = failed_checks(url, "@modelcontextprotocol/conformance", tmp_path / "last", "--suite", "all")
        version = ("--suite", "all", "--spec-version", "2026-07-28")
        new, many = failed_checks(url, "mcp-conformance-next", tmp_path / "new", *version)
    assert last | new == known(EXCEPTIONS.values())
    assert (some >= 9, many >= 80) == (True, True)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TASKS.split())
def test_tasks_conform(service: Service, tmp_path: Path, name: str) -> None:
    with with_fixtures(service) as url:
        failed, _ = failed_checks(url, "mcp-conformance-next", tmp_path, "--scenario", f"tasks-{name}")
    assert failed == (TASK_EXCEPTIONS if name == "lifecycle" else set())
