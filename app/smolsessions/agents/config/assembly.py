"""Agents of agents.toml: tables become factories of smolagents agents. Models and tools are made once and shared."""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import jinja2
import yaml
from pydantic import BaseModel
from smolagents import CodeAgent, LogLevel, Model, MultiStepAgent, PromptTemplates, ToolCallingAgent
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

import smolsessions
from smolsessions.agents.approval_checks import refused_tools, tool_names
from smolsessions.agents.config.mistakes import Place, PlacedStartError, sentence_at
from smolsessions.agents.config.references import models_of, placed_models, unsuitable
from smolsessions.agents.config.saved_agents import SavedAgent, download, read_saved_agent, read_text
from smolsessions.agents.config.schema import (
    CODE_KEYS,
    REMOTE_EXECUTORS,
    AgentsFile,
    AgentTable,
    ModelTable,
    WorkspaceTable,
)
from smolsessions.agents.factories import Factory, import_factory, takes_caller
from smolsessions.agents.memory.scratchpad import READ, WRITE
from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.models.providers import add_fallbacks, make_model
from smolsessions.agents.remote_executors import remote_executor
from smolsessions.agents.tools.ask_user import NAME as ASK_USER
from smolsessions.agents.tools.sources import RESERVED_NAMES, Loaded, load_tools
from smolsessions.agents.tools.tool_servers import ToolServers
from smolsessions.agents.tools.workspace_tools import WORKSPACE_TOOLS, check_workspace
from smolsessions.core.callers import DUMMY, Caller
from smolsessions.core.errors import StartError
from smolsessions.core.policies import OwnRule, policy_data
from smolsessions.options import ApproveRule, WorkspaceValues

_OPTIONS = "scratchpad executor model_retries unsafe_to_repeat examples deadline_s ask_user".split()
Kinds = type[Exception] | tuple[type[Exception], ...]
_MISTAKES: Kinds = (StartError, AssertionError, ValueError, TypeError)
_INHERITED = "model executor executor_options executor_key_env code_limits model_retries".split()
"""Keys of a saved agent that count for the agents that it manages, too."""


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
        with self._at_file():
            tool_servers.open({name: table for name, table in file.mcp.items() if name in used})
        _search_for_modules(path.absolute().parent)
        self._factories = {name: self._import(name, "factory", agent.factory) for name, agent in file.agents.items()}
        self._predicates = {
            name: self._import(name, "approve", agent.approve if isinstance(agent.approve, str) else None)
            for name, agent in file.agents.items()
        }

    def factory(self, name: str) -> Factory:
        """Return the factory of an agent. It takes a caller if a factory that it uses does."""

        def make() -> MultiStepAgent:
            return self._make(name, DUMMY)

        def make_for(caller: Caller) -> MultiStepAgent:
            return self._make(name, caller)

        made: Any = make_for if self._takes_caller(name) else make
        made.place = f"{self._path}: [agents.{name}]"  # for errors of the checks that all agents have
        made.__module__ = (self._file.agents[name].factory or "").partition(":")[0]  # its release is the agent's
        return cast("Factory", made)

    def _takes_caller(self, name: str) -> bool:
        factory = self._factories[name]
        managed = self._file.agents[name].managed_agents
        return (factory is not None and takes_caller(factory)) or any(map(self._takes_caller, managed))

    def _make(self, name: str, caller: Caller) -> MultiStepAgent:
        table = self._file.agents[name]
        if factory := self._factories[name]:
            agent: Any = _call(factory, caller)
            if not isinstance(agent, MultiStepAgent):
                with self._at(name, "factory"):
                    raise StartError(f"returned {type(agent).__name__}, not a smolagents agent; return one")
            agent.description = table.description or agent.description
            agent.name = agent.name or (name if name.isidentifier() else None)
        else:
            agent = self._construct(name, table, caller, self._saved_of(name, table))
        return self._with_options(name, table, agent)

    def _construct(self, name: str, table: AgentTable, caller: Caller, saved: SavedAgent | None) -> MultiStepAgent:
        given: dict[str, Any] = {
            "tools": self._tools_of(name, table, saved),
            "model": self._model_of(name, table),
            "managed_agents": self._managed_agents(name, table, caller, saved) or None,
            "name": name if name.isidentifier() else None,
            "description": table.description or (saved and saved.description),
            "instructions": table.instructions,
            "planning_interval": table.planning_interval or (saved and saved.planning_interval),
            "verbosity_level": LogLevel.OFF,
        }
        self._refuse_namesakes(name, given)
        if max_steps := table.max_steps or (saved and saved.max_steps):
            given["max_steps"] = max_steps
        writes_code = (saved.kind if saved else table.kind) == "code"
        key = "prompt_templates" if table.prompt_templates or not saved else "folder" if table.folder else "hub"
        with self._at(name, key):
            given["prompt_templates"] = self._templates(table, saved, writes_code=writes_code)
        if writes_code:
            given |= self._code_arguments(name, table, saved)
        with self._at(name, key, Exception), self._at(name, "tools"):
            return CodeAgent(**given) if writes_code else ToolCallingAgent(**given)

    def _refuse_namesakes(self, name: str, given: dict[str, Any]) -> None:
        """Refuse a tool that is called like the agent or like one that it manages."""
        managed = [agent.name for agent in given["managed_agents"] or ()]
        for tool in given["tools"]:
            if tool.name in managed:
                with self._at(name, "managed_agents"):
                    raise StartError(f"{tool.name} is the name of a tool, too; rename one of them")
            if tool.name == given["name"]:
                with self._at(name, "tools"):
                    raise StartError(f"{tool.name} is the name of the agent, too; rename one of them")

    def _managed_agents(
        self, name: str, table: AgentTable, caller: Caller, saved: SavedAgent | None
    ) -> list[MultiStepAgent]:
        managed = [self._make(each, caller) for each in table.managed_agents]
        for each in saved.managed if saved else ():
            same = {key: getattr(table, key) for key in _INHERITED}
            inner = AgentTable.model_construct(set(same), folder=table.folder, trust=True, **same)
            with self._at(name, "folder"):
                managed.append(self._with_options(name, inner, self._construct(each.name or "", inner, caller, each)))
        return managed

    def _code_arguments(self, name: str, table: AgentTable, saved: SavedAgent | None) -> dict[str, Any]:
        executor = None
        if table.executor in REMOTE_EXECUTORS:
            with self._at(name, "executor"):
                options = {"key_env": table.executor_key_env, **table.executor_options}
                executor = remote_executor(table.executor, **options)
        imports = table.authorized_imports
        if saved and "authorized_imports" not in table.given:
            imports = saved.authorized_imports
            if "*" in imports:
                with self._at(name, "authorized_imports"):
                    raise StartError('is missing, and the saved agent asks for all modules ("*"); list what it needs')
        for number, module in enumerate(imports if executor is None else ()):
            if module != "*" and importlib.util.find_spec(module.partition(".")[0]) is None:
                named = module if saved and imports is saved.authorized_imports else f"entry {number + 1}"
                with self._at(name, "authorized_imports"):
                    raise StartError(f"{named} is no module that is installed here; install its package, or remove it")
        return {
            "additional_authorized_imports": list(imports),
            "executor": executor,
            "use_structured_outputs_internally": table.structured_output,
            "code_block_tags": table.code_block_tags,
        }

    def _with_options(self, name: str, table: AgentTable, agent: MultiStepAgent) -> MultiStepAgent:
        tools = [*agent.tools, *(WORKSPACE_TOOLS if table.workspace else ())]
        if not set(table.unsafe_to_repeat) <= set(tools):
            with self._at(name, "unsafe_to_repeat"):
                raise StartError(f"names a tool that the agent does not have; it has {', '.join(tools)}")
        chosen = table.given if table.factory else frozenset([*_OPTIONS, "memory_policy", "code_limits", "approve"])
        values: dict[str, Any] = {key: getattr(table, key) for key in _OPTIONS if key in chosen}
        if table.executor in REMOTE_EXECUTORS:
            del values["executor"]  # the agent holds it
        if "memory_policy" in chosen:
            values["memory_policy"] = policy_data(table.memory_policy)
            values["own_policies"] = [rule.name for rule in table.memory_policy if isinstance(rule, OwnRule)]
        if "code_limits" in chosen:
            values["code_limits"] = table.code_limits.model_dump(exclude_none=True)
        if "approve" in chosen:
            values["approve"] = self._approve(name, table, agent)
        if table.workspace:
            values["workspace"] = self._workspace(name, table.workspace)
        return smolsessions.options(agent, **values)

    def _approve(self, name: str, table: AgentTable, agent: MultiStepAgent) -> ApproveRule:
        if isinstance(table.approve, str):
            return cast("ApproveRule", self._predicates[name])
        known = tool_names(agent) | ({*WORKSPACE_TOOLS} if table.workspace else set())
        known |= {ASK_USER} if table.ask_user else set()
        known |= {READ, WRITE} if table.scratchpad else set()
        if not self._takes_caller(name) and (refused := refused_tools(name, known, table.approve)):
            with self._at(name, "approve"):
                there = ", ".join(sorted(known - {"final_answer"})) or "none"
                raise StartError(f"entry {refused[0] + 1} names no tool that the agent can call; it can call {there}")
        return table.approve

    def _workspace(self, name: str, table: WorkspaceTable) -> WorkspaceValues:
        path = str(self._beside(table.path)) if table.path else None
        values = WorkspaceValues(editable=table.editable, readonly=table.readonly, hidden=table.hidden, path=path)
        with self._at(name, "workspace"):
            check_workspace(values)
        return values

    def _model_of(self, name: str, table: AgentTable) -> Model:
        with self._lock:
            if table.model not in self._models:
                made = []
                for place, model in placed_models(self._file, name, table):
                    with self._at_place(place, ModelTable):
                        made.append(make_model(model))
                self._models[table.model] = add_fallbacks(*made)
            return self._models[table.model]

    def _tools_of(self, name: str, table: AgentTable, saved: SavedAgent | None) -> list[Any]:
        tools = list(saved.tools()) if saved else []
        if table is not self._file.agents.get(name):
            return tools  # an agent that a saved one manages, and which may have the name of another table
        with self._lock, self._at(name, "tools"):
            if name not in self._tools:
                self._tools[name] = load_tools(table.tools, self._loaded_tools, add_base_tools=table.add_base_tools)
            tools += self._tools[name]()
        with self._lock:
            if name not in self._mcp_tools:
                taken = {*RESERVED_NAMES, *table.managed_agents, *(tool.name for tool in tools)}
                taken |= {*WORKSPACE_TOOLS} if table.workspace else set()
                taken |= {ASK_USER} if table.ask_user else set()
                with self._at(name, "mcp", StartError):
                    self._mcp_tools[name] = self._tool_servers.tools(table.mcp, taken)
            return [*tools, *self._mcp_tools[name]]

    def _saved_of(self, name: str, table: AgentTable) -> SavedAgent | None:
        if not (table.folder or table.hub):
            return None
        with self._lock, self._at(name, "hub" if table.hub else "folder"):
            if name not in self._saved:
                folder = download(table.hub, table.revision or "") if table.hub else self._beside(table.folder or "")
                self._saved[name] = read_saved_agent(name, folder)
            self._check_saved(table, self._saved[name])
            return self._saved[name]

    def _check_saved(self, table: AgentTable, saved: SavedAgent) -> None:
        writes_code = saved.kind == "code"
        if not writes_code and (foreign := sorted(table.given & {*CODE_KEYS})):
            raise StartError(f"holds a ToolCallingAgent, which has no {foreign[0]}; remove that key")
        for model in models_of(self._file, table):
            if sentence := unsuitable(model, writes_code=writes_code, structured=table.structured_output):
                raise StartError(sentence)

    def _templates(self, table: AgentTable, saved: SavedAgent | None, *, writes_code: bool) -> PromptTemplates:
        if table.prompt_templates:
            return _own_templates(self._beside(table.prompt_templates))
        if saved and saved.templates:
            return _complete(saved.templates, "agent.json ")
        coder = "structured_code_agent" if table.structured_output else "code_agent"
        return _templates_of_smolagents(coder if writes_code else "toolcalling_agent")

    def _beside(self, path: str) -> Path:
        return self._path.absolute().parent / path

    def _import(self, name: str, key: str, place: str | None) -> Factory | None:
        if not place:
            return None
        with self._at(name, key):
            module, _, attribute = place.partition(":")
            return import_factory(module, attribute, "makes it" if key == "factory" else "decides")

    @contextmanager
    def _at_file(self) -> Iterator[None]:
        try:
            yield
        except StartError as error:
            raise PlacedStartError(f"{self._path}: {error.message}") from error

    @contextmanager
    def _at(self, name: str, key: str, kinds: Kinds = _MISTAKES) -> Iterator[None]:
        """Name the file, the agent and the key in the sentence of an error of these kinds."""
        with self._at_place(("agents", name), AgentTable, (key,), kinds):
            yield

    @contextmanager
    def _at_place(
        self, place: Place, table: type[BaseModel], keys: Place = (), kinds: Kinds = _MISTAKES
    ) -> Iterator[None]:
        """Name the file, the place and the keys. A sentence that begins with a key of the table names it itself."""
        try:
            yield
        except PlacedStartError:
            raise
        except kinds as error:
            text = error.message if isinstance(error, StartError) else f"{_text_of(error)}; mend it"
            key, colon, rest = text.partition(": ")
            key = "executor_key_env" if key == "key_env" else key
            if colon and key in table.model_fields:
                keys, text = (key,), rest
            raise PlacedStartError(f"{self._path}: {sentence_at((*place, *keys), text)}") from error


def _text_of(error: BaseException) -> str:
    return without_secrets(str(error)).rstrip(" .\n")


def _call(factory: Factory, caller: Caller) -> Any:
    return factory(caller=caller) if takes_caller(factory) else factory()


def _search_for_modules(folder: Path) -> None:
    """Let Python find modules in the working directory and beside the file."""
    for each in (folder, Path.cwd()):
        if str(each) not in sys.path:
            sys.path.append(str(each))


@functools.cache
def _templates_of_smolagents(name: str) -> PromptTemplates:
    """Parse smolagents' own templates once, which takes 2.3 ms. All agents of a kind share them."""
    text = importlib.resources.files("smolagents.prompts").joinpath(f"{name}.yaml").read_text("utf-8")
    templates: PromptTemplates = yaml.safe_load(text)
    return templates


@functools.cache
def _own_templates(path: Path) -> PromptTemplates:
    try:
        templates: PromptTemplates = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError):
        raise StartError("is no YAML; mend it") from None
    return _complete(templates, f"{path.name} ")


def _check_jinja(name: str, text: Any) -> None:
    try:
        jinja2.Environment(autoescape=False).parse(str(text))  # noqa: S701 - a prompt is no HTML
    except jinja2.TemplateSyntaxError as error:
        problem = f"{error.message or ''}".rstrip(".")
        raise StartError(f"{name}, line {error.lineno} of this text: no Jinja ({problem}); mend it there") from None


def _complete(templates: Any, place: str = "") -> PromptTemplates:
    """Return templates that have all texts that smolagents reads. Raises `StartError`."""
    found = templates if isinstance(templates, dict) else {}
    missing = [name for name in EMPTY_PROMPT_TEMPLATES if name not in found]
    for name, texts in EMPTY_PROMPT_TEMPLATES.items():
        if isinstance(texts, dict) and name in found:
            group = found[name] if isinstance(found[name], dict) else {}
            missing += [f"{name}.{text}" for text in texts if not isinstance(group.get(text), str)]
    if missing:
        raise StartError(f"{place}lacks texts of smolagents' templates: {', '.join(missing)}; add them")
    for name, texts in found.items():
        for key, text in texts.items() if isinstance(texts, dict) else [("", texts)]:
            _check_jinja(f"{place}{name}{key and '.'}{key}", text)
    return cast("PromptTemplates", found)
