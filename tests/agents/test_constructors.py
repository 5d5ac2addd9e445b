"""Every argument of smolagents' agent constructors has the same effect in the service as in bare smolagents."""

import inspect
import io
import json
from pathlib import Path

import pytest
from smolagents import CodeAgent, LogLevel, MultiStepAgent, ToolCallingAgent
from smolagents.local_python_executor import LocalPythonExecutor

from smolsessions.agents.smolagents_patches import DefaultLogger
from tests.support import constructors
from tests.support.constructors import CASES, FOLDER, NAMES
from tests.support.service import Service, run, shared_service

REFUSED = {"add_base_tools"}
"""Tested below: it brings a ToolCallingAgent a tool that runs code in this process."""

AGENTS = ",".join(f"{name}=tests.support.constructors:make_{name}" for name in NAMES.values())
service = shared_service(lambda folder: Service(folder, {"AGENTS": AGENTS}, {FOLDER: str(folder)}))


def test_every_argument_is_on_the_list() -> None:
    kinds = (MultiStepAgent, ToolCallingAgent, CodeAgent)
    taken = {name for kind in kinds for name in inspect.signature(kind).parameters} - {"kwargs"}
    assert taken == {case.split()[0] for case in CASES} | REFUSED
    to_executor = {case.split()[1] for case in CASES if case.startswith("executor_kwargs ")}
    assert set(inspect.signature(LocalPythonExecutor).parameters) == to_executor


@pytest.mark.parametrize("case", CASES)
def test_arguments_act_as_usual(case: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = CASES[case].script

    def bare(*, with_it: bool) -> tuple[str, str]:
        folder = tmp_path / str(with_it)
        folder.mkdir()
        monkeypatch.setenv(FOLDER, str(folder))
        reply = constructors.make(case, with_it=with_it).run(json.dumps(script))
        return str(reply), (folder / case).read_text()

    hosted = service.play(*script, agent=NAMES[case])["reply"], (service.folder / case).read_text()
    assert hosted == bare(with_it=True)
    assert (hosted != bare(with_it=False)) == CASES[case].is_seen


def test_a_level_above_the_default_prints_and_the_default_does_not(tmp_path: Path) -> None:
    agents = ",".join(f"{name}=tests.support.constructors:make_{name}" for name in ("usual", "talkative"))
    with Service(tmp_path, {"AGENTS": agents}) as service:
        service.play({"say": "nothing of this"}, agent="usual")
        service.play({"say": "all of this"}, agent="talkative")
        assert service.process.stdout
        lines = iter(service.process.stdout.readline, "")
        printed = [next(lines)]
        while "all of this" not in printed[-1]:
            printed.append(next(lines))
    assert "New run" in "".join(printed)
    assert "nothing of this" not in "".join(printed)


def test_default_loggers_do_not_share_a_console() -> None:
    one, other = DefaultLogger(LogLevel.DEBUG), DefaultLogger(LogLevel.DEBUG)
    one.console.record = True
    one.console.file = file = io.StringIO()
    other.log("prompt of another")
    one.log("its own")
    assert file.getvalue() == "its own\n"
    assert one.console.export_text() == "its own\n"


def test_base_tools_of_a_factory_are_refused_with_the_tool_that_runs_code(tmp_path: Path) -> None:
    status, _, said = run(tmp_path, {"AGENTS": "base=tests.support.constructors:make_with_base_tools"})
    assert status == 2
    assert "the tool python_interpreter (PythonInterpreterTool) runs model-written code in this process" in said
