"""Settings of the command line, its help and its completion."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smolsessions.settings import Settings
from tests.support.refusals import sentence_of
from tests.support.service import PLAIN, ROOT, Service, run
from tests.support.terminal import CTRL_U, command, terminal_of
from tests.support.tiers import deep, mostly_deep
from tests.support.waiting import PATIENCE_S, wait_until

PLACES = ["--threads", "SMOLSESSIONS_THREADS", ".env: SMOLSESSIONS_THREADS", "smolsessions.toml: threads"]
WITHOUT = {"DEMO_AGENTS": "0", "AGENTS": ""}


@pytest.mark.parametrize("strongest", range(len(PLACES)))
def test_a_wrong_setting_names_the_strongest_place_that_has_it(strongest: int, tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text("threads = -3")
    if strongest <= 2:
        (tmp_path / ".env").write_text("SMOLSESSIONS_THREADS=-2\n")
    settings = {"THREADS": "-1"} if strongest <= 1 else {}
    flags = ("--threads", "0") if strongest == 0 else ()
    ended = run(tmp_path, settings, "serve", *flags, cwd=tmp_path)
    assert sentence_of(ended).startswith(f"smolsessions: {PLACES[strongest]}: ")


def test_settings_of_files_are_used(tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text('demo_agents = false\nthreads = 3\n[agents]\nfirst = "mine:make_one"\n')
    (tmp_path / ".env").write_text("SMOLSESSIONS_DEFAULT_AGENT=second\n")
    (tmp_path / "mine.py").write_text("from tests.support.agents import make_scripted as make_one\n")
    command = ("serve", "--agent", "second=mine.py:make_one", "mine:make_one")
    with Service(tmp_path, {"AGENTS": "", "DEMO_AGENTS": ""}, cwd=tmp_path, command=command) as service:
        found = {agent["name"]: agent["default"] for agent in service.get("/agents")["items"]}
    assert found == {"one": False, "second": True, "first": False}


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (
            "smolsessions.toml",
            b"# mine\nprot = 80",
            "smolsessions.toml, line 2: prot is no setting; did you mean port?",
        ),
        ("smolsessions.toml", b"# mine\n[server]", "smolsessions.toml, line 2: server is no setting; `smolsessions"),
        (
            "smolsessions.toml",
            b"port = = 80",
            "smolsessions.toml is no TOML: Invalid value (at line 1, column 8); write",
        ),
        ("smolsessions.toml", b"port = 80\nhost = '\xff'", "smolsessions.toml, line 2: no UTF-8; save the file"),
        ("smolsessions.toml", b'host = "a\\u0000"', "smolsessions.toml: host holds a NUL character; remove it"),
        (".env", b"A=1\nB=2\nC=\xff", ".env, line 3: no UTF-8; save the file"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name_and_line(
    file: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(content)
    assert sentence_of(run(tmp_path, {}, "serve", cwd=tmp_path)).startswith(f"smolsessions: {sentence}")


@pytest.mark.parametrize("command", ["chat", "turns list x"])
def test_commands_that_use_a_file_refuse_its_mistake(command: str, tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text("prot = 80")
    assert "did you mean port?" in sentence_of(run(tmp_path, {}, *command.split(), cwd=tmp_path))


@pytest.mark.parametrize("command", ["serve --help", "init new", "settings"])
def test_a_file_with_a_mistake_does_not_stop_commands_that_need_none(command: str, tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text("port = = 80")
    status, output, errors = run(tmp_path, {}, *command.split(), cwd=tmp_path)
    assert (status, errors) == (0, ""), errors
    assert output


@pytest.mark.parametrize(("others", "demo", "served"), [(True, "", 1), (True, "1", 3), (False, "", 2)])
def test_demo_agents_are_served_if_asked_for_or_alone(others: bool, demo: str, served: int, tmp_path: Path) -> None:
    settings = {"AGENTS": "one=tests.support.agents:make_scripted" if others else "", "DEMO_AGENTS": demo}
    with Service(tmp_path, settings) as service:
        assert len(service.get("/agents")["items"]) == served


def test_an_agent_without_a_factory_is_refused_with_the_mend(tmp_path: Path) -> None:
    assert "my_agents:make_shop" in sentence_of(run(tmp_path, WITHOUT, "serve", "mine"))


def test_help_and_the_table_list_every_setting_with_its_default(tmp_path: Path) -> None:
    _, shown, _ = run(tmp_path, PLAIN, "serve", "--help", COLUMNS="200")
    _, table, _ = run(tmp_path, PLAIN, "settings")
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    flags = {word for line in shown.splitlines() for word in re.split("[ ,/]", line)}
    assert {f"--{name.replace('_', '-')}" for name in Settings.model_fields} <= flags
    assert "(default: 8000)" in shown
    assert table.strip() in page


def test_a_bare_group_of_commands_prints_help(tmp_path: Path) -> None:
    for arguments in (("keys",), ("turns",)):
        _, shown, errors = run(tmp_path, {}, *arguments)
        assert "Usage: smolsessions" in shown + errors


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
