"""Tools of MCP servers in turns of a real service: results, errors, dead and frozen servers, stops."""

import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.llm import LLM
from tests.support.metrics import samples, totals
from tests.support.service import Service
from tests.support.stopwatch import Stopwatch
from tests.support.tool_servers import programs_of
from tests.support.turns import cancel
from tests.support.waiting import wait_until

FILE = """
[models.small]
provider = "openai"
id = "gpt-4o"
base = "{base}"

[agents.shop]
kind = "{kind}"
model = "small"
mcp = ["one"]

[agents.plain]
kind = "tool_calling"
model = "small"

[mcp.one]
command = "{python}"
args = ["-m", "tests.support.mcp_server", "stdio"]
env = {{NOTES = "NOTES_FILE", API_KEY = "ONE_KEY"}}
timeout_s = {timeout_s}
"""
SILENT = """
[agents.ghost]
kind = "tool_calling"
model = "small"
mcp = ["one", "silent"]

[mcp.silent]
command = "{python}"
args = ["-m", "tests.support.hostile_mcp", "silent"]
"""
KEY = "sk-one-31bb4ad0"


def serve(folder: Path, llm: LLM, kind: str = "tool_calling", more: str = "", timeout_s: int = 20) -> Service:
    file = folder / "agents.toml"
    text = (FILE + more).format(base=llm.base_url, python=sys.executable, kind=kind, timeout_s=timeout_s)
    file.write_text(text)
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(file)}
    environment = {"NOTES_FILE": str(folder / "notes"), "ONE_KEY": KEY}
    return Service(folder, settings, environment=environment)


def ask(service: Service, **body: Any) -> dict[str, Any]:
    turn: dict[str, Any] = service.post("/turn", message="go", **({"agent": "shop"} | body)).json()
    return turn


def outcomes(service: Service) -> dict[str, float]:
    """Return the numbers of calls by outcome."""
    start = 'smolsessions_mcp_calls_total{outcome="'
    return {name.removeprefix(start).split('"')[0]: value for name, value in totals(service).items() if start in name}


def test_a_turn_calls_tools_of_a_server_and_reads_their_errors(llm: LLM, tmp_path: Path) -> None:
    llm.call(("add", {"a": 41}))
    llm.call(("fail", {"reason": f"no luck with {KEY}"}))
    llm.call(("log_secret", {"name": "API_KEY"}))
    llm.answer("42")
    with serve(tmp_path, llm) as service:
        turn = ask(service)
        assert turn["reply"] == "42", turn
        first, second, _ = turn["tool_calls"]
        assert (first["name"], first["ok"], second["name"], second["ok"]) == ("add", True, "fail", False)
        counts = samples(service)
        described = service.get("/agents/shop")["tools"]
    assert "'result': 42" in llm.requests[1].text
    assert "no luck with ***" in llm.requests[2].text
    assert (counts["mcp_up", ""], counts["mcp_calls_total", ""], counts["mcp_restarts_total", ""]) == (1, 3, 0)
    assert "the MCP server one: using ***" in service.log()
    assert KEY not in service.log()
    assert next(tool for tool in described if tool["name"] == "add")["parameters"]["required"] == ["a"]


def test_images_and_audio_of_a_server_are_passed_on_by_name(llm: LLM, tmp_path: Path) -> None:
    llm.call(("picture", {"with_text": True}))
    llm.call(("sound", {}))
    llm.answer("image.png")
    llm.answer("audio.wav")
    with serve(tmp_path, llm) as service:
        turn = ask(service)
        (image,) = turn["output_images"]
        assert service.client.get(image["url"]).headers["content-type"] == "image/png"
        later = ask(service, conversation_id=turn["conversation_id"])
        (file,) = later["output_files"]
        assert service.client.get(file["url"]).content == b"RIFF...."
    assert "a red picture\\nStored 'image.png' in memory." in llm.requests[1].text
    assert "Stored 'audio.wav' in memory." in llm.requests[2].text


def test_a_dead_and_a_frozen_server_are_errors_of_a_tool_and_no_dead_turns(llm: LLM, tmp_path: Path) -> None:
    llm.call(("end", {}))
    llm.call(("add", {"a": 41}))
    llm.answer("it was restarted")
    llm.call(("add", {"a": 41}))
    llm.answer("it is frozen")
    with serve(tmp_path, llm, timeout_s=15) as service:
        turn = ask(service)
        assert turn["reply"] == "it was restarted"
        assert [call["ok"] for call in turn["tool_calls"]] == [False, True]
        (program,) = programs_of(service.process.pid)
        program.send_signal(signal.SIGSTOP)
        with Stopwatch() as watch:
            turn = ask(service)
            assert (turn["reply"], turn["tool_calls"][0]["ok"]) == ("it is frozen", False)
        assert watch.s < 30
        assert outcomes(service) == {"failed": 1, "ok": 1, "timeout": 1}
        assert samples(service)["mcp_restarts_total", ""] == 1
        (last,) = programs_of(service.process.pid)
    assert "it is not known whether the call had its effect, and it is not made again" in llm.requests[1].text
    assert "the MCP server one did not answer within 15 s" in llm.requests[4].text
    assert not last.is_running(), "the service has ended it"


def test_a_stop_ends_the_wait_for_a_server(llm: LLM, tmp_path: Path) -> None:
    llm.call(("noted", {"text": "once", "wait_s": 30}))
    with serve(tmp_path, llm) as service:
        body = {"message": "go", "agent": "shop"}
        turn = service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).json()
        wait_until((tmp_path / "notes").exists)
        with Stopwatch() as watch:
            cancel(service, turn)
            path = f"/conversations/{turn['conversation_id']}/turns/1"
            wait_until(lambda: service.get(path)["status"] == "cancelled")
        assert watch.s < 10, "its own timeout is 20 s"
        assert outcomes(service) == {"stopped": 1}


def test_a_destructive_call_in_flight_at_a_crash_is_not_made_again(llm: LLM, tmp_path: Path) -> None:
    llm.call(("noted", {"text": "once", "wait_s": 30}))
    llm.answer("I shall look first")
    with serve(tmp_path, llm) as service:
        body = {"message": "go", "agent": "shop"}
        turn = service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).json()
        wait_until((tmp_path / "notes").exists)
        service.kill()
        service.start()
        path = f"/conversations/{turn['conversation_id']}/turns/1"
        wait_until(lambda: service.get(path)["status"] == "finished")
        assert service.get(path)["reply"] == "I shall look first"
    assert "it is not known whether this call of noted had its effect" in llm.requests[1].text
    assert len((tmp_path / "notes").read_text().splitlines()) == 1


def test_code_calls_tools_of_a_server(llm: LLM, tmp_path: Path) -> None:
    llm.say("<code>final_answer(add(a=40, b=2)['result'] + len(picture(with_text=True)))</code>")
    with serve(tmp_path, llm, "code") as service:
        turn = ask(service)
    assert turn["reply"] == "44", turn
    assert [call["name"] for call in turn["tool_calls"] if not call["internal"]] == ["add", "picture"]


def test_a_server_without_a_list_makes_its_agents_unavailable_and_no_others(llm: LLM, tmp_path: Path) -> None:
    llm.call(("add", {"a": 41}))
    llm.answer("served")
    with serve(tmp_path, llm, more=SILENT) as service:
        assert [agent["name"] for agent in service.get("/agents")["items"]] == ["shop", "plain"]
        for answer in (
            service.post("/turn", message="go", agent="ghost"),
            service.post("/conversations", agent="ghost"),
            service.client.get("/agents/ghost"),
        ):
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (409, "agent_unavailable")
            assert "MCP server 'silent' gave no list of tools" in problem["detail"]
        assert ask(service)["reply"] == "served"
        assert 'smolsessions_mcp_up{server="silent"} 0.0' in service.client.get("/metrics").text
    assert "the agent ghost is not served" in service.log()
