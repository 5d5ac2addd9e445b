"""Agent factories: import by name, checks at start, and the fingerprint of the agent that they make."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from smolagents import MultiStepAgent
from smolagents.models import get_tool_json_schema

from smolsessions.agent_options import factory_name, options_of
from smolsessions.agents import option_checks as checks
from smolsessions.agents import remote_executors
from smolsessions.agents.identity import model_identity, release_of
from smolsessions.agents.imports import import_named, search_modules_in
from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.memory.scratchpad import add_scratchpad
from smolsessions.agents.models.keys import describe_error
from smolsessions.agents.models.providers import disable_client_retries, with_fallbacks
from smolsessions.agents.run.agent_state import has_own_state
from smolsessions.agents.run.instrumentation import clean_up, code_runs_in, with_managed
from smolsessions.agents.tools.ask_user import add_ask_user
from smolsessions.agents.tools.sources import check_tool
from smolsessions.agents.tools.workspace_tools import BoundWorkspace, add_workspaces, workspaces_of
from smolsessions.agents.transfer.variables import ImportTarget, import_targets
from smolsessions.agents.values.json_forms import json_form
from smolsessions.core.agent_ports import AgentInfo, ToolInfo
from smolsessions.core.callers import DUMMY, Caller
from smolsessions.core.errors import AgentUnavailableError, StartError
from smolsessions.core.records import AgentName, AgentVersion
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
        if not self.takes_caller:
            return self.info.version
        return _version(self.info.version.name, agent, self.factory, self.unstable)


def load_factories(spec: str) -> list[tuple[str, Factory]]:
    """Import the factories of `name=module:factory,…`, or of `name=folder/file.py:factory,…`.

    Without `name=`, the factory's decorator names the agent, or else the function: `make_shop` makes `shop`.
    The working directory is searched for modules, too.
    """
    search_modules_in(Path.cwd())
    found = []
    for entry in filter(None, map(str.strip, spec.split(","))):
        match = re.fullmatch(r"(?:([^=]+)=)?(?:(.+)\.py|([\w.]+)):(\w+)", entry)
        if not match:
            raise StartError(f"SMOLSESSIONS_AGENTS has {entry!r}; write each agent as name=module:factory")
        name, file, module_name, function = match.groups()
        if file:
            path = Path(f"{file}.py")
            if not path.is_file() or not path.stem.isidentifier():
                raise StartError(f"{path} is no Python file to import; check the path, and name it as a module")
            search_modules_in(path.parent.absolute())
            module_name = path.stem
        try:
            factory = import_named(module_name, function, "function", "name the one that makes it")
        except StartError as error:
            raise StartError(f"the agent {name or function!r}: {error.message}") from error
        found.append((name or factory_name(factory) or _PREFIX.sub("", function), factory))
    return found


def make_agent(name: str, factory: Factory, caller: Caller, folders: ConversationFolders | None) -> MultiStepAgent:
    """Call a factory, validate the options of its agent and add the tools that they request of the service."""
    agent: MultiStepAgent = call_factory(factory, caller)
    if isinstance(agent, MultiStepAgent):  # a factory may return anything
        checks.validate_options(name, agent)
        add_scratchpad(name, agent)
        add_workspaces(name, agent, caller, folders)
        for each in with_managed(agent):
            add_ask_user(name, each)
            for model in (*with_fallbacks(each.model), options_of(each).summary_model):
                disable_client_retries(model)
    return agent


def call_factory(factory: Factory, caller: Caller) -> Any:
    """Return what a factory makes. It gets the caller if it has such a parameter."""
    return factory(caller=caller) if takes_caller(factory) else factory()


def takes_caller(factory: Factory) -> bool:
    try:
        return "caller" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable of C may have no signature
        return False


def check_factory(name: str, factory: Factory, folders: ConversationFolders | None = None) -> CheckedAgent:
    """Call a factory twice and check its agents. Raises `StartError` if two conversations could mix."""
    first = _checked_call(name, factory, folders)
    if options_of(first).remembers:
        raise StartError(
            f"the agent {name!r} has the option remembers, which is for managed agents: this one has the memory of its "
            "conversation; remove it"
        )
    remote_executors.refuse_started_executor(name, first)  # a second one might need the same port
    second = _checked_call(name, factory, folders)
    for one, other in zip(with_managed(first), with_managed(second), strict=False):
        parts = {"agent": (one, other), "memory": (one.memory, other.memory)}
        parts["interpreter"] = (getattr(one, "python_executor", None), getattr(other, "python_executor", None))
        parts |= {
            f"tool {key!r} with its own state": (tool, other.tools.get(key))
            for key, tool in one.tools.items()
            if has_own_state(tool)
        }
        for part, (mine, others) in parts.items():
            if mine is not None and mine is others:
                raise StartError(
                    f"the factory of agent {name!r} gave the same {part} twice, so conversations would mix; make a new "
                    "one in every call"
                )
        for tool in one.tools.values():
            check_tool(tool, f"the agent {name!r}: ")
        checks.check_options(name if one is first else f"{name} → {one.name}", one)
        if options_of(one).remembers:
            checks.agent_policy(one.name or "", one, ())
        remote_executors.check_remote_executor(name, one)
    checks.check_approvals(name, first, takes_caller=takes_caller(factory))
    of_second = _parts(second)
    unstable = frozenset(part for part, value in _parts(first).items() if of_second.get(part) != value)
    own_policies = checks.import_own_policies(name, first)
    options = options_of(first)
    schemas = [get_tool_json_schema(one)["function"] for one in (*first.tools.values(), *first.managed_agents.values())]
    remote = [*map(remote_executors.remote_interpreter, with_managed(first))]
    info = AgentInfo(
        _version(AgentName(name), first, factory, unstable),
        str(getattr(first, "description", None) or ""),
        tuple(
            ToolInfo(schema["name"], str(schema["description"]), json_form(schema["parameters"]))
            for schema in schemas
            if schema["name"] != "final_answer"
        ),
        int(first.max_steps),
        remote[0].kind if remote[0] else code_runs_in(first),
        checks.agent_policy(name, first, own_policies),
        options.examples,
        options.deadline_s,
        tuple(remote_executors.LIMITATION.format(kind=each.kind) for each in remote if each),
        checks.approved_tools(first),
        any(options_of(each).ask_user for each in with_managed(first)),
        options.client_tools and checks.cannot_wait(first) is None,
    )
    clean_up(first)
    clean_up(second)
    places = {id(each): code_runs_in(each) for each in with_managed(first)}
    coders = [each for each in with_managed(first) if places[id(each)] == "child"]
    imports = {module for each in coders for module in getattr(each, "additional_authorized_imports", ())}
    preload = {module.removesuffix(".*") for module in imports if module != "*"}
    if coders:
        preload |= {kind.__module__ for kind in options.stored_classes}
    return CheckedAgent(
        factory,
        info,
        options.stored_classes,
        frozenset(preload),
        frozenset(filter(None, places.values())),
        own_policies,
        import_targets(first),
        takes_caller(factory),
        unstable,
        tuple(workspaces_of(first)),
        checks.tool_names(first),
        checks.asks(first),
        checks.cannot_wait(first),
    )


def _checked_call(name: str, factory: Factory, folders: ConversationFolders | None) -> MultiStepAgent:
    try:
        agent = make_agent(name, factory, DUMMY, folders)
    except (StartError, AgentUnavailableError):
        raise
    except (Exception, SystemExit) as error:  # of an author
        advice = "fix it, or the variables that it reads"
        if str(error).startswith(f"{getattr(factory, '__qualname__', '')}() missing "):
            advice = "it is called without arguments, except `caller` if it has a parameter of that name"
        raise StartError(f"the factory of agent {name!r} failed with {describe_error(error)}; {advice}") from error
    if not isinstance(agent, MultiStepAgent):
        raise StartError(
            f"the factory of agent {name!r} gave {type(agent).__name__}, not a smolagents agent; return one"
        )
    return agent


def _version(name: AgentName, agent: MultiStepAgent, factory: Factory, unstable: frozenset[str]) -> AgentVersion:
    """Return the version of an agent. Its fingerprint hashes prompts, tools and options.

    Only an agent of the same fingerprint may replay a turn.
    Dates and `unstable` parts are left out, and so are releases: a turn may outlast an upgrade. A template or the
    description of a tool that smolagents or this service has changed counts. The option `fingerprint` replaces it.
    """
    hashed = options_of(agent).fingerprint
    if hashed is None:
        same = {part: value for part, value in _parts(agent).items() if part not in unstable}
        hashed = json.dumps(same, sort_keys=True)
    fingerprint = hashlib.sha256(hashed.encode()).hexdigest()[:16]
    kind = next(each.__name__ for each in type(agent).__mro__ if each.__module__.startswith("smolagents"))
    return AgentVersion(name, kind, SMOLAGENTS, model_identity(agent.model), fingerprint, release_of(factory))


@lru_cache(maxsize=64)  # most agents of a kind share their templates, which are long
def _without_dates(text: str) -> str:
    return _DATE.sub("", text)


def _parts(agent: MultiStepAgent, path: str = "") -> dict[str, Any]:
    remote = remote_executors.remote_interpreter(agent)
    parts: dict[str, Any] = {
        "kind": type(agent).__qualname__,
        "model": [type(agent.model).__qualname__, model_identity(agent.model).id or ""],
        "system_prompt": _without_dates(str(agent.initialize_system_prompt())),
        "templates": _without_dates(json.dumps(json_form(dict(agent.prompt_templates)))),
        "instructions": _without_dates(str(agent.instructions)),
        **{name: json_form(getattr(agent, name, None)) for name in _ATTRIBUTES},
        "executor": [remote.kind, remote.described] if remote else options_of(agent).executor,
    }
    if options_of(agent).remembers:
        parts["remembers"] = True
    if rule := options_of(agent).approve:
        parts["approve"] = getattr(rule, "__qualname__", "") if callable(rule) else sorted(rule)
    if schema := options_of(agent).output_schema:
        parts["output_schema"] = schema
    for name, tool in agent.tools.items():
        parts[f"tool {name}"] = [tool.description, json_form(tool.inputs), tool.output_type]
    found = {f"{path}:{name}": part for name, part in parts.items()}
    for name, managed in agent.managed_agents.items():
        found |= _parts(managed, f"{path}/{name}")
    return found
