"""Model-written code in its own process behaves as in smolagents' own interpreter, is limited, and dies alone."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from smolsessions.agents.factories import check_factory
from smolsessions.core.errors import StartError
from smolsessions.store.seal import new_key
from tests.support import coders
from tests.support.code_turns import (
    BUSY,
    code_processes,
    code_script,
    fork_servers,
    play_code,
    printed,
    shown_outputs,
    wait_gone,
    wait_until_no_code_runs,
)
from tests.support.data import data, named, table
from tests.support.service import Gate, Service, shared_service, wait_until
from tests.support.store_server import running_store
from tests.support.streaming import Event, Stream, log_of, posting, watching
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, PROMPT, cancel, submit_turn, wait_for_end

DIED = "The process that ran the code ended"
BLOCKS = {
    "a loop": BUSY,
    "a pattern": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "a power": "x = 7**40_000_000",
    "a loop that minds no exception": "while True:\n    try:\n        x = 1\n    finally:\n        continue",
    "a sleep": "import time\ntime.sleep(600)",
    "a loop of tools": "while True:\n    try:\n        compute(seconds=0.02)\n    finally:\n        continue",
    "a managed agent's loop": f"helper(task={json.dumps([{'code': BUSY}])!r})",
    "a loop while names are looked up": (
        "class Slow:\n    def __hash__(self):\n        while True:\n            sum(range(10_000))\nx = {Slow(): 1}"
    ),
}
KILLERS: Any = table("code killers")
# A service with secrets, whose processes a test may kill.
alone = shared_service(
    lambda folder: Service(folder, {"SEAL_KEYS": new_key()}, {"A_MODELS_KEY": "sk-of-the-model"}, forked=False)
)
TALK: list[tuple[list[Event], dict[str, Any]]] = [
    (code_script(*turn["blocks"]), turn.get("given", {})) for turn in yaml.safe_load(data("talk.yaml"))
]


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, list[str]]]:
    """Return the answers of one agent with smolagents' own interpreter, and the texts that its model reads."""
    agent = coders.make_whole()
    found = []
    for script, given in TALK:
        before = len(agent.memory.steps)
        answer = agent.run(json.dumps([*script, PROMPT]), reset=False, **deepcopy(given))
        steps: list[Any] = agent.memory.steps[before + 1 :]
        texts = [step.error.message if step.error else step.observations for step in steps]
        found.append((str(answer), texts[:-1]))
    return found


def test_turns_in_alternating_processes_equal_one_agents(tmp_path: Path, expected: list[tuple[str, list[str]]]) -> None:
    with running_store(tmp_path / "store") as server:
        settings = server.settings | {"WARM_SESSIONS": "0"}
        with Service(tmp_path / "a", settings) as one, Service(tmp_path / "b", settings) as other:
            check_talk([one, other], expected)


def test_turns_of_a_warm_session_equal_one_agents(service: Service, expected: list[tuple[str, list[str]]]) -> None:
    check_talk([service], expected)


def check_talk(services: list[Service], expected: list[tuple[str, list[str]]]) -> None:
    conversation: dict[str, Any] = {}
    for number, ((script, body), (answer, texts)) in enumerate(zip(TALK, expected, strict=True)):
        player = services[number % len(services)]
        turn = player.play(*script, PROMPT, agent="whole", **conversation, **body)
        conversation = {"conversation_id": turn["conversation_id"]}
        assert shown_outputs(player, turn) == texts, number
        assert (turn["reply"], turn["dropped_variables"]) == (answer, []), number


def test_numpy_computes_in_the_process(service: Service) -> None:
    block = "import numpy as np\na = np.ones((700, 700))\nprint(a.dot(a).sum())"
    turn = wait_for_end(service, submit_turn(service, *code_script(block), DONE, agent="whole", deadline_s=100))
    assert [printed(text) for text in shown_outputs(service, turn)] == ["343000000.0"]


@contextmanager
def busy(service: Service, what: str) -> Iterator[Stream]:
    """Play a turn whose second block does not end, and yield its stream once that block runs."""
    with posting(service, *code_script("kept = 1", BLOCKS[what], "kept = 2"), agent="whole") as stream:
        stream.until("step.finished")
        stream.until("tool.call", name="python_interpreter")
        wait_until(lambda: code_processes(service))
        yield stream


@pytest.mark.parametrize("what", mostly_deep(BLOCKS, fast=["a loop", "a pattern", "a loop of tools"]))
def test_a_stop_ends_a_block_whatever_it_does(service: Service, what: str) -> None:
    with busy(service, what) as stream:
        assert cancel(service, stream.seen[0].data).status_code in {200, 202}
        turn = stream.rest()[-1].data["result"]
    check_ended(service, turn, "cancelled")


def check_ended(service: Service, turn: Event, status: str) -> Event:
    """Check that no code runs any more, and that the variables of the first block are kept. Return the turn."""
    ended = wait_for_end(service, turn)
    assert (ended["status"], ended["step_count"]) == (status, 1)
    wait_until_no_code_runs(service)
    later = service.follow_up(ended, *code_script("print(kept)"), DONE)
    assert [printed(text) for text in shown_outputs(service, later)] == ["1"]
    return ended


def test_a_block_that_waits_in_a_tool_stops_and_its_process_ends(service: Service, gate: Gate) -> None:
    turn = submit_turn(service, *code_script("kept = 1", f"wait_for(path={str(gate.path)!r})"), agent="coder")
    gate.reached()
    assert cancel(service, turn).status_code in {200, 202}
    wait_for_end(service, turn)
    gate.open()
    check_ended(service, turn, "cancelled")


def test_a_block_beyond_its_time_is_an_error_in_smolagents_words_and_the_turn_goes_on(service: Service) -> None:
    turn, (begun, busy, slow, after) = play_code(
        service, "kept = 1", f"kept = 2\n{BUSY}", "import time\ntime.sleep(60)", "print(kept)", agent="hasty"
    )
    assert "Execution logs" in begun
    assert re.fullmatch("Code execution exceeded the maximum execution time of (0.5|1) seconds", busy)
    assert slow == "Code execution exceeded the maximum execution time of 1 seconds"
    assert printed(after) == "1"
    assert turn["status"] == "finished"


def test_the_prints_of_a_block_beyond_its_time_are_shown(service: Service) -> None:
    many = "for n in range(1000):\n    print(n, '\\ud83d')\n"
    beyond = f"print('so')\nprint('far')\n{BUSY}", f"{many}{BUSY}", f"print('x' * 60_000)\n{BUSY}"
    blocks = [each for block in beyond for each in (block, "'the model counts an error and an output as two steps'")]
    turn, texts = play_code(service, *blocks, "print('later')", agent="hasty")
    few, lines, long, _ = [step["observations"] for step in service.steps(turn) if step["type"] == "action"][:4]
    assert few == "Execution logs:\nso\nfar\n"
    assert lines.startswith("Execution logs:\n0 \ufffd\n1 \ufffd\n")
    assert len(lines.splitlines()) > 800
    assert 50_000 <= len(long) < 51_000
    assert printed(texts[-1]) == "later"


def test_code_cannot_raise_the_steps_of_a_managed_agent(service: Service) -> None:
    _, texts = play_code(service, "helper('x', max_steps=100)", "helper(task='x', stream=True)", agent="whole")
    assert "helper takes a task and additional_args, and no max_steps" in texts[0]
    assert "and no stream" in texts[1]


def test_the_time_of_a_block_excludes_its_tools(service: Service) -> None:
    _, (first, second) = play_code(service, "print(compute(seconds=1.2))", "print(compute(seconds=0.6))", agent="hasty")
    assert [printed(first), printed(second)] == ["computed", "computed"]


def test_too_much_memory_is_an_error_and_the_next_block_has_room(service: Service) -> None:
    hogs = ["hog = 'x' * 10**10", "hog = []\nfor i in range(10**7):\n    hog.append('x' * 10_000 + str(i))"]
    for hog in (*hogs, "hog = 'x' * 300_000_000"):
        turn, (_, error, after) = play_code(service, "kept = 1", hog, "print(kept)", agent="small")
        assert error.strip().startswith(("Code execution failed", DIED)), error
        assert "emory" in error
        assert printed(after) == "1", after
        assert turn["status"] == "finished"


@pytest.mark.parametrize("call", ["echo(text='x' * 2_000_000)", "text = large(length=2_000_000)"])
def test_a_message_that_is_too_large_is_an_error_that_says_so_and_can_be_caught(service: Service, call: str) -> None:
    caught = f"try:\n    {call}\nexcept Exception as error:\n    print('caught', error)"
    _, (error, text, after) = play_code(service, f"kept = 2\n{call}", caught, "print(kept)", agent="small")
    assert "larger than" in error
    assert DIED not in error
    assert (printed(text)[:6], printed(after)) == ("caught", "2")


@pytest.mark.parametrize("block", ["'x' * 2_000_000", "for i in range(40):\n    print('x' * 50_000)"])
def test_the_model_reads_as_much_of_a_large_output_as_in_smolagents(service: Service, block: str) -> None:
    (_, ours, after), (_, theirs, _) = (
        play_code(service, "kept = 1", f"kept = 2\n{block}", "print(kept)", agent=agent)[1]
        for agent in ("small", "threaded")
    )
    assert ours == theirs
    assert printed(after) == "2"


def test_a_large_answer_ends_the_turn_with_a_part_of_it(service: Service) -> None:
    turn = service.play(*code_script("final_answer('x' * 2_000_000)"), agent="small")
    assert (turn["status"], turn["step_count"]) == ("finished", 1)
    assert "x" * 1000 in turn["reply"]


def test_code_that_may_import_all_finds_no_secret_network_or_writable_file(alone: Service, tmp_path: Path) -> None:
    pid, port = alone.process.pid, alone.client.base_url.port
    looks = [
        "os.getuid()",
        "dict(os.environ)",
        "read('/proc/self/environ')",
        "read(f'/proc/{os.getppid()}/environ')",
        f"read('/proc/{pid}/environ')",
        *(f"read('/proc/{fork_server.pid}/environ')" for fork_server in fork_servers(alone)),
        f"[read(str(path)) for path in pathlib.Path({str(alone.folder)!r}).rglob('*') if path.is_file()]",
    ]
    refused = [f"socket.create_connection(('127.0.0.1', {port}), 2)", f"io.open({str(tmp_path / 'new')!r}, 'w')"]
    start = (
        "import io, os, pathlib, signal, socket\n"
        "def read(path):\n    with io.open(path, 'rb') as file:\n        return file.read(1_000_000)"
    )
    turn, (_, *texts) = play_code(
        alone, start, *(f"print({look})" for look in (*looks, *refused)), agent="walled", max_steps=40
    )
    assert turn["status"] == "finished"
    assert int(printed(texts[0])) != 0, "a uid of its own, or the user's"
    for look, text in zip(looks, texts[: len(looks)], strict=True):
        assert "sk-of-the-model" not in text, look
        assert "SEAL_KEYS" not in text, look
    for attempt, text in zip(refused, texts[len(looks) :], strict=True):
        assert text.startswith("Code execution failed"), (attempt, text)
        assert "Error" in text, attempt
    assert not [*tmp_path.iterdir()]


def test_code_cannot_write_to_the_log_of_the_service(alone: Service) -> None:
    play_code(alone, "import os\nos.write(2, b'forged\\n')", "import os\nos.write(1, b'forged\\n')", agent="walled")
    assert "forged" not in alone.log()


def test_a_process_that_ends_itself_is_an_error_and_the_turn_goes_on(alone: Service) -> None:
    blocks = [block for killer in KILLERS.values() for block in (f"kept = 2\n{killer}", "print(kept)")]
    turn, (_, *texts) = play_code(alone, "kept = 1", *blocks, agent="walled")
    for error, after in zip(texts[::2], texts[1::2], strict=True):
        assert error.startswith(DIED), error
        assert printed(after) == "1"
    assert (turn["status"], turn["dropped_variables"]) == ("finished", [])


def test_code_that_exits_gets_an_error_and_keeps_its_variables(service: Service) -> None:
    exits = {"raise SystemExit": "SystemExit", "raise KeyboardInterrupt('now')": "KeyboardInterrupt: now"}
    blocks = [f"kept = {number}\n{block}" for number, block in enumerate(exits)]
    _, (*errors, after) = play_code(service, *blocks, "import sys\nkept=3\nsys.exit(3)", "print(kept)", agent="walled")
    for error, said in zip(errors, [*exits.values(), "SystemExit: 3"], strict=True):
        assert f"due to: {said}. To end with an answer, call final_answer." in error
    assert printed(after) == "3"


@pytest.mark.parametrize("victims", [code_processes, fork_servers])
def test_a_turn_survives_a_kill_of_its_code(
    alone: Service, gate: Gate, victims: Callable[[Service], list[psutil.Process]]
) -> None:
    blocks = "kept = 1", f"wait_for(path={str(gate.path)!r})\nkept = 2", *["print(kept)"] * 3
    turn = submit_turn(alone, *code_script(*blocks), DONE, agent="coder")
    gate.reached()
    for victim in victims(alone):
        victim.kill()
    gate.open()
    ended = wait_for_end(alone, turn)
    assert (ended["status"], ended["reply"]) == ("finished", "done")
    texts = shown_outputs(alone, ended)
    # The process died in this block (its effect is undone), in a later one, or not at all. Saved variables remain.
    # If it printed before it died, the model counts the error and the output as two steps, and leaves out a block.
    assert len([text for text in texts if text.startswith(DIED)]) <= 1
    assert {printed(text) for text in texts if printed(text)} in ({"1"}, {"2"}), texts
    assert play_code(alone, "print(1)")[0]["reply"] == "done"


def test_a_service_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    settings = {"AGENTS": "coder=tests.support.coders:make_coder", "DEMO_AGENTS": "0"}
    with Service(tmp_path, settings) as service:
        submit_turn(service, *code_script(BLOCKS["a sleep"]), agent="coder")
        submit_turn(service, *code_script(BLOCKS["a sleep"]), agent="coder")
        wait_until(lambda: len(code_processes(service)) > 1)
        left = [*fork_servers(service), *code_processes(service)]
        left[0].kill()  # its children lose their parent
        submit_turn(service, *code_script(BLOCKS["a power"]), agent="coder")
        wait_until(lambda: left[0] not in fork_servers(service) and code_processes(service))
        left += [*fork_servers(service), *code_processes(service)]
        service.kill()
        wait_gone(left)


def test_an_agent_may_keep_its_code_in_a_thread(service: Service) -> None:
    assert code_processes(service) == []
    turn, (ran, text) = play_code(
        service, "import threading\nlock = threading.Lock()\nn = 1", "print(n, lock.locked())", agent="threaded"
    )
    assert "Execution logs" in ran
    assert printed(text) == "1 False"
    assert (turn["reply"], turn["dropped_variables"]) == ("done", [])
    endless = submit_turn(service, *code_script("while True:\n    compute(seconds=0.02)"), agent="threaded")
    with watching(service, endless) as stream:
        stream.until("tool.call", name="compute")
        assert code_processes(service) == []
        assert cancel(service, endless).status_code in {200, 202}
        assert stream.rest()[-1].event == "turn.cancelled"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"cpu": 5}, "code_limits: cpu is no key here; did you mean cpu_s?"),
        ({"cpu_s": "five"}, "code_limits.cpu_s: should be a valid number"),
        ({"wall_s": float("nan")}, "code_limits.wall_s: should be a finite number"),
        ({"processes": 0.5}, "code_limits.processes: should be a valid integer"),
    ],
)
def test_invalid_limits_of_an_agents_code_are_refused(limits: Any, words: str) -> None:
    with pytest.raises(StartError, match=re.escape(words)):
        check_factory("mine", lambda: coders.make_coder(limits=limits))


def test_tool_calls_of_code_are_reported_as_with_smolagents_own_interpreter(service: Service) -> None:
    blocks = named(data("code_calls.txt")).values()
    seen = {}
    for agent in ("coder", "threaded"):
        turn = service.play(*code_script(*blocks), DONE, agent=agent, max_steps=30)
        events = [
            frame.data
            for frame in log_of(service, turn, include_internal_tools=True)
            if frame.event in {"tool.call", "tool.result"}
        ]
        calls = {event["call_id"]: event for event in events if event["type"] == "tool.call"}
        for call in turn["tool_calls"]:
            assert (call.pop("duration_ms") >= 0, call.pop("agent")) == (True, agent)
        parents = [calls.get(event.get("parent_call_id"), {}).get("name") for event in events]
        names = [(event["type"], event.get("name"), event.get("ok"), event.get("result")) for event in events]
        texts = shown_outputs(service, turn)
        seen[agent] = [without_ids(it) for it in (turn["tool_calls"], turn["tool_call_names"], parents, names, texts)]
    for ours, theirs in zip(seen["coder"], seen["threaded"], strict=True):
        assert ours == theirs
    assert seen["coder"][1][:5] == ["python_interpreter", *["echo"] * 4] or "echo" in seen["coder"][1]


def without_ids(value: Any) -> Any:
    """Leave out addresses and ids, which differ between runs."""
    text = json.dumps(value, sort_keys=True)
    text = re.sub(r"(?i)0x[0-9a-f]{6,}", "0x", text)
    text = text.replace("[tests.support.agents.Opaque] opaque!", "opaque!")  # the label of a value that cannot cross
    return json.loads(re.sub(r'"(call_id|parent_call_id|step_id)": "[^"]*"', r'"\1": ""', text))


@pytest.mark.parametrize("value", ["[{'deep': lambda: 1}]", "echo"])
def test_an_argument_that_cannot_cross_is_an_error_that_can_be_caught(service: Service, value: str) -> None:
    caught = f"try:\n    weigh(thing={value})\nexcept TypeError as error:\n    print('caught', error)"
    turn, (error, text, after) = play_code(service, f"weigh(thing={value})", caught, "print(weigh(thing=1))")
    assert "cannot be handed over" in error
    assert printed(text).startswith("caught")
    assert printed(after) == "int: 1"
    assert turn["tool_call_names"].count("weigh") == 1  # the refused calls never began
