"""Agent factories: import by name, checks at start, and the fingerprint of the agent that they make."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolagents import MultiStepAgent
from smolagents.models import get_tool_json_schema

import smolsessions
from smolsessions.agents.memory.author_policies import agent_policy, import_own_policies
from smolsessions.agents.memory.scratchpad import add_scratchpad
from smolsessions.agents.option_checks import carried_classes, check_options
from smolsessions.agents.run.agent_state import has_own_state
from smolsessions.agents.run.instrumentation import clean_up, code_runs_in
from smolsessions.agents.transfer.variables import ImportTarget, import_targets
from smolsessions.agents.values.json_forms import json_form
from smolsessions.core.callers import DUMMY
from smolsessions.core.errors import StartError
from smolsessions.core.records import AgentInfo, AgentName, AgentVersion, ToolInfo
from smolsessions.options import factory_name, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smolsessions.agents.memory.policies import PolicyFunction
    from smolsessions.core.callers import Caller

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
    carries: tuple[type, ...]
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

    def fingerprint_of(self, agent: MultiStepAgent) -> str:
        """Return the fingerprint of an agent that the factory made for one caller."""
        return _fingerprint(agent, self.unstable)


def load_factories(spec: str) -> list[tuple[str, Factory]]:
    """Import the factories of `name=module:factory,…`, or of `name=folder/file.py:factory,…`.

    Without `name=`, the factory's decorator names the agent, or else the function: `make_shop` makes `shop`.
    The working directory is searched for modules, too.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [_load(entry.strip()) for entry in spec.split(",") if entry.strip()]


def make_agent(name: str, factory: Factory, caller: Caller) -> MultiStepAgent:
    """Call a factory and add the tools that its agent requests of the service."""
    agent = factory(caller=caller) if takes_caller(factory) else factory()
    if isinstance(agent, MultiStepAgent):
        add_scratchpad(name, agent)
    return agent


def takes_caller(factory: Factory) -> bool:
    """Return whether a factory has a parameter named `caller`."""
    try:
        return "caller" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable of C may have no signature
        return False


def check_factory(name: str, factory: Factory) -> CheckedAgent:
    """Call a factory twice and check its agents. Raises `StartError` if two conversations could mix."""
    first, second = _call(name, factory), _call(name, factory)
    for one, other in zip(_with_managed(first), _with_managed(second), strict=False):
        _refuse_shared_parts(name, one, other)
        check_options(name, one)
    carries = carried_classes(name, first)
    unstable = _differing(first, second)
    own_policies = import_own_policies(name, first)
    info = AgentInfo(
        AgentVersion(AgentName(name), _kind(first), SMOLAGENTS),
        str(getattr(first, "description", None) or ""),
        tuple(_tool_info(tool) for tool in _offered(first) if tool.name != "final_answer"),
        int(first.max_steps),
        code_runs_in(first),
        _fingerprint(first, unstable),
        agent_policy(name, first, own_policies),
    )
    clean_up(first)
    clean_up(second)
    executors = frozenset(place for agent in _with_managed(first) if (place := code_runs_in(agent)))
    return CheckedAgent(
        factory,
        info,
        carries,
        _preload(first, carries),
        executors,
        own_policies,
        import_targets(first),
        takes_caller(factory),
        unstable,
    )


def _load(entry: str) -> tuple[str, Factory]:
    match = re.fullmatch(r"(?:([^=]+)=)?(?:(.+)\.py|([\w.]+)):(\w+)", entry)
    if not match:
        raise StartError(f"SMOLSESSIONS_AGENTS has {entry!r}; write each agent as name=module:factory")
    name, file, module_name, attribute = match.groups()
    if file:
        module_name = _module_of(Path(f"{file}.py"))
    _refuse_namesake(module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("smolsessions."):
            _refuse_namesake(error.name or "")
        raise StartError(
            f"the agent {name or attribute!r}: importing {module_name} failed with {type(error).__name__}: "
            f"{error}; mend the module, or start the service in the folder that holds it"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise StartError(
            f"the agent {name or attribute!r}: {module_name} has no function {attribute}; name the one that makes it"
        )
    return name or factory_name(factory) or _PREFIX.sub("", attribute), factory


def _module_of(file: Path) -> str:
    """Return the name under which a file can be imported, and make it so."""
    folder = str(file.parent.absolute())
    if not file.is_file() or not file.stem.isidentifier():
        raise StartError(f"{file} is no Python file that can be imported; check the path, and name it as a module")
    if folder not in sys.path:
        sys.path.insert(0, folder)
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


def _call(name: str, factory: Factory) -> MultiStepAgent:
    try:
        agent = make_agent(name, factory, DUMMY)
    except StartError:
        raise
    except (Exception, SystemExit) as error:
        raise StartError(
            f"the factory of agent {name!r} failed with {type(error).__name__}: {error}; mend it, or its "
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


def _with_managed(agent: MultiStepAgent) -> Iterator[MultiStepAgent]:
    yield agent
    for managed in agent.managed_agents.values():
        yield from _with_managed(managed)


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


def _preload(first: MultiStepAgent, carries: tuple[type, ...]) -> frozenset[str]:
    coders = [agent for agent in _with_managed(first) if code_runs_in(agent) == "child"]
    imports = {module for agent in coders for module in getattr(agent, "additional_authorized_imports", ())}
    modules = {module.removesuffix(".*") for module in imports if module != "*"}
    return frozenset(modules | {kind.__module__ for kind in carries} if coders else modules)


def _kind(agent: MultiStepAgent) -> str:
    """Name the smolagents class that an agent's own class derives from."""
    return next(kind.__name__ for kind in type(agent).__mro__ if kind.__module__.startswith("smolagents"))


def _differing(first: MultiStepAgent, second: MultiStepAgent) -> frozenset[str]:
    """Return the names of the parts that differ between two agents of one factory."""
    parts, others = _parts(first), _parts(second)
    return frozenset(name for name, part in parts.items() if others.get(name) != part)


def _fingerprint(agent: MultiStepAgent, unstable: frozenset[str]) -> str:
    """Hash prompts, tools and options: only an equal agent may replay a turn.

    Dates and `unstable` parts are left out. The option `fingerprint` replaces it.
    """
    own = options_of(agent).fingerprint
    if own is not None:
        return hashlib.sha256(own.encode()).hexdigest()[:16]
    same = {name: part for name, part in _parts(agent).items() if name not in unstable}
    text = json.dumps([SMOLAGENTS, same], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)  # most agents of a kind share their templates, which are long
def _without_dates(text: str) -> str:
    return _DATE.sub("", text)


def _parts(agent: MultiStepAgent, path: str = "") -> dict[str, Any]:
    parts: dict[str, Any] = {
        "kind": type(agent).__qualname__,
        "model": [type(agent.model).__qualname__, str(getattr(agent.model, "model_id", ""))],
        "system_prompt": _without_dates(str(agent.initialize_system_prompt())),
        "templates": _without_dates(json.dumps(json_form(dict(agent.prompt_templates)))),
        "instructions": _without_dates(str(agent.instructions)),
        **{name: json_form(getattr(agent, name, None)) for name in _ATTRIBUTES},
        "executor": options_of(agent).executor,
    }
    for name, tool in agent.tools.items():
        parts[f"tool {name}"] = [tool.description, json_form(tool.inputs), tool.output_type]
    found = {f"{path}:{name}": part for name, part in parts.items()}
    for name, managed in agent.managed_agents.items():
        found |= _parts(managed, f"{path}/{name}")
    return found
