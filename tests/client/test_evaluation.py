"""Adapters for test suites: histories on bare agents and on a service, alone and in pytest-agent-eval."""

import asyncio
import json
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
from tests.support.environments import AGENT_EVAL, environment
from tests.support.preloaded import PYTHONPATH
from tests.support.service import Service, run_program
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO

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
    failing = {"call": [["fail", {"reason": "no luck"}]]}
    assert (await say(adapter, [], failing, DONE))[1] == ["fail"]


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
    variables = {"SERVICE": service.url, "PYTHONPATH": PYTHONPATH, "PATH": ""}
    run = run_program(command, env=variables, cwd=tmp_path)
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_the_adapters_import_no_smolagents() -> None:
    program = "import sys, smolsessions.evaluation; print('smolagents' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
