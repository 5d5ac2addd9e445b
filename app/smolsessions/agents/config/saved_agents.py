"""Folders that `agent.save()` wrote, and such repositories on the Hugging Face Hub.

A folder is code: its tools run with the rights of the service, and so do its templates. It is read only for an agent
with `trust = true`. Its model and its executor are never made, as agents.toml names those.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from smolagents import Tool

from smolsessions.agents.run.agent_state import has_own_state
from smolsessions.core.errors import StartError
from smolsessions.core.files import read_text

log = logging.getLogger(__name__)

MAX_DEPTH = 8
HUB_S = 5.0  # longest wait for the Hub to answer
LOST = (
    "instructions, structured_output, code_block_tags (set them in agents.toml), stream_outputs, final_answer_checks, "
    "callbacks, provide_run_summary, and arguments of its tools' constructors"
)
_FILES = ["agent.json", "*/agent.json", "tools/*.py", "*/tools/*.py"]
"""Files of a repository that are downloaded. `*` stands for folders, too."""
_LEFT_OUT = frozenset({"python_interpreter", "user_input"})
"""Tools that run code in the service, or read its standard input."""
_Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]


class AgentJson(BaseModel):
    """Keys of agent.json that count. Its model and executor do not."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)

    kind: Literal["ToolCallingAgent", "CodeAgent"] = Field(alias="class")
    tools: list[_Name]
    managed_agents: dict[_Name, str] = Field(default_factory=dict)
    prompt_templates: dict[str, Any] | None = None
    max_steps: int | None = Field(None, ge=1, le=1000)
    planning_interval: int | None = Field(None, ge=1)
    name: _Name | None = None
    description: str | None = None
    authorized_imports: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class SavedAgent:
    """Contents of a saved folder, with its tools loaded."""

    json: AgentJson
    loaded: tuple[Tool, ...]
    managed: tuple[SavedAgent, ...]

    @property
    def writes_code(self) -> bool:
        return self.json.kind == "CodeAgent"

    def tools(self) -> list[Tool]:
        """Return the tools for one agent. It gets its own instance of a tool with a state."""
        return [type(tool)() if has_own_state(tool) else tool for tool in self.loaded]


def download(repository: str, revision: str) -> Path:
    """Return the folder of a repository at one commit. Raises `StartError`."""
    from huggingface_hub import constants, get_session, snapshot_download  # noqa: PLC0415 - only these agents need it
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415 - as above

    disable_progress_bars()  # else they are in the log
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each of its repeats
    try:  # once, as the library repeats for half a minute
        get_session().head(constants.ENDPOINT, timeout=HUB_S, follow_redirects=False)
        is_reachable = True
    except Exception:  # noqa: BLE001 - no connection, or offline mode
        is_reachable = False
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            repo_type="space",
            allow_patterns=_FILES,
            etag_timeout=HUB_S,
            local_files_only=not is_reachable,
        )
        return Path(folder)
    except Exception as error:  # of the library, and of its HTTP client
        raise StartError(
            f"the repository cannot be downloaded at this revision ({type(error).__name__}); check its name, the "
            "commit and the connection, or save it as a folder and use folder = …"
        ) from error


def read_saved_agent(agent: str, folder: Path) -> SavedAgent:
    """Load a folder. Raises `StartError`. Logs what the folder does not hold."""
    saved = _read(folder, Path(), MAX_DEPTH)
    log.warning(
        "the agent %r comes from the saved folder %s with the model and executor of agents.toml; a saved folder does "
        "not hold %s",
        agent,
        folder,
        LOST,
        extra={"action": "agent.saved"},
    )
    return saved


def _read(root: Path, place: Path, depth: int) -> SavedAgent:
    """Read one agent, whose folder is `place` within the root. No sentence repeats the root, a value of agents.toml."""
    if not depth:
        raise StartError(f"has agents nested deeper than {MAX_DEPTH}; manage fewer")
    name = place / "agent.json"
    try:
        found = AgentJson.model_validate_json(read_text(root / name, str(name)))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in problem["loc"]) or "it"
        raise StartError(
            f"{name} was not written by agent.save() of a ToolCallingAgent or CodeAgent ({key}: {problem['msg']}); "
            "save the agent again, or serve it with factory = …"
        ) from None
    if skipped := _LEFT_OUT & set(found.tools):
        log.warning("%s: left out %s", root / name, ", ".join(sorted(skipped)), extra={"action": "agent.saved"})
    return SavedAgent(
        found,
        tuple(_tool(root, place / "tools" / f"{name}.py") for name in found.tools if name not in _LEFT_OUT),
        tuple(_read(root, place / "managed_agents" / name, depth - 1) for name in found.managed_agents),
    )


def _tool(root: Path, name: Path) -> Tool:
    code = read_text(root / name, str(name))
    try:
        tool: Tool = Tool.from_code(code)
    except (Exception, SystemExit) as error:  # of foreign code
        raise StartError(
            f"{name} is no tool that loads ({type(error).__name__}); install the packages of requirements.txt, or "
            "serve the agent with factory = …"
        ) from error
    return tool
