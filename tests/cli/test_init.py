"""A new project, and a service that reloads its code."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.llm import LLM
from tests.support.refusals import sentence_of
from tests.support.service import PATIENCE_S, ROOT, Gate, Service, run, run_program, wait_until
from tests.support.streaming import place
from tests.support.tiers import deep
from tests.support.turns import DONE, submit_turn, wait_for_end

FILES = {"agents.toml", "my_agents.py", "test_my_agents.py", "smolsessions.toml", "requirements.txt", "Dockerfile"}


def test_a_new_folder_can_be_served_and_tested(llm: LLM, tmp_path: Path) -> None:
    folder = tmp_path / "helper"
    assert run(tmp_path, {}, "init", str(folder))[0] == 0
    assert {path.name for path in folder.iterdir()} == FILES
    tests = run_program([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], cwd=folder)
    assert "1 passed" in tests.stdout, tests.stdout + tests.stderr
    file = folder / "agents.toml"
    file.write_text(re.sub("^# ?(?=.* = |\\[)", "", file.read_text(), flags=re.MULTILINE))  # with the example there
    llm.call(("calculator", {"expression": "12*7"}))
    llm.answer("84")
    environment = {"OPENAI_API_KEY": "sk-1", "MODEL_ID": "qwen3", "MODEL_API_BASE": llm.base_url}
    with Service(tmp_path, {"AGENTS": "", "DEMO_AGENTS": ""}, environment, cwd=folder) as service:
        assert [agent["name"] for agent in service.get("/agents")["items"]] == ["helper", "clerk"]
        turn = service.post("/turn", message="What is 12 * 7?").json()
    assert (turn["agent"]["name"], turn["tool_call_names"]) == ("helper", ["calculator"])
    assert 'Observation:\\n84"' in llm.requests[1].text
    assert [request.key for request in llm.requests] == ["none", "none"], "the key of OpenAI leaves for another server"


def test_the_files_of_the_template_obey_the_rules_of_this_project(tmp_path: Path) -> None:
    run(tmp_path, {}, "init", str(folder := tmp_path / "new"))
    (folder / "ruff.toml").write_text(f'extend = "{ROOT}/pyproject.toml"\nsrc = ["."]\n')
    options = ("--cache-dir", f"{ROOT}/.mypy_cache", "--config-file", f"{ROOT}/pyproject.toml")
    for name, *arguments in (
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy", *options, "my_agents.py", "test_my_agents.py"),
    ):
        environment = os.environ | {"MYPYPATH": f"{ROOT}/app"}
        checked = run_program([Path(sys.executable).with_name(name), *arguments], cwd=folder, env=environment)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    own = tmp_path / "new" / "my_agents.py"
    own.write_text("mine")
    assert "has my_agents.py already" in sentence_of(run(tmp_path, {}, "init", str(tmp_path / "new")))
    assert (own.read_text(), list(own.parent.iterdir())) == ("mine", [own])


CODE = """from tests.support.agents import make_scripted

def make_shop():
    agent = make_scripted()
    {}
    return agent
"""


FILE = '[agents.other]\nfactory = "mine:make_shop"\ndescription = "first of the file"\n'


@pytest.mark.parametrize(
    ("name", "first", "broken", "second"),
    [
        ("mine.py", CODE.format("agent.description = 'first'"), "broken(", CODE.format("agent.description = 'second'")),
        pytest.param("agents.toml", FILE, "[agents", FILE.replace("first", "second"), marks=deep),
    ],
    ids=["code", "file"],
)
def test_changed_code_leaves_running_turns_to_the_earlier_code(
    name: str, first: str, broken: str, second: str, tmp_path: Path
) -> None:
    changed, gate = tmp_path / name, Gate(tmp_path / "gate")
    (tmp_path / "mine.py").write_text(CODE.format("agent.description = 'first'"))
    (tmp_path / "agents.toml").write_text(FILE)
    changed.write_text(first)
    command = ("serve", "--reload", "--processes", "1", "mine:make_shop")
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": "agents.toml"}
    with Service(tmp_path, settings, cwd=tmp_path, command=command) as service:

        def described_as(word: str) -> bool:
            return any(agent["description"].startswith(word) for agent in service.get("/agents")["items"])

        turn = submit_turn(service, gate.script, DONE, agent="shop")
        gate.reached()
        changed.write_text(broken)
        wait_until(lambda: "the changed code does not start" in service.log())
        assert not described_as("second")
        changed.write_text(second)
        wait_until(lambda: described_as("second"))
        assert service.play({"say": "from the new code"}, agent="shop")["reply"] == "from the new code"
        assert service.get(place(turn))["status"] == "running"
        gate.open()
        ended = wait_for_end(service, turn)
        assert (ended["reply"], ended["attempts"]) == ("done", 1)
        wait_until(lambda: "stopping" in service.log())
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(PATIENCE_S) == 0
