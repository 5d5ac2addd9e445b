"""Command `check`: a line for each part, and its exit status."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.service import PLAIN, run, write_private

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ["settings", "rights", "keys", "agents", "confinement", "store"]
WRONG = {
    "settings": {"THREADS": "0"},
    "rights": {"API_KEYS_FILE": "keys"},
    "keys": {"HOST": "0.0.0.0"},
    "agents": {"AGENTS": "mine=nowhere:make"},
    "confinement": {"CODE_CONFINEMENT": "required", "AGENTS": "mine=tests.support.coders:make_threaded"},
    "store": {"DURABILITY": "replicated"},
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
