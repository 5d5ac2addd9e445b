"""The process for code ends with its turn, is ended for what it forges, and spare ones wait for later turns."""

from contextlib import closing

import psutil
import pytest
from smolagents.local_python_executor import ExecutionTimeoutError, InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox.fork_client import SPARES, ForkClient
from smolsessions.agents.sandbox.interpreter import DIED, NOT_STARTED, ChildInterpreter
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.values import dumps
from tests.support.waiting import PATIENCE_S, wait_until

DEFAULT = CodeLimits()


def begin_turn(fork_client: ForkClient, limits: CodeLimits = DEFAULT) -> ChildInterpreter:
    original = LocalPythonExecutor(["*"], timeout_seconds=None)
    interpreter = ChildInterpreter(original, fork_client, limits, (), lambda: None)
    interpreter.send_tools({})
    return interpreter


def test_a_block_that_needs_a_process_while_the_service_ends_gets_an_error_that_says_so() -> None:
    fork_client = ForkClient([])
    turn = begin_turn(fork_client)
    fork_client.close()
    with pytest.raises(InterpreterError, match=NOT_STARTED):
        turn("1")


def test_a_process_ends_with_its_turn_and_a_killed_fork_server_is_replaced() -> None:
    with closing(ForkClient([])) as fork_client:
        before = psutil.Process().children()
        turn = begin_turn(fork_client)
        assert turn("print(1 + 1)").logs == "2\n"
        (server,) = [process for process in psutil.Process().children() if process not in before]
        (process,) = server.children()
        turn.stop()
        wait_until(lambda: process not in server.children())
        server.kill()
        server.wait(PATIENCE_S)
        assert turn("print(2 + 2)").logs == "4\n"
        turn.stop()


@pytest.mark.parametrize("what", ["nothing", "a process", "the fork server"])
def test_spare_processes_serve_later_turns_and_are_replaced_if_they_die(what: str) -> None:
    with closing(ForkClient([])) as fork_client:
        before = psutil.Process().children()
        first = begin_turn(fork_client)
        first("x = 1")
        (server,) = [process for process in psutil.Process().children() if process not in before]
        (used,) = server.children()
        first.stop()
        wait_until(lambda: len(set(server.children()) - {used}) == SPARES)
        spares = {process for process in server.children() if process != used}
        wait_until(lambda: not used.is_running())
        if what != "nothing":
            killed = min(spares, key=lambda process: process.pid) if what == "a process" else server
            killed.kill()
            killed.wait(PATIENCE_S)
        later = begin_turn(fork_client)
        assert later("print(1 + 1)").logs == "2\n"
        if what != "the fork server":
            assert set(server.children()) <= spares
        later.stop()
        wait_until(lambda: fork_client.spares == SPARES)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (CodeLimits(cpu_s=0.25, wall_s=20), "while True:\n    pass"),
        (CodeLimits(cpu_s=20, wall_s=0.25), "import time\ntime.sleep(20)"),
    ],
)
def test_each_limit_of_time_ends_a_block_alone(limits: CodeLimits, code: str) -> None:
    with closing(ForkClient([])) as fork_client:
        turn = begin_turn(fork_client, limits)
        with pytest.raises(ExecutionTimeoutError, match=r"maximum execution time of 0\.25 seconds"):
            turn(code)


FORGED = [
    f"'inputs': {{'unknown': {dumps(1)!r}}}",
    "'changed': {'../x': b''}",
    "'changed': {'0123456789abcdef': b'x' * 1_500_000}",
    "'changed': {'0123456789abcdef': 'no bytes'}",
    "'removed': [1]",
    "'output': b'junk'",
    "'final': 1",
    "'call': 'nosuch', 'arguments': b''",
]


def test_a_process_that_forges_its_result_is_ended_and_nothing_of_it_is_kept() -> None:
    with closing(ForkClient([])) as fork_client:
        for forged in FORGED:
            turn = begin_turn(fork_client, CodeLimits(variables_mb=0.5, output_mb=2))
            saved = f"{{'changed': {{}}, 'removed': [], 'inputs': {{}}, 'full': False, {forged}}}"
            with pytest.raises(InterpreterError, match=DIED):
                turn(f"import tests.support.walks as walks\nwalks.forge({saved})")
            assert turn.variables == {}, forged
            turn.stop()
