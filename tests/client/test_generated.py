"""Programs around the API play an application: examples in Python, generated clients, and adapters for test suites.

The shape that generators need is checked by tests/web/test_openapi.py in the fast tier.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smolsessions import ApiError
from smolsessions.evaluation import ServiceAdapter, SmolagentsAdapter, ToolCall, TurnFailedError, UnknownHistoryError
from tests.support.agents import make_code, make_scripted
from tests.support.data import data
from tests.support.debian import npm_packages
from tests.support.environments import AGENT_EVAL, GENERATOR, environment
from tests.support.preloaded import PYTHONPATH
from tests.support.proxy import LATER_WORDS, proxy
from tests.support.service import PLAIN, ROOT, Service, run_program
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO, SHOWN

MESSAGE = json.dumps([ECHO, DONE])
OVERRIDES = {f"image/{kind}": "application/octet-stream" for kind in ("png", "jpeg", "gif", "webp")}
EVENTS = (
    "turn.queued,turn.started,step.started,message.delta,tool.call,turn.waiting,input.answered,tool.result,"
    "step.finished,turn.finished"
)
PYTHON = data("generated_client.txt")
TARGET = {
    "target": "es2022",
    "lib": ["es2022", "dom", "dom.asynciterable"],
    "module": "nodenext",
    "types": [],
    "outDir": "out",
}
SETTINGS = {
    "compilerOptions": TARGET | {"strict": True, "noUncheckedIndexedAccess": False},
    "files": ["turn.ts", "node.d.ts"],
}


def run(command: list[str], folder: Path, **variables: str) -> str:
    result = run_program(command, cwd=folder, env=os.environ | variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_played(command: list[str], service: Service, folder: Path, *said: str) -> None:
    """Let a client create, patch, ask, answer, stream, list and fork, also where the service has words of later."""
    variables = {"MESSAGE": MESSAGE, "TEAM": folder.name}
    line = " ".join((said[0], EVENTS, said[1]))
    assert run(command, folder, SERVICE=service.url, **variables) == f"{line}\n"
    with proxy(service.url, words=LATER_WORDS) as address:
        later = run(command, folder, SERVICE=address, **variables | {"TEAM": f"{folder.name} later"})
    for now, then in (("finished d", "adjourned d"), ("tool.result", "tool.rejected"), ("not_found", "moved")):
        line = line.replace(now, then)
    assert later == f"{line}\n"


@deep
def test_a_client_of_openapi_python_client_plays_an_application(service: Service, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", GENERATOR)
    (tmp_path / "generator.json").write_text(json.dumps({"content_type_overrides": OVERRIDES, "post_hooks": []}))
    generator = [python, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    options = ["--path", str(ROOT / "openapi.yaml"), "--config", "generator.json", "--output-path", "generated"]
    run([*generator, *options], tmp_path)
    (tmp_path / "turn.py").write_text(PYTHON)
    mypy = [sys.executable, "-m", "mypy", "--python-executable", python, "--config-file", os.devnull]
    run([*mypy, "--ignore-missing-imports", "--follow-imports=silent", "turn.py"], tmp_path)

    assert_played([python, "turn.py"], service, tmp_path, "finished done ['echo'] ['Blue'] 1", "conversation_not_found")


def test_a_client_of_openapi_typescript_plays_an_application(service: Service, tmp_path: Path) -> None:
    packages = npm_packages()
    (tmp_path / "node_modules").symlink_to(packages)
    files = {
        "package.json": json.dumps({"type": "module"}),
        "tsconfig.json": json.dumps(SETTINGS),
        "node.d.ts": "declare const process: { env: Record<string, string | undefined> };",
        "turn.ts": data("generated_client.ts.txt"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    generator = [str(packages / ".bin" / "openapi-typescript"), str(ROOT / "openapi.yaml"), "-o", "schema.d.ts"]
    run([*generator, "--default-non-nullable=false"], tmp_path)  # a body may leave out fields with a default
    run([str(packages / ".bin" / "tsc")], tmp_path)

    node = [str(shutil.which("node")), "out/turn.js"]
    assert_played(node, service, tmp_path, "finished done echo Blue 1", "conversation_not_found")


@pytest.mark.parametrize(("key", "said"), [("y", "12 * 7 = 84.\n"), ("n", "The person said no.")])
def test_the_example_of_approvals_asks_and_goes_on(key: str, said: str, tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN) as service:
        command = [sys.executable, str(ROOT / "examples/approval.py"), service.url]
        ended, unanswered = (run_program(command, input=typed) for typed in (f"{key}\n", ""))
    assert unanswered.stderr.startswith("\nThe turn waits for an answer: run this in a terminal"), unanswered.stderr
    assert ended.stdout.startswith("calculator with {'expression': '12 * 7'}? [y/n] ")
    assert said in ended.stdout


def test_the_example_of_openai_waits_for_approvals_and_functions(tmp_path: Path) -> None:
    def run(typed: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "examples/openai_sdk.py"), service.url, *words]
        return run_program(command, input=typed)

    with Service(tmp_path, PLAIN) as service:
        left = run("")
        assert left.stdout.startswith("chat: 12 * 7 = 84.\n"), left.stderr
        assert "The response waits for an answer" in left.stderr
        waiting = re.findall(r"(resp_\S+): calculator with ", left.stdout)
        assert run("y\n", *waiting).stdout.endswith("response: 12 * 7 = 84.\n")
        script = json.dumps([{"call": [["where_am_i", {}]]}, SHOWN])
        assert "Linux" in run("y\n", script, "scripted").stdout.partition("response: ")[2]


History = list[dict[str, Any]]
Adapter = Callable[[History], Awaitable[tuple[str, list[str]]]]

SEEN: dict[str, Any] = {"shown": True}


async def say(adapter: Adapter, history: History, *script: dict[str, Any]) -> tuple[str, list[str]]:
    history.append({"role": "user", "content": json.dumps(script)})
    reply, names = await adapter(history)
    history.append({"role": "assistant", "content": reply})
    return reply, names


@pytest.fixture(params=["bare", "service"])
def adapter(request: pytest.FixtureRequest, service: Service) -> Adapter:
    if request.param == "bare":
        return SmolagentsAdapter(make_scripted)
    return ServiceAdapter(service.url, agent="scripted")


async def test_a_history_goes_on_and_names_the_new_calls_alone(adapter: Adapter) -> None:
    history: History = []
    assert await say(adapter, history, ECHO, ECHO, DONE) == ("done", ["echo", "echo"])
    reply, names = await say(adapter, history, SEEN)
    assert (reply.count("Observation"), names) == (2 + 1, [])
    reply, names = await say(adapter, history, ECHO, DONE)
    assert isinstance(names[0], ToolCall)
    assert names[0].args == {"text": "ü"}


async def test_parallel_histories_do_not_mix(adapter: Adapter) -> None:
    async def transcript(calls: int) -> int:
        history: History = []
        await say(adapter, history, *[ECHO] * calls, DONE)
        return (await say(adapter, history, SEEN))[0].count("Observation")

    assert await asyncio.gather(*map(transcript, [1, 2, 3, 4])) == [2, 3, 4, 5]


async def test_a_failed_call_is_named(adapter: Adapter) -> None:
    assert (await say(adapter, [], {"call": [["fail", {"reason": "no luck"}]]}, DONE))[1] == ["fail"]


async def test_an_agent_of_any_class_needs_only_names_of_its_calls() -> None:
    class Agent:
        def __init__(self) -> None:
            self.memory = SimpleNamespace(steps=[])

        def run(self, message: str, *, reset: bool) -> str:
            self.memory.steps.append(SimpleNamespace(tool_calls=[SimpleNamespace(name="look")]))
            return f"{message} {reset}"

    assert await SmolagentsAdapter(Agent)([{"role": "user", "content": "hi"}]) == ("hi True", ["look"])


async def test_a_second_history_closes_the_first_of_a_single_agent() -> None:
    adapter = SmolagentsAdapter(make_scripted(), include_internal_tools=True)
    first: History = []
    second: History = []
    assert (await say(adapter, first, ECHO, DONE))[1] == ["echo", "final_answer"]
    assert "Observation" not in (await say(adapter, second, SEEN))[0]
    with pytest.raises(UnknownHistoryError, match="another one has closed it"):
        await say(adapter, first, DONE)
    assert (await say(adapter, second, DONE))[0] == "done"


async def test_internal_tools_of_code_are_named_if_asked_for() -> None:
    code = {"code": "final_answer(6 * 7)"}
    assert await say(SmolagentsAdapter(make_code), [], code) == ("42", [])
    assert await say(SmolagentsAdapter(make_code, include_internal_tools=True), [], code) == (
        "42",
        ["python_interpreter"],
    )


async def test_calls_are_named_though_a_callback_shortens_the_memory() -> None:
    def keep_the_last_step(_step: Any, agent: Any) -> None:
        del agent.memory.steps[:-1]

    adapter = SmolagentsAdapter(make_scripted(step_callbacks=[keep_the_last_step]), include_internal_tools=True)
    history: History = []
    await say(adapter, history, {"text": "no call"}, DONE)
    assert (await say(adapter, history, DONE))[1] == ["final_answer"]


async def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(TypeError, match="no smolagents agent"):
        SmolagentsAdapter(3)


async def test_a_failed_turn_and_a_refusal_raise_their_codes(service: Service) -> None:
    url = service.url
    with pytest.raises(TurnFailedError, match="model_error") as failed:
        await say(ServiceAdapter(url, agent="scripted"), [], {"raise": "no credit"})
    assert failed.value.code == "model_error"
    with pytest.raises(ApiError) as refused:
        await say(ServiceAdapter(url, agent="nobody"), [], DONE)
    assert refused.value.code == "unknown_agent"


@deep
def test_a_suite_of_pytest_agent_eval_passes(service: Service, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", AGENT_EVAL)
    (tmp_path / "test_suite.py").write_text(data("evaluation_suite.txt"))
    options = ["-p", "no:cacheprovider", "--agent-eval-live", "-o", "asyncio_mode=auto"]
    command = [python, "-m", "pytest", *options, str(tmp_path)]
    run = run_program(command, env={"SERVICE": service.url, "PYTHONPATH": PYTHONPATH, "PATH": ""}, cwd=tmp_path)
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_the_adapters_import_no_smolagents() -> None:
    program = "import sys, smolsessions.evaluation; print('smolagents' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
