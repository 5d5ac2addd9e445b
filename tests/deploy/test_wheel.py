"""All that a release publishes: the sdist, the wheel made from it and installed beside a user's project, the site."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hatch_build import web_address
from smolsessions import __version__
from tests.support.data import data
from tests.support.environments import INSTALL, UV
from tests.support.service import PATIENCE_S, ROOT, Service, run_program
from tests.support.tiers import deep
from tools import site

AGENT = data("wheel_agent.txt")
FORGE = "https://forge.example/who/smolsessions"
ORIGIN = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "remote.origin.url", "GIT_CONFIG_VALUE_0": f"{FORGE}.git"}


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """Return the wheel that an installer builds from the sdist, which is beside it."""
    command = [UV, "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
    run_program(command, check=True, cwd=ROOT, env=os.environ | ORIGIN)
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
    subprocess.run([*INSTALL, "--python", made, "-c", str(folder / "pins.txt"), str(wheel)], check=True, timeout=580)
    return made


def test_the_sdist_holds_the_package_and_no_tests(wheel: Path) -> None:
    listed = run_program(["git", "ls-files", "app"], cwd=ROOT, check=True)
    package = {path.removeprefix("app/") for path in listed.stdout.split()}
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        held = {Path(name).parts[1] for name in packed.getnames()}
    texts = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md"}
    assert held - {".gitignore"} == {"app", "docs", "hatch_build.py", "pyproject.toml", *texts}
    with zipfile.ZipFile(wheel) as built:
        files = set(built.namelist())
    assert {name for name in files if ".dist-info/" not in name} == package
    assert "smolsessions/py.typed" in files


def test_the_links_of_the_wheel_lead_to_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as built:
        text = built.read(f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/METADATA").decode()
    urls = re.findall(r"^Project-URL: (\w+), https://", text, re.MULTILINE)
    assert urls == ["Homepage", "Documentation", "Source", "Issues", "Changelog"]
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == [], "no file is beside it on a package index"
    files = re.findall(rf"{FORGE}/(?:blob(?!\S*png)|raw)/[^/]+/([^#)\s]+)", text)
    assert {"LICENSE", "CHANGELOG.md", "docs/images/page.png"} <= set(files)
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_links_need_a_checkout_and_its_origin(tmp_path: Path) -> None:
    def shown(field: str = "urls", **variables: str) -> str:
        command = [sys.executable, "-m", "hatchling", "metadata", field]
        return run_program(command, check=True, cwd=tmp_path, env={**os.environ, **ORIGIN, **variables}).stdout

    for name in ("pyproject.toml", "hatch_build.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    assert shown() == "{}\n", "no checkout"
    for command in ("init -q", "-c user.name=me -c user.email=me@forge.example commit -qm Begin --allow-empty"):
        run_program(["git", *command.split()], check=True, cwd=tmp_path)
    assert f"{FORGE}/blob/main/CHANGELOG.md" in shown()
    run_program(["git", "tag", f"v{__version__}"], check=True, cwd=tmp_path)
    assert f"{FORGE}/blob/v{__version__}/CHANGELOG.md" in shown()
    assert shown(PATH="") == "{}\n", "no git"
    links = re.findall(r"\]\(([^)]*)\)", shown("readme", GIT_CONFIG_VALUE_0="/srv/smolsessions.git"))
    assert {link.partition("://")[0] for link in links} == {"https"}
    assert web_address("git@forge.example:who/smolsessions.git") == FORGE
    assert web_address("ssh://git@forge.example:22/who/smolsessions/") == FORGE
    assert web_address("https://user:secret@forge.example:84/it") == "https://forge.example:84/it"
    assert web_address("git@alias:who/smolsessions.git") is None


def test_the_site_leads_to_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ORIGIN, "DOCS_SITE_URL": "https://docs.example/it"}.items():
        monkeypatch.setenv(name, value)
    pages = {page.parent.name: page.read_text("utf-8") for page in site.build(tmp_path).rglob("index.html")}
    assert '<link rel="canonical" href="https://docs.example/it/tools/">' in pages["tools"]
    assert re.search(rf'<a href="{FORGE}" [^>]*class="md-source">', pages["tools"])
    files = set(re.findall(rf'"{FORGE}/(?:edit|blob)/[^/]+/([^"#]+)', "".join(pages.values())))
    assert {"README.md", "docs/tools.md", "openapi.yaml"} <= files
    assert [file for file in files if not (ROOT / file).exists()] == []


@deep
def test_the_wheel_runs_as_a_module_and_is_typed(python: str, tmp_path: Path) -> None:
    shown = run_program([python, "-m", "smolsessions", "--version"], check=True, cwd=tmp_path, env={}).stdout
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
    with Service(tmp_path / "run", settings, {"PYTHONPATH": ""}, cwd=package.parent, python=python) as service:
        turn = service.post("/turn", message="hello").json()
        assert (turn["status"], turn["reply"]) == ("finished", "from a package called app"), turn
        home = [python, "-c", "import smolsessions; print(smolsessions.__file__)"]
        assert "site-packages" in run_program(home, check=True, cwd=tmp_path, env={}).stdout
