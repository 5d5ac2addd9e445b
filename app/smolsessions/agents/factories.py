"""Agent factories: import by name, checks at start, and the fingerprint of the agent that they make."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from smolagents import MultiStepAgent
from smolagents.models import get_tool_json_schema

import smolsessions
from smolsessions.agents.approval_checks import approved_tools, asks, cannot_wait, check_approvals, tool_names
from smolsessions.agents.identity import model_identity, release_of
from smolsessions.agents.memory.author_policies import agent_policy, import_own_policies
from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.memory.scratchpad import add_scratchpad
from smolsessions.agents.models.keys import describe_error
from smolsessions.agents.option_checks import check_options, stored_classes_of
from smolsessions.agents.remote_executors import (
    check_remote_executor,
    is_of_executor,
    limitation_of,
    refuse_started_executor,
    remote_form,
    started_executor,
)
from smolsessions.agents.run.agent_state import has_own_state
from smolsessions.agents.run.instrumentation import clean_up, code_runs_in, with_managed
from smolsessions.agents.tools.ask_user import add_ask_user
from smolsessions.agents.tools.sources import check_tool
from smolsessions.agents.tools.workspace_tools import BoundWorkspace, add_workspaces, workspaces_of
from smolsessions.agents.transfer.variables import ImportTarget, import_targets
from smolsessions.agents.values.json_forms import json_form
from smolsessions.core.callers import DUMMY, Caller
from smolsessions.core.errors import AgentUnavailableError, StartError
from smolsessions.core.records import AgentInfo, AgentName, AgentVersion, ToolInfo
from smolsessions.options import factory_name, options_of
from smolsessions.workspace.folders import ConversationFolders

Factory = Callable[..., MultiStepAgent]

SMOLAGENTS = importlib.metadata.version("smolagents")

_ATTRIBUTES = "max_steps planning_interval additional_authorized_imports code_block_tags".split()
_PREFIX = re.compile("^(make|create|build|get)_")
_DATE = re.compile(
    r"\d|\b(mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(january|february|march|april|may|june|july|august|september|"
    r"october|november|december|mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CheckedAgent:
    """A factory that passed the checks, with the properties of its agents."""

    factory: Factory
    info: AgentInfo
    stored_classes: tuple[type, ...]
    preload: frozenset[str]
    """Modules that the processes for its code import in advance."""
    executors: frozenset[str]
    """Places in which the code of the agent and of its managed agents runs."""
    own_policies: dict[str, PolicyFunction]
    import_targets: dict[str, ImportTarget]
    """The variables that it can import, by the paths of its agents."""
    takes_caller: bool
    unstable: frozenset[str]
    """Parts that differ between two agents of the factory, which no fingerprint holds."""
    workspaces: tuple[BoundWorkspace, ...]
    """The workspaces of an agent for no conversation."""
    tool_names: frozenset[str]
    """Names of all that it can call, and the agents below it."""
    asks: bool
    """True if an option lets its turns wait for a person."""
    cannot_wait: str | None
    """Why its turns cannot wait for a person."""

    def version_of(self, agent: MultiStepAgent) -> AgentVersion:
        """Return the version of an agent that the factory made."""
        if not self.takes_caller:
            return self.info.version
        return _version(self.info.version.name, agent, self.factory, self.unstable)


def load_factories(spec: str) -> list[tuple[str, Factory]]:
    """Import the factories of `name=module:factory,…`, or of `name=folder/file.py:factory,…`.

    Without `name=`, the factory's decorator names the agent, or else the function: `make_shop` makes `shop`.
    The working directory is searched for modules, too.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return [_load(entry.strip()) for entry in spec.split(",") if entry.strip()]


def make_agent(
    name: str, factory: Factory, caller: Caller, folders: ConversationFolders | None = None
) -> MultiStepAgent:
    """Call a factory and add the tools that its agent requests of the service."""
    agent = factory(caller=caller) if takes_caller(factory) else factory()
    if isinstance(agent, MultiStepAgent):
        add_scratchpad(name, agent)
        add_workspaces(name, agent, caller, folders)
        for each in with_managed(agent):
            add_ask_user(name, each)
    return agent


def takes_caller(factory: Factory) -> bool:
    """Return whether a factory has a parameter named `caller`."""
    try:
        return "caller" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable of C may have no signature
        return False


def check_factory(name: str, factory: Factory, folders: ConversationFolders | None = None) -> CheckedAgent:
    """Call a factory twice and check its agents. Raises `StartError` if two conversations could mix."""
    first = _call(name, factory, folders)
    refuse_started_executor(name, first)  # a second one might need the same port
    second = _call(name, factory, folders)
    for one, other in zip(with_managed(first), with_managed(second), strict=False):
        _refuse_shared_parts(name, one, other)
        _check_tools(name, one)
        check_options(name, one)
        check_remote_executor(name, one)
    check_approvals(name, first, takes_caller=takes_caller(factory))
    stored_classes = stored_classes_of(name, first)
    unstable = _differing(first, second)
    own_policies = import_own_policies(name, first)
    info = AgentInfo(
        _version(AgentName(name), first, factory, unstable),
        str(getattr(first, "description", None) or ""),
        tuple(_tool_info(tool) for tool in _offered(first) if tool.name != "final_answer"),
        int(first.max_steps),
        _code_place(first),
        agent_policy(name, first, own_policies),
        tuple(options_of(first).examples),
        options_of(first).deadline_s,
        tuple(filter(None, map(limitation_of, with_managed(first)))),
        approved_tools(first),
        any(options_of(each).ask_user for each in with_managed(first)),
    )
    clean_up(first)
    clean_up(second)
    executors = frozenset(place for agent in with_managed(first) if (place := code_runs_in(agent)))
    return CheckedAgent(
        factory,
        info,
        stored_classes,
        _preload(first, stored_classes),
        executors,
        own_policies,
        import_targets(first),
        takes_caller(factory),
        unstable,
        tuple(workspaces_of(first)),
        tool_names(first),
        asks(first),
        cannot_wait(first),
    )


def _load(entry: str) -> tuple[str, Factory]:
    match = re.fullmatch(r"(?:([^=]+)=)?(?:(.+)\.py|([\w.]+)):(\w+)", entry)
    if not match:
        raise StartError(f"SMOLSESSIONS_AGENTS has {entry!r}; write each agent as name=module:factory")
    name, file, module_name, attribute = match.groups()
    if file:
        module_name = _module_of(Path(f"{file}.py"))
    try:
        factory = import_factory(module_name, attribute)
    except StartError as error:
        raise StartError(f"the agent {name or attribute!r}: {error.message}") from error
    return name or factory_name(factory) or _PREFIX.sub("", attribute), factory


def import_factory(module_name: str, attribute: str, role: str = "makes it") -> Factory:
    """Import a function that makes agents, or has another role. Raises `StartError`."""
    _refuse_namesake(module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("smolsessions."):
            _refuse_namesake(error.name or "")
        raise StartError(
            f"importing {module_name} failed with {describe_error(error)}; mend the module, or start the "
            "service in the folder that holds it"
        ) from error
    factory: Factory | None = getattr(module, attribute, None)
    if not callable(factory):
        raise StartError(f"{module_name} has no function {attribute}; name the one that {role}")
    return factory


def _module_of(file: Path) -> str:
    """Return the name under which a file can be imported, and make it so."""
    folder = str(file.parent.absolute())
    if not file.is_file() or not file.stem.isidentifier():
        raise StartError(f"{file} is no Python file that can be imported; check the path, and name it as a module")
    if folder not in sys.path:
        sys.path.append(folder)
    return file.stem


def _refuse_namesake(module_name: str) -> None:
    ours = Path(next(iter(smolsessions.__path__)))
    namesakes = (Path.cwd() / "smolsessions", Path.cwd() / "smolsessions.py")
    theirs = next((path for path in namesakes if path.exists() and path != ours), None)
    if theirs and module_name.split(".", maxsplit=1)[0] == "smolsessions":
        raise StartError(
            f"your {theirs.name} has the name of the service's own package, so {module_name} cannot be imported; "
            "rename yours, say to my_agents"
        )


def _call(name: str, factory: Factory, folders: ConversationFolders | None) -> MultiStepAgent:
    try:
        agent = make_agent(name, factory, DUMMY, folders)
    except (StartError, AgentUnavailableError):
        raise
    except (Exception, SystemExit) as error:
        if is_of_executor(error):
            raise started_executor(name) from error
        raise StartError(
            f"the factory of agent {name!r} failed with {describe_error(error)}; mend it, or its "
            "configuration; it is called without arguments, except `caller` if it has a parameter of that name"
        ) from error
    if not isinstance(agent, MultiStepAgent):
        raise StartError(
            f"the factory of agent {name!r} gave {type(agent).__name__}, not a smolagents agent; return one"
        )
    return agent


def _tool_info(tool: Any) -> ToolInfo:
    """Describe a tool or a managed agent by the schema that a model gets of it."""
    schema = get_tool_json_schema(tool)["function"]
    return ToolInfo(schema["name"], str(schema["description"]), json_form(schema["parameters"]))


def _offered(agent: MultiStepAgent) -> list[Any]:
    return [*agent.tools.values(), *agent.managed_agents.values()]


def _refuse_shared_parts(name: str, one: MultiStepAgent, other: MultiStepAgent) -> None:
    parts = {
        "agent": (one, other),
        "memory": (one.memory, other.memory),
        "interpreter": tuple(getattr(agent, "python_executor", None) for agent in (one, other)),
    }
    for part, (first, second) in parts.items():
        if first is not None and first is second:
            raise StartError(
                f"the factory of agent {name!r} gave the same {part} twice, so conversations would mix; make "
                "a new one in every call"
            )
    for tool_name, tool in one.tools.items():
        if tool is other.tools.get(tool_name) and has_own_state(tool):
            raise StartError(
                f"the factory of agent {name!r} gave the same tool {tool_name!r} twice, which has a state of its own, "
                "so conversations would mix; make a new one in every call"
            )


def _check_tools(name: str, agent: MultiStepAgent) -> None:
    for tool in agent.tools.values():
        try:
            check_tool(tool)
        except StartError as error:
            raise StartError(f"the agent {name!r}: {error.message}") from None


def _preload(first: MultiStepAgent, stored_classes: tuple[type, ...]) -> frozenset[str]:
    coders = [agent for agent in with_managed(first) if code_runs_in(agent) == "child"]
    imports = {module for agent in coders for module in getattr(agent, "additional_authorized_imports", ())}
    modules = {module.removesuffix(".*") for module in imports if module != "*"}
    return frozenset(modules | {kind.__module__ for kind in stored_classes} if coders else modules)


def _code_place(agent: MultiStepAgent) -> str | None:
    place = code_runs_in(agent)
    return agent.python_executor.kind if place == "remote" else place  # type: ignore[attr-defined]  # it is ours


def _kind(agent: MultiStepAgent) -> str:
    """Name the smolagents class that an agent's own class derives from."""
    return next(kind.__name__ for kind in type(agent).__mro__ if kind.__module__.startswith("smolagents"))


def _version(name: AgentName, agent: MultiStepAgent, factory: Factory, unstable: frozenset[str]) -> AgentVersion:
    fingerprint, model = _fingerprint(agent, unstable), model_identity(agent.model)
    return AgentVersion(name, _kind(agent), SMOLAGENTS, model, fingerprint, release_of(factory))


def _differing(first: MultiStepAgent, second: MultiStepAgent) -> frozenset[str]:
    """Return the names of the parts that differ between two agents of one factory."""
    parts, others = _parts(first), _parts(second)
    return frozenset(name for name, part in parts.items() if others.get(name) != part)


def _fingerprint(agent: MultiStepAgent, unstable: frozenset[str]) -> str:
    """Hash prompts, tools and options: only an equal agent may replay a turn.

    Dates and `unstable` parts are left out, and so are releases: a turn may outlast an upgrade. A template or the
    description of a tool that smolagents or this service has changed counts. The option `fingerprint` replaces it.
    """
    own = options_of(agent).fingerprint
    if own is not None:
        return hashlib.sha256(own.encode()).hexdigest()[:16]
    same = {name: part for name, part in _parts(agent).items() if name not in unstable}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=64)  # most agents of a kind share their templates, which are long
def _without_dates(text: str) -> str:
    return _DATE.sub("", text)


def _parts(agent: MultiStepAgent, path: str = "") -> dict[str, Any]:
    parts: dict[str, Any] = {
        "kind": type(agent).__qualname__,
        "model": [type(agent.model).__qualname__, model_identity(agent.model).id or ""],
        "system_prompt": _without_dates(str(agent.initialize_system_prompt())),
        "templates": _without_dates(json.dumps(json_form(dict(agent.prompt_templates)))),
        "instructions": _without_dates(str(agent.instructions)),
        **{name: json_form(getattr(agent, name, None)) for name in _ATTRIBUTES},
        "executor": remote_form(agent) or options_of(agent).executor,
    }
    if rule := options_of(agent).approve:
        parts["approve"] = getattr(rule, "__qualname__", "") if callable(rule) else sorted(rule)
    for name, tool in agent.tools.items():
        parts[f"tool {name}"] = [tool.description, json_form(tool.inputs), tool.output_type]
    found = {f"{path}:{name}": part for name, part in parts.items()}
    for name, managed in agent.managed_agents.items():
        found |= _parts(managed, f"{path}/{name}")
    return found
