"""One program in three roles, and several processes of it on one port: the work of each, and the cost of its end."""

import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from redis import Redis

from tests.support import ledgers
from tests.support.killed_turns import WITHOUT_CODE, KilledTurn, check_log, note_call
from tests.support.launch import ON_LOOPBACK
from tests.support.ledgers import Ledger
from tests.support.metrics import samples
from tests.support.refusals import sentence_of
from tests.support.service import Service, run
from tests.support.stopwatch import Stopwatch
from tests.support.store_server import StoreServer
from tests.support.streaming import FINAL, Event, log_of, place, posting
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import PATIENCE_S, Gate, wait_until

SOON_S = 60.0  # for a process to start or to end
HELD = "7**10_000_000"  # holds the interpreter for seconds


@contextmanager
def started(server: StoreServer, folder: Path, *roles: str, **settings: str) -> Iterator[list[Service]]:
    """Start a process of each role on one store, and yield them."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Service(folder / f"{number}-{role}", WITHOUT_CODE | server.settings | settings, command=(role,))
            )
            for number, role in enumerate(roles)
        ]


def make_killed_turn(folder: Path, name: str, *at: int) -> KilledTurn:
    (folder / name).mkdir()
    ledger = Ledger.at(folder / name / "turn.ledger", *at)
    path = str(ledger.path)
    return KilledTurn(ledger, "teller", [note_call(path, "a"), note_call(path, "b"), DONE])


def calls_of(it: KilledTurn) -> list[str]:
    """Return the calls of a turn, without the models' prompts."""
    return [call.split(" ")[0] if call.startswith("model") else call for call in it.ledger.calls]


def pids(service: Service) -> dict[str, int]:
    """Return the latest process of each number."""
    return {number: int(pid) for number, pid in re.findall(r"process (\d+) is pid (\d+)", service.log())}


def family(service: Service) -> list[psutil.Process]:
    """Return the supervisor, its processes, and all processes that these started."""
    supervisor = psutil.Process(service.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def wait_gone(everyone: list[psutil.Process], within_s: float = 2) -> None:
    """Wait until all have ended. A fork server takes a moment to notice that its process has ended."""
    wait_until(lambda: not any(map(lives, everyone)), within_s)


@pytest.mark.parametrize("role", ["web", "work"])
def test_a_role_that_shares_its_store_is_refused_without_one(role: str, tmp_path: Path) -> None:
    sentence = sentence_of(run(tmp_path, {}, role))
    assert f"`smolsessions {role}` needs a store" in sentence
    assert "SMOLSESSIONS_REDIS_URL" in sentence
    assert "`smolsessions serve`" in sentence
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("count", ["0", "65", "many", "-1"])
def test_a_number_of_processes_out_of_bounds_is_refused(count: str, tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, {}, "serve", f"--processes={count}")
    assert (status, output) == (2, "")
    assert "'--processes'" in errors


def test_web_and_work_play_a_turn_that_is_seen_live(server: StoreServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    agents = "scripted=tests.support.agents:make_scripted"
    with started(server, tmp_path, "web", "work", AGENTS=agents, DEMO_AGENTS="1") as (web, work):
        assert web.said[0].startswith("smolsessions web ")
        assert re.search(r"smolsessions work \S+ plays turns; health and metrics on 127\.0\.0\.1:\d+$", work.said[0])
        assert "in the store" in web.said[3]
        with posting(web, gate.script, {"say": "done"}, agent="scripted") as stream:
            stream.until("tool.call", name="wait_for")
            gate.reached()
            turn = stream.seen[0].data
            assert web.get(place(turn))["status"] == "running"
            assert (samples(work)["threads_busy", ""], samples(web)["threads_busy", ""]) == (1, 0)
            assert (samples(work)["streams_open", ""], samples(web)["streams_open", ""]) == (0, 1)
            gate.open()
            assert stream.rest()[-1].data["result"]["reply"] == "done"
        wait_until(lambda: samples(work).get(("turns_total", "")) == 1)
        wait_until(lambda: samples(web)["streams_open", ""] == 0)
        assert ("turns_total", "") not in samples(web)
        assert (samples(web)["threads_free", ""], samples(work)["threads_free", ""]) == (0, 64)
        assert psutil.Process(web.process.pid).children() == []
        assert len(psutil.Process(work.process.pid).children()) == 1, "the server of processes for code"
        assert (web.stop(), work.stop()) == (0, 0)


def test_an_idle_connection_is_kept_for_as_long_as_is_said(server: StoreServer, tmp_path: Path) -> None:
    with started(server, tmp_path, "web", KEEP_ALIVE_S="1") as (web,):
        idle = HTTPConnection(web.client.base_url.host, web.client.base_url.port, timeout=PATIENCE_S)
        idle.request("GET", "/livez")
        answer = idle.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
        since = time.monotonic()
        assert idle.sock.recv(1) == b"", "closed by the service"
        assert time.monotonic() - since > 0.9
        idle.close()


def test_connections_are_not_bound_by_what_a_shell_begins_with(server: StoreServer, tmp_path: Path) -> None:
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 256
    assert ours[1] > 2 * few
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, ours)
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, ours[1]))
        (web,) = stack.enter_context(started(server, tmp_path, "web"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(ours[0], 2 * few), ours[1]))
        where = (web.client.base_url.host, web.client.base_url.port)
        for _ in range(few):
            stack.enter_context(socket.create_connection(where, timeout=SOON_S))
        one_more = stack.enter_context(closing(HTTPConnection(*where, timeout=SOON_S)))
        one_more.request("GET", "/livez")
        assert one_more.getresponse().status == 200


def test_a_web_whose_turns_nobody_plays_says_so_in_its_log(server: StoreServer, tmp_path: Path) -> None:
    settings = WITHOUT_CODE | server.settings | {"AGENTS": "unplayed=tests.support.agents:make_scripted"}
    with (
        Service(tmp_path / "web", settings, command=("web",)) as web,
        Redis(unix_socket_path=str(server.socket_path)) as raw,
    ):
        turn = submit_turn(web, DONE, agent="unplayed")
        assert raw.zincrby("{p000}:ready:unplayed", -60_000_000, f"local/{turn['conversation_id']}")
        wait_until(lambda: "conversations wait" in web.log())
        (said,) = [line for line in web.log().splitlines() if "conversations wait" in line]
        assert "1 conversations wait for agent unplayed, the first for 6" in said
        assert "see that a `work` or `serve` runs on this store, that it knows the agent" in said
        assert web.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204


def test_what_web_takes_in_waits_until_there_is_a_work(server: StoreServer, tmp_path: Path) -> None:
    with started(server, tmp_path, "web") as (web,):
        it = make_killed_turn(tmp_path, "turn")
        it.turn = submit_turn(web, *it.script, agent=it.agent)
        answer = web.client.post(
            "/turn",
            json={"agent": "teller", "message": "[]", "conversation_id": it.turn["conversation_id"]}
            | {"on_busy": "enqueue"},
            headers={"Prefer": "wait=1"},
        )
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")
        assert web.get(place(it.turn))["status"] == "queued"
        assert it.ledger.calls == []
        with started(server, tmp_path / "later", "work"):
            ended = wait_for_end(web, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 1)


def test_a_work_answers_health_and_nothing_else_whatever_address_it_has(server: StoreServer, tmp_path: Path) -> None:
    with started(server, tmp_path, "work", HOST=ON_LOOPBACK) as (work,):
        for path in ("/livez", "/readyz", "/metrics"):
            assert work.client.get(path).status_code == 200
            refused = work.client.post(path, json={})
            assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed")
        for path in ("/", "/docs", "/openapi.json", "/agents", "/conversations", "/page/page.js", "/turn"):
            for answer in (work.client.get(path), work.client.post(path, json={"message": "hi"})):
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
                assert answer.headers["content-type"] == "application/problem+json"
                assert "/docs" not in answer.json()["detail"]
    sentence = sentence_of(run(tmp_path / "web", WITHOUT_CODE | server.settings | {"HOST": ON_LOOPBACK}, "web"))
    assert "SMOLSESSIONS_API_KEYS_FILE" in sentence


@pytest.mark.parametrize("first", ["killed", "stopped"])
def test_a_work_that_dies_or_hangs_in_a_turn_costs_nothing_but_time(
    first: str, server: StoreServer, tmp_path: Path
) -> None:
    it = make_killed_turn(tmp_path, "turn", 4)
    with started(server, tmp_path, "web", "work") as (web, work), ExitStack() as stack:
        with posting(web, *it.script, agent=it.agent) as stream:
            it.turn = stream.until("turn.queued")
            wait_until(lambda: it.stands_in(server.client()))
            work.process.send_signal(signal.SIGKILL if first == "killed" else signal.SIGSTOP)
            it.ledger.go()
            stack.enter_context(started(server, tmp_path / "later", "work"))
            stream.rest()
        assert stream.seen[-1].event == "turn.finished"
        ended = wait_for_end(web, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
        assert [call["repeated"] for call in ended["tool_calls"]] == [False, True]
        assert calls_of(it)[:3] == ["model", "note a", "model"]
        check_log(stream.seen, log_of(web, ended), 2)
        work.kill()
        assert wait_for_end(web, it.turn) == ended


def test_a_web_that_ends_leaves_its_streams_to_another_one_and_the_turn_alone(
    server: StoreServer, tmp_path: Path
) -> None:
    it = make_killed_turn(tmp_path, "turn", 2)
    with started(server, tmp_path, "web", "web", "work") as (web, other, _work):
        with posting(web, *it.script, agent=it.agent) as stream:
            it.turn = stream.until("turn.queued")
            wait_until(lambda: it.ledger.stands)
            web.process.send_signal(signal.SIGTERM)
            stream.rest()
        assert b"retry:" in stream.raw
        assert FINAL.isdisjoint(frame.event for frame in stream.seen)
        assert web.process.wait(SOON_S) == 0
        it.ledger.go()
        assert (wait_for_end(other, it.turn)["reply"], wait_for_end(other, it.turn)["attempts"]) == ("done", 1)


@pytest.mark.alone
def test_an_agent_that_computes_in_a_work_delays_no_answer_of_a_web(server: StoreServer, tmp_path: Path) -> None:
    agents = "threaded=tests.support.coders:make_threaded"
    with started(server, tmp_path, "web", "work", AGENTS=agents, LEASE_S="30") as (web, work):
        code = f"compute(seconds=2)\nx = {HELD}\ncompute(seconds=2)"
        with posting(web, {"code": code}, {"say": "done"}, agent="threaded") as stream:
            turn = stream.until("tool.call", name="compute")
            wait_until(lambda: is_stuck(work))
            took = []
            for _ in range(200):
                since = time.monotonic()
                assert web.client.get("/livez").status_code == 200
                took.append(time.monotonic() - since)
            assert is_stuck(work), "it was all the while"
            assert sorted(took)[198] < 0.05
            assert web.get(place(turn))["status"] == "running"
            assert stream.rest()[-1].data["result"]["reply"] == "done"


def is_stuck(service: Service) -> bool:
    try:
        service.client.get("/livez", timeout=0.1)
    except httpx2.TimeoutException:
        return True
    return False


@contextmanager
def several(folder: Path, count: int = 3, **settings: str) -> Iterator[Service]:
    """Run a set of processes with one thread each, so that turns must spread. Kill the processes left at the end."""
    options = WITHOUT_CODE | {"THREADS": "1"} | settings
    service = Service(folder / "set", options, command=("serve", "--processes", str(count)))
    everyone: list[psutil.Process] = []
    try:
        with service:
            everyone = family(service)
            yield service
    finally:
        for process in filter(lives, everyone):
            process.kill()


def standing(service: Service, folder: Path, count: int) -> list[KilledTurn]:
    """Begin turns, and return them once all block in their first tool."""
    killed_turns = [make_killed_turn(folder, str(number), 2) for number in range(count)]
    for it in killed_turns:
        it.turn = submit_turn(service, *it.script, agent=it.agent)
    wait_until(lambda: all(it.ledger.stands for it in killed_turns), SOON_S)
    return killed_turns


def player_of(service: Service, turn: Event) -> str:
    """Return the number of the process that last began a turn, according to the log."""
    found: list[str] = re.findall(rf"process=(\d+) .* turn local/{turn['conversation_id']}#1 starts", service.log())
    return found[-1]


def test_a_set_spreads_turns_and_shows_all_figures_in_one_scrape(tmp_path: Path) -> None:
    with several(tmp_path) as service:
        assert "serves on" in service.said[0]
        assert service.said[-1].split() == ["processes", "3"]
        assert str(tmp_path / "set" / "data") in "".join(service.said)
        assert len(pids(service)) == 3
        killed_turns = standing(service, tmp_path, 3)
        assert sorted(player_of(service, it.turn) for it in killed_turns) == ["0", "1", "2"]
        busy = {name[1]: value for name, value in samples(service).items() if name[0] == "threads_busy"}
        assert busy == {"0": 1, "1": 1, "2": 1}
        for it in killed_turns:
            it.ledger.go()
        assert [wait_for_end(service, it.turn)["attempts"] for it in killed_turns] == [1, 1, 1]
        wait_until(lambda: [samples(service).get(("turns_total", number)) for number in "012"] == [1, 1, 1])
        found = samples(service)
        assert found["processes_silent", ""] == 0
        assert [found["turn_seconds_count", number] for number in "012"] == [1, 1, 1]
        everyone = family(service)
        assert len(everyone) >= 5, "the supervisor, the store, and three"
        assert service.stop() == 0
        wait_gone(everyone)
        assert (tmp_path / "set" / "data" / "seal.key").exists()


def test_a_process_of_a_set_that_is_killed_is_started_again_and_loses_no_turn(tmp_path: Path) -> None:
    with several(tmp_path) as service:
        killed_turns = standing(service, tmp_path, 3)
        first = pids(service)
        victim = player_of(service, killed_turns[0].turn)
        os.kill(first[victim], signal.SIGKILL)
        for it in killed_turns:
            it.ledger.go()
        ended = [wait_for_end(service, it.turn, SOON_S) for it in killed_turns]
        assert [(turn["status"], turn["reply"], turn["attempts"]) for turn in ended] == [
            ("finished", "done", 2),
            ("finished", "done", 1),
            ("finished", "done", 1),
        ]
        assert f"process {victim} died of signal 9; starting it again" in service.log()
        wait_until(lambda: pids(service)[victim] != first[victim], SOON_S)
        wait_until(lambda: samples(service).get(("threads_free", victim)) == 1, SOON_S)
        assert samples(service)["processes_silent", ""] == 0
        assert {number: pid for number, pid in pids(service).items() if number != victim} == {
            number: pid for number, pid in first.items() if number != victim
        }
        again = [make_killed_turn(tmp_path, f"again-{number}", 2) for number in range(3)]
        for it in again:
            it.turn = submit_turn(service, *it.script, agent=it.agent)
        wait_until(lambda: all(it.ledger.stands for it in again), SOON_S)
        for it in again:
            it.ledger.go()
        assert [wait_for_end(service, it.turn)["reply"] for it in again] == ["done"] * 3


def test_a_process_that_hangs_is_left_out_of_the_figures_and_counted(tmp_path: Path) -> None:
    with several(tmp_path) as service:
        frozen = psutil.Process(pids(service)["1"])
        frozen.suspend()
        with Stopwatch() as watch:
            found = samples(service)
        assert watch.s < 5
        assert found["processes_silent", ""] == 1
        assert {process for name, process in found if name == "threads_free"} == {"0", "2"}
        frozen.kill()
        wait_until(lambda: samples(service)["processes_silent", ""] == 0, SOON_S)
        assert service.stop() == 0


def test_a_process_that_was_asked_to_end_is_replaced(tmp_path: Path) -> None:
    with several(tmp_path, 2) as service:
        (it,) = standing(service, tmp_path, 1)
        first = pids(service)
        number = player_of(service, it.turn)
        os.kill(first[number], signal.SIGTERM)
        wait_until(lambda: f"process={number} INFO smolsessions stopping" in service.log())
        it.ledger.go()
        ended = wait_for_end(service, it.turn)
        assert (ended["reply"], [call["repeated"] for call in ended["tool_calls"]]) == ("done", [False, False])
        wait_until(lambda: pids(service)[number] != first[number], SOON_S)
        assert f"process {number} ended with status 0; starting it again" in service.log()


def test_a_set_finishes_the_steps_that_run_and_its_store_outlives_them(tmp_path: Path) -> None:
    with several(tmp_path, 2, LEASE_S="30") as service:
        killed_turns = standing(service, tmp_path, 2)
        everyone = family(service)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().count("smolsessions stopping") == 2)
        for it in killed_turns:
            it.ledger.go()
        assert service.process.wait(SOON_S) == 0
        wait_gone(everyone)
        assert [calls_of(it) for it in killed_turns] == [["model", "note a"]] * 2
        assert service.stop() == 0
        service.start()
        ended = [wait_for_end(service, it.turn) for it in killed_turns]
        assert [(turn["reply"], turn["attempts"]) for turn in ended] == [("done", 2)] * 2
        assert [calls_of(it) for it in killed_turns] == [["model", "note a", "model", "note b", "model"]] * 2


def test_a_second_signal_hurries_all_processes(tmp_path: Path) -> None:
    with several(tmp_path, 2, DRAIN_S="600", LEASE_S="30") as service:
        killed_turns = standing(service, tmp_path, 2)
        everyone = family(service)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().count("smolsessions stopping") == 2)
        assert all(map(lives, everyone))
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(SOON_S) == 0
        wait_gone(everyone)
        assert service.log().count("is handed back") == 2
        for it in killed_turns:
            it.ledger.go()


def test_a_signal_that_goes_to_all_processes_hurries_none(tmp_path: Path) -> None:
    with several(tmp_path, 2, DRAIN_S="600", LEASE_S="30") as service:
        killed_turns = standing(service, tmp_path, 2)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().count("smolsessions stopping") == 2)
        for pid in pids(service).values():
            os.kill(pid, signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(4)
        for it in killed_turns:
            it.ledger.go()
        assert service.process.wait(SOON_S) == 0


def test_a_process_that_dies_at_once_again_and_again_is_started_less_and_less_often(tmp_path: Path) -> None:
    with several(tmp_path, 2) as service:
        for pause_s in ("0", "0.2", "0.4"):
            pid = pids(service)["1"]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pause_s=pause_s: f"starting it again in {pause_s} s" in service.log())  # type: ignore[misc]
            wait_until(lambda pid=pid: pids(service)["1"] != pid)  # type: ignore[misc]
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(SOON_S) == 0


def test_a_process_that_does_not_end_is_killed_in_the_end(tmp_path: Path) -> None:
    with several(tmp_path, 2, DRAIN_S="0") as service:
        everyone = family(service)
        psutil.Process(pids(service)["0"]).suspend()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0
        wait_gone(everyone)
        assert "process 0 does not end; killing it" in service.log()


def test_a_supervisor_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    with several(tmp_path, LEASE_S="30", AGENTS=ledgers.AGENTS) as service:
        killed_turns = standing(service, tmp_path, 3)
        everyone = family(service)
        service.kill()
        wait_gone(everyone, SOON_S)
        for it in killed_turns:
            it.ledger.go()
        service.start()
        assert [wait_for_end(service, it.turn)["reply"] for it in killed_turns] == ["done"] * 3
        assert service.stop() == 0


@pytest.mark.parametrize("command", ["serve", "work"])
def test_a_set_that_cannot_start_says_why_once_and_ends(command: str, server: StoreServer, tmp_path: Path) -> None:
    settings = WITHOUT_CODE | server.settings | {"AGENTS": "x=tests.support.agents:nothing_of_that_name"}
    ending = run(tmp_path / "x", settings, command, "--processes", "2")
    sentence = sentence_of(ending)
    assert sentence.count("nothing_of_that_name") == 1


def test_a_folder_that_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    sentence = sentence_of(run(tmp_path / "x", WITHOUT_CODE, "serve", "--processes", "2", TMPDIR=str(long)))
    assert "set TMPDIR to a shorter path" in sentence


def test_works_share_a_health_port_and_one_outside_store(server: StoreServer, tmp_path: Path) -> None:
    settings = WITHOUT_CODE | server.settings | {"THREADS": "1"}
    with ExitStack() as stack:
        web = stack.enter_context(Service(tmp_path / "web", settings, command=("web", "--processes", "2")))
        work = stack.enter_context(Service(tmp_path / "work", settings, command=("work", "--processes", "2")))
        killed_turns = standing(web, tmp_path, 2)
        found: dict[Any, float] = samples(work)
        assert [found["threads_busy", number] for number in "01"] == [1, 1]
        assert [samples(web)["threads_free", number] for number in "01"] == [0, 0]
        for it in killed_turns:
            it.ledger.go()
        assert [wait_for_end(web, it.turn)["reply"] for it in killed_turns] == ["done"] * 2
        everyone = [*family(web), *family(work)]
        assert (work.stop(), web.stop()) == (0, 0)
        wait_gone(everyone)
