"""Command `check`: a line for each part, and its exit status."""

import re
from pathlib import Path

import pytest

from tests.support.service import PLAIN, run, write_private
from tests.support.store_server import SEAL_KEY, StoreServer

PARTS = ["settings", "rights", "keys", "agents", "confinement", "store"]
WRONG = {
    "settings": {"THREADS": "0"},
    "rights": {"API_KEYS_FILE": "keys"},
    "keys": {"HOST": "0.0.0.0"},
    "agents": {"AGENTS": "mine=nowhere:make"},
    "confinement": {"CODE_CONFINEMENT": "required", "AGENTS": "mine=tests.support.coders:make_threaded"},
    "store": {"DURABILITY": "replicated"},
}


MENDS = {
    "no server": ("store", {"REDIS_URL": "redis://127.0.0.1:1"}, "does not answer", "start it, or unset the variable"),
    "wrong password": ("store", {"REDIS_URL": "unix://:wrong@{store}"}, "refuses the login", "put its user into"),
    "no rights": ("store", {"REDIS_URL": "unix://poor:secret@{store}"}, "no permission", "the rights that it needs"),
    "no API keys": ("keys", {"API_KEYS_FILE": "nowhere"}, "cannot be read (No such", "`smolsessions keys owner OWNER`"),
    "no seal keys": ("keys", {"SEAL_KEYS": "", "SEAL_KEYS_FILE": "nowhere"}, "cannot be read (No such", "keys seal`"),
    "a file for a folder": ("store", {"SEAL_KEYS": "", "DATA_DIR": "{file}"}, "(File exists)", "another folder"),
    "no model's key": ("agents", {"MODEL_ID": "m"}, "wants a key", "SMOLSESSIONS_MODEL_API_KEY_ENV"),
    "an agent that fails": ("agents", {"AGENTS": "a={file}:make"}, "NameError: name 'boom'", "mend the module"),
}


def lines(output: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) +(ok|MEND) ", output, re.MULTILINE))


def test_a_configuration_that_would_start_is_ok(tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, PLAIN, "check")
    assert (status, lines(output)) == (0, dict.fromkeys(PARTS, "ok")), output + errors
    assert "\x1b" not in output + errors, "no colour, as this is no terminal"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_would_refuse_to_start_is_named_with_the_mend(part: str, tmp_path: Path) -> None:
    keys = write_private(tmp_path / "keys", f"ada {'0' * 64}")
    keys.chmod(0o604)
    settings = {name: str(keys) if value == "keys" else value for name, value in WRONG[part].items()}
    status, output, errors = run(tmp_path, PLAIN | settings, "check")
    assert (status, lines(output)[part]) == (1, "MEND"), output + errors
    assert "Traceback" not in output + errors


@pytest.fixture(scope="module")
def guarded(outside: StoreServer) -> StoreServer:
    """Return a store with a password, and with a user who may only read."""
    with outside.client() as client:
        client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">secret", "~*", "&*", "+@read", "+@connection")
        client.config_set("requirepass", "right")
    return outside


@pytest.mark.parametrize("case", MENDS)
def test_a_bad_situation_is_a_line_with_cause_and_mend(case: str, guarded: StoreServer, tmp_path: Path) -> None:
    part, settings, cause, mend = MENDS[case]
    file = tmp_path / "mine.py"
    file.write_text("boom")
    settings = {name: value.format(store=guarded.socket_path, file=file) for name, value in settings.items()}
    status, output, errors = run(tmp_path, PLAIN | {"SEAL_KEYS": SEAL_KEY} | settings, "check")
    assert (status, errors) == (1, "")
    (line,) = re.findall(rf"^{part} +MEND  (.*)", output, re.MULTILINE)
    assert (cause in line, mend in line) == (True, True), line
    assert lines(output).keys() >= {"settings", "rights", "keys", "agents", "store"}, "one defect hides no other"
