"""Command `init`: its folder can be served and tested as it is."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.refusals import sentence_of
from tests.support.service import Service, run
from tests.support.waiting import PATIENCE_S

FILES = {"agents.toml", "my_agents.py", "test_my_agents.py", "smolsessions.toml", "requirements.txt", "Dockerfile"}


def test_a_new_folder_can_be_served_and_tested(tmp_path: Path) -> None:
    folder = tmp_path / "helper"
    assert run(tmp_path, {}, "init", str(folder))[0] == 0
    assert {path.name for path in folder.iterdir()} == FILES
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert "1 passed" in tests.stdout, tests.stdout + tests.stderr
    file = folder / "agents.toml"
    file.write_text(re.sub("^# ?(?=.* = |\\[)", "", file.read_text(), flags=re.MULTILINE))  # with the example there
    environment = {"OPENAI_API_KEY": "sk-1"}
    with Service(tmp_path, {"AGENTS": "", "DEMO_AGENTS": ""}, environment, cwd=folder) as service:
        assert [agent["name"] for agent in service.get("/agents")["items"]] == ["helper", "clerk"]
        turn = service.post("/turn", message="What is 12 * 7?").json()
    assert (turn["agent"]["name"], turn["tool_call_names"]) == ("helper", ["calculator"])
    assert "84" in turn["reply"]


def test_the_next_command_can_be_copied_into_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my shop"
    _, output, _ = run(tmp_path, {}, "init", str(folder))
    assert f"Next: cd '{folder}' && smolsessions serve --reload" in output


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    own = tmp_path / "new" / "my_agents.py"
    own.write_text("mine")
    assert "has my_agents.py already" in sentence_of(run(tmp_path, {}, "init", str(tmp_path / "new")))
    assert (own.read_text(), list(own.parent.iterdir())) == ("mine", [own])
