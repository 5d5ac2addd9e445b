"""Reader of agents.toml. A mistake stops the start with a sentence that names file, agent, key and mend.

No sentence repeats a value, because any value could be a key.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from pydantic import ValidationError

from smolsessions.agents.config.mistakes import mistakes_in, wrong_references
from smolsessions.agents.config.schema import AgentsFile
from smolsessions.agents.models.keys import remember_keys
from smolsessions.agents.tools.mcp_secrets import is_secret
from smolsessions.core.errors import StartError
from smolsessions.core.files import read_text


def read_agents_file(path: Path) -> AgentsFile:
    """Parse and check the file, and mask the keys that it names from then on.

    Raises `StartError` with a line for each mistake.
    """
    text = read_text(path, f"SMOLSESSIONS_AGENTS_FILE: {path}")
    try:
        file = AgentsFile.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise StartError("\n".join(f"{path}: {sentence}" for sentence in mistakes_in(error))) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = str(error).rpartition("(at ")[2].removesuffix(")") if "(at " in str(error) else "nested too deep"
        raise StartError(f"{path}: is no TOML, or has a key twice ({place}); mend the syntax there") from None
    if sentences := list(wrong_references(file)):
        raise StartError("\n".join(f"{path}: {sentence}" for sentence in sentences))
    if not file.agents:
        raise StartError(f"{path}: has no agent; add a table [agents.NAME]")
    keys = {model.api_key_env for model in file.models.values()}
    for agent in file.agents.values():
        keys |= {agent.executor_key_env, getattr(agent.model, "api_key_env", None)}
    for server in file.mcp.values():
        keys |= {*server.headers.values()}
        keys |= {name for target, name in server.env.items() if is_secret(target, os.environ.get(name, ""))}
    remember_keys(filter(None, keys))
    return file
