"""Processes of model-written code: their ends, their spares, and their memory, bounded for all and for an owner."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from smolagents.local_python_executor import ExecutionTimeoutError, InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox.fork_client import SPARES, ForkClient
from smolsessions.agents.sandbox.interpreter import DIED, NOT_STARTED, ChildInterpreter
from smolsessions.agents.sandbox.limits import MB, CodeLimits
from smolsessions.agents.sandbox.memory_budget import MemoryBudget, NoMemoryLeftError, memory_mb
from smolsessions.agents.values import dumps
from smolsessions.caller import CALLER, Caller
from smolsessions.core.records import LOCAL, Owner
from tests.support.owners import ADA, BOB, owner_line, request_as
from tests.support.service import PATIENCE_S, PLAIN, Gate, Service, wait_until, write_private
from tests.support.turns import DONE, cancel, submit_turn, wait_for_end

ADAS, BOBS = Owner("ada"), Owner("bob")
BOMB = "x = 'y' * 150_000_000\nprint(gate())\nx = None"


def beginner(budget: MemoryBudget, order: list[str]) -> Callable[[str, Owner, int], threading.Thread]:
    """Return a function that takes memory in a thread, and adds the name to `order` once it is there."""

    def begin(name: str, owner: Owner, mb: int) -> threading.Thread:
        def take() -> None:
            budget.take(owner, mb, lambda: None)
            order.append(name)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        return thread

    return begin


def test_an_owner_waits_for_its_own_blocks_alone() -> None:
    budget, order = MemoryBudget(400, 0.5), list[str]()
    begin = beginner(budget, order)
    begin("ada", ADAS, 150).join(PATIENCE_S)
    waiting = begin("ada again", ADAS, 150)
    wait_until(lambda: budget.waiting == 1)
    begin("bob", BOBS, 200).join(PATIENCE_S)
    last = begin("local", LOCAL, 100)
    wait_until(lambda: budget.waiting == 2)
    assert order == ["ada", "bob"]
    budget.give_back(BOBS, 200)
    last.join(PATIENCE_S)
    assert order == ["ada", "bob", "local"]
    budget.give_back(ADAS, 150)
    waiting.join(PATIENCE_S)
    assert order[3:] == ["ada again"]


def test_the_limits_of_a_control_group_and_of_those_above_it_count(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    for line, limit in (("0::/pods/one", "pods/memory.max"), ("4:memory:/one", "memory/one/memory.limit_in_bytes")):
        (tmp_path / "proc/self/cgroup").write_text(f"8:pids:/\n{line}\n")
        path = tmp_path / "sys/fs/cgroup" / limit
        path.parent.mkdir(parents=True)
        path.write_text(f"{64 * MB}\n")
        assert memory_mb(tmp_path) == 64


def test_an_idle_process_ends_only_if_that_suffices() -> None:
    budget, looked, ended = MemoryBudget(100), threading.Event(), threading.Event()

    def end() -> None:
        ended.set()
        budget.give_back(BOBS, 30)

    budget.take(ADAS, 60, looked.set)
    budget.take(BOBS, 30, looked.set)
    budget.set_idle(BOBS, 30, end)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(budget.take, Owner("cleo"), 100, looked.set)
        assert looked.wait(PATIENCE_S)
        assert not ended.is_set()
        budget.give_back(ADAS, 60)
        taken.result(PATIENCE_S)
    assert ended.is_set()


def test_a_block_that_waits_ends_with_its_turn_or_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = MemoryBudget(100)
    budget.take(LOCAL, 100, lambda: None)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        budget.take(LOCAL, 1, stop)
    monkeypatch.setattr("smolsessions.agents.sandbox.memory_budget.MOST_WAIT_S", 0.0)
    calls = [1] * 5  # then it fails
    with pytest.raises(NoMemoryLeftError):
        budget.take(LOCAL, 1, lambda: calls.remove(1))
    assert budget.waiting == 0


def interpreter(client: ForkClient, gate: Callable[[], str]) -> ChildInterpreter:
    made = ChildInterpreter(LocalPythonExecutor(["*"]), client, CodeLimits(memory_mb=300), (), lambda: None)
    made.send_tools({"gate": gate})
    return made


def test_blocks_wait_for_the_memory_of_others_and_what_a_process_keeps_counts() -> None:
    reached, opened = threading.Semaphore(0), threading.Event()

    def gate() -> str:
        reached.release()
        opened.wait(PATIENCE_S)
        return "open"

    with closing(ForkClient([], memory=MemoryBudget(500))) as client, ThreadPoolExecutor() as threads:
        one, two = interpreter(client, gate), interpreter(client, gate)
        first = threads.submit(one, BOMB)
        assert reached.acquire(timeout=PATIENCE_S)
        second = threads.submit(two, BOMB)
        wait_until(lambda: client.memory.waiting == 1)
        opened.set()
        assert [each.result(PATIENCE_S).logs.strip() for each in (first, second)] == ["open", "open"]
        one.stop()
        two.stop()
        client.memory.take(LOCAL, 500, lambda: None)  # all was given back


def run_as(owner: Owner, code: ChildInterpreter, block: str) -> str:
    token = CALLER.set(Caller(owner, "c", {}, dict))
    try:
        return code(block).logs.strip()
    finally:
        CALLER.reset(token)


def test_an_idle_process_ends_if_another_owners_block_needs_its_memory_and_its_variables_last() -> None:
    with closing(ForkClient([], memory=MemoryBudget(310))) as client:
        one, two = interpreter(client, str), interpreter(client, str)
        run_as(ADAS, one, "kept = 'y' * 30_000_000")
        assert run_as(BOBS, two, "kept = 'z' * 30_000_000\nprint(1)") == "1"
        assert run_as(ADAS, one, "print(kept[:1], len(kept))") == "y 30000000"
        assert run_as(BOBS, two, "print(kept[:1])") == "z"
        one.stop()
        two.stop()
        client.memory.take(LOCAL, 310, lambda: None)  # all was given back


def test_a_stop_ends_a_process_that_is_idle_and_gives_its_memory_back() -> None:
    before = psutil.Process().children()
    with closing(ForkClient([], memory=MemoryBudget(300))) as client:
        code = interpreter(client, str)
        code("kept = 'y' * 30_000_000")
        (server,) = [process for process in psutil.Process().children() if process not in before]
        (process, *_) = server.children()
        code.end_on_stop()
        client.memory.take(LOCAL, 300, lambda: None)  # all was given back
        wait_until(lambda: not process.is_running())


def test_owners_take_turns_for_the_memory_of_their_code() -> None:
    reached, opened, order = threading.Semaphore(0), threading.Event(), list[Owner]()

    def gate() -> str:
        reached.release()
        opened.wait(PATIENCE_S)
        return "open"

    def play(owner: Owner, code: ChildInterpreter) -> None:
        run_as(owner, code, "gate()")
        order.append(owner)
        code.stop()

    with closing(ForkClient([], memory=MemoryBudget(300))) as client, ThreadPoolExecutor(9) as threads:
        turns = [threads.submit(play, ADAS, interpreter(client, gate))]
        assert reached.acquire(timeout=PATIENCE_S)
        for number, owner in enumerate([*[ADAS] * 4, *[BOBS] * 2, Owner("cleo")], 1):
            turns.append(threads.submit(play, owner, interpreter(client, gate)))
            wait_until(lambda number=number: client.memory.waiting == number)  # type: ignore[misc]
        opened.set()
        for turn in turns:
            turn.result(PATIENCE_S)
    assert order[:6] == [ADAS, BOBS, "cleo", ADAS, BOBS, ADAS]


def test_an_agents_block_within_a_block_does_not_wait_for_it() -> None:
    with closing(ForkClient([], memory=MemoryBudget(300))) as client:
        inner = interpreter(client, str)
        outer = interpreter(client, lambda: str(inner("6 * 7").output))
        assert outer("print(gate())").logs.strip() == "42"
        for each in (inner, outer):
            each.stop()


def test_a_service_whose_code_wants_more_than_there_is_stays_within_its_budget(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB))
    settings = PLAIN | {"AGENTS": "small=tests.support.coders:make_small", "CODE_MEMORY_MB": "400", "THREADS": "8"}
    with Service(tmp_path / "service", settings | {"API_KEYS_FILE": str(keys)}) as service:
        root = psutil.Process(service.process.pid)
        block = "x = 'y' * 150_000_000\ny = sum(range(3_000_000))\nx = None"
        body: dict[str, Any] = {"agent": "small", "message": json.dumps([{"code": block}, {"say": "done"}])}
        with ThreadPoolExecutor(8) as threads:
            turns = [threads.submit(request_as, service, key, "POST", "/turn", body) for key in (ADA, BOB) * 4]
            peak = 0
            while not all(turn.done() for turn in turns):
                peak = max(peak, sum(map(_resident, root.children(recursive=True))))
        assert [turn.result().json()["reply"] for turn in turns] == ["done"] * 8
        assert 150_000_000 < peak < 600_000_000


def test_the_code_of_a_stopped_turn_ends_although_its_tool_does_not(tmp_path: Path, gate: Gate) -> None:
    settings = PLAIN | {"AGENTS": "coder=tests.support.coders:make_coder", "CODE_MEMORY_MB": "600"}
    with Service(tmp_path / "service", settings) as service:
        turn = submit_turn(service, {"code": f"x = 1\nwait_for({str(gate.path)!r})"}, DONE, agent="coder")
        gate.reached()
        cancel(service, turn)
        assert wait_for_end(service, turn)["status"] == "cancelled"
        later = service.play({"code": "print(0)"}, DONE, agent="coder")
        assert [step["error"] for step in service.steps(later) if step["type"] == "action"] == [None, None]
        gate.open()


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss) if process.memory_info().rss > 100_000_000 else 0
    except psutil.NoSuchProcess:
        return 0


def test_a_block_gets_no_more_than_the_budget_has() -> None:
    with closing(ForkClient([], memory=MemoryBudget(100))) as client:
        made = interpreter(client, str)
        with pytest.raises(InterpreterError, match="MemoryError"):
            made("x = 'y' * 150_000_000")
        made.stop()


def test_an_owner_whose_share_is_small_runs_one_block_after_the_other_in_one_process() -> None:
    with closing(ForkClient([], memory=MemoryBudget(500, 0.5))) as client:
        only = interpreter(client, str)
        token = CALLER.set(Caller(ADAS, "c", {}, dict))
        try:
            only("kept = 'y' * 50_000_000")
            assert only("print(len(kept))").logs.strip() == "50000000"
        finally:
            CALLER.reset(token)
        only.stop()


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
    "'printed': 7",
    "'printed': 'x' * 100_000",
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


def test_a_block_may_not_call_tools_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smolsessions.agents.sandbox.interpreter.MAX_CALLS", 3)
    with closing(ForkClient([])) as client:
        made = interpreter(client, str)
        assert made("print([gate() for _ in range(3)])").logs == "['', '', '']\n"
        with pytest.raises(InterpreterError, match="a block may call tools"):
            made("[gate() for _ in range(4)]")
        made.stop()
