"""The bare command, its completion in a shell, and the browser that it opens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import PLAIN, ROOT, Service, run
from tests.support.terminal import CTRL_U, command, terminal_of
from tests.support.tiers import deep, mostly_deep
from tests.support.waiting import PATIENCE_S, wait_until


def test_a_bare_command_prints_help() -> None:
    ended = subprocess.run(command(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Usage: smolsessions" in ended.stdout
    assert "conversations" in ended.stdout


def test_words_are_completed_beside_a_broken_settings_file(tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text("port = = 80")
    for words, completed in (("conv", "conversations"), ("conversations exp", "export"), ("serve --thr", "--threads")):
        asked = {"COMP_WORDS": f"smolsessions {words}", "COMP_CWORD": str(len(words.split()))}
        status, output, _ = run(
            tmp_path, {}, *words.split(), cwd=tmp_path, _SMOLSESSIONS_COMPLETE="complete_bash", **asked
        )
        assert (status, output.split()) == (0, [completed])


@deep
def test_bash_completes_commands_beside_a_broken_settings_file(tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text("port = = 80")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with terminal_of(tmp_path, "/bin/bash", "--norc", "-i", HOME=str(tmp_path), PATH=path, PS1="ready> ") as shell:
        shell.wait_for("ready> ")
        shell.type(b"smolsessions --install-completion\n")
        shell.wait_for("completion installed")
        shell.wait_for("ready> ")
        shell.type(b"source ~/.bashrc\n")
        shell.wait_for("ready> ")
        shell.type(b"smolsessions conv\t")
        shell.wait_for("conversations ")
        shell.type(b"exp\t")
        shell.wait_for("export ")
        shell.type(b"--out\t")
        shell.wait_for("--output ")
        shell.type(CTRL_U + b"exit 0\n")
        assert shell.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("options", mostly_deep([(), ("--processes", "2")], fast=[()]))
def test_open_shows_the_page_in_the_browser(options: tuple[str, ...], tmp_path: Path) -> None:
    browser, shown = tmp_path / "browser", tmp_path / "browser.shown"
    browser.write_text('#!/bin/sh\necho "$1" > "$0.part" && mv "$0.part" "$0.shown"\n')
    browser.chmod(0o700)
    command_ = ("serve", "--open", *options)
    with Service(tmp_path, PLAIN, {"BROWSER": str(browser)}, command=command_, forked=False) as service:
        wait_until(shown.exists)
        assert shown.read_text() == f"{str(service.client.base_url).rstrip('/')}/\n"
