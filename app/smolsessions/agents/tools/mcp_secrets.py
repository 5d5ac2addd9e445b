"""Variables of MCP servers, read from the service's environment, and their values as secrets of texts."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from smolsessions.agents.config.mistakes import sentence_at
from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.models.keys import NOT_SET
from smolsessions.core.errors import StartError

M = TypeVar("M", bound=BaseModel)

HIDDEN = "***"
MIN_CHARS = 6  # a shorter value may be a common word
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
        if value is None:
            raise StartError(sentence_at(("mcp", name, key, target), NOT_SET))
        if table.url and not _HEADER.fullmatch(value):
            raise StartError(
                sentence_at(
                    ("mcp", name, key, target),
                    "names a variable that is empty, or has blanks around it or letters beyond ASCII; mend its value",
                )
            )
        found[target] = value
    return found


def is_secret(name: str, value: str) -> bool:
    """Return True unless a variable of a program is a short value, a plain word, a number or a path."""
    if _SECRET_NAME.search(name):
        return True
    top = Path(*Path(value).parts[:2])
    is_path = value.startswith("/") and top.exists()
    return not (len(value) < PLAIN_CHARS or value.isalpha() or _NUMBER.fullmatch(value) or is_path)


class Secrets:
    """Values that no record, log or prompt may show, although their server may repeat them."""

    def __init__(self, variables: Mapping[str, str], url: str | None) -> None:
        """All headers of an address are secrets, and its own password and parameters. So are a key's words."""
        values = [value for name, value in variables.items() if url or is_secret(name, value)]
        parted = [value for name, value in variables.items() if url or _SECRET_NAME.search(name)]
        words = [*values, *(word for value in parted for word in value.split())]
        words = [word for word in words if len(word) >= MIN_CHARS]
        parts = urlsplit(url or "")
        words += [part for part in (parts.password, parts.query) if part]
        self._values = sorted(set(words), key=len, reverse=True)

    def hide(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def hide_in(self, message: M) -> M:
        if not self._values:
            return message
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
        hidden = text
        for value in self._values:
            hidden = hidden.replace(json.dumps(value)[1:-1], HIDDEN).replace(value, HIDDEN)
        return message if hidden == text else type(message).model_validate_json(hidden)
