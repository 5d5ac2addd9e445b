"""Builds the image with buildah and runs it with podman: `make image-check`, as root on Debian.

`BASE=debootstrap` makes the base image from Debian's packages, for a machine that reaches no image registry. Everything
listens on loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGES = ("buildah", "podman", "runc", "debootstrap", "redis-server")
IMAGE = "localhost/smolsessions:check"
SECCOMP = Path("/usr/share/containers/seccomp.json")
START_S, END_S = 60.0, 45.0
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # rights to raise them may be missing
NAMESPACES = ("unshare", "setns", "clone3")
QUESTION, ANSWER = "What is 12 * 7?", "84"


def main(base: str) -> int:
    """Build, run, and print one line for each check. Returns the exit status."""
    if problem := _missing():
        print(problem, file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder, ExitStack() as stack:
        if base == "debootstrap":
            _timed("base image from Debian's packages", lambda: _bootstrap(Path(folder)))
        _timed("image built", lambda: _build(Path(folder)))
        profile = _without_namespaces(Path(folder))
        for user in ("10001:10001", "54321:0"):
            for name, options in (("default profile", ()), ("unshare blocked", (f"--security-opt=seccomp={profile}",))):
                volume = stack.enter_context(_volume())
                _timed(f"uid {user}, {name}", lambda u=user, o=options, v=volume: _serve(u, o, v))
        _timed("web, two work, redis-server", lambda: _roles(Path(folder)))
    print("the image works")
    return 0


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "make image-check needs root: buildah and podman mount what they build"
    missing = [name for name in PACKAGES if not shutil.which(name)]
    if missing:
        return f"install {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    return None


def _timed(name: str, check: Any) -> None:
    print(f"{name} …", end=" ", flush=True)
    began = time.monotonic()
    found = check()
    print(f"ok, {time.monotonic() - began:.0f} s{f' ({found})' if found else ''}", flush=True)


def _run(*command: str | Path, within_s: float = 900) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
    if ended.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{ended.stdout[-4000:]}{ended.stderr[-4000:]}")
    return ended.stdout


def _base_name() -> str:
    found = re.search(r"^FROM (\S+)\s*$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found, "the Dockerfile names its base"
    return f"docker.io/library/{found[1]}"


def _bootstrap(folder: Path) -> None:
    """Make an image of the Dockerfile's base name with Debian's own Python."""
    root = folder / "root"
    mirror = re.search(r"^(?:URIs: |deb )(\S+)", _sources(), re.MULTILINE)
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    _run("debootstrap", "--variant=minbase", packages, "bookworm", root, *([mirror[1]] if mirror else []))
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    archive = folder / "root.tar"
    _run("tar", "-C", root, "-cf", archive, ".")
    _run("podman", "import", archive, _base_name())


def _sources() -> str:
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    return "\n".join(path.read_text() for path in files if path.is_file())


def _build(folder: Path) -> str:
    """Build with this machine's way to the package index, of which nothing stays in the image."""
    volumes = []
    listed = _run(sys.executable, "-m", "pip", "config", "list")
    chosen = dict(re.findall(r"^(?:global|:env:)\.(cert|index-url|proxy)='(.*)'$", listed, re.MULTILINE))
    if chosen:
        configuration = folder / "pip.conf"
        configuration.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in chosen.items()))
        volumes += ["--volume", f"{configuration}:/etc/pip.conf:ro"]
    if "cert" in chosen:
        volumes += ["--volume", f"{chosen['cert']}:{chosen['cert']}:ro"]
    _run("buildah", "bud", "--network=host", "--isolation=chroot", *volumes, "--tag", IMAGE, ROOT)
    size = int(json.loads(_run("podman", "image", "inspect", IMAGE))[0]["Size"])
    return f"{size / 1e6:.0f} MB"


def _without_namespaces(folder: Path) -> Path:
    """Write podman's default profile without the calls that make namespaces."""
    profile = json.loads(SECCOMP.read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in NAMESPACES]
    profile["syscalls"].append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38})
    path = folder / "no-namespaces.json"
    path.write_text(json.dumps(profile))
    return path


@contextmanager
def _volume() -> Iterator[str]:
    name = f"smolsessions-check-{os.getpid()}-{time.monotonic_ns()}"
    _run("podman", "volume", "create", name)
    try:
        yield name
    finally:
        _run("podman", "volume", "rm", "--force", name)


@contextmanager
def _container(port: int, *options: str, command: str, **settings: str) -> Iterator[str]:
    """Run the image as restricted as Kubernetes does, until the block ends."""
    named = {"HOST": "127.0.0.1", "PORT": str(port), **settings}
    variables = [f"--env=SMOLSESSIONS_{name}={value}" for name, value in named.items()]
    restricted = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")
    started = _run(
        "podman", "run", "--detach", "--network=host", *LIMITS, *restricted, *options, *variables, IMAGE, command
    )
    container = started.strip()
    try:
        _until_alive(container, port)
        yield container
    finally:
        _run("podman", "rm", "--force", "--time=0", container)


def _until_alive(container: str, port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            if _call(port, "GET", "/readyz")[0] == 200:  # noqa: PLR2004
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"failed: the container does not answer\n{_logs(container)}")


def _serve(user: str, options: tuple[str, ...], volume: str) -> str:
    """Play a demo turn and a CodeAgent's turn, and end as Kubernetes ends a pod."""
    port = _free_port()
    with _container(port, f"--user={user}", f"--volume={volume}:/data", *options, command="serve") as container:
        _expect_answer(container, port, "demo")
        _expect_answer(container, port, "demo-code")
        agents = {agent["name"]: agent for agent in _call(port, "GET", "/agents")[1]["items"]}
        _stop(container)
        return f"code_confinement: {agents['demo-code'].get('code_confinement')}"


def _expect_answer(container: str, port: int, agent: str) -> dict[str, Any]:
    _, turn = _call(port, "POST", "/turn", {"message": QUESTION, "agent": agent})
    if turn.get("status") != "finished" or ANSWER not in turn["reply"] or not turn["tool_calls"]:
        raise SystemExit(f"failed: a turn of {agent} ended as {json.dumps(turn)[:2000]}\n{_logs(container)}")
    return turn


def _stop(container: str) -> None:
    _run("podman", "kill", "--signal=TERM", container)
    status = _run("podman", "wait", container, within_s=END_S).strip()
    if status != "0":
        raise SystemExit(f"failed: the service ended with status {status} after SIGTERM\n{_logs(container)}")


def _roles(folder: Path) -> str:
    """Play turns over a web and two work, of which one is killed on the way."""
    store, ports = _free_port(), [_free_port() for _ in range(3)]
    key = _run("podman", "run", "--rm", "--network=none", *LIMITS, IMAGE, "keys", "seal").strip()
    settings = {"REDIS_URL": f"redis://127.0.0.1:{store}/0", "SEAL_KEYS": key, "LEASE_S": "2"}
    with _redis(store, folder), ExitStack() as stack:
        web = stack.enter_context(_container(ports[0], command="web", **settings))
        first, second = (stack.enter_context(_container(port, command="work", **settings)) for port in ports[1:])
        conversation = _expect_answer(web, ports[0], "demo")["conversation_id"]
        _run("podman", "kill", "--signal=KILL", first)
        for turn in range(2, 12):
            body = {"message": QUESTION, "conversation_id": conversation}
            played = _call(ports[0], "POST", "/turn", body)[1]
            if (played.get("status"), played.get("turn")) != ("finished", turn):
                raise SystemExit(f"failed: turn {turn} ended as {json.dumps(played)[:2000]}\n{_logs(web)}")
        _expect_answer(web, ports[0], "demo-code")
        for container in (second, web):
            _stop(container)
    return "one work killed, 12 turns finished"


@contextmanager
def _redis(port: int, folder: Path) -> Iterator[None]:
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
    with subprocess.Popen([*command, "--save", ""], stdout=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield
        finally:
            server.send_signal(signal.SIGTERM)


def _call(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
    except urllib.error.HTTPError as error:
        return error.code, {"text": error.read().decode()}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _logs(container: str) -> str:
    ended = subprocess.run(("podman", "logs", "--tail=40", container), capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


if __name__ == "__main__":
    sys.exit(main(os.environ.get("BASE", "registry")))
