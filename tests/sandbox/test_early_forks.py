"""A process for code is forked while the model thinks. Neither a stop nor a death before the first block is noticed."""

import threading
from contextlib import closing

import psutil
import pytest
from smolagents.local_python_executor import ExecutionTimeoutError, InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox.fork_client import ChildProcess, ForkClient
from smolsessions.agents.sandbox.interpreter import DIED, NOT_STARTED, ChildInterpreter
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.values import dumps
from tests.support.waiting import PATIENCE_S, wait_until

AT_ONCE = 2
DEFAULT = CodeLimits()


class HeldClient(ForkClient):
    """Forks nothing, and says so once it is released."""

    def __init__(self) -> None:
        super().__init__([])
        self.begun = threading.Semaphore(0)
        self.released = threading.Event()

    def fork(self) -> ChildProcess:
        self.begun.release()
        self.released.wait(PATIENCE_S)
        raise OSError("held")


class NotingClient(ForkClient):
    """Notes each process that was forked."""

    def __init__(self) -> None:
        super().__init__([])
        self.forked = threading.Semaphore(0)

    def fork(self) -> ChildProcess:
        process = super().fork()
        self.forked.release()
        return process

    def wait_forked(self) -> None:
        assert self.forked.acquire(timeout=PATIENCE_S)


def begin_turn(fork_client: ForkClient, limits: CodeLimits = DEFAULT) -> ChildInterpreter:
    original = LocalPythonExecutor(["*"], timeout_seconds=None)
    interpreter = ChildInterpreter(original, fork_client, limits, (), lambda: None)
    interpreter.send_tools({})
    return interpreter


def test_a_stopped_turn_forks_no_process_that_nothing_waits_for() -> None:
    with closing(HeldClient()) as fork_client:
        for turn in [begin_turn(fork_client) for _ in range(6)]:
            turn.stop()
        last = begin_turn(fork_client)
        fork_client.released.set()
        with pytest.raises(InterpreterError, match=NOT_STARTED):
            last("1")
        forks = 0
        while fork_client.begun.acquire(blocking=False):
            forks += 1
        assert 1 <= forks <= AT_ONCE + 1


def test_a_block_that_waits_for_its_process_while_the_service_ends_gets_an_error_that_says_so() -> None:
    fork_client = HeldClient()
    turns = [begin_turn(fork_client) for _ in range(AT_ONCE + 1)]
    for _ in range(AT_ONCE):
        assert fork_client.begun.acquire(timeout=PATIENCE_S)
    fork_client.close()
    with pytest.raises(InterpreterError, match=NOT_STARTED):
        turns[-1]("1")
    fork_client.released.set()


def test_a_process_that_no_block_used_ends_with_its_turn() -> None:
    with closing(NotingClient()) as fork_client:
        before = psutil.Process().children()
        turn = begin_turn(fork_client)
        fork_client.wait_forked()
        (server,) = [process for process in psutil.Process().children() if process not in before]
        wait_until(lambda: len(server.children()) == 1)
        turn.stop()
        wait_until(lambda: not server.children())


@pytest.mark.parametrize("what", ["the process", "it and the fork server"])
def test_a_process_that_dies_before_its_first_block_is_replaced(what: str) -> None:
    before = psutil.Process().children()
    with closing(NotingClient()) as fork_client:
        turn = begin_turn(fork_client)
        fork_client.wait_forked()
        (server,) = [process for process in psutil.Process().children() if process not in before]
        (process,) = server.children()
        process.kill()
        process.wait(PATIENCE_S)
        if what != "the process":
            server.kill()
        assert turn("print(1 + 1)").logs == "2\n"
        fork_client.wait_forked()
        turn.stop()


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
