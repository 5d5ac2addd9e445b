"""Reader of agents.toml. A mistake stops the start with a sentence that names file, agent, key and mend.

No sentence repeats a value, because any value could be a key.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from smolsessions.agents.config.mistakes import mistakes_in, wrong_references
from smolsessions.agents.config.schema import AgentsFile
from smolsessions.agents.models.keys import remember_keys
from smolsessions.agents.tools.mcp_secrets import is_secret
from smolsessions.core.errors import StartError

MAX_BYTES = 1024 * 1024
SETTING = "SMOLSESSIONS_AGENTS_FILE"
_TWICE = re.compile("twice|overwrite a value|Duplicate inline")  # of the sentences of tomllib
_NAMES_OF_VARIABLES = frozenset({"api_key_env", "executor_key_env", "env", "headers"})


def read_agents_file(path: Path) -> AgentsFile:
    """Parse and check the file, and mask the keys that it names from then on.

    Raises `StartError` with a line for each mistake.
    """
    try:
        file = AgentsFile.model_validate(_toml(path))
    except ValidationError as error:
        raise StartError("\n".join(f"{path}: {sentence}" for sentence in mistakes_in(error))) from None
    if sentences := list(wrong_references(file)):
        raise StartError("\n".join(f"{path}: {sentence}" for sentence in sentences))
    if not file.agents:
        raise StartError(f"{path}: has no agent; add a table [agents.NAME]")
    keys = {model.api_key_env for model in file.models.values()}
    for agent in file.agents.values():
        keys.add(agent.executor_key_env)
        keys.add(getattr(agent.model, "api_key_env", None))
    for server in file.mcp.values():
        keys |= {*server.headers.values()}
        keys |= {name for target, name in server.env.items() if is_secret(target, os.environ.get(name, ""))}
    remember_keys(filter(None, keys))
    return file


def key_variables(path: Path) -> frozenset[str]:
    """Return the names of all environment variables that the file names. An unreadable file has none."""
    try:
        return frozenset(_variables(_toml(path)))
    except StartError:  # the one who loads it reports the mistake
        return frozenset()


def _toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise StartError(
            f"{SETTING} names {path}, which cannot be read ({error.strerror}); mend its path or its rights"
        ) from None
    if len(data) > MAX_BYTES:
        raise StartError(f"{path}: is larger than 1 MiB; name a file with agents")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StartError(f"{path}, line {line}: no UTF-8; save the file in this encoding") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = str(error).rpartition("(at ")[2].removesuffix(")") if "(at " in str(error) else "nested too deep"
        if _TWICE.search(str(error)):
            raise StartError(f"{path}, {place.partition(',')[0]}: a key or table comes twice; remove one") from None
        raise StartError(f"{path}: is no TOML ({place}); mend the syntax there") from None


def _variables(data: Any, key: str = "") -> Iterator[str]:
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _variables(value, key if key in {"env", "headers"} else name)
    elif isinstance(data, str) and key in _NAMES_OF_VARIABLES:
        yield data
