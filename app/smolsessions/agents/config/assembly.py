"""Agents of agents.toml: tables become factories of smolagents agents. Models and tools are made once and shared.

A mistake stops the start with a sentence that names file, agent, key and fix. No sentence repeats a value, because any
value could be a key.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from smolagents import CodeAgent, LogLevel, Model, MultiStepAgent, ToolCallingAgent
from smolagents.utils import BASE_BUILTIN_MODULES

import smolsessions
from smolsessions.agent_options import SharedOptions
from smolsessions.agents.config import mistakes
from smolsessions.agents.config.mistakes import Place
from smolsessions.agents.config.saved_agents import SavedAgent, download, read_saved_agent
from smolsessions.agents.config.schema import CODE_KEYS, REMOTE_EXECUTORS, AgentsFile, AgentTable, ModelTable
from smolsessions.agents.config.templates import complete_templates, smolagents_templates, templates_of
from smolsessions.agents.factories import Factory, call_factory, takes_caller
from smolsessions.agents.imports import import_named, search_modules_in
from smolsessions.agents.models.keys import remember_keys, without_secrets
from smolsessions.agents.models.providers import add_fallbacks, make_model
from smolsessions.agents.remote_executors import remote_executor
from smolsessions.agents.tools.ask_user import NAME as ASK_USER
from smolsessions.agents.tools.mcp_secrets import is_secret
from smolsessions.agents.tools.sources import RESERVED_NAMES, Loaded, load_tools
from smolsessions.agents.tools.tool_servers import ToolServers
from smolsessions.agents.tools.workspace_tools import WORKSPACE_TOOLS
from smolsessions.core.callers import DUMMY, Caller
from smolsessions.core.errors import StartError
from smolsessions.core.files import read_text
from smolsessions.core.policies import OwnRule

Kinds = type[Exception] | tuple[type[Exception], ...]
_MISTAKES: Kinds = (StartError, AssertionError, ValueError, TypeError)
_INHERITED = "model executor executor_options executor_key_env code_limits model_retries".split()
"""Keys of a saved agent that count for the agents that it manages, too."""


def load_agents_file(path: Path, tool_servers: ToolServers | None = None) -> list[tuple[str, Factory]]:
    """Return the factories of the file's agents, in its order. Raises `StartError`.

    `tool_servers` takes the MCP servers, which its owner closes.
    """
    file = read_agents_file(path)
    assembly = Assembly(path, file, tool_servers or ToolServers())
    return [(name, assembly.factory(name)) for name in file.agents]


def read_agents_file(path: Path) -> AgentsFile:
    """Parse and check the file, and mask the keys that it names from then on.

    Raises `StartError` with a line for each mistake.
    """
    text = read_text(path, f"SMOLSESSIONS_AGENTS_FILE: {path}")
    try:
        file = AgentsFile.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise StartError("\n".join(f"{path}: {sentence}" for sentence in mistakes.mistakes_in(error))) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = str(error).rpartition("(at ")[2].removesuffix(")") if "(at " in str(error) else "nested too deep"
        raise StartError(f"{path}: is no TOML, or has a key twice ({place}); fix the syntax there") from None
    if sentences := list(mistakes.wrong_references(file)):
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


class Assembly:
    """Makes the agents of one file. Its parts are made when the first agent needs them."""

    def __init__(self, path: Path, file: AgentsFile, tool_servers: ToolServers) -> None:
        self._path = path
        self._file = file
        self._lock = threading.RLock()  # two first calls must not make two connection pools
        self._models: dict[str | ModelTable | None, Model] = {}
        self._tools: dict[str, Callable[[], list[Any]]] = {}
        self._loaded_tools: dict[str, Loaded] = {}
        self._mcp_tools: dict[str, list[Any]] = {}
        self._saved: dict[str, SavedAgent] = {}
        self._tool_servers = tool_servers
        used = {name for agent in file.agents.values() for name in agent.mcp}
        try:
            tool_servers.open({name: table for name, table in file.mcp.items() if name in used})
        except StartError as error:
            raise mistakes.PlacedStartError(f"{path}: {error.message}") from error
        search_modules_in(path.absolute().parent, Path.cwd())
        self._factories: dict[str, Factory] = {}
        self._predicates: dict[str, Any] = {}
        managed = {each for agent in file.agents.values() for each in agent.managed_agents}
        for name, agent in file.agents.items():
            if agent.remembers and name not in managed:
                with self._at(("agents", name), "remembers"):
                    raise StartError("is for agents that others manage, and none manages this one; remove it")
            for key, found in (("factory", self._factories), ("approve", self._predicates)):
                if isinstance(place := getattr(agent, key), str):
                    module, _, function = place.partition(":")
                    with self._at(("agents", name), key):
                        found[name] = import_named(module, function, "function", "name a function of the module")

    def factory(self, name: str) -> Factory:
        """Return the factory of an agent. It takes a caller if a factory that it uses does."""

        def make() -> MultiStepAgent:
            return make_for(DUMMY)

        def make_for(caller: Caller) -> MultiStepAgent:
            agent = self._make(name, caller)
            # The file serves it by itself, too. Then the conversation is its memory.
            return smolsessions.options(agent, remembers=False) if self._file.agents[name].remembers else agent

        made: Any = make_for if self._takes_caller(name) else make
        made.place = f"{self._path}: [agents.{name}]"  # for errors of the checks that all agents have
        made.__module__ = (self._file.agents[name].factory or "").partition(":")[0]  # its release is the agent's
        return cast("Factory", made)

    def _takes_caller(self, name: str) -> bool:
        factory = self._factories.get(name)
        managed = self._file.agents[name].managed_agents
        return (factory is not None and takes_caller(factory)) or any(map(self._takes_caller, managed))

    def _make(self, name: str, caller: Caller) -> MultiStepAgent:
        table = self._file.agents[name]
        if factory := self._factories.get(name):
            agent = call_factory(factory, caller)
            if not isinstance(agent, MultiStepAgent):
                with self._at(("agents", name), "factory"):
                    raise StartError(f"returned {type(agent).__name__}, not a smolagents agent; return one")
            agent.description = table.description or agent.description
            agent.name = agent.name or (name if name.isidentifier() else None)
        else:
            saved = None
            if source := table.hub or table.folder:
                with self._lock, self._at(("agents", name), "hub" if table.hub else "folder"):
                    if name not in self._saved:
                        folder = download(source, table.revision or "") if table.hub else self._beside(source)
                        self._saved[name] = read_saved_agent(name, folder)
                    saved = self._saved[name]
                    if not saved.writes_code and (foreign := sorted(table.given & {*CODE_KEYS})):
                        raise StartError(f"holds a ToolCallingAgent, which has no {foreign[0]}; remove that key")
            agent = self._construct(name, table, caller, saved)
        return self._with_options(name, table, agent)

    def _construct(self, name: str, table: AgentTable, caller: Caller, saved: SavedAgent | None) -> MultiStepAgent:
        place = ("agents", name)
        tools = self._tools_of(name, table, saved)
        managed = [self._make(each, caller) for each in table.managed_agents]
        for each in saved.managed if saved else ():
            same = {key: getattr(table, key) for key in _INHERITED}
            inner = AgentTable.model_construct(set(same), folder=table.folder, trust=True, **same)
            with self._at(place, "folder"):
                made_by = self._construct(each.json.name or "", inner, caller, each)
                managed.append(self._with_options(name, inner, made_by))
        with self._lock:
            if table.model not in self._models:
                wanted = [(("models", table.model) if isinstance(table.model, str) else (*place, "model"), table.model)]
                made = []
                for at, model in wanted:  # which grows by the fallbacks of the first
                    found = self._file.models[model] if isinstance(model, str) else model
                    assert found
                    wanted += [(("models", fallback), fallback) for fallback in found.fallbacks]
                    with self._at(at):
                        made.append(make_model(found))
                self._models[table.model] = add_fallbacks(*made)
        arguments: dict[str, Any] = {
            "tools": tools,
            "model": self._models[table.model],
            "managed_agents": managed or None,
            "name": name if name.isidentifier() else None,
            "description": table.description or (saved and saved.json.description),
            "instructions": table.instructions,
            "planning_interval": table.planning_interval or (saved and saved.json.planning_interval),
            "verbosity_level": LogLevel.OFF,
        }
        if max_steps := table.max_steps or (saved and saved.json.max_steps):
            arguments["max_steps"] = max_steps
        writes_code = saved.writes_code if saved else table.kind == "code"
        key = "prompt_templates" if table.prompt_templates or not saved else "folder" if table.folder else "hub"
        with self._at(place, key):
            if table.prompt_templates:
                templates = templates_of(self._beside(table.prompt_templates))
            elif saved and saved.json.prompt_templates:
                templates = complete_templates(saved.json.prompt_templates, "agent.json ")
            else:
                coder = "structured_code_agent" if table.structured_output else "code_agent"
                templates = smolagents_templates(coder if writes_code else "toolcalling_agent")
        arguments["prompt_templates"] = templates
        if writes_code:
            arguments |= self._code_arguments(name, table, saved)
        with self._at(place, key, Exception), self._at(place, "tools"):
            return CodeAgent(**arguments) if writes_code else ToolCallingAgent(**arguments)

    def _code_arguments(self, name: str, table: AgentTable, saved: SavedAgent | None) -> dict[str, Any]:
        place = ("agents", name)
        executor = None
        if table.executor in REMOTE_EXECUTORS:
            with self._at(place, "executor"):
                options = {"key_env": table.executor_key_env, **table.executor_options}
                executor = remote_executor(table.executor, **options)
        imports = table.authorized_imports
        if saved and "authorized_imports" not in table.given:
            imports = tuple(sorted({*saved.json.authorized_imports} - {*BASE_BUILTIN_MODULES}))
            if "*" in imports:
                with self._at(place, "authorized_imports"):
                    raise StartError('is missing, and the saved agent asks for all modules ("*"); list what it needs')
        for number, module in enumerate(imports if executor is None else ()):
            if module != "*" and importlib.util.find_spec(module.partition(".")[0]) is None:
                named = module if saved and "authorized_imports" not in table.given else f"entry {number + 1}"
                with self._at(place, "authorized_imports"):
                    raise StartError(f"{named} is no module that is installed here; install its package, or remove it")
        return {
            "additional_authorized_imports": list(imports),
            "executor": executor,
            "use_structured_outputs_internally": table.structured_output,
            "code_block_tags": table.code_block_tags,
        }

    def _with_options(self, name: str, table: AgentTable, agent: MultiStepAgent) -> MultiStepAgent:
        workspace = table.workspace
        if workspace and workspace.path:
            workspace = workspace.model_copy(update={"path": str(self._beside(workspace.path))})
        values = {
            **{key: getattr(table, key) for key in SharedOptions.model_fields},
            "workspace": workspace,
            "memory_policy": table.memory_policy,
            "executor": table.executor,
            "approve": self._predicates[name] if isinstance(table.approve, str) else table.approve,
        }
        if table.factory:
            values = {key: value for key, value in values.items() if key in table.given}
        if table.executor in REMOTE_EXECUTORS:
            del values["executor"]  # the agent holds it
        if "memory_policy" in values:
            values["own_policies"] = [rule.name for rule in table.memory_policy if isinstance(rule, OwnRule)]
        return smolsessions.options(agent, **cast("Any", values))

    def _tools_of(self, name: str, table: AgentTable, saved: SavedAgent | None) -> list[Any]:
        tools = list(saved.tools()) if saved else []
        if table is not self._file.agents.get(name):
            return tools  # an agent that a saved one manages, and which may have the name of another table
        with self._lock, self._at(("agents", name), "tools"):
            if name not in self._tools:
                self._tools[name] = load_tools(table.tools, self._loaded_tools, add_base_tools=table.add_base_tools)
            tools += self._tools[name]()
        with self._lock:
            if name not in self._mcp_tools:
                taken = {*RESERVED_NAMES, *table.managed_agents, *(tool.name for tool in tools)}
                taken |= {*WORKSPACE_TOOLS} if table.workspace else set()
                taken |= {ASK_USER} if table.ask_user else set()
                with self._at(("agents", name), "mcp", StartError):
                    self._mcp_tools[name] = self._tool_servers.tools(table.mcp, taken)
            return [*tools, *self._mcp_tools[name]]

    def _beside(self, path: str) -> Path:
        return self._path.absolute().parent / path

    @contextmanager
    def _at(self, table: Place, key: str = "", kinds: Kinds = _MISTAKES) -> Iterator[None]:
        """Name the file, the table and the key in the sentence of an error of these kinds.

        A sentence that begins with another key of the table names it itself.
        """
        try:
            yield
        except mistakes.PlacedStartError:
            raise
        except kinds as error:
            if isinstance(error, StartError):
                text = error.message
            else:
                text = without_secrets(str(error)).rstrip(" .\n") + "; fix it"
            named, colon, rest = text.partition(": ")
            named = "executor_key_env" if named == "key_env" else named
            if colon and named in mistakes.keys_at(table):
                key, text = named, rest
            place = (*table, key) if key else table
            raise mistakes.PlacedStartError(f"{self._path}: {mistakes.sentence_at(place, text)}") from error
