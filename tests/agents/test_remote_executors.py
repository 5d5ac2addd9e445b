"""Code in remote executors: smolagents' own classes, vendors' clients, and an own class with a real process."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from smolagents import CodeAgent, MultiStepAgent

import smolsessions
from smolsessions.agents.catalog import Catalog
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.agents.factories import check_factory
from smolsessions.core.errors import StartError
from tests.support import remote
from tests.support.agents import make_scripted
from tests.support.code_turns import ENDED_S, code_script, play_code, shown_outputs
from tests.support.killed_turns import cancel_and_check
from tests.support.llm import LLM
from tests.support.sandboxes import DockerDaemon, E2BService, Sandboxes, serving
from tests.support.service import Service, wait_until, write_agents
from tests.support.sounds import CSV, PDF, sent
from tests.support.streaming import posting
from tests.support.tiers import mostly_deep
from tests.support.transfer import export, import_document
from tests.support.turns import DONE, submit_turn, wait_for_end

HANG = """import os, time
open(os.environ["TEST_REMOTE_FOLDER"] + "/hangs", "a").write("1\\n")
time.sleep(2)"""
NAMES = ("remote", "lead", "unstartable")
AGENTS = ",".join(f"{name}=tests.support.remote:make_{name}" for name in NAMES)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    settings = {"AGENTS": AGENTS, "DEMO_AGENTS": "0"}
    with Service(folder, settings, {remote.FOLDER: str(folder)}, forked=False) as service:
        yield service


@pytest.fixture(autouse=True)
def unmarked(folder: Path) -> None:
    for name in ("started", "ended", "noted", "hangs"):
        (folder / name).unlink(missing_ok=True)


def play_and_kill(service: Service, folder: Path, *blocks: str) -> tuple[dict[str, Any], list[str]]:
    turn = submit_turn(service, *code_script(*blocks), DONE, agent="remote")
    wait_until(lambda: bool(remote.marks(folder, "hangs")))
    service.kill()
    service.start()
    turn = wait_for_end(service, turn)
    assert turn["status"] == "finished", turn["error"]
    return turn, shown_outputs(service, turn)


def test_nothing_starts_before_the_first_block(service: Service, folder: Path) -> None:
    turn = service.play({"text": "no code"}, {"text": "none"}, agent="remote", max_steps=1)
    assert turn["outcome"] == "max_steps_error"
    assert remote.marks(folder, "started") == []
    service.follow_up(turn, {"code": "x = 1"}, DONE)
    assert len(remote.marks(folder, "started")) == 1


def test_blocks_share_variables_and_tools_across_turns(service: Service, folder: Path) -> None:
    turn, shown = play_code(service, "list = [40]\nprint(note(word='a'))", "print(list[0] + 2)", agent="remote")
    assert "noted a" in shown[0]
    assert "42" in shown[1]
    assert (turn["tool_call_names"], turn["dropped_variables"]) == ([], [])
    assert turn["reply"] == "done"
    again = service.follow_up(turn, {"code": "final_answer(note(word='b') + str(list))"})
    assert again["reply"] == "noted b[40]"
    assert remote.marks(folder, "noted") == ["a", "b"]
    assert len(remote.marks(folder, "started")) == 1


def test_files_of_a_message_are_texts_and_bytes_there(service: Service) -> None:
    files = [sent("data.csv", "text/csv", CSV), sent("the contract.pdf", "application/pdf", PDF)]
    code = "final_answer([data_csv, the_contract_pdf[:4].decode()])"
    turn = service.play({"code": code}, agent="remote", files=files)
    assert turn["output"] == [CSV, "%PDF"], turn
    assert "the_contract_pdf: the bytes of the contract.pdf" in service.steps(turn)[0]["task"]
    copy = import_document(service, export(service, turn["conversation_id"]))
    assert service.play({"code": code}, agent="remote", conversation_id=copy["id"])["output"] == turn["output"]


def test_a_lost_kernel_is_an_error_that_names_its_variables(service: Service, folder: Path) -> None:
    script = [{"code": "a = b = 1"}, {"code": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"}]
    turn, shown = play_code(service, *(each["code"] for each in script), "c = 2\nprint('anew')", agent="remote")
    assert "was lost during this block" in shown[1]
    assert "a, b" in shown[1]
    assert "Traceback" not in shown[1]
    assert "anew" in shown[2]
    assert turn["dropped_variables"] == ["a", "b"]
    os.kill(int(remote.marks(folder, "started")[-1]), signal.SIGKILL)  # between two turns
    turn = service.follow_up(turn, {"code": "print(c)"}, {"code": "c = 3\nprint(note(word=str(c)))"}, DONE)
    assert turn["dropped_variables"] == []
    texts = [step for step in service.steps(turn) if step["type"] == "action" and step["turn"] == 2]
    assert "These variables of earlier code are gone: c. This block has not run" in texts[0]["error"]["message"]
    assert "noted 3" in texts[1]["observations"]
    assert len(remote.marks(folder, "started")) == 3


def test_variables_that_died_with_their_kernel_are_named(service: Service, folder: Path) -> None:
    turn, _ = play_code(service, "d = 1", agent="remote")
    service.stop()
    assert set(remote.marks(folder, "started")) <= set(remote.marks(folder, "ended"))
    service.start()
    turn = service.follow_up(turn, {"code": "print('d' in globals())"}, {"shown": True})
    assert turn["dropped_variables"] == ["d"]
    assert "These variables of earlier code could not be kept and are gone: d." in turn["reply"]


def test_the_executor_of_a_managed_agent_ends_with_the_service(service: Service, folder: Path) -> None:
    inner = json.dumps([{"code": "e = 1"}, DONE])
    turn = service.play({"call": [["coder", {"task": inner}]]}, DONE, agent="lead")
    assert turn["tool_call_names"] == ["coder"]
    service.stop()
    started = remote.marks(folder, "started")
    assert (len(started), set(started) <= set(remote.marks(folder, "ended"))) == (1, True)
    service.start()


def test_a_block_without_end_is_ended(service: Service, folder: Path) -> None:
    turn, shown = play_code(service, "e = 1", "while True: pass", "print('next')", agent="remote")
    assert "exceeded the maximum execution time of 3 seconds" in shown[1]
    assert "gone: e." in shown[1]
    assert "next" in shown[2]
    assert turn["dropped_variables"] == ["e"]
    wait_until(lambda: len(remote.marks(folder, "ended")) == 1)


def test_a_stop_ends_a_block(service: Service, folder: Path) -> None:
    with posting(service, {"code": "while True: pass"}, agent="remote") as stream:
        stream.until("tool.call")
        wait_until(lambda: bool(remote.marks(folder, "started")))
        cancel_and_check(service, stream, within_s=ENDED_S)
    wait_until(lambda: remote.marks(folder, "ended") == remote.marks(folder, "started"))


def test_a_journaled_block_does_not_run_again_after_a_crash(service: Service, folder: Path) -> None:
    turn, shown = play_and_kill(service, folder, "f = note(word='once')", f"{HANG}\nprint(f)", "print(f)")
    assert remote.marks(folder, "noted") == ["once"]
    assert "These variables of earlier code are gone: f. This block has not run" in shown[1]
    assert "NameError" in shown[2]
    assert turn["dropped_variables"] == ["f"]


def test_a_block_with_a_tool_that_is_unsafe_to_repeat_is_not_repeated(service: Service, folder: Path) -> None:
    _, shown = play_and_kill(service, folder, f"note(word='charge')\n{HANG}", "print('next')")
    assert remote.marks(folder, "noted") == ["charge"]
    assert "it is not known whether this call of note had its effect" in shown[0]
    assert "next" in shown[1]


def test_an_executor_that_does_not_start_is_a_clear_error(service: Service) -> None:
    turn, shown = play_code(service, "print(1)", agent="unstartable")
    assert shown[0].startswith("The place where code runs (remote) could not be started (RuntimeError), so no code ran")
    assert turn["status"] == "finished"
    assert "no daemon, and token=*** is wrong" in service.log()
    assert "sk-of-a-vendor" not in service.log()
    assert "Traceback" not in service.log()


def made(*executor: Any, agent: dict[str, Any] | None = None, **options: Any) -> Callable[[], CodeAgent]:
    """Return a factory of an agent with a remote executor, which has these options."""
    return lambda: remote.make_with(smolsessions.remote_executor(*executor, **options), **(agent or {}))


def make_managing() -> CodeAgent:
    return made(remote.PipeExecutor, agent={"managed_agents": [make_scripted(name="helper", description="Helps.")]})()


REFUSED: dict[str, Callable[[], MultiStepAgent]] = {
    "starts its remote executor at once": remote.make_eager,
    "at once": remote.make_chief,
    "allow_pickle=True": made(remote.PipeExecutor, allow_pickle=True),
    "managed agents": make_managing,
    "the tool 'outsider', which cannot run in a remote": made(remote.PipeExecutor, agent={"tools": [remote.outsider]}),
    "scratchpad": lambda: smolsessions.options(made(remote.PipeExecutor)(), scratchpad=True),
    "there is no remote executor 'wasm'; use one of docker, e2b, modal, blaxel": made("wasm"),
    "has no option 'imagename'; it has build_new_image": made("docker", imagename="x"),
    "takes no name of a key's variable": made("docker", key_env="SOME_KEY"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_unservable_agent_is_refused_at_start(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.FOLDER, str(folder))
    with pytest.raises(StartError) as caught:
        check_factory("bad", REFUSED[words])
    assert words in str(caught.value)
    wait_until(lambda: remote.marks(folder, "ended") == remote.marks(folder, "started"))


KEY = "e2b-key-of-a-team-91c3"
AGENT = """
[agents.coder]
kind = "code"
model = {{provider = "openai", id = "gpt-4o", base = "{base}"}}
tools = {tools}
executor = "{executor}"
{rest}
"""


def write_agent(
    folder: Path, executor: str, rest: str = "", tools: str = "[]", base: str = "http://127.0.0.1:9/v1"
) -> dict[str, str]:
    return write_agents(folder, AGENT.format(executor=executor, rest=rest, tools=tools, base=base))


@pytest.fixture(params=mostly_deep(["docker", "e2b"], fast=["e2b"]))
def rented(request: pytest.FixtureRequest, tmp_path: Path, llm: LLM) -> Iterator[tuple[str, Sandboxes, Service]]:
    """Return the executor's name, the server that it calls, and a service with an agent that uses it."""
    is_docker = request.param == "docker"
    rest = "" if is_docker else 'executor_key_env = "TEAM_KEY"\nexecutor_options = {timeout = 900}'
    settings = write_agent(tmp_path, request.param, rest, '["tests.support.remote:Note"]', llm.base_url)
    with serving(DockerDaemon if is_docker else E2BService, tmp_path, KEY) as places:
        environment = {
            "DOCKER_HOST": places.url.replace("http:", "tcp:"),
            "E2B_API_URL": places.url,
            "E2B_SANDBOX_URL": places.url,
            "E2B_HTTP_VERSION": "1.1",
            "TEAM_KEY": KEY,
        }
        with Service(tmp_path, settings, environment, forked=False) as service:
            yield request.param, places, service


def play(llm: LLM, service: Service, *blocks: str, **body: Any) -> dict[str, Any]:
    for block in blocks:
        llm.say(f"Thought: run it.\n<code>\n{block}\n</code>")
    turn: dict[str, Any] = service.post("/turn", message="Run it.", agent="coder", **body).json()
    assert turn["status"] == "finished", turn["error"]
    return turn


def test_code_runs_through_the_vendors_own_client(rented: tuple[str, Sandboxes, Service], llm: LLM) -> None:
    name, places, service = rented
    (listed,) = service.get("/agents")["items"]
    assert (listed["code_runs_in"], listed["code_confinement"]) == (name, "not run here")
    assert f"not run here, but in a remote executor ({name})" in listed["limitations"][0]
    assert places.started == []

    turn = play(llm, service, "x = 41\nprint('now', x)", "1 / 0", "final_answer({'x': x + 1, 'at': (1, 2)})")
    assert turn["output"] == {"x": 42, "at": [1, 2]}
    assert (turn["tool_call_names"], turn["dropped_variables"]) == ([], [])
    shown = [s["observations"] or s["error"]["message"] for s in service.steps(turn) if s["type"] == "action"]
    assert "now 41" in shown[0]
    assert all(words in shown[1] for words in ("ZeroDivisionError", "division by zero"))
    assert "\x1b" not in shown[1]
    if name == "docker":
        published = places.asked[0]["HostConfig"]["PortBindings"]["8888/tcp"][0]
        assert (published["HostIp"], published["HostPort"] != "8888") == ("127.0.0.1", True)
        assert places.asked[0]["Labels"] == {"smolsessions": "executor"}
    else:
        assert places.asked[0]["timeout"] == 900

    places.end(0)
    again = play(llm, service, "print(x)", "final_answer(1)", conversation_id=turn["conversation_id"])
    lost = next(step for step in service.steps(again) if step["type"] == "action" and step["turn"] == 2)
    assert "These variables of earlier code are gone: x." in (lost["error"] or {}).get("message", ""), lost
    assert (len(places.started), again["output"]) == (2, 1)
    service.stop()
    wait_until(lambda: places.running == 0)
    assert KEY not in service.log()


def test_a_vendor_that_refuses_the_key_costs_a_block_and_shows_no_key(tmp_path: Path, llm: LLM) -> None:
    rest = 'executor_key_env = "TEAM_KEY"'
    with serving(E2BService, tmp_path, "another-key") as places:
        environment = {"E2B_API_URL": places.url, "E2B_HTTP_VERSION": "1.1", "TEAM_KEY": KEY}
        settings = write_agent(tmp_path, "e2b", rest, base=llm.base_url)
        with Service(tmp_path, settings, environment, forked=False) as service:
            steps = service.steps(play(llm, service, "print(1)", "final_answer(2)", max_steps=1))
    assert "(e2b) could not be started (AuthenticationException), so no code ran" in str(steps)
    assert "hold no key of a team" in service.log()
    assert KEY not in service.log() + str(steps)


@pytest.mark.parametrize(
    ("executor", "rest", "tools", "words"),
    [
        ("modal", "", "[]", "[agents.coder] executor: the executor modal needs modal"),
        ("e2b", 'executor_key_env = "NO_SUCH"', "[]", "[agents.coder] executor_key_env: names a variable that is not"),
        ("docker", "code_limits = {cpu_s = 1}", "[]", "cpu_s: a remote executor has only the limit wall_s"),
        ("docker", 'workspace = {readonly = ["**"]}', "[]", 'workspace: executor = "docker" cannot call a workspace'),
        ("docker", 'mcp = ["files"]\n[mcp.files]\ncommand = "x"', "[]", 'mcp: executor = "docker" cannot call MCP'),
    ],
)
def test_a_mistaken_executor_stops_the_start(executor: str, rest: str, tools: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        Catalog(load_agents_file(Path(write_agent(tmp_path, executor, rest, tools)["AGENTS_FILE"])))
    assert words in caught.value.message
