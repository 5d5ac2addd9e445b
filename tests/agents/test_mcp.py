"""Tools of MCP servers in turns of a real service: results, errors, dead servers, stops."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import data
from tests.support.llm import LLM
from tests.support.service import Service, totals, wait_until, write_agents
from tests.support.turns import cancel, wait_for_end

FILE = data("mcp.toml")
KEY = "sk-one-31bb4ad0"


def serve(folder: Path, text: str, llm: LLM) -> Service:
    settings = write_agents(folder, text.format(base=llm.base_url, python=sys.executable))
    return Service(folder, settings, environment={"NOTES_FILE": str(folder / "notes"), "ONE_KEY": KEY})


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("mcp"), FILE, request.getfixturevalue("_llm_server")) as running:
        yield running


def ask(service: Service, agent: str = "shop", **body: Any) -> dict[str, Any]:
    turn: dict[str, Any] = service.post("/turn", message="go", agent=agent, **body).json()
    return turn


def submit_noted(service: Service, llm: LLM, text: str) -> dict[str, Any]:
    """Submit a turn that waits for a destructive tool, which has noted the text."""
    llm.call(("noted", {"text": text, "wait_s": 300}))
    headers = {"Prefer": "respond-async"}
    turn: dict[str, Any] = service.client.post("/turn", json={"message": "go", "agent": "shop"}, headers=headers).json()
    wait_until(lambda: notes_of(service, text))
    return turn


def notes_of(service: Service, text: str) -> list[str]:
    file = service.folder / "notes"
    return [line for line in file.read_text().splitlines() if line.startswith(f"{text} ")] if file.exists() else []


def count(service: Service, name: str, outcome: str = "") -> float:
    found = totals(service).items()
    return sum(value for key, value in found if key.startswith(f"smolsessions_{name}{{") and outcome in key)


def test_a_turn_calls_tools_of_a_server_and_reads_their_errors(service: Service, llm: LLM) -> None:
    llm.call(("add", {"a": 41}))
    llm.call(("fail", {"reason": f"no luck with {KEY}"}))
    llm.call(("log_secret", {"name": "API_KEY"}))
    llm.answer("42")
    before = count(service, "mcp_calls_total")
    turn = ask(service)
    assert turn["reply"] == "42", turn
    first, second, _ = turn["tool_calls"]
    assert (first["name"], first["ok"], second["name"], second["ok"]) == ("add", True, "fail", False)
    assert (count(service, "mcp_up"), count(service, "mcp_calls_total") - before) == (1, 3)
    described = service.get("/agents/shop")["tools"]
    assert "'result': 42" in llm.requests[1].text
    assert "no luck with ***" in llm.requests[2].text
    wait_until(lambda: "the MCP server one: using ***" in service.log())
    assert KEY not in service.log()
    assert next(tool for tool in described if tool["name"] == "add")["parameters"]["required"] == ["a"]


def test_images_and_audio_of_a_server_are_passed_on_by_name(service: Service, llm: LLM) -> None:
    llm.call(("picture", {"with_text": True}))
    llm.call(("sound", {}))
    llm.answer("image.png")
    llm.answer("audio.wav")
    turn = ask(service)
    (image,) = turn["output_images"]
    assert service.client.get(image["url"]).headers["content-type"] == "image/png"
    (file,) = ask(service, conversation_id=turn["conversation_id"])["output_files"]
    assert service.client.get(file["url"]).content == b"RIFF...."
    assert "a red picture\\nStored 'image.png' in memory." in llm.requests[1].text
    assert "Stored 'audio.wav' in memory." in llm.requests[2].text


def test_a_dead_server_is_an_error_of_a_tool_and_no_dead_turn(service: Service, llm: LLM) -> None:
    llm.call(("end", {}))
    llm.call(("noted", {"text": "after"}))
    llm.answer("it was restarted")
    failed, restarts = count(service, "mcp_calls_total", "failed"), count(service, "mcp_restarts_total")
    turn = ask(service)
    assert turn["reply"] == "it was restarted"
    assert [call["ok"] for call in turn["tool_calls"]] == [False, True]
    assert "it is not known whether the call had its effect, and it is not made again" in llm.requests[1].text
    assert count(service, "mcp_calls_total", "failed") - failed == 1
    assert count(service, "mcp_restarts_total") - restarts == 1
    assert len(notes_of(service, "after")) == 1


def test_a_stop_ends_the_wait_for_a_server(service: Service, llm: LLM) -> None:
    turn = submit_noted(service, llm, "stopped")
    cancel(service, turn)
    ended = wait_for_end(service, turn)
    assert ended["status"] == "cancelled"
    assert ended["timing"]["duration_ms"] < 20_000, "the server's own timeout"
    wait_until(lambda: count(service, "mcp_calls_total", "stopped") == 1)  # the call ends beside the turn


def test_a_destructive_call_in_flight_at_a_crash_is_not_made_again(service: Service, llm: LLM) -> None:
    turn = submit_noted(service, llm, "once")
    llm.answer("I shall look first")
    service.kill()
    service.start()
    ended = wait_for_end(service, turn)
    assert (ended["status"], ended["reply"]) == ("finished", "I shall look first")
    assert "it is not known whether this call of noted had its effect" in llm.requests[1].text
    assert len(notes_of(service, "once")) == 1


def test_code_calls_tools_of_a_server(service: Service, llm: LLM) -> None:
    llm.say("<code>final_answer(add(a=40, b=2)['result'] + len(picture(with_text=True)))</code>")
    turn = ask(service, "coder")
    assert turn["reply"] == "44", turn
    assert [call["name"] for call in turn["tool_calls"] if not call["internal"]] == ["add", "picture"]


def test_a_server_without_a_list_makes_its_agents_unavailable_and_no_others(llm: LLM, tmp_path: Path) -> None:
    llm.answer("served")
    with serve(tmp_path, data("silent_mcp.toml"), llm) as service:
        assert [agent["name"] for agent in service.get("/agents")["items"]] == ["plain"]
        for answer in (
            service.post("/turn", message="go", agent="ghost"),
            service.post("/conversations", agent="ghost"),
            service.client.get("/agents/ghost"),
        ):
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (409, "agent_unavailable")
            assert "MCP server 'silent' gave no list of tools" in problem["detail"]
        assert ask(service, "plain")["reply"] == "served"
        assert 'smolsessions_mcp_up{server="silent"} 0.0' in service.client.get("/metrics").text
    assert "the agent ghost is not served" in service.log()
