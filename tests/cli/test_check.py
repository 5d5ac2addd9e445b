"""Command `check`: a line for each part, and its exit status."""

import re
from pathlib import Path

import pytest

from smolsessions.store.seal import new_key
from tests.support.refusals import sentence_of
from tests.support.service import PLAIN, Service, run, write_private
from tests.support.store_server import SEAL_KEY, StoreServer
from tests.support.tiers import mostly_deep

PARTS = ["settings", "rights", "keys", "agents", "confinement", "store"]
MENDS: dict[str, tuple[str, dict[str, str], str, str]] = {
    "a setting": ("settings", {"THREADS": "0"}, "SMOLSESSIONS_THREADS", "greater than or equal to 1"),
    "a readable file": ("rights", {"API_KEYS_FILE": "{keys}"}, "all users of this machine may read", "chmod o-rwx"),
    "code in the service": (
        "confinement",
        {"CODE_CONFINEMENT": "required", "AGENTS": "mine=tests.support.coders:make_threaded"},
        "runs its code in the service itself",
        "leave out its option",
    ),
    "code in the service of several owners": (
        "confinement",
        {"API_KEYS_FILE": "{owners}", "ALLOW_CODE_IN_SERVICE": "0", "AGENTS": "a=tests.support.coders:make_threaded"},
        "one owner's code could read",
        "SMOLSESSIONS_ALLOW_CODE_IN_SERVICE=1",
    ),
    "no server": ("store", {"REDIS_URL": "redis://127.0.0.1:1"}, "does not answer", "start it, or unset the variable"),
    "wrong password": ("store", {"REDIS_URL": "unix://:wrong@{store}"}, "refuses the login", "put its user into"),
    "no rights": ("store", {"REDIS_URL": "unix://poor:secret@{store}"}, "no permission", "the rights that it needs"),
    "no API keys": ("keys", {"API_KEYS_FILE": "nowhere"}, "cannot be read (No such", "`smolsessions keys owner OWNER`"),
    "no seal keys": ("keys", {"SEAL_KEYS": "", "SEAL_KEYS_FILE": "nowhere"}, "cannot be read (No such", "keys seal`"),
    "a file for a folder": ("store", {"SEAL_KEYS": "", "DATA_DIR": "{file}"}, "(File exists)", "another folder"),
    "no model's key": ("agents", {"MODEL_ID": "m"}, "wants a key", "SMOLSESSIONS_MODEL_API_KEY_ENV"),
    "an agent that fails": ("agents", {"AGENTS": "a={file}:make"}, "NameError: name 'boom'", "mend the module"),
}
FAST = (
    "a setting",
    "a readable file",
    "code in the service",
    "code in the service of several owners",
    "wrong password",
    "no API keys",
    "an agent that fails",
)


def lines(output: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) +(ok|MEND) ", output, re.MULTILINE))


def test_a_configuration_that_would_start_is_ok(tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, PLAIN, "check")
    assert (status, lines(output)) == (0, dict.fromkeys(PARTS, "ok")), output + errors
    assert "\x1b" not in output + errors, "no colour, as this is no terminal"


@pytest.fixture(scope="module")
def guarded(outside: StoreServer) -> StoreServer:
    """Return a store with a password, and with a user who may only read."""
    with outside.client() as client:
        client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">secret", "~*", "&*", "+@read", "+@connection")
        client.config_set("requirepass", "right")
    return outside


@pytest.mark.parametrize("case", mostly_deep(MENDS, fast=FAST))
def test_a_bad_situation_is_a_line_with_cause_and_mend(case: str, guarded: StoreServer, tmp_path: Path) -> None:
    part, settings, cause, mend = MENDS[case]
    file = tmp_path / "mine.py"
    file.write_text("boom")
    keys = write_private(tmp_path / "keys", f"ada {'0' * 64}")
    keys.chmod(0o604)
    owners = write_private(tmp_path / "owners", f"ada {'0' * 64}")
    places = {"store": guarded.socket_path, "file": file, "keys": keys, "owners": owners}
    settings = {name: value.format(**places) for name, value in settings.items()}
    status, output, errors = run(tmp_path, PLAIN | {"SEAL_KEYS": SEAL_KEY} | settings, "check")
    assert (status, errors) == (1, "")
    (line,) = re.findall(rf"^{part} +MEND  (.*)", output, re.MULTILINE)
    assert (cause in line, mend in line) == (True, True), line
    if part != "settings":
        assert lines(output).keys() >= {"settings", "rights", "keys", "agents", "store"}, "one defect hides no other"


def test_a_check_writes_nothing(server: StoreServer, tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, PLAIN | server.settings, "check")
    assert status == 0, output + errors
    with server.client() as client:
        assert client.dbsize() == 0
    with_other_key = PLAIN | server.settings | {"SEAL_KEYS": new_key()}
    with Service(tmp_path, with_other_key):
        pass
    run(tmp_path / "embedded", PLAIN, "check")
    assert not (tmp_path / "embedded" / "data").exists()


def test_a_store_that_may_lose_data_is_named_by_check_and_at_start(server: StoreServer, tmp_path: Path) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
    status, output, errors = run(tmp_path, PLAIN | server.settings, "check")
    assert (status, errors) == (0, "")
    risks = re.findall("^store +WARN +Valkey [^:]*: (.*)", output, re.MULTILINE)
    assert [risk.partition(":")[0] for risk in risks] == [
        "the store may throw data away when it is full",
        "the store writes no append-only file",
    ]
    with Service(tmp_path / "service", PLAIN | server.settings) as service:
        assert [risk for risk in risks if risk not in service.log()] == []


def test_a_running_service_is_no_fault(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN):
        status, output, _ = run(tmp_path, PLAIN, "check")
    assert status == 0, output
    assert re.search(r"^store +ok +embedded: .* in use by process \d+, which serves it$", output, re.MULTILINE)
    status, output, _ = run(tmp_path, PLAIN, "check")
    assert (status, lines(output)) == (0, dict.fromkeys(PARTS, "ok")), output


def test_an_expected_store_must_not_be_empty(server: StoreServer, tmp_path: Path) -> None:
    settings = PLAIN | server.settings
    expecting = settings | {"EXPECT_STORE": "1"}
    assert "the store is empty" in sentence_of(run(tmp_path, expecting))
    assert run(tmp_path / "checked", expecting, "check")[0] == 1
    with Service(tmp_path / "first", settings):
        pass
    with Service(tmp_path / "second", expecting):
        pass
