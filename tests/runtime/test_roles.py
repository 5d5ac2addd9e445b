"""One program in three roles, and several processes of it on one port: the work of each, and the cost of its end."""

import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from tests.support.code_turns import lives, wait_gone
from tests.support.killed_turns import WITHOUT_CODE, KilledTurn, check_log, make_killed_turn, submit_killed_turn
from tests.support.launch import ON_LOOPBACK
from tests.support.refusals import sentence_of
from tests.support.service import PATIENCE_S, Gate, Service, run, samples, wait_until
from tests.support.store_server import PARTITION, StoreServer
from tests.support.streaming import FINAL, Event, log_of, place, posting
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import wait_for_end

FEW_FILES = 256
KEEP_ALIVE_S = 6  # longer than uvicorn's own
OTHERS = ("unplayed", "doomed")  # agents that only works of a test's own know
AGENTS = {
    "AGENTS": ",".join(
        [WITHOUT_CODE["AGENTS"], "scripted=tests.support.agents:make_scripted"]
        + [f"{name}=tests.support.ledgers:make_teller" for name in OTHERS]
    )
}


@contextmanager
def started(server: StoreServer, folder: Path, *roles: str, **settings: str) -> Iterator[list[Service]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Service(folder / f"{number}-{role}", WITHOUT_CODE | server.settings | settings, command=(role,))
            )
            for number, role in enumerate(roles)
        ]


@pytest.fixture(scope="module")
def web(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a `web` that began with few open files."""
    folder, ours = tmp_path_factory.mktemp("web"), resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, ours)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, ours[1]))
        settings = AGENTS | {"KEEP_ALIVE_S": str(KEEP_ALIVE_S), "DEMO_AGENTS": "1"}
        (web,) = stack.enter_context(started(outside, folder, "web", **settings))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(ours[0], 2 * FEW_FILES), ours[1]))
        yield web
        assert web.stop() == 0


@pytest.fixture(scope="module")
def work(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"AGENTS": AGENTS["AGENTS"].split(",unplayed")[0], "DEMO_AGENTS": "1", "HOST": ON_LOOPBACK}
    with started(outside, tmp_path_factory.mktemp("work"), "work", **settings) as (work,):
        yield work
        assert work.stop() == 0


def pids(service: Service) -> dict[str, int]:
    return {number: int(pid) for number, pid in re.findall(r"process (\d+) is pid (\d+)", service.log())}


def family(service: Service) -> list[psutil.Process]:
    """Return the supervisor, its processes, and all processes that these started."""
    supervisor = psutil.Process(service.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


@pytest.mark.parametrize("role", ["web", "work"])
def test_a_role_that_shares_its_store_is_refused_without_one(role: str, tmp_path: Path) -> None:
    sentence = sentence_of(run(tmp_path, {}, role))
    assert f"`smolsessions {role}` needs a store" in sentence
    assert "SMOLSESSIONS_REDIS_URL" in sentence
    assert "`smolsessions serve`" in sentence
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("count", mostly_deep(["0", "65", "many", "-1"], fast=["0", "65"]))
def test_a_number_of_processes_out_of_bounds_is_refused(count: str, tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, {}, "serve", f"--processes={count}")
    assert (status, output) == (2, "")
    assert "'--processes'" in errors


def test_web_and_work_play_a_turn_that_is_seen_live(web: Service, work: Service, gate: Gate) -> None:
    assert web.said[0].startswith("smolsessions web ")
    assert re.search(r"smolsessions work \S+ runs turns; health and metrics on 127\.0\.0\.1:\d+$", work.said[0])
    assert "in the store" in web.said[3]
    before = samples(work).get(("turns_total", ""), 0)
    with posting(web, gate.script, {"say": "done"}, agent="scripted") as stream:
        stream.until("tool.call", name="wait_for")
        gate.reached()
        assert web.get(place(stream.seen[0].data))["status"] == "running"
        assert (samples(work)["threads_busy", ""], samples(web)["threads_busy", ""]) == (1, 0)
        assert (samples(work)["streams_open", ""], samples(web)["streams_open", ""]) == (0, 1)
        gate.open()
        assert stream.rest()[-1].data["result"]["reply"] == "done"
    wait_until(lambda: samples(work).get(("turns_total", "")) == before + 1)
    wait_until(lambda: samples(web)["streams_open", ""] == 0)
    assert ("turns_total", "") not in samples(web)
    assert (samples(web)["threads_free", ""], samples(work)["threads_free", ""]) == (0, 64)
    assert psutil.Process(web.process.pid).children() == []
    assert len(psutil.Process(work.process.pid).children()) == 1, "the server of processes for code"


def test_an_idle_connection_is_kept_for_as_long_as_is_said(web: Service) -> None:
    idle = HTTPConnection(web.client.base_url.host, web.client.base_url.port, timeout=PATIENCE_S)
    idle.request("GET", "/livez")
    answer = idle.getresponse()
    assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
    since = time.monotonic()
    assert idle.sock.recv(1) == b"", "closed by the service"
    assert time.monotonic() - since > KEEP_ALIVE_S - 0.1
    idle.close()


def test_connections_are_not_bound_by_what_a_shell_begins_with(web: Service) -> None:
    where = (web.client.base_url.host, web.client.base_url.port)
    with ExitStack() as stack:
        for _ in range(FEW_FILES):
            stack.enter_context(socket.create_connection(where, timeout=PATIENCE_S))
        one_more = stack.enter_context(closing(HTTPConnection(*where, timeout=PATIENCE_S)))
        one_more.request("GET", "/livez")
        assert one_more.getresponse().status == 200


def test_turns_without_a_worker_are_warned_of_and_wait(outside: StoreServer, web: Service, tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, agent="unplayed")
    submit_killed_turn(web, it)
    answer = web.client.post(
        "/turn",
        json={"message": "[]", "conversation_id": it.turn["conversation_id"], "on_busy": "enqueue"},
        headers={"Prefer": "wait=1"},
    )
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    with outside.client() as raw:
        assert raw.zincrby(f"{PARTITION}:ready:unplayed", -60_000_000, f"local/{it.turn['conversation_id']}")
    wait_until(lambda: "wait for agent unplayed" in web.log())
    said = next(line for line in web.log().splitlines() if "wait for agent unplayed" in line)
    assert "1 conversations wait for agent unplayed, the first for 6" in said
    assert "see that a `work` or `serve` runs on this store, that it knows the agent" in said
    assert (web.get(place(it.turn))["status"], it.ledger.calls) == ("queued", [])
    with started(outside, tmp_path, "work", AGENTS="unplayed=tests.support.ledgers:make_teller"):
        ended = wait_for_end(web, it.turn)
    assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 1)


def test_a_work_answers_health_and_nothing_else_whatever_address_it_has(work: Service, tmp_path: Path) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert work.client.get(path).status_code == 200
        refused = work.client.post(path, json={})
        assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed")
    for path in ("/", "/docs", "/openapi.json", "/agents", "/conversations", "/page/page.js", "/turn"):
        for answer in (work.client.get(path), work.client.post(path, json={"message": "hi"})):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
            assert answer.headers["content-type"] == "application/problem+json"
            assert "/docs" not in answer.json()["detail"]
    settings = {"REDIS_URL": work.settings["REDIS_URL"], "SEAL_KEYS": work.settings["SEAL_KEYS"], "HOST": ON_LOOPBACK}
    assert "SMOLSESSIONS_API_KEYS_FILE" in sentence_of(run(tmp_path / "web", WITHOUT_CODE | settings, "web"))


@pytest.mark.parametrize("first", mostly_deep(["killed", "stopped"], fast=["stopped"]))
def test_a_dead_or_hanging_worker_costs_time(first: str, outside: StoreServer, web: Service, tmp_path: Path) -> None:
    it, agents = make_killed_turn(tmp_path, 4, agent="doomed"), "doomed=tests.support.ledgers:make_teller"
    with started(outside, tmp_path, "work", AGENTS=agents, LEASE_S="0.5") as (work,), ExitStack() as stack:
        with posting(web, *it.script, agent=it.agent) as stream:
            it.turn = stream.until("turn.queued")
            wait_until(lambda: it.stands_in(outside.client()))
            work.process.send_signal(signal.SIGKILL if first == "killed" else signal.SIGSTOP)
            it.ledger.go()
            stack.enter_context(started(outside, tmp_path / "later", "work", AGENTS=agents, LEASE_S="0.5"))
            stream.rest()
        assert stream.seen[-1].event == "turn.finished"
        ended = wait_for_end(web, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
        assert [call["repeated"] for call in ended["tool_calls"]] == [False, True]
        check_log(stream.seen, log_of(web, ended), 2)
        work.kill()
        assert wait_for_end(web, it.turn) == ended


def test_streams_of_an_ended_web_move_on(outside: StoreServer, web: Service, work: Service, tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 2)
    assert work.process.poll() is None
    with started(outside, tmp_path, "web") as (first,):
        with posting(first, *it.script, agent=it.agent) as stream:
            it.turn = stream.until("turn.queued")
            wait_until(lambda: it.ledger.stands)
            first.process.send_signal(signal.SIGTERM)
            stream.rest()
        assert b"retry:" in stream.raw
        assert FINAL.isdisjoint(frame.event for frame in stream.seen)
        assert first.process.wait(PATIENCE_S) == 0
    it.ledger.go()
    ended = wait_for_end(web, it.turn)
    assert (ended["reply"], ended["attempts"]) == ("done", 1)


@contextmanager
def several(folder: Path, **settings: str) -> Iterator[Service]:
    """Run a set of two processes with one thread each, so that turns must spread. Kill their processes at the end."""
    options = WITHOUT_CODE | {"THREADS": "1"} | settings
    service = Service(folder / "set", options, command=("serve", "--processes", "2"))
    everyone: list[psutil.Process] = []
    try:
        with service:
            everyone = family(service)
            yield service
    finally:
        for process in filter(lives, everyone):
            process.kill()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a set whose processes a test may kill, as they are started again."""
    with several(tmp_path_factory.mktemp("pair"), LEASE_S="0.5") as service:
        yield service
        everyone = family(service)
        assert len(everyone) >= 4, "the supervisor, the store, and two"
        assert service.stop() == 0
        wait_gone(everyone)


def standing(service: Service, folder: Path, count: int) -> list[KilledTurn]:
    killed_turns = []
    for number in range(count):
        (folder / str(number)).mkdir(parents=True)
        killed_turns.append(make_killed_turn(folder / str(number), 2))
        submit_killed_turn(service, killed_turns[-1])
    wait_until(lambda: all(it.ledger.stands for it in killed_turns))
    return killed_turns


def go_on(service: Service, killed_turns: list[KilledTurn]) -> list[Event]:
    for it in killed_turns:
        it.ledger.go()
    return [wait_for_end(service, it.turn) for it in killed_turns]


def player_of(service: Service, turn: Event) -> str:
    """Return the number of the process that last began a turn, according to the log."""
    found: list[str] = re.findall(rf"process=(\d+) .* turn local/{turn['conversation_id']}#1 starts", service.log())
    return found[-1]


def wait_for_both(service: Service) -> None:
    wait_until(lambda: [samples(service).get(("threads_free", number)) for number in "01"] == [1, 1])


def test_a_set_spreads_turns_and_shows_all_figures_in_one_scrape(pair: Service, tmp_path: Path) -> None:
    wait_for_both(pair)
    assert "serves on" in pair.said[0]
    assert pair.said[-1].split() == ["processes", "2"]
    assert str(pair.folder / "data") in "".join(pair.said)
    before = samples(pair)
    killed_turns = standing(pair, tmp_path, 2)
    assert sorted(player_of(pair, it.turn) for it in killed_turns) == ["0", "1"]
    busy = {name[1]: value for name, value in samples(pair).items() if name[0] == "threads_busy"}
    assert busy == {"0": 1, "1": 1}
    assert [turn["attempts"] for turn in go_on(pair, killed_turns)] == [1, 1]
    ended = [before.get(("turn_seconds_count", number), 0) + 1 for number in "01"]
    wait_until(lambda: [samples(pair).get(("turn_seconds_count", number)) for number in "01"] == ended)
    assert samples(pair)["processes_silent", ""] == 0


def test_a_process_of_a_set_that_is_killed_is_started_again_and_loses_no_turn(pair: Service, tmp_path: Path) -> None:
    wait_for_both(pair)
    killed_turns = standing(pair, tmp_path, 2)
    first = pids(pair)
    victim = player_of(pair, killed_turns[0].turn)
    os.kill(first[victim], signal.SIGKILL)
    ended = [(turn["status"], turn["reply"], turn["attempts"]) for turn in go_on(pair, killed_turns)]
    assert ended == [("finished", "done", 2), ("finished", "done", 1)]
    assert f"process {victim} died of signal 9; starting it again" in pair.log()
    wait_until(lambda: pids(pair)[victim] != first[victim])
    wait_for_both(pair)
    other = "1" if victim == "0" else "0"
    assert (pids(pair)[other], samples(pair)["processes_silent", ""]) == (first[other], 0)
    again = standing(pair, tmp_path / "again", 2)
    assert {player_of(pair, it.turn) for it in again} == {"0", "1"}
    assert [turn["reply"] for turn in go_on(pair, again)] == ["done", "done"]


def test_a_process_that_hangs_is_left_out_of_the_figures_and_counted(pair: Service) -> None:
    wait_for_both(pair)
    frozen = psutil.Process(pids(pair)["1"])
    frozen.suspend()
    found = samples(pair)
    frozen.resume()
    assert found["processes_silent", ""] == 1
    assert {process for name, process in found if name == "threads_free"} == {"0"}
    wait_until(lambda: samples(pair)["processes_silent", ""] == 0)


def test_a_process_that_dies_at_once_again_and_again_is_started_less_and_less_often(pair: Service) -> None:
    wait_for_both(pair)
    before = len(pauses(pair))
    for number in range(1, 4):
        pid = pids(pair)["1"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda number=number: len(pauses(pair)) == before + number)  # type: ignore[misc]
        wait_until(lambda pid=pid: pids(pair)["1"] != pid)  # type: ignore[misc]
    first, second, third = pauses(pair)[before:]
    assert first in {0, 0.2, 0.4, 0.8, 1.6}
    assert second == (first * 2 or 0.2)
    assert third == second * 2


def pauses(service: Service) -> list[float]:
    """Return how long each dead process 1 was not started again."""
    return [float(pause) for pause in re.findall(r"process 1 .*; starting it again in (\S+) s", service.log())]


def test_a_set_finishes_its_steps_unless_a_second_signal_hurries_it_and_what_hangs_is_killed(tmp_path: Path) -> None:
    with several(tmp_path, DRAIN_S="600", LEASE_S="30") as service:
        killed_turns, everyone = standing(service, tmp_path, 2), family(service)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().count("smolsessions stopping") == 2)
        for it in killed_turns:
            it.ledger.go()
        assert service.process.wait(PATIENCE_S) == 0
        wait_gone(everyone)
        assert [labels(it) for it in killed_turns] == [["model", "note a"]] * 2
        service.stop()
        service.start()
        ended = [wait_for_end(service, it.turn) for it in killed_turns]
        assert [(turn["reply"], turn["attempts"]) for turn in ended] == [("done", 2)] * 2
        assert [labels(it) for it in killed_turns] == [["model", "note a", "model", "note b", "model"]] * 2
        killed_turns, everyone = standing(service, tmp_path / "again", 2), family(service)
        log = service.log()
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().removeprefix(log).count("smolsessions stopping") == 2)
        assert all(map(lives, everyone))
        psutil.Process(pids(service)["0"]).suspend()
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(PATIENCE_S) == 0
        wait_gone(everyone)
        assert service.log().removeprefix(log).count("is handed back") == 1
        assert "process 0 does not end; killing it" in service.log()
        for it in killed_turns:
            it.ledger.go()


def labels(it: KilledTurn) -> list[str]:
    return [call.split(" ")[0] if call.startswith("model") else call for call in it.ledger.calls]


@deep
def test_a_signal_that_goes_to_all_processes_hurries_none(tmp_path: Path) -> None:
    with several(tmp_path, DRAIN_S="600", LEASE_S="30") as service:
        killed_turns = standing(service, tmp_path, 2)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().count("smolsessions stopping") == 2)
        for pid in pids(service).values():
            os.kill(pid, signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(4)
        for it in killed_turns:
            it.ledger.go()
        assert service.process.wait(PATIENCE_S) == 0


def test_a_supervisor_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    with several(tmp_path, LEASE_S="30") as service:
        killed_turns, everyone = standing(service, tmp_path, 2), family(service)
        service.kill()
        wait_gone(everyone)
        assert service.log().count("smolsessions stopping") == 2
        for it in killed_turns:
            it.ledger.go()


@pytest.mark.parametrize("command", mostly_deep(["serve", "work"], fast=["serve"]))
def test_a_set_that_cannot_start_says_why_once_and_ends(command: str, outside: StoreServer, tmp_path: Path) -> None:
    settings = WITHOUT_CODE | outside.settings | {"AGENTS": "x=tests.support.agents:nothing_of_that_name"}
    sentence = sentence_of(run(tmp_path / "x", settings, command, "--processes", "2"))
    assert sentence.count("nothing_of_that_name") == 1


def test_a_folder_that_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    sentence = sentence_of(run(tmp_path / "x", WITHOUT_CODE, "serve", "--processes", "2", TMPDIR=str(long)))
    assert "set TMPDIR to a shorter path" in sentence
