"""Agents whose code runs in a remote executor: a process that takes code through a pipe. PYTEST_DONT_REWRITE."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, LogLevel, Tool, ToolCallingAgent, tool
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

import smolsessions
from tests.support import agents
from tests.support.data import data

FOLDER = "TEST_REMOTE_FOLDER"
"""Variable with the folder in which executors and their tools leave marks."""
KERNEL = data("kernel.txt")


def ask_kernel(process: subprocess.Popen[str], code: str) -> tuple[str, list[str] | None]:
    """Run code in a process with `KERNEL`. Returns its output, and name and value of its exception."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(code) + "\n")
    process.stdin.flush()
    logs, raised = json.loads(process.stdout.readline())
    return logs, raised


class PipeExecutor(RemotePythonExecutor):
    """Executor of an own process. Its number is a line of the file `started`."""

    def __init__(self, additional_imports: list[str], logger: AgentLogger, *, fails: str = "", **options: Any) -> None:
        super().__init__(additional_imports, logger, **options)
        if fails:
            raise RuntimeError(fails)
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        mark("started", self.process.pid)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        logs, raised = ask_kernel(self.process, code)
        if raised and raised[0] == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._deserialize_final_answer(raised[1]), logs, is_final_answer=True)
        if raised:
            raise AgentError(f"{raised[0]}: {raised[1]}", self.logger)
        return CodeOutput(None, logs, is_final_answer=False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        return additional_imports  # those of this machine

    def cleanup(self) -> None:
        with self.process:
            self.process.kill()
        mark("ended", self.process.pid)


class Note(Tool):
    """Appends a word to a file. Its source stands alone, as an executor needs it."""

    name = "note"
    description = "Notes a word."
    inputs = {"word": {"type": "string", "description": "the word"}}  # noqa: RUF012 - smolagents asks for it here
    output_type = "string"

    def forward(self, word: str) -> str:
        import os  # noqa: PLC0415 - it runs elsewhere

        folder = os.environ["TEST_REMOTE_FOLDER"]
        with open(f"{folder}/noted", "a") as file:  # noqa: PTH123
            file.write(word + "\n")
        return f"noted {word}"


SECRET = object()


@tool
def outsider(word: str) -> str:
    """Use a name from outside.

    Args:
        word: any.
    """
    return f"{SECRET} {word}"


def mark(name: str, word: object) -> None:
    with (Path(os.environ[FOLDER]) / name).open("a") as file:
        file.write(f"{word}\n")


def marks(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


def make_with(executor: Any, **options: Any) -> CodeAgent:
    return CodeAgent(
        tools=options.pop("tools", None) or [Note()],  # type: ignore[no-untyped-call]  # of smolagents
        model=agents.ScriptedModel(),
        executor=executor,
        verbosity_level=LogLevel.OFF,
        max_steps=8,
        **options,
    )


def make_remote() -> CodeAgent:
    return smolsessions.options(
        make_with(smolsessions.remote_executor(PipeExecutor)), code_limits={"wall_s": 3}, unsafe_to_repeat=["note"]
    )


def make_lead() -> ToolCallingAgent:
    coder = make_remote()
    coder.name, coder.description = "coder", "Writes code."
    coder.prompt_templates = agents.script_templates("code_agent.yaml")
    return agents.make_scripted(managed_agents=[coder])


def make_chief() -> ToolCallingAgent:
    coder = make_eager()
    coder.name, coder.description = "coder", "Writes code."
    lead = agents.make_scripted(managed_agents=[coder], name="lead", description="Leads.")
    return agents.make_scripted(managed_agents=[lead])


def make_unstartable() -> CodeAgent:
    return make_with(smolsessions.remote_executor(PipeExecutor, fails="no daemon, and token=sk-of-a-vendor is wrong"))


def make_eager() -> CodeAgent:
    return make_with(PipeExecutor([], AgentLogger(level=LogLevel.OFF)))
