"""The sdist, and the wheel made from it, installed into an empty environment beside a user's own project."""

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.data import data
from tests.support.environments import INSTALL
from tests.support.service import PATIENCE_S, ROOT, Service, run_program
from tests.support.tiers import deep

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
AGENT = data("wheel_agent.txt")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """Return the wheel that an installer builds from the sdist, which is beside it."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(build, check=True, timeout=PATIENCE_S, cwd=ROOT, stdout=subprocess.DEVNULL)
    (sdist,) = folder.glob("smolsessions-*.tar.gz")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sdist)]
    subprocess.run(build, check=True, timeout=PATIENCE_S)
    (wheel,) = folder.glob("smolsessions-*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path) -> str:
    """Return the Python of an environment that holds the wheel and its dependencies, of the versions tested here."""
    folder = wheel.parent
    pins = re.findall(r"^([\w.-]+==[^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=PATIENCE_S)
    made = str(folder / "env" / "bin" / "python")
    install = ["--python", made, "-c", str(folder / "pins.txt"), str(wheel)]
    subprocess.run([*INSTALL, *install], check=True, timeout=580)
    return made


def test_the_sdist_holds_the_package_and_no_tests(wheel: Path) -> None:
    listed = run_program(["git", "ls-files", "app"], cwd=ROOT, check=True)
    package = {path.removeprefix("app/") for path in listed.stdout.split()}
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        held = {Path(name).parts[1] for name in packed.getnames()}
        shown = (packed.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO") or io.BytesIO()).read().decode()
    assert held - {".gitignore"} == {
        "app",
        "docs",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
    }
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert links, "a package index shows the README"
    assert not [link for link in links if not link.startswith("https://")], "no file is beside it there"
    with zipfile.ZipFile(wheel) as built:
        files = set(built.namelist())
    assert {name for name in files if ".dist-info/" not in name} == package
    assert "smolsessions/py.typed" in files


@deep
def test_the_wheel_runs_as_a_module_and_is_typed(python: str, tmp_path: Path) -> None:
    ask = [python, "-m", "smolsessions", "--version"]
    shown = run_program(ask, check=True, cwd=tmp_path, env={}).stdout
    assert re.fullmatch(r"smolsessions \d+\.\d+\.\d+\n", shown)
    (tmp_path / "script.py").write_text("from smolsessions import Client\nreveal_type(Client().turn('hello'))\n")
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "script.py"]
    checked = run_program(check, cwd=tmp_path, timeout=580)
    assert 'Revealed type is "smolsessions.wire.turns.Turn"' in checked.stdout, checked.stdout + checked.stderr


@deep
def test_the_wheel_serves_a_project_that_has_its_own_app_package(python: str, tmp_path: Path) -> None:
    package = tmp_path / "project" / "app"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "words.py").write_text('ANSWER = "from a package called app"\n')
    (package / "agents.py").write_text(AGENT)
    settings = {"AGENTS": "mine=app.agents:make", "DEMO_AGENTS": "0"}
    service = Service(tmp_path / "run", settings, {"PYTHONPATH": ""}, cwd=package.parent, python=python)
    with service:
        turn = service.post("/turn", message="hello").json()
        assert (turn["status"], turn["reply"]) == ("finished", "from a package called app"), turn
        home = [python, "-c", "import smolsessions; print(smolsessions.__file__)"]
        assert "site-packages" in run_program(home, check=True, cwd=tmp_path).stdout
