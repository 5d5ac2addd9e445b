"""Settings of the command line, its help, its completion, and `check`."""

import re
from pathlib import Path

import pytest

from smolsessions.settings import Settings
from smolsessions.store.seal import new_key
from tests.support.data import table
from tests.support.refusals import sentence_of
from tests.support.service import PLAIN, ROOT, Service, run, run_program, wait_until, write_private
from tests.support.store_server import SEAL_KEY, StoreServer
from tests.support.terminal import command
from tests.support.tiers import mostly_deep

PLACES = ["--threads", "SMOLSESSIONS_THREADS", ".env: SMOLSESSIONS_THREADS", "smolsessions.toml: threads"]


@pytest.mark.parametrize("strongest", range(len(PLACES)))
def test_a_wrong_setting_names_the_strongest_place_that_has_it(strongest: int, tmp_path: Path) -> None:
    (tmp_path / "smolsessions.toml").write_text("threads = -3")
    if strongest <= 2:
        (tmp_path / ".env").write_text("SMOLSESSIONS_THREADS=-2\n")
    settings = {"THREADS": "-1"} if strongest <= 1 else {}
    flags = ("--threads", "0") if strongest == 0 else ()
    ended = run(tmp_path, settings, "serve", *flags, cwd=tmp_path)
    assert sentence_of(ended).startswith(f"smolsessions: {PLACES[strongest]}: ")


def test_a_host_that_no_request_names_is_refused(tmp_path: Path) -> None:
    for host in ("a.example:80", "a.example/path", "a b.example", "*.example", "[::1", "-"):
        sentence = sentence_of(run(tmp_path, {"ALLOWED_HOSTS": f"b.example, {host}"}, "serve"))
        assert f"SMOLSESSIONS_ALLOWED_HOSTS: holds {host!r}, which no request names" in sentence
        (tmp_path / "service.log").unlink()
    names = Settings(allowed_hosts="A.example, org., ::1, [2001:db8::1], 10.0.0.7, a_b").allowed_hosts
    assert names.count(",") == 5


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
        ("smolsessions.toml", b"port = = 80", "smolsessions.toml is no TOML: Invalid value (at line 1, column 8)"),
        ("smolsessions.toml", b"port = 80\nhost = '\xff'", "smolsessions.toml, line 2: not UTF-8: save the file"),
        ("smolsessions.toml", b'host = "a\\u0000"', "smolsessions.toml: host holds a NUL character; remove it"),
        (".env", b"A=1\nB=2\nC=\xff", ".env, line 3: not UTF-8: save the file"),
    ],
)
def test_a_mistaken_file_is_refused_by_name_and_line(file: str, content: bytes, sentence: str, tmp_path: Path) -> None:
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
    assert "my_agents:make_shop" in sentence_of(run(tmp_path, {"DEMO_AGENTS": "0", "AGENTS": ""}, "serve", "mine"))


def test_help_and_the_table_list_every_setting_with_its_default(tmp_path: Path) -> None:
    _, shown, _ = run(tmp_path, PLAIN, "serve", "--help", COLUMNS="200")
    _, table, _ = run(tmp_path, PLAIN, "settings")
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    flags = {word for line in shown.splitlines() for word in re.split("[ ,/]", line)}
    assert {f"--{name.replace('_', '-')}" for name in Settings.model_fields} <= flags
    assert "(default: 8000)" in shown
    assert table.strip() in page


def test_a_bare_command_prints_help() -> None:
    ended = run_program(command(), cwd=ROOT)
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


@pytest.mark.parametrize("options", mostly_deep([(), ("--processes", "2")], fast=[()]))
def test_open_shows_the_page_in_the_browser(options: tuple[str, ...], tmp_path: Path) -> None:
    browser, shown = tmp_path / "browser", tmp_path / "browser.shown"
    browser.write_text('#!/bin/sh\necho "$1" > "$0.part" && mv "$0.part" "$0.shown"\n')
    browser.chmod(0o700)
    command_ = ("serve", "--open", *options)
    with Service(tmp_path, PLAIN, {"BROWSER": str(browser)}, command=command_, forked=False) as service:
        wait_until(shown.exists)
        assert shown.read_text() == f"{service.url}/\n"


PARTS = ["settings", "rights", "keys", "agents", "confinement", "store"]
REMEDIES: dict[str, tuple[str, dict[str, str], str, str]] = table("commands remedies")


def lines(output: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) +(ok|FAIL) ", output, re.MULTILINE))


def test_a_configuration_that_would_start_is_ok(tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, PLAIN, "check")
    assert (status, lines(output)) == (0, dict.fromkeys(PARTS, "ok")), output + errors
    assert "\x1b" not in output + errors, "no colour, as this is no terminal"


@pytest.fixture(scope="module")
def guarded(outside: StoreServer) -> StoreServer:
    with outside.client() as client:
        client.config_set("requirepass", "right")
    return outside


@pytest.mark.parametrize("case", REMEDIES)
def test_a_bad_situation_is_a_line_with_cause_and_mend(case: str, guarded: StoreServer, tmp_path: Path) -> None:
    part, settings, cause, remedy = REMEDIES[case]
    file = tmp_path / "mine.py"
    file.write_text("boom")
    keys = write_private(tmp_path / "keys", f"ada {'0' * 64}")
    keys.chmod(0o604)
    owners = write_private(tmp_path / "owners", f"ada {'0' * 64}")
    places = {"store": guarded.socket_path, "file": file, "keys": keys, "owners": owners}
    settings = {name: value.format(**places) for name, value in settings.items()}
    status, output, errors = run(tmp_path, PLAIN | {"SEAL_KEYS": SEAL_KEY} | settings, "check")
    assert (status, errors) == (1, "")
    (line,) = re.findall(rf"^{part} +FAIL  (.*)", output, re.MULTILINE)
    assert (cause in line, remedy in line) == (True, True), line
    if part != "settings":
        assert lines(output).keys() >= {"settings", "rights", "keys", "agents", "store"}, "one defect hides no other"


def test_a_store_that_may_lose_data_is_named_by_check_and_at_start(server: StoreServer, tmp_path: Path) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
    status, output, errors = run(tmp_path, PLAIN | server.settings, "check")
    assert (status, errors) == (0, "")
    risks = re.findall("^store +WARN +Valkey [^:]*: (.*)", output, re.MULTILINE)
    assert [risk.partition(":")[0] for risk in risks] == [
        "a full store may throw data away",
        "the store writes no append-only file",
    ]
    with Service(tmp_path / "service", PLAIN | server.settings) as service:
        assert [risk for risk in risks if risk not in service.log()] == []


def test_an_expected_store_must_not_be_empty(server: StoreServer, tmp_path: Path) -> None:
    settings = PLAIN | server.settings
    expecting = settings | {"EXPECT_STORE": "1"}
    assert "the store is empty" in sentence_of(run(tmp_path, expecting))
    assert run(tmp_path / "checked", expecting, "check")[0] == 1
    with Service(tmp_path / "first", settings):
        pass
    with Service(tmp_path / "second", expecting):
        pass


def test_a_check_writes_nothing(server: StoreServer, tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, PLAIN | server.settings, "check")
    assert status == 0, output + errors
    with server.client() as client:
        assert client.dbsize() == 0
    with_other_key = PLAIN | server.settings | {"SEAL_KEYS": new_key()}
    with Service(tmp_path, with_other_key):
        pass
    status, output, _ = run(tmp_path / "embedded", PLAIN | {"AGENTS": "code=tests.support.agents:make_code"}, "check")
    assert status == 0
    assert re.search(r"^confinement ok    code: \w+; .*control group of its own: \w+", output, re.MULTILINE), output
    assert not (tmp_path / "embedded" / "data").exists()
