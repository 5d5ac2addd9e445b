"""Settings of a command: its flags, the environment, .env and smolsessions.toml, in this order."""

import re
from pathlib import Path

import pytest

from smolsessions.settings import Settings
from tests.support.refusals import sentence_of
from tests.support.service import PLAIN, ROOT, Service, run

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
