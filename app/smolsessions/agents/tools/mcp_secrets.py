"""Variables of MCP servers, read from the service's environment, and their values as secrets of texts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from smolsessions.agents.config.mistakes import sentence_at
from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.models.keys import NOT_SET
from smolsessions.core.errors import StartError

PLAIN_CHARS = 8  # a shorter value is no secret, unless its name says so
_SECRET_NAME = re.compile(
    "KEY|TOKEN|SECRET|PASS|PWD|PAT(?!H|TERN)|CRED|LICEN[CS]E|AUTH|COOKIE|SIGNATURE|DSN|UR[LI]", re.IGNORECASE
)
_NUMBER = re.compile(r"[\d.]+")
_HEADER = re.compile(r"[!-~]([ -~]*[!-~])?")


def variables_of(name: str, table: McpTable) -> dict[str, str]:
    """Return the variables or headers of a server. Raises `StartError` if its program or a variable is missing."""
    key, names = ("headers", table.headers) if table.url else ("env", table.env)
    if table.command and not shutil.which(table.command):
        raise StartError(f"[mcp.{name}] command: there is no such program; install it, or write its whole path")
    found = {}
    for target, variable in names.items():
        value = os.environ.get(variable)
        if value is None or (table.url and not _HEADER.fullmatch(value)):
            flaw = "names a variable that is empty, or has blanks around it or letters beyond ASCII; fix its value"
            raise StartError(sentence_at(("mcp", name, key, target), NOT_SET if value is None else flaw))
        found[target] = value
    return found


def is_secret(name: str, value: str) -> bool:
    """Return True unless a variable of a program is a short value, a plain word, a number or a path."""
    if _SECRET_NAME.search(name):
        return True
    is_path = value.startswith("/") and Path(*Path(value).parts[:2]).exists()
    return not (len(value) < PLAIN_CHARS or value.isalpha() or _NUMBER.fullmatch(value) or is_path)


def secrets_of(variables: Mapping[str, str], url: str | None) -> frozenset[str]:
    """Return the values that no record, log or prompt may show, although their server may repeat them.

    All headers of an address are secrets, and so are its own parameters and the words of a key.
    """
    found = {value for name, value in variables.items() if url or is_secret(name, value)}
    parted = [value for name, value in variables.items() if url or _SECRET_NAME.search(name)]
    return frozenset({*found, *(word for value in parted for word in value.split()), urlsplit(url or "").query} - {""})
