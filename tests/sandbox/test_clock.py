"""Times and random numbers that code reads are the same in a replay and in later turns."""

import json
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor

from smolsessions import Client
from smolsessions.agents.run.journal import Journal
from smolsessions.agents.sandbox.channel import MisbehavedError
from smolsessions.agents.sandbox.clock import MAX_READINGS, SECOND, ClockLog
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.interpreter import DIED, ChildInterpreter
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.values import dumps, loads
from smolsessions.core.agent_ports import EventBridge
from smolsessions.core.events import ReplayState
from tests.support import approvals, coders
from tests.support.code_turns import code_script, play_code, printed, shown_outputs, variable_chunks
from tests.support.killed_turns import SETTINGS, KilledTurn, kill_when_blocked
from tests.support.ledgers import Ledger
from tests.support.service import Service, shared_service
from tests.support.store_server import PARTITION, StoreServer
from tests.support.streaming import Event
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, SHOWN, submit_turn, wait_for_end

READ = """
import datetime, time, uuid
def read():
    moments = [datetime.datetime.now(), datetime.datetime.now(tz=datetime.timezone.utc), datetime.datetime.utcnow()]
    moments += [datetime.datetime.today(), datetime.date.today(), time.ctime(), time.asctime(), time.strftime('%c')]
    moments += [tuple(time.localtime()), tuple(time.gmtime()), time.clock_gettime(time.CLOCK_REALTIME)]
    moments += [time.time(), time.time_ns(), time.monotonic(), time.monotonic_ns(), time.perf_counter()]
    moments += [time.perf_counter_ns(), time.process_time(), time.thread_time_ns(), uuid.uuid1()]
    return ' '.join(map(str, moments))
"""


@dataclass
class Killed:
    """Turns whose process was killed in a block, the first one twice."""

    timed: KilledTurn
    untimed: KilledTurn
    journals: list[set[bytes]]
    """The keys in the journals of both at the first kill."""
    killed_at: float
    shown: str
    """Output of the block whose times were sent."""


@pytest.fixture(scope="module")
def killed(outside: StoreServer, folder: Path) -> Iterator[Killed]:
    timed, untimed = Ledger.at(folder / "timed.ledger", 3, 5), Ledger.at(folder / "untimed.ledger", 3)
    block = f"{READ}since = time.time(), time.monotonic()\n"
    block += "".join(f"note(read(), {str(timed.path)!r})\n" for _ in range(3))
    block += "print(*since, time.time(), time.monotonic())"
    other = f"import time\nnote('a', {str(untimed.path)!r})\nnote('b', {str(untimed.path)!r})"
    turns = [KilledTurn(timed, "writer", [*code_script(block), DONE])]
    turns.append(KilledTurn(untimed, "writer", [*code_script(other), DONE]))
    with Service(folder / "service", SETTINGS | outside.settings) as service:
        for each in turns:
            each.turn = submit_turn(service, *each.script, agent=each.agent)
        kill_when_blocked(service, turns)
        killed_at, journals, raw = time.time(), list[set[bytes]](), outside.client()
        for each in turns:
            key = f"{PARTITION}:journal:local/{each.turn['conversation_id']}:{each.turn['turn']}"
            journals.append(set(raw.hgetall(key)))
        service.start()
        kill_when_blocked(service, turns[:1])
        service.start()
        for each in turns:
            each.turn = wait_for_end(service, each.turn)
        yield Killed(turns[0], turns[1], journals, killed_at, printed(shown_outputs(service, turns[0].turn)[0]))


def test_a_block_whose_process_was_killed_asks_for_the_same_times(killed: Killed) -> None:
    turn = killed.timed.turn
    assert (turn["status"], turn["attempts"]) == ("finished", 3), turn["error"]
    assert [call["repeated"] for call in turn["tool_calls"]] == [False, True, True]
    noted = [call for call in killed.timed.ledger.calls if call.startswith("note")]
    assert sorted(Counter(noted).values()) == [1, 2, 2]


def test_the_real_clocks_go_on_after_the_recorded_times(killed: Killed) -> None:
    since, monotonic_since, now, monotonic_now = map(float, killed.shown.split())
    assert since < killed.killed_at < now < time.time()
    assert now - since == pytest.approx(monotonic_now - monotonic_since, abs=0.5)


def test_only_blocks_that_read_a_clock_write_to_the_journal(killed: Killed) -> None:
    timed, untimed = ([name for name in journal if b"clock" in name] for journal in killed.journals)
    assert len(timed) == 2
    assert not untimed
    assert killed.untimed.turn["status"] == "finished"


def test_a_block_that_waits_for_a_person_shows_and_sends_the_same_times(tmp_path: Path) -> None:
    outbox, shown = tmp_path / "sent", []
    block = "import datetime\nfor to in ('ada', 'bob'):\n    send_email(to, str(datetime.datetime.now()))"
    settings = {"AGENTS": "mailer=tests.support.approvals:make_code_mailer", "DEMO_AGENTS": "0"}
    with Service(tmp_path / "service", settings, {approvals.OUTBOX: str(outbox)}) as service:
        with Client(service.url) as client:
            turn = client.turn(json.dumps([*code_script(block), DONE]), agent="mailer")
        for _ in range(2):
            (request,) = turn.requests
            shown.append("{to}: {text}".format(**request.arguments or {}))
            if len(shown) == 1:
                service.kill()
                service.start()
            with Client(service.url) as client:
                turn = client.answer(turn, request.request_id, "approve")
    assert turn.status == "finished", turn.error
    assert outbox.read_text().splitlines() == shown


@dataclass
class Effects:
    effects: dict[str, bytes] = field(default_factory=dict)

    def emit(self, _event: Any, _step: Any, effect: tuple[str, bytes]) -> None:
        self.effects.update([effect])


class Blocks:
    """Runs blocks in real processes, each attempt in a new one, with a real journal."""

    def __init__(self, fork_client: ForkClient) -> None:
        self.bridge = Effects()
        self.sent: list[Any] = []
        self._fork_client = fork_client
        self.interpreter: ChildInterpreter | None = None

    def run(self, code: str, *imports: str) -> str:
        """Run a block as a new attempt would. Returns its output."""
        self.stop()
        replay = ReplayState(self.bridge.effects, frozenset(), (), (), {})
        original = LocalPythonExecutor([*imports], timeout_seconds=None)
        self.interpreter = ChildInterpreter(original, self._fork_client, CodeLimits(), (), lambda: None)
        self.interpreter.send_tools({"send": self.sent.append})
        self.interpreter.clock = ClockLog(Journal(cast("EventBridge", self.bridge), replay, 2), "1.1")
        return self.interpreter(code).logs

    def stop(self) -> None:
        if self.interpreter:
            self.interpreter.stop()


@pytest.fixture(scope="module")
def fork_client() -> Iterator[ForkClient]:
    with closing(ForkClient([])) as fork_client:
        yield fork_client


@pytest.fixture
def blocks(fork_client: ForkClient) -> Iterator[Blocks]:
    blocks = Blocks(fork_client)
    yield blocks
    blocks.stop()


def test_times_are_plain_values_of_the_real_clock(blocks: Blocks) -> None:
    code = """
import datetime, time
class Own(datetime.datetime):
    pass
end = time.time() + 0.05
while time.time() < end:
    pass
now, clock = datetime.datetime.now, time.time
moment, day = now(), datetime.date.today()
print(type(moment) is datetime.datetime, isinstance(day, datetime.date), type(Own.now()) is Own)
print(type(datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.now(datetime.timezone.utc)))
send(moment)
"""
    assert blocks.run(code).split("\n")[:2] == ["True True True", "<class 'datetime.timedelta'>"]
    (moment,) = blocks.sent
    assert type(moment) is datetime
    assert 0 <= (datetime.now(UTC) - moment.astimezone()).total_seconds() < 30


def test_functions_that_read_a_clock_are_variables_like_others(blocks: Blocks) -> None:
    blocks.run("import datetime, time\nnow, clock, moment = datetime.datetime.now, time.time, datetime.datetime.now()")
    assert blocks.interpreter
    variables = blocks.interpreter.variables
    assert not blocks.interpreter.dropped
    blocks.stop()
    blocks.interpreter.restore(variables, "")
    shown = blocks.interpreter("print(0 <= clock() - moment.timestamp() < 30, clock() <= now().timestamp())").logs
    assert shown == "True True\n"


def test_times_that_an_import_or_an_extension_reads_do_not_disturb_a_replay(blocks: Blocks) -> None:
    code = "import time\nimport pandas as pd\nsend([time.time(), str(pd.Timestamp.now()), time.localtime()[:]])"
    blocks.run("import pandas", "pandas")  # which reads the year, and only in the block that imports it first
    assert blocks.interpreter
    blocks.interpreter(code)
    blocks.run(code, "pandas")
    assert blocks.sent[0] == blocks.sent[1]


def test_readings_of_a_loop_are_bounded(blocks: Blocks) -> None:
    code = f"import time\nread=[time.time_ns() for _ in range({MAX_READINGS + 100})]\nsend(read)\nsend(time.time_ns())"
    blocks.run(code)
    (entry,) = blocks.bridge.effects.values()
    assert len(entry) < MAX_READINGS * 8 + 200
    blocks.run(code)
    first, _, again, _ = blocks.sent
    assert first[:MAX_READINGS] == again[:MAX_READINGS]
    assert max(first) < min(again[MAX_READINGS:])


@pytest.mark.parametrize("hours", mostly_deep([-10, 10], fast=[-10]))
def test_monotonic_clocks_go_on_on_a_machine_with_another_uptime(blocks: Blocks, hours: int) -> None:
    code = "import time\nbegan = time.monotonic()\nsend(1)\ntime.sleep(0.01)\nprint(time.monotonic() - began)"
    blocks.run(code)
    ((name, entry),) = blocks.bridge.effects.items()
    boot, readings = loads(entry)
    (reading,) = struct.unpack("<q", readings["monotonic"])
    other_boot, other = boot - hours * 3600 * SECOND, reading + hours * 3600 * SECOND
    blocks.bridge.effects[name] = dumps([other_boot, {"monotonic": struct.pack("<q", other)}])
    assert 0.01 < float(blocks.run(code)) < 30


def test_the_processor_time_of_another_process_does_not_go_back(blocks: Blocks) -> None:
    code = "import time\nbegan = time.process_time()\nsend(1)\nprint(time.process_time() >= began)"
    blocks.run(code)
    ((name, entry),) = blocks.bridge.effects.items()
    blocks.bridge.effects[name] = dumps([loads(entry)[0], {"process_time": struct.pack("<q", 3600 * SECOND)}])
    assert blocks.run(code).strip() == "True"


FORGED: list[Any] = [
    None,
    [],
    {"time": "text"},
    {"time": b""},
    {"time": b"1234567"},
    {"sundial": b"12345678"},
    {b"time": b"12345678"},
    {"time": b"12345678" * (MAX_READINGS + 1)},
    {"time": b"12345678" * MAX_READINGS, "monotonic": b"12345678"},
]


def test_forged_readings_are_refused() -> None:
    bridge = Effects()
    log = ClockLog(Journal(cast("EventBridge", bridge), None, 1), "1.1")
    for forged in FORGED:
        with pytest.raises(MisbehavedError):
            log.add(forged)
        assert not bridge.effects, forged


def test_a_process_that_forges_readings_is_ended(blocks: Blocks) -> None:
    code = "import smolsessions.agents.sandbox.clock as clock\nclock.CLOCKS.take = lambda: {'time': b'1'}\nsend(1)"
    with pytest.raises(InterpreterError, match=DIED):
        blocks.run(code, "*")
    assert not blocks.sent
    assert not blocks.bridge.effects


DRAWN = "print(random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal())"
SEEDED = [
    [*code_script("import random\nimport numpy as np", f"random.seed(5)\nnp.random.seed(3)\n{DRAWN}", DRAWN), DONE],
    code_script(DRAWN, f"{DRAWN}\nfinal_answer('drawn')"),
    code_script("print(sum([random.random() for i in range(700)]), np.random.rand(700).sum())\nfinal_answer('many')"),
    code_script("saved = random.getstate()", f"random.seed('another')\n{DRAWN}\nmissing"),
    code_script(DRAWN, f"random.setstate(saved)\n{DRAWN}\nfinal_answer('back')"),
    [*code_script("own = np.random.default_rng(2)\nprint(own.random())", "print(own.random(),random.random())"), SHOWN],
]
SKIPPED: Event = {"text": "never played: an error with logs counts as two answers"}
BROKEN = [*code_script("def broken(:"), SKIPPED]
TASK = json.dumps(code_script("print('by the helper')\nfinal_answer(1)"))
BROKEN_TASK = json.dumps([*BROKEN, SHOWN])
LOGGED = [
    [*code_script("print('first')"), *BROKEN, *code_script("print('last')\nfinal_answer('done')")],
    [*BROKEN, *BROKEN, *code_script("1 + 1", "def broken(:", "print('late')\n1 / 0"), SKIPPED, DONE],
    [*code_script("def broken(:", f"print('outer')\nfirst = helper({TASK!r})"), {"text": "no code"}],
    [*BROKEN, *code_script(f"final_answer(helper({BROKEN_TASK!r}))")],
    [*code_script("def broken(:"), SHOWN],
]
cold = shared_service({"WARM_SESSIONS": "0"}, on_outside=True)


@pytest.fixture(params=mostly_deep(["warm", "cold"], fast=["cold"]))
def either(request: pytest.FixtureRequest, cold: Service) -> Service:
    service: Service = request.getfixturevalue("service") if request.param == "warm" else cold
    return service


@pytest.mark.parametrize("script", [SEEDED, LOGGED], ids=["seeds", "logs"])
def test_prompts_equal_those_of_one_agent(either: Service, script: list[list[Event]]) -> None:
    bare = coders.make_whole()
    turn: Event | None = None
    for number, entries in enumerate(script):
        expected = str(bare.run(json.dumps(entries), reset=False, max_steps=5))
        turn = (
            either.follow_up(turn, *entries, max_steps=5) if turn else either.play(*entries, agent="whole", max_steps=5)
        )
        assert turn["reply"] == expected, number


def test_logs_of_code_in_a_thread_equal_those_of_one_agent(cold: Service) -> None:
    bare = coders.make_coder()
    bare.run(json.dumps(LOGGED[0]), reset=False)
    turn = cold.follow_up(cold.play(*LOGGED[0], agent="threaded"), *BROKEN, SHOWN)
    assert turn["reply"] == bare.run(json.dumps([*BROKEN, SHOWN]), reset=False)


def test_states_of_unseeded_generators_are_not_stored(cold: Service, outside: StoreServer) -> None:
    draws = "import random\nimport numpy as np\nn = random.random() + random.gauss(0, 1) + np.random.rand()"
    drawn, _ = play_code(cold, draws, agent="whole")
    seeded, _ = play_code(cold, draws, "random.seed(5)", agent="whole")
    raw = outside.client()
    assert len(variable_chunks(raw, seeded)) == len(variable_chunks(raw, drawn)) + 1
