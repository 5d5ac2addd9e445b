"""Agents as tools of the Model Context Protocol, as its own library calls them."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from tests.support.answering import mail, sent
from tests.support.service import Service
from tests.support.streaming import Event
from tests.support.turns import DONE, SHOWN, submit_turn

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def service(asking: Service) -> Service:
    return asking


def with_client(
    service: Service, work: Callable[[Client], Coroutine[Any, Any, Any]], mode: Any = "auto", **options: Any
) -> Any:
    async def run() -> Any:
        async with Client(f"{str(service.client.base_url).rstrip('/')}/mcp", mode=mode, **options) as client:
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
