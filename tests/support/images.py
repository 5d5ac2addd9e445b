"""Runs a Dockerfile's own instructions without an engine, and starts the result as an engine would.

The result is not an image. Its base is this machine's system with this test's Python at `/usr/local`, not the base
that `FROM` names. All else is as the Dockerfile has it, at the same paths: the files of `COPY` and `RUN`, environment,
user, command. It runs in a root of its own, in which only the named volumes can be written to.
"""

import fcntl
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx2

from tests.support.service import ROOT
from tests.support.waiting import PATIENCE_S

BUILD_S = 500
END_S = 60
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONFIGURATION = "group hosts ld.so.cache nsswitch.conf passwd pip.conf resolv.conf ssl/certs ssl/openssl.cnf".split()
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True)
class Image:
    """A root folder, and the Dockerfile's settings to start it."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    healthcheck: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()

    def command(
        self,
        *arguments: str,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
        writable: Sequence[str] = (),
        entrypoint: Sequence[str] | None = None,
        group: int | None = None,
    ) -> list[str]:
        """Return the command that becomes this image's process, with the same process id and signals.

        Args:
            arguments: in place of CMD.
            user: `uid:gid`, in place of USER.
            environment: on top of ENV. This process's own environment is not inherited.
            mounts: paths of this machine, by path of the image. They are read-only except those in `writable`.
            writable: paths of mounts.
            entrypoint: in place of ENTRYPOINT. CMD does not apply then.
            group: a group in addition to the user's own, as with `--group-add`.
        """
        uid, _, gid = (user or self.user).partition(":")
        variables = [f"{name}={value}" for name, value in {**self.environment, **(environment or {})}.items()]
        words = [*self.entrypoint, *(arguments or self.cmd)] if entrypoint is None else [*entrypoint, *arguments]
        groups = "--clear-groups" if group is None else f"--groups={group}"
        inside = ["setpriv", f"--reuid={uid}", f"--regid={gid or 0}", groups, "--no-new-privs"]
        inside += ["env", "-i", "-C", self.workdir, *variables, *words]
        return _apart(self.root, mounts or {}, set(writable), inside)


def build(dockerfile: Path, context: Path, stages: Path, bases: Mapping[str, Image] | None = None) -> Image:
    """Run a Dockerfile's instructions, stage after stage, below `stages`. Return the last stage."""
    built = dict(bases or {})
    image = None
    for number, (instruction, text) in enumerate(_instructions(dockerfile)):
        if instruction == "FROM":
            base, _, name = text.partition(" AS ")
            image = _from(built.get(base), stages / f"{number}")
            built[name or "last"] = image
            current = name or "last"
            continue
        assert image, "a Dockerfile begins with FROM"
        image = built[current] = _step(image, instruction, text, context, built)
    assert image, "a Dockerfile has a FROM"
    return image


@contextmanager
def built_once(folder: Path) -> Iterator[Image]:
    """Build the Dockerfile into `folder`, or reuse the build of another process. The last process deletes it."""
    folder.mkdir(exist_ok=True)
    built = folder / "image.pickle"
    with (folder / "users").open("w") as users:
        with _alone(folder):
            if not built.exists():
                built.write_bytes(pickle.dumps(_last_stage(folder / "stages")))
            fcntl.flock(users, fcntl.LOCK_SH)
        image: Image = pickle.loads(built.read_bytes())
        yield image
        with _alone(folder), suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            built.unlink()
            shutil.rmtree(folder / "stages")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _last_stage(stages: Path) -> Image:
    image = build(ROOT / "Dockerfile", ROOT, stages)
    for stage in stages.iterdir():
        if stage != image.root:
            shutil.rmtree(stage)
    return image


@cache
def refusal() -> str:
    """Return why this machine can start nothing in a root of its own, as another user. The text is empty if it can."""
    if sys.platform != "linux" or os.getuid():
        return "a root of its own and another user take Linux, and root's rights"
    missing = [tool for tool in ("unshare", "mount", "chroot", "setpriv", "env") if not shutil.which(tool)]
    if missing:
        return f"there is no {missing[0]}"
    tried = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return tried.stderr.strip()


@dataclass
class Container:
    """A process of an image that listens."""

    process: subprocess.Popen[str]
    first: str
    client: httpx2.Client
    log: Path

    def is_healthy(self, image: Image, user: str) -> bool:
        """Run the image's health check as an engine does: inside, with the service's environment."""
        environment = {"SMOLSESSIONS_PORT": str(self.client.base_url.port), "http_proxy": "http://127.0.0.1:1"}
        command = image.command(entrypoint=image.healthcheck, user=user, environment=environment)
        return subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S).returncode == 0


@contextmanager
def started(command: Sequence[str], log: Path) -> Iterator[Container]:
    """Start a command and wait until it says where it listens."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout
            first = process.stdout.readline().strip()
            port = first.rpartition(":")[2]
            assert port.isdigit(), first + log.read_text()
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
                yield Container(process, first, client, log)
        finally:
            process.terminate()  # the first process passes it on; a kill would leave the service behind
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()


def _from(base: Image | None, root: Path) -> Image:
    if base:
        shutil.copytree(base.root, root, symlinks=True)
        return replace(base, root=root)
    return bare(root)


def bare(root: Path) -> Image:
    """Return an image of this machine's system alone."""
    for folder in ("usr", "etc", "proc", "dev", "tmp", "run", "opt"):
        (root / folder).mkdir(parents=True)
    for name in _SYSTEM:
        if (system := Path("/", name)).is_symlink():
            (root / name).symlink_to(system.readlink())
        elif system.is_dir():
            (root / name).mkdir()
    for name in _CONFIGURATION:
        source, target = Path("/etc", name), root / "etc" / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.exists():
            shutil.copy(source, target)
    return Image(root)


def _instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    lines = (line for line in dockerfile.read_text().splitlines() if line.strip() and not line.startswith("#"))
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, text = instruction.strip().partition(" ")
        yield word, text.strip()


def _step(image: Image, instruction: str, text: str, context: Path, built: Mapping[str, Image]) -> Image:
    if instruction == "RUN":
        _run(image, text)
    elif instruction == "COPY":
        _copy(image, text.split(), context, built)
    elif instruction == "WORKDIR":
        _inside(image, text).mkdir(parents=True, exist_ok=True)
    return replace(image, **_SAID[instruction](image, text))


def _variables(image: Image, text: str) -> dict[str, str]:
    pairs = (word.split("=", 1) for word in shlex.split(text.replace("$PATH", image.environment["PATH"])))
    return {**image.environment, **dict(pairs)}


_SAID: Mapping[str, Callable[[Image, str], dict[str, Any]]] = {
    "RUN": lambda _image, _text: {},
    "COPY": lambda _image, _text: {},
    "EXPOSE": lambda _image, _text: {},
    "WORKDIR": lambda _image, text: {"workdir": text},
    "ENV": lambda image, text: {"environment": _variables(image, text)},
    "USER": lambda _image, text: {"user": text},
    "VOLUME": lambda image, text: {"volumes": (*image.volumes, text)},
    "ENTRYPOINT": lambda _image, text: {"entrypoint": tuple(json.loads(text))},
    "CMD": lambda _image, text: {"cmd": tuple(json.loads(text))},
    "HEALTHCHECK": lambda _image, text: {"healthcheck": tuple(json.loads(text.partition("CMD ")[2]))},
}
"""Effect of each instruction on an image's settings. An unknown instruction stops the test."""


def _run(image: Image, text: str) -> None:
    """Run a shell line as root in a writable root. pip uses the settings and the cache of this machine."""
    cache_folder = Path(_pip("cache", "dir"))
    cache_folder.mkdir(parents=True, exist_ok=True)
    inside = f"/tmp/{cache_folder.name}"
    settings = {"PIP_CACHE_DIR": inside, "PIP_NO_CACHE_DIR": "0"} | _pip_settings()
    command = image.command(
        text, entrypoint=["/bin/sh", "-c"], environment=settings, mounts={inside: cache_folder}, writable=["/", inside]
    )
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
    assert ended.returncode == 0, f"RUN {text}\n{ended.stdout}{ended.stderr}"


def _pip_settings() -> dict[str, str]:
    """Return the pip settings of this machine as variables."""
    pairs = (line.partition("=") for line in _pip("config", "list").splitlines())
    named = ((key.rpartition(".")[2], value.strip("'")) for key, _, value in pairs)
    return {f"PIP_{key.upper().replace('-', '_')}": value for key, value in named if key != "no-cache-dir"}


def _pip(*words: str) -> str:
    pip = [sys.executable, "-m", "pip", *words]
    return subprocess.run(pip, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.strip()


def _copy(image: Image, words: Sequence[str], context: Path, built: Mapping[str, Image]) -> None:
    copy: Callable[[str, str], object] = shutil.copy2
    if words[0].startswith("--from="):  # of a stage that nothing writes to any more
        copy = os.link
        context, words = built[words[0].removeprefix("--from=")].root, words[1:]
    *sources, to = words
    target = _inside(image, to)
    for source in sources:
        found = context / source.lstrip("/")
        if found.is_dir():
            unseen = shutil.ignore_patterns("__pycache__") if context == ROOT else None
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True, ignore=unseen, copy_function=copy)
        elif to.endswith(("/", ".")):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, target)
        else:
            shutil.copy2(found, target)


def _inside(image: Image, path: str) -> Path:
    """Return the path on this machine of a path of the image."""
    return image.root / os.path.normpath(Path(image.workdir, path)).lstrip("/")


def _apart(root: Path, mounts: Mapping[str, Path], writable: set[str], command: Sequence[str]) -> list[str]:
    python = Path(sys.base_prefix).resolve()
    shown = {name: Path("/", name) for name in ("usr", "proc", "dev")}
    shown |= {
        name: Path("/", name) for name in _SYSTEM if Path("/", name).is_dir() and not Path("/", name).is_symlink()
    }
    if python != Path("/usr"):
        shown |= {"usr/local": python, str(python).lstrip("/"): python}  # the second: its libraries are named so
    shown |= {path.lstrip("/"): source for path, source in mounts.items()}
    for path, source in shown.items():
        target = root / path
        if not target.exists() and path != "usr/local":
            (target if source.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
            if not source.is_dir():
                target.touch()
    lines = ["mount --make-rprivate /", f"mount --bind {shlex.quote(str(root))} {shlex.quote(str(root))}"]
    if "/" not in writable:
        lines.append(f"mount -o remount,bind,ro {shlex.quote(str(root))}")
    for path, source in shown.items():
        at = shlex.quote(str(root / path))
        lines.append(f"mount --rbind {shlex.quote(str(source))} {at}")
        if path not in {"proc", "dev"} and f"/{path}" not in writable:
            lines.append(f"mount -o remount,bind,ro {at}")
    lines.append(f"exec chroot {shlex.quote(str(root))} {shlex.join(command)}")
    return ["unshare", "--mount", "sh", "-euc", "\n".join(lines)]
