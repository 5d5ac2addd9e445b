"""Confinement of code that has escaped from the interpreter, by the levels of docs/security.md."""

import ctypes.util
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from smolsessions.agents.sandbox.confinement import landlock, seccomp
from smolsessions.agents.sandbox.confinement.readable_paths import ReadablePaths
from smolsessions.store.seal import new_key
from tests.support.code_turns import code_script, fork_servers, play_code, printed, runs_code, shown_outputs, wait_gone
from tests.support.data import data
from tests.support.debian import skip
from tests.support.preloaded import PYTHONPATH
from tests.support.service import PATIENCE_S, Gate, Service, run_program, spawn, wait_until
from tests.support.tiers import mostly_deep
from tests.support.turns import cancel, submit_turn, wait_for_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")
UID = 12_345 + os.getpid() % 30_000  # of this process of pytest alone
LAUNCHER = (sys.executable, str(Path(__file__).parents[1] / "support" / "launch.py"))
BOTH = ("namespaces", "landlock")
CODERS = ("coder", "forking", "lead", "walled")
AGENTS = {"AGENTS": ",".join(f"{name}=tests.support.coders:make_{name}" for name in CODERS), "DEMO_AGENTS": "0"}
CASES = {
    "root, namespaces": (0, (), "namespaces"),
    "root, Landlock": (0, ("namespaces",), "landlock"),
    "root, uids": (0, BOTH, "uid"),  # the launcher shows this Python to other users
    "a user, namespaces": (UID, (), "namespaces"),
    "a user, Landlock": (UID, ("namespaces",), "landlock"),
    "a user, nothing": (UID, BOTH, "none"),
}
AT_HAND = data("confined.txt")
"""Module that code imports and that the interpreter does not restrict."""


@dataclass
class Confined:
    service: Service
    level: str
    uid: int
    folder: Path
    """Holds `imported`, from which modules can be imported, `open`, which code may read, and `precious`, a file."""
    listener: socket.socket

    @property
    def keys(self) -> Path:
        return self.folder / "imported" / "keys"


FAST = ["a user, Landlock", "a user, namespaces", "a user, nothing"]


@pytest.fixture(scope="module", params=mostly_deep(CASES, fast=FAST))
def confined(request: pytest.FixtureRequest) -> Iterator[Confined]:
    uid, without, level = CASES[request.param]
    if os.getuid() and not uid:
        skip("this takes root's rights")
    with own_folder(uid) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "imported" / "socket"))
        (folder / "imported" / "socket").chmod(0o777)
        listener.listen()
        settings = AGENTS | {"SEAL_KEYS_FILE": str(folder / "imported" / "keys"), "CODE_FOLDERS": str(folder / "open")}
        if level in {"namespaces", "landlock"}:
            settings["CODE_CONFINEMENT"] = "required"
        path = f"{folder / 'imported'}{os.pathsep}{PYTHONPATH}"
        environment = {"A_MODELS_KEY": "sk-of-the-model", "PYTHONPATH": path}
        with Service(folder, settings, environment, wrapper=wrapper(uid, without)) as service:
            yield Confined(service, level, uid, folder, listener)


class own_folder:  # noqa: N801 - a context
    """Folder with files that a user owns."""

    def __init__(self, uid: int) -> None:
        self.path = Path(tempfile.mkdtemp(dir="/tmp"))
        self.path.chmod(0o755)
        for name in ("imported/at_hand.py", "imported/.env", "imported/keys", "open/data.csv", "precious"):
            path = self.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text({"keys": new_key(), "at_hand.py": AT_HAND}.get(path.name, "something"))
            path.chmod(0o600 if path.name in {"keys", ".env", "precious"} else 0o644)
        if os.getuid() == 0:
            os.mknod(self.path / "disk", stat.S_IFBLK | 0o600, Path("/").stat().st_dev)
            for path in (self.path, *self.path.rglob("*")):
                os.chown(path, uid, uid)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def wrapper(uid: int, without: tuple[str, ...]) -> tuple[str, ...]:
    asked = [word for name in without for word in ("--without", name)]
    return (*LAUNCHER, "--uid", str(os.getuid() or uid), *asked)


def tried(service: Service, attempts: list[str], agent: str = "walled") -> list[str]:
    """Return the text that the model reads after each attempt."""
    _, (_, *texts) = play_code(
        service,
        "import at_hand",
        *(f"print(at_hand.attempt({attempt!r}))" for attempt in attempts),
        agent=agent,
        max_steps=len(attempts) + 2,
    )
    return texts


def test_the_level_is_in_the_log_and_in_the_list_of_agents(confined: Confined) -> None:
    agents = {agent["name"]: agent["code_confinement"] for agent in confined.service.get("/agents")["items"]}
    assert agents == dict.fromkeys(CODERS, confined.level)
    assert "model-written code is confined by" in confined.service.log()


def test_a_process_has_no_right_and_the_limits_of_its_agent(confined: Confined) -> None:
    is_stranger = os.getuid() == 0 == confined.uid
    expected = {
        "rights()": 0,
        "os.getuid() >= 2_000_000_000": is_stranger,
        "os.getpid() == 1": confined.level == "namespaces",
        "libc.prctl(39, 0, 0, 0, 0)": 1,  # no new privileges
        "libc.prctl(3, 0, 0, 0, 0)": 0,  # its memory is private
        "resource.getrlimit(resource.RLIMIT_AS)[1] > 1 << 29": True,
        "resource.getrlimit(resource.RLIMIT_NOFILE)": (20, 20),
        "resource.getrlimit(resource.RLIMIT_FSIZE)": (0, 0),
        "resource.getrlimit(resource.RLIMIT_CORE)": (0, 0),
        "resource.getrlimit(resource.RLIMIT_NPROC)": (0, 0),
    }
    found = map(printed, tried(confined.service, [*expected]))
    assert dict(zip(expected, found, strict=True)) == {name: repr(value) for name, value in expected.items()}


def test_code_reaches_no_network_process_or_memory_and_changes_no_file(confined: Confined) -> None:
    service, folder = confined.service, confined.folder
    pid, port = service.process.pid, service.client.base_url.port
    (fork_server,) = fork_servers(service)
    precious = str(folder / "precious")
    attempts = [
        f"socket.create_connection(('127.0.0.1', {port}), 2)",
        f"socket.socket(socket.AF_UNIX).connect({str(folder / 'imported' / 'socket')!r})",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '/dev/log')",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        *(f"os.kill({other}, 0)" for other in (pid, fork_server.pid, os.getpid(), f"-{fork_server.pid}", 1_000_000)),
        f"signal.pidfd_send_signal(os.pidfd_open({fork_server.pid}), 0)",
        f"resource.prlimit({pid}, resource.RLIMIT_NOFILE, (3, 3))",
        f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        f"fcntl.fcntl(socket.socketpair()[0], 8, {pid})",
        f"call('ptrace', 16, {pid}, 0, 0)",
        *(f"read('/proc/{other}/{name}')" for other in (pid, fork_server.pid) for name in ("environ", "maps", "mem")),
        "read('/proc/self/mem')",
        "call('shmget', 0, 1 << 20, 0o1600)",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
        "socket.socketpair()[0].sendmsg([b'x'])",
        "socket.send_fds(socket.socketpair()[0], [b'x'], [0])",
        "call('sendmmsg', socket.socketpair()[0].fileno(), None, 0, 0)",
        "call('semget', 0, 1, 0o1600)",
        "call('msgget', 0, 0o1600)",
        "call('unshare', 0x10000000)",
        "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
        "call('syscall', 425, 1, None)",
        "call('vmsplice', os.pipe()[1], None, 0, 0)",
        "importlib.import_module('mmap').mmap(-1, 1 << 20)",
        "io.open('/dev/zero', 'r+b')",
        "call('syscall', 444, ctypes.byref(ctypes.c_long(1)), 8, 0)",
        "call('inotify_add_watch', libc.inotify_init(), b'/usr', 2)",
        "call('prctl', 1, 0, 0, 0, 0)",
        "call('prctl', 4, 1, 0, 0, 0)",
        "call('syscall', {'x86_64': 206}.get(os.uname().machine, 0), 1, ctypes.byref(ctypes.c_long(0)))",
        "fcntl.ioctl(socket.socketpair()[0], 0x5411, b'room')",
        "call('keyctl', 0, -3, 1) if hasattr(libc, 'keyctl') else call('syscall', 100_000)",
        "os.setuid(0) if os.getuid() else os.chroot('/')",
        "os.setsid()",
        "os.fork()",
        "threading.Thread(target=print).start()",
        "os.execv('/bin/true', ['true'])",
        f"read({str(folder / 'disk')!r})",
        f"io.open({precious!r}, 'w')",
        f"os.open({precious!r}, os.O_RDONLY | os.O_TRUNC)",
        *(f"io.open({str(folder / below)!r}, 'w')" for below in ("new", "open/new", "open/data.csv")),
        "io.open('/tmp/new', 'w')",
        "io.open('/dev/shm/new', 'w')",
        "os.ftruncate(os.memfd_create('x'), 1 << 20)",
        f"os.mkdir({str(folder / 'new')!r})",
        f"os.rename({precious!r}, {str(folder / 'moved')!r})",
        *(f"os.{name}({precious!r})" for name in ("unlink", "rmdir", "utime")),
        f"os.chmod({precious!r}, 0o666)",
        f"os.truncate({precious!r}, 0)",
        f"os.symlink({precious!r}, {str(folder / 'link')!r})",
        "[os.open('/dev/null', 0) for _ in range(30)]",
    ]
    for attempt, text in zip(attempts, tried(service, attempts), strict=True):
        assert text.startswith("Code execution failed"), (attempt, text)
        assert "Error" in text.replace("InterpreterError", ""), (attempt, text)
        assert not text.startswith("The process"), (attempt, text)
    assert (folder / "precious").read_text() == "something"
    assert stat.S_IMODE((folder / "precious").stat().st_mode) == 0o600


def test_code_reads_no_secret_even_if_its_file_is_replaced(confined: Confined) -> None:
    service, folder = confined.service, confined.folder
    play_code(service, "1", agent="walled")  # the mounts and rules now exist
    for name in ("keys", "secret"):
        new = folder / f"{name}.new"
        new.write_bytes(confined.keys.read_bytes())
        new.chmod(0o600)
        if os.getuid() == 0:
            shutil.chown(new, confined.keys.stat().st_uid)
        new.replace(folder / "imported" / name)
    secrets = [confined.keys, folder / "imported" / ".env", *(folder / "data").rglob("*"), Path("/etc/shadow")]
    attempts = [f"read({str(path)!r})" for path in secrets if path.is_file()]
    texts = tried(service, [*attempts, "read(f'/proc/{os.getppid()}/environ')", "dict(os.environ)"])
    refused = [text.startswith("Code execution failed") for text in texts]
    if confined.level == "none":  # as docs/security.md says
        assert refused[0] is False
    else:
        assert all(refused[: len(attempts)]), [*zip(attempts, texts, strict=False)]
    assert "sk-of-the-model" not in "".join(texts)
    assert "SMOLSESSIONS" not in texts[-1]


def test_code_imports_and_reads_what_agents_need(confined: Confined) -> None:
    attempts = [
        "made",
        "importlib.import_module('sqlite3') is not None",
        "importlib.import_module('colorsys') is not None",
        "importlib.import_module('numpy.polynomial') is not None",
        "importlib.import_module('zoneinfo').ZoneInfo('Europe/Paris')",
        f"read({str(confined.folder / 'open' / 'data.csv')!r})",
        "len(io.open('/dev/urandom', 'rb').read(3))",
        "os.kill(os.getpid(), 0)",
        "[pair[0].send(b'x') for pair in [socket.socketpair()]]",
        "importlib.import_module('asyncio').run(importlib.import_module('asyncio').sleep(0))",
    ]
    for attempt, text in zip(attempts, tried(confined.service, attempts), strict=True):
        assert text.startswith("Execution logs"), (attempt, text)


def test_a_signal_to_its_own_group_reaches_no_other_process(confined: Confined) -> None:
    service, gate = confined.service, Gate(confined.folder / "signals")
    blocks = code_script("kept = 1", f"wait_for(path={str(gate.path)!r})", "print(kept)")
    turn = submit_turn(service, *blocks, {"say": "done"}, agent="coder")
    gate.reached()
    before = fork_servers(service)
    for number in ("SIGKILL", "SIGTERM"):
        block = f"import at_hand\nat_hand.attempt('os.killpg(0, signal.{number})')"
        play_code(service, block, "import at_hand\nat_hand.attempt('os.kill(-1, signal.SIGKILL)')", agent="walled")
    gate.open()
    ended = wait_for_end(service, turn)
    assert [text for text in shown_outputs(service, ended) if text.startswith("The process")] == []
    assert (ended["reply"], fork_servers(service)) == ("done", before)


def below(service: Service) -> list[psutil.Process]:
    """Return the processes in which code runs, with those that they forked."""
    forked = [process for fork_server in fork_servers(service) for process in fork_server.children(recursive=True)]
    return [process for process in forked if runs_code(process)]


def test_processes_that_code_starts_end_with_its_turn(confined: Confined) -> None:
    service, gate = confined.service, Gate(confined.folder / "starts")
    wait_until(lambda: not below(service))
    blocks = code_script("import at_hand\nat_hand.leave()", f"wait_for(path={str(gate.path)!r})")
    turn = submit_turn(service, *blocks, agent="forking")
    gate.reached()
    left = below(service)
    assert len(left) == 2
    cancel(service, turn)
    gate.open()
    wait_for_end(service, turn)
    wait_gone(left)


def test_a_service_that_must_confine_code_and_cannot_does_not_start() -> None:
    settings = {"AGENTS": "walled=tests.support.coders:make_walled", "DEMO_AGENTS": "0", "CODE_CONFINEMENT": "required"}
    with own_folder(UID) as folder, spawn(folder, settings, wrapper=wrapper(UID, BOTH)) as process:
        try:
            assert process.wait(PATIENCE_S) == 2
        finally:
            process.kill()
        said = (folder / "service.log").read_text()
    assert "SMOLSESSIONS_CODE_CONFINEMENT" in said
    assert "Landlock" in said
    assert "Traceback" not in said


def test_the_numbers_of_system_calls_are_those_of_libseccomp() -> None:
    library = ctypes.util.find_library("seccomp")
    if not library:
        skip("libseccomp, which knows the numbers, is not here")
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    groups = (value for name, value in vars(seccomp).items() if name.isupper() and isinstance(value, str))
    names = [call.partition(":")[0] for group in groups for call in group.split()]
    assert len(names) == len(set(names)) > 100
    for machine, architecture in (("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)):
        known: dict[str, int] = {}
        for name, value in vars(seccomp).items():
            if name.isupper() and isinstance(value, str):
                known |= seccomp.numbers(value, machine)
        found = {name: resolve(architecture, name.encode()) for name in names}
        assert known == {name: number for name, number in found.items() if number >= 0}


def test_a_process_keeps_its_uid_if_another_could_not_import(tmp_path: Path) -> None:
    if os.getuid():
        skip("this takes root's rights")
    closed = tmp_path / "closed"
    (closed / "modules").mkdir(parents=True)
    closed.chmod(0o700)
    code = "from smolsessions.agents.sandbox.confinement.levels import Confinement\nprint(Confinement([])._own_uids)"
    own = {**os.environ, "PYTHONPATH": f"{closed / 'modules'}{os.pathsep}{PYTHONPATH}"}
    done = run_program([*wrapper(0, BOTH), sys.executable, "-c", code], env=own)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_no_hidden_path_is_readable_through_a_readable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "opened"
    for name in "a/secret/key a/module.py a/secret/other b/part.py b/..now/token c/whole.py e/far/key d/d.py".split():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "b" / "token").symlink_to("..now/token")
    (folder / "b" / "loop").symlink_to(folder)
    (folder / "d" / "link").symlink_to("../e/far/key")
    hidden = [folder / name for name in ("a/secret/key", "b/token", "d/link")]
    readable = ReadablePaths.excluding(hidden, [folder])
    shown = {str(path.relative_to(folder)) for path in readable.whole if path.is_relative_to(folder)}
    assert shown == {"a/module.py", "c"}
    assert {str(path.relative_to(folder)) for path in readable.listed if path.is_relative_to(folder)} == {".", "a", "e"}


def test_only_public_modules_of_an_import_folder_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project folder holds keys and data beside its modules, and an environment that is a link."""
    folder, venv = tmp_path / "project", tmp_path / "venv"
    venv.mkdir()
    names = "seal.key credentials.json .env d/big.csv own.py tools/__init__.py tools/cache.json tools/token open/a.py"
    for name in (*names.split(), "space/inner/part.py", "own-1.0.dist-info/METADATA"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch(mode=0o644)
    for name in ("seal.key", "tools/token"):
        (folder / name).chmod(0o600)
    (folder / "venv").symlink_to(venv)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "prefix", str(folder / "venv"))
    (hidden := tmp_path / "hidden").mkdir()
    monkeypatch.syspath_prepend(str(hidden))
    readable = ReadablePaths.excluding([hidden])
    assert hidden not in readable.listed
    shown = {str(path.relative_to(folder)) for path in readable.whole if path.is_relative_to(folder)}
    assert shown == {"venv", "own.py", "open", "space", "own-1.0.dist-info", "tools/__init__.py", "tools/cache.json"}
    assert {str(path.relative_to(folder)) for path in readable.listed if path.is_relative_to(folder)} == {".", "tools"}


def test_a_ruleset_has_only_rights_that_its_version_of_landlock_knows() -> None:
    """Sizes and rights equal those of the kernel's header."""
    for seen in range(1, 10):
        attributes = landlock.attributes_for(seen)
        assert len(attributes) == (8 if seen < 4 else 16 if seen < 6 else 24)
        rights = int.from_bytes(attributes[:8], "little")
        assert rights.bit_length() == {1: 13, 2: 14, 3: 15, 4: 15}.get(seen, 16)
