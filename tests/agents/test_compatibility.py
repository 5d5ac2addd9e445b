"""A process starts on a smolagents that the service was tested with, and on no other one."""

import importlib
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import smolagents

from smolsessions.agents import compatibility
from smolsessions.core.errors import StartError
from tests.support.data import table
from tests.support.service import ROOT, run
from tests.support.tiers import mostly_deep


def test_the_package_asks_for_the_releases_that_a_process_starts_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = f">={compatibility.OLDEST},<{compatibility.NEXT}"
    assert f"smolagents{asked}" in project["dependencies"]
    assert project["optional-dependencies"]["openai"] == [f"smolagents[openai]{asked}"]


@pytest.mark.parametrize("release", ["1.23.9", "1.27.0.dev0", "2.0"])
def test_a_release_out_of_range_is_refused(release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / f"smolagents-{release}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: smolagents\nVersion: {release}\n")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = f"smolagents {release} is installed, and this release supports 1.24 and later, before 1.27; install"
    with pytest.raises(StartError, match=re.escape(sentence)):
        compatibility.check_smolagents.__wrapped__()


BREAKS: Any = table("compatibility breaks")


@pytest.mark.parametrize("what", mostly_deep(BREAKS, fast=["a parameter", "the course of a run"]))
def test_a_smolagents_that_is_not_as_it_was_is_refused(what: str, tmp_path: Path) -> None:
    file, was, now, told = BREAKS[what]
    copy = tmp_path / "path" / "smolagents"
    shutil.copytree(Path(importlib.import_module("smolagents").__file__ or "").parent, copy)
    text = (copy / file).read_text()
    assert was in text
    (copy / file).write_text(text.replace(was, now))
    status, _, said = run(tmp_path / "service", {}, PYTHONPATH=str(tmp_path / "path"))
    assert status == 2
    assert f"smolagents {smolagents.__version__} is installed, but it is not as this release needs it" in said
    assert told in said
    assert "Traceback" not in said
