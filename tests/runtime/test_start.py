"""The start of a service: what it refuses, says and keeps, and `make run` with any Python."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from smolsessions import __version__
from smolsessions.store.connection.server_errors import RIGHTS
from smolsessions.store.embedded.server import RESTARTS, embedded_server
from tests.support.refusals import Refused, assert_refused, refused, sentence_of
from tests.support.service import (
    AGENTS,
    PATIENCE_S,
    PLAIN,
    ROOT,
    Gate,
    Service,
    run,
    run_program,
    spawn,
    wait_until,
    write_private,
)
from tests.support.tiers import mostly_deep
from tests.topology.node import DURABLE, HOST, Node

SECRET = "open-sesame"
KEY_A = "keyA:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
KEY_B = "keyB:QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="
SLOW = """
import time
from pathlib import Path
from tests.support.agents import make_scripted
Path("started").touch()
end = time.monotonic() + 120
while not Path("go").exists() and time.monotonic() < end:
    time.sleep(0.005)
"""
NOWHERE = f"redis://:{SECRET}@127.0.0.1:1"

SECRET_FILES = {"SEAL_KEYS_FILE": KEY_A, "API_KEYS_FILE": f"ada {'0' * 64}", "REDIS_PASSWORD_FILE": SECRET}
STORE = {"REDIS_URL": NOWHERE, "SEAL_KEYS": KEY_A}
REFUSED = refused("refused_starts.yaml", key=KEY_A, secret=SECRET, root=str(ROOT))


def test_a_start_is_refused_with_the_mend_and_without_a_secret(tmp_path: Path) -> None:
    assert_refused(REFUSED, tmp_path, (SECRET, KEY_A.partition(":")[2]))


def test_start_says_where_it_is_what_it_serves_and_who_may_connect(service: Service) -> None:
    said = dict(line.strip().split(maxsplit=1) for line in service.said[1:])
    data = service.folder / "data"
    assert service.said[0] == f"smolsessions {__version__} serves on {service.client.base_url.netloc.decode()}"
    assert service.client.get(said["page"]).headers["content-type"].startswith("text/html")
    assert service.client.get(said["docs"]).status_code == 200
    assert said["data"] == str(data)
    assert re.fullmatch(rf"(Valkey|Redis) [\d.]+, embedded, in {re.escape(str(data))}", said["store"])
    named = [agent.partition("=")[0] for agent in AGENTS.split(",")]
    assert said["agents"].split(", ") == [*named, "demo", "demo-code"]
    assert said["who"] == "this machine only, without a key"


def test_a_port_that_is_taken_is_refused_with_the_mend(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sentence = sentence_of(run(tmp_path, {"PORT": str(port)}))
    assert f"cannot listen on 127.0.0.1:{port}" in sentence
    assert "set SMOLSESSIONS_PORT" in sentence
    assert not (tmp_path / "data").exists()


def test_a_second_service_on_the_data_folder_is_refused(service: Service, tmp_path: Path) -> None:
    first = service.play({"say": "one"})
    sentence = sentence_of(run(tmp_path, {"DATA_DIR": str(service.folder / "data")}))
    assert f"in use by process {service.process.pid}" in sentence
    assert "SMOLSESSIONS_DATA_DIR" in sentence
    assert service.follow_up(first, {"say": "two"})["reply"] == "two"


def test_the_data_and_its_key_are_for_their_user_alone_and_not_for_git(service: Service, tmp_path: Path) -> None:
    data = service.folder / "data"
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (data, data / "seal.key")}
    assert modes == {"data": "0o700", "seal.key": "0o600"}
    assert (data / ".gitignore").read_text() == "*\n"
    (tmp_path / "own").mkdir(mode=0o700)
    with embedded_server(tmp_path / "own"):
        assert not (tmp_path / "own" / ".gitignore").exists()


@pytest.fixture(scope="module")
def outside_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address, without the password, of a store that requires `SECRET`."""
    with embedded_server(tmp_path_factory.mktemp("outside")) as server:
        with Redis(unix_socket_path=str(server.socket_path)) as client:
            client.config_set("requirepass", SECRET)
        yield f"{server.socket_path}"


@pytest.mark.parametrize(("name", "mode"), [("", 0o704), ("seal.key", 0o604)])
def test_data_that_all_users_may_read_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "seal.key").write_text(KEY_A)
    (data / "seal.key").chmod(0o600)
    (data / name).chmod(mode)
    sentence = sentence_of(run(tmp_path, {}))
    assert f"chmod o-rwx {data / name}" in sentence
    assert KEY_A not in sentence


@pytest.mark.parametrize("name", SECRET_FILES)
def test_a_file_of_secrets_that_all_users_may_read_is_refused(tmp_path: Path, name: str) -> None:
    file = link = write_private(tmp_path / "secret", SECRET_FILES[name])
    file.chmod(0o604)
    if name == "API_KEYS_FILE":
        link = tmp_path / "link"
        link.symlink_to(file)
    store = STORE if name == "REDIS_PASSWORD_FILE" else {}
    sentence = sentence_of(run(tmp_path / "service", store | {name: str(link)}))
    assert f"all users of this machine may read the SMOLSESSIONS_{name} {link}: run `chmod o-rwx {link}`" in sentence
    assert SECRET_FILES[name] not in sentence


def test_a_store_outside_is_named_and_leaves_the_data_folder_alone(outside_store: str, tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", run(tmp_path, {}, "keys", "seal")[1])
    settings = {"REDIS_URL": f"unix://:{SECRET}@{outside_store}", "SEAL_KEYS_FILE": str(keys)}
    with Service(tmp_path, settings) as running:
        said = dict(line.strip().split(maxsplit=1) for line in running.said[1:])
        assert said["data"] == "in the store"
        assert re.fullmatch(r"(Valkey|Redis) [\d.]+, at SMOLSESSIONS_REDIS_URL", said["store"])
        assert running.play({"say": "hello"})["reply"] == "hello"
        assert SECRET not in running.log() + "".join(running.said)
    assert not (tmp_path / "data").exists()


def test_a_store_that_refuses_password_or_rights_is_named(outside_store: str, tmp_path: Path) -> None:
    users = {"channel": "~* +@all", "key": "&* +@all", "it may not run TIME, ZADD": "~* &* +@all -zadd -time"}
    login = ("refuses the login", "put its user into SMOLSESSIONS_REDIS_URL, and the password")
    table = {
        password: Refused({"REDIS_URL": f"unix://{password}{outside_store}", "SEAL_KEYS": KEY_A}, login)
        for password in ("", ":wrong-sesame@")
    }
    with Redis(unix_socket_path=outside_store, password=SECRET) as client:
        for number, (named, rights) in enumerate(users.items()):
            client.execute_command("ACL", "SETUSER", f"poor{number}", "reset", "on", f">{SECRET}", *rights.split())
            settings = {"REDIS_URL": f"unix://poor{number}:{SECRET}@{outside_store}", "SEAL_KEYS": KEY_A}
            table[named] = Refused(settings, ("SMOLSESSIONS_REDIS_URL", "permission", named))
    assert_refused(table, tmp_path, [SECRET, "wrong-sesame"])


def test_a_store_of_another_kind_than_its_address_says_is_refused_with_the_mend(tmp_path: Path) -> None:
    server = Node(tmp_path / "server", dict(DURABLE))
    replica = Node(tmp_path / "replica", DURABLE | {"replicaof": f"{HOST} {server.port}"})
    addresses = {
        f"redis://{HOST}:{replica.port}": "is a replica, which takes no writes; write the address of its primary",
        f"redis://{HOST}:{server.port}/99": "does not answer (DB index is out of range); start it, correct its address",
        f"redis://:{SECRET}@{HOST}:{server.port}": "without any password configured",
        f"redis+sentinel://{HOST}:{server.port}/main": "no sentinel in SMOLSESSIONS_REDIS_URL names a primary",
        f"redis+cluster://{HOST}:{server.port}": "does not answer (Redis Cluster cannot be connected",
    }
    table = {url: Refused({"REDIS_URL": url, "SEAL_KEYS": KEY_A}, (told,)) for url, told in addresses.items()}
    try:
        for node in (server, replica):
            node.start()
        wait_until(lambda: replica.ask("ROLE")[3] == b"connected")
        assert_refused(table, tmp_path / "refused", [SECRET])
    finally:
        for node in (server, replica):
            node.kill()


def test_a_password_that_changes_is_read_again_and_one_that_is_away_is_named(tmp_path: Path) -> None:
    server, file = Node(tmp_path / "server", dict(DURABLE)), tmp_path / "password"
    try:
        server.start()
        server.ask("ACL", "SETUSER", "turner", "reset", "on", ">one", *RIGHTS.split())
        write_private(file, "one")
        url = f"redis://turner@{HOST}:{server.port}"
        settings = {"REDIS_URL": url, "SEAL_KEYS": KEY_A, "REDIS_PASSWORD_FILE": str(file)}
        with Service(tmp_path / "service", settings) as service:
            server.ask("ACL", "SETUSER", "turner", ">two", "<one")
            file.write_text("two\n")
            server.ask("CLIENT", "KILL", "USER", "turner")
            wait_until(lambda: service.client.get("/conversations").status_code == 200)
            file.unlink()
            server.ask("CLIENT", "KILL", "USER", "turner")
            wait_until(lambda: "SMOLSESSIONS_REDIS_PASSWORD_FILE cannot be read" in service.log())
            file.write_text("two")
            wait_until(lambda: service.client.get("/conversations").status_code == 200)
            assert service.play({"say": "hello"})["reply"] == "hello"
            assert service.log().count("cannot be read") == 1
    finally:
        server.kill()


def test_a_new_key_is_read_beside_the_old_one_and_seals_what_is_new(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN | {"SEAL_KEYS": KEY_A}) as before:
        old = before.play({"say": "sealed with A"})
        assert _keys_on(before, old) == {b"keyA"}
    sentence = sentence_of(run(tmp_path / "without", {"SEAL_KEYS": KEY_B, "DATA_DIR": str(tmp_path / "data")}))
    assert "sealed with another key" in sentence
    assert "SMOLSESSIONS_SEAL_KEYS" in sentence
    with Service(tmp_path, PLAIN | {"SEAL_KEYS": f"{KEY_B},{KEY_A}"}) as after:
        assert after.get(f"/conversations/{old['conversation_id']}/turns/1")["reply"] == "sealed with A"
        assert after.follow_up(old, {"say": "both"})["turn"] == 2
        assert _keys_on(after, old) == {b"keyA", b"keyB"}
        assert _keys_on(after, after.play({"say": "sealed with B"})) == {b"keyB"}


def _keys_on(service: Service, turn: dict[str, Any]) -> set[bytes]:
    """Return the ids of the keys that seal the stored data of the turn's conversation."""
    with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as client:
        client.config_set("rdbcompression", "no")
        stored = [client.dump(key) for key in client.scan_iter(f"*{turn['conversation_id']}*")]
    assert stored
    return set(re.findall(rb"\x01\x04(key[AB])", b"".join(stored)))


def test_conversations_outlive_a_restart_and_a_key_file_that_was_lost_for_a_while(tmp_path: Path) -> None:
    key, aside = tmp_path / "data" / "seal.key", tmp_path / "aside"
    key.parent.mkdir(mode=0o700)
    (key.parent / ".seal-x1y2z3").touch(0o600)  # a half-made key that a power cut left
    service = Service(tmp_path, PLAIN)
    with service:
        first = service.post("/turn", message="What is 12 * 7?", agent="demo").json()
    key.rename(aside)
    sentence = sentence_of(run(tmp_path / "without", {"DATA_DIR": str(tmp_path / "data")}))
    assert "sealed with another key" in sentence
    assert "seal.key" in sentence
    aside.replace(key)
    with service:
        asked = service.post("/turn", message="What did I ask first?", conversation_id=first["conversation_id"]).json()
        assert (asked["turn"], "12 * 7" in asked["reply"]) == (2, True)
        assert service.get(f"/conversations/{first['conversation_id']}/turns/1") == first


def test_what_looks_like_a_setting_and_is_none_is_warned_of(tmp_path: Path) -> None:
    links = {"SERVICE_HOST": "10.0.0.1", "PORT_80_TCP_ADDR": "10.0.0.1"}  # made by Kubernetes, as PORT is
    _, _, log = run(tmp_path, links | {"PROT": "8001", "ZZZ": "1", "URL": "http://x", "HOST": "192.0.2.1"})
    warnings = [line for line in log.splitlines() if " WARNING " in line]
    assert len(warnings) == 2
    assert warnings[0].endswith("SMOLSESSIONS_PROT is no setting; did you mean SMOLSESSIONS_PORT?")
    assert warnings[1].endswith("SMOLSESSIONS_ZZZ is no setting")


def test_new_api_key_makes_a_line_that_lets_its_owner_in_and_nobody_else(tmp_path: Path) -> None:
    status, line, errors = run(tmp_path / "making", {}, "keys", "owner", "ada@example.org")
    key = errors.splitlines()[-1]
    assert (status, line.split()[0], key in line) == (0, "ada@example.org", False)
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o2770)  # a group may read it, and the key files
    keys, link = write_private(tmp_path / "keys", line), tmp_path / "link"
    link.symlink_to(keys)  # as Kubernetes mounts a Secret
    for file in (write_private(tmp_path / "data" / "seal.key", KEY_A), keys):
        file.chmod(0o440)
    with Service(tmp_path, PLAIN | {"HOST": "0.0.0.0", "API_KEYS_FILE": str(link)}) as service:
        assert service.said[-1].split(maxsplit=1)[1] == "anyone who reaches it, with an API key"
        assert service.said[1].split() == ["page", f"http://127.0.0.1:{service.client.base_url.port}/"]
        answers = [_list(service, key), _list(service, key[:-1]), _list(service, None)]
    assert [(answer.status_code, answer.headers.get("www-authenticate")) for answer in answers] == [
        (200, None),
        (401, "Bearer"),
        (401, "Bearer"),
    ]


def _list(service: Service, key: str | None) -> httpx2.Response:
    return service.client.get("/conversations", headers={"Authorization": f"Bearer {key}"} if key else {})


def test_all_may_come_in_where_the_operator_says_so(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN | {"HOST": "0.0.0.0", "ALLOW_ANONYMOUS": "1"}) as service:
        assert service.said[-1].split(maxsplit=1)[1] == "anyone who reaches it, without a key"
        assert _list(service, None).status_code == 200


@pytest.mark.parametrize("encoding", mostly_deep(["utf-8", "latin-1"], fast=["latin-1"]))
def test_the_description_in_the_repository_is_served(encoding: str, service: Service, tmp_path: Path) -> None:
    ending = run(tmp_path, {}, "openapi", PYTHONIOENCODING=encoding)
    described = (ROOT / "openapi.yaml").read_text("utf-8")
    assert ending == (0, described, ""), "run `make refresh`"
    assert yaml.safe_load(described) == service.get("/openapi.json")


def test_version_is_the_packages(tmp_path: Path) -> None:
    assert run(tmp_path, {}, "--version") == (0, f"smolsessions {__version__}\n", "")


@pytest.mark.parametrize("number", mostly_deep([signal.SIGTERM, signal.SIGINT], fast=[signal.SIGTERM]))
def test_a_signal_lets_the_running_step_end_and_no_more(number: signal.Signals, tmp_path: Path, gate: Gate) -> None:
    service = Service(tmp_path, PLAIN)
    calls = [gate.script["call"][0], ["echo", {"text": "in a thread of smolagents' own"}]]
    body = {"agent": "scripted", "message": json.dumps([{"call": calls}, {"say": "it went on"}])}
    with service, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.client.post, "/turn", json=body, headers={"Prefer": "wait=50"})
        gate.reached()
        store = psutil.Process(_store_of(service))
        assert store.ppid() == service.process.pid
        service.process.send_signal(number)
        wait_until(lambda: service.client.get("/readyz").status_code == 503)
        answers = [{"request_id": "c:1:1.1", "decision": "approve"}]
        for path, sent in (("/turn", {"message": "x"}), ("/conversations/c/turns/1/answers", {"answers": answers})):
            refused = service.post(path, **sent)
            assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")
            assert refused.headers["retry-after"]
        assert service.client.get("/livez").status_code == 200
        gate.open()
        answer = waiting.result()
        assert (answer.status_code, answer.json()["status"]) == (202, "running"), answer.text
        assert service.process.wait(PATIENCE_S) == 0
        assert not store.is_running()
    with service:
        where = answer.headers["location"]
        wait_until(lambda: service.get(where)["status"] != "running")
        turn = service.get(where)
        assert (turn["status"], turn["reply"], turn["attempts"]) == ("finished", "it went on", 2)
        assert [call["repeated"] for call in turn["tool_calls"]] == [False, False]
        assert len(service.get("/conversations")["items"]) == 1


def test_a_signal_while_it_starts_ends_it_as_soon_as_it_can(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with spawn(tmp_path, {"AGENTS": "slow=slow:make_scripted"}, cwd=tmp_path) as process:
        try:
            wait_until((tmp_path / "started").exists)
            process.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert not (tmp_path / "data" / "store.sock").exists()


def test_a_store_that_dies_again_and_again_ends_the_service_with_the_mend(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN) as service:
        for _ in range(RESTARTS):
            store = _store_of(service)
            os.kill(store, signal.SIGKILL)
            wait_until(lambda: _store_of(service) not in {0, store})  # noqa: B023 - called at once
        os.kill(_store_of(service), signal.SIGKILL)
        assert service.process.wait(PATIENCE_S) == 2
    assert "restore a backup of the folder, or set SMOLSESSIONS_DATA_DIR" in service.log().splitlines()[-1]
    assert "Traceback" not in service.log()


def _store_of(service: Service) -> int:
    """Return the pid of the embedded store, or zero while it does not answer."""
    with (
        suppress(RedisError, OSError),
        Redis(unix_socket_path=str(service.folder / "data" / "store.sock"), retry=Retry(NoBackoff(), 0)) as client,
    ):
        return int(client.info("server")["process_id"])
    return 0


def test_the_lock_file_holds_all_that_the_image_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([\w.-]+)==([^ ;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    (recipe,) = re.findall(r".*-o requirements\.lock", (ROOT / "Makefile").read_text())
    extras = re.findall(r"--extra (\S+)", recipe)
    assert extras
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"][one] for one in extras)]
    missing = [one for one in map(Requirement, wanted) if locked.get(one.name, "0") not in one.specifier]
    assert missing == [], "run `make lock`"


def test_hadolint_finds_nothing_in_the_dockerfiles() -> None:
    template = ROOT / "app" / "smolsessions" / "cli" / "template" / "Dockerfile.txt"
    ended = run_program([Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile", template])
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_code_of_several_owners_runs_in_the_service_only_if_that_is_allowed(tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", f"ada {'0' * 64}")
    settings = {"API_KEYS_FILE": str(keys), "AGENTS": "own=tests.support.coders:make_threaded", "DEMO_AGENTS": "0"}
    for role in ("serve", "web"):
        store = {"REDIS_URL": NOWHERE, "SEAL_KEYS": KEY_A} if role == "web" else {}
        status, _, said = run(tmp_path / role, settings | store | {"ALLOW_CODE_IN_SERVICE": "0"}, role)
        assert status == 2, said
        assert "SMOLSESSIONS_ALLOW_CODE_IN_SERVICE=1" in said
    with Service(tmp_path / "allowed", settings | {"ALLOW_CODE_IN_SERVICE": "1"}):
        pass


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, also if the tests were started by make."""
    environment = {n: value for n, value in os.environ.items() if n not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return run_program(["make", *arguments], cwd=folder, env=environment)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("python", "found"), [("old", "3.9"), ("no-such-python", "missing")])
def test_an_old_or_missing_python_is_named_before_any_install(checkout: Path, python: str, found: str) -> None:
    old = checkout / "old"
    old.write_text('#!/bin/sh\ncase "$2" in *exit*) exit 1;; esac\necho 3.9\n')
    old.chmod(0o755)
    name = f"./{python}"
    done = make(checkout, "run", f"PYTHON={name}")
    assert done.returncode != 0
    assert done.stdout == (
        f"smolsessions needs Python 3.11 or later, and {name} is {found}: "
        "name another one, as in make PYTHON=python3.12 run\n"
    )
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("answer", ["echo 3.9", "exit 127"], ids=["another Python", "a Python that is gone"])
def test_an_environment_that_another_python_made_is_made_anew(checkout: Path, answer: str) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    (checkout / ".venv" / "run-ready").touch()
    planned = make(checkout, "-n", "run", f"PYTHON={sys.executable}").stdout
    assert f"{sys.executable} -m venv --clear .venv" in planned
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert "-m venv" not in make(checkout, "-n", "run", f"PYTHON={sys.executable}").stdout
