"""The wheel, installed into an empty environment beside a user's own project."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.environments import INSTALL
from tests.support.service import ROOT, Service

if TYPE_CHECKING:
    from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
AGENT = """
from smolagents import ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole, Model
from app.words import ANSWER


class Parrot(Model):
    def generate(self, messages, **options):
        return ChatMessage(MessageRole.ASSISTANT, ANSWER)


def make():
    return ToolCallingAgent([], Parrot())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment that holds the wheel and its dependencies, of the versions tested here."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=60)
    (wheel,) = folder.glob("smolsessions-*.whl")
    pins = re.findall(r"^([\w.-]+==[^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=30)
    made = str(folder / "env" / "bin" / "python")
    install = ["--python", made, "-c", str(folder / "pins.txt"), str(wheel)]
    subprocess.run([*INSTALL, *install], check=True, timeout=240)
    return made


@pytest.mark.timeout(300)
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
        assert "site-packages" in subprocess.run(home, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
