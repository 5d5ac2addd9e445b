"""Agent names → factories. Fails closed: what could mix two conversations is refused before the first request."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolagents import MultiStepAgent

import smolsessions
from smolsessions.agents.fingerprint import fingerprint_of
from smolsessions.agents.memory.author_policies import agent_policy, import_own_policies
from smolsessions.agents.memory.memory_edits import Overlay
from smolsessions.agents.memory.policies import check_own_rules
from smolsessions.agents.memory.prompt_preview import PromptPreview
from smolsessions.agents.memory.scratchpad import add_scratchpad
from smolsessions.agents.memory.step_description import describe
from smolsessions.agents.memory.steps import unpack
from smolsessions.agents.run.agent_state import has_own_state
from smolsessions.agents.run.instrumentation import code_runs_in, runs_in_child
from smolsessions.agents.run.message_encoding import MODEL_KEY, usage_of
from smolsessions.agents.run.session import AgentSession, clean_up, task_step
from smolsessions.agents.sandbox.confinement.levels import CONFINED
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.limits import limits_of
from smolsessions.agents.smolagents_patches import cache_templates, mark_default_loggers, skip_torch_lookup
from smolsessions.agents.transfer import documents
from smolsessions.agents.transfer.variables import ImportTarget, import_targets
from smolsessions.agents.values.images import browser_image, image_from_bytes
from smolsessions.core.errors import AgentUnavailableError, ServiceError, StartError
from smolsessions.core.records import AgentInfo, AgentName, AgentVersion, Usage, with_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smolsessions.agents.memory.policies import PolicyFunction
    from smolsessions.agents.sandbox.confinement.levels import Level
    from smolsessions.core.policies import Policy
    from smolsessions.core.ports import Session
    from smolsessions.core.records import (
        ExportedMemory,
        ImportedMemory,
        LeftOut,
        Memory,
        PackedStep,
        PrunePreview,
        Turn,
        TurnInput,
    )
    from smolsessions.core.replay_state import ReplayState

SMOLAGENTS = importlib.metadata.version("smolagents")
log = logging.getLogger(__name__)

MOST_RETRIES = 10

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FactoryFailedError(ServiceError):
    """The agent could not be made: its factory failed; the service's log says how."""

    code = "agent_error"


@dataclass(frozen=True)
class _Entry:
    factory: Callable[[], MultiStepAgent]
    info: AgentInfo
    carries: tuple[type, ...]
    preload: frozenset[str]
    """What the processes for its code have imported beforehand."""
    executors: frozenset[str]
    """Where the code of the agent and of those that it manages runs."""
    own_policies: dict[str, PolicyFunction]
    places: dict[str, ImportTarget]
    """What it can take of variables that are imported, by its agents' paths."""


class Catalog:
    """The agents that this process can play, each checked by calling its factory twice."""

    def __init__(
        self,
        factories: Sequence[tuple[str, Callable[[], MultiStepAgent]]],
        hidden: Sequence[Path] = (),
        code_folders: Sequence[Path] = (),
        *,
        must_confine: bool = False,
    ) -> None:
        """`hidden` files and folders are out of sight for model-written code; it may read `code_folders`."""
        skip_torch_lookup()
        cache_templates()
        mark_default_loggers()
        self._entries: dict[AgentName, _Entry] = {}
        for name, factory in factories:
            if not _NAME.fullmatch(name):
                raise StartError(f"the agent name {name!r} may hold letters, digits, - and _ only; rename it")
            if name in self._entries:
                raise StartError(
                    f"two agents are called {name!r}; give each a name of its own in SMOLSESSIONS_AGENTS"
                    " (SMOLSESSIONS_DEMO_AGENTS=0 frees the names demo and demo-code)"
                )
            self._entries[AgentName(name)] = _checked(name, factory)
        preload = {module for entry in self._entries.values() for module in entry.preload}
        self._must_confine = must_confine
        self._fork_client = ForkClient(sorted(preload), hidden, code_folders, must_confine=must_confine)
        self._started = False

    @property
    def infos(self) -> dict[AgentName, AgentInfo]:
        return {name: entry.info for name, entry in self._entries.items()}

    def start(self) -> None:
        """Prepare for model-written code, once what is to be hidden from it is there."""
        if any("process" in entry.executors for entry in self._entries.values()):
            self._fork_client.start()
            self._started = True

    def check_confinement(self) -> None:
        """Raise `StartError` if code must be confined and cannot be. Waits for the server of processes."""
        if not self._must_confine:
            return
        mend = "or set SMOLSESSIONS_CODE_CONFINEMENT=auto"
        for name, entry in self._entries.items():
            if "thread" in entry.executors:
                raise StartError(
                    f"the agent {name!r} runs its code in the service itself, and SMOLSESSIONS_CODE_CONFINEMENT is "
                    f"required: leave out its executor = 'thread', {mend}"
                )
        if self._started and self._fork_client.level() not in CONFINED:
            raise StartError(
                "SMOLSESSIONS_CODE_CONFINEMENT is required, and this system gives neither namespaces nor Landlock: "
                f"allow one of them (docs/security.md), serve no agent that writes code, {mend}"
            )

    def confinement(self) -> dict[AgentName, Level | None]:
        """Tell what confines each agent's code; None without code here. Waits for the server of processes."""
        level = self._fork_client.level() if self._started else None
        return {
            name: "none" if "thread" in entry.executors else level if "process" in entry.executors else None
            for name, entry in self._entries.items()
        }

    def build(
        self, name: AgentName, steps: Sequence[bytes], attachments: dict[str, bytes], variables: dict[str, bytes]
    ) -> Session:
        """Make a live agent with the memory that these entries make, and these variables."""
        entry = self._entry(name)
        overlay = _overlay(entry, steps, attachments)
        return AgentSession(
            self._new(entry),
            overlay,
            variables,
            entry.carries,
            self._fork_client,
            policy=entry.info.policy,
            own_policies=entry.own_policies,
        )

    def task_step(self, turn: Turn, turn_input: TurnInput) -> PackedStep:
        """Return the task of a turn that ended before its agent ran."""
        return task_step(turn, turn_input)

    def check_policy(self, name: AgentName, policy: Policy, pointer: str) -> None:
        """Refuse a policy that this agent cannot have."""
        check_own_rules(policy, self._entry(name).own_policies, pointer)

    def messages(
        self, name: AgentName, memory: Memory, policy: Policy | None, *, summary_mode: bool
    ) -> tuple[list[dict[str, Any]], LeftOut | None]:
        """Give what the model is shown next of a memory, and what the policy (None: the agent's) leaves out."""
        with self._preview(name, memory, policy) as preview:
            return preview[0].messages(summary_mode=summary_mode)

    def preview_prune(self, name: AgentName, memory: Memory, policy: Policy | None) -> PrunePreview:
        """Say what a prune of the memory would leave out."""
        with self._preview(name, memory, policy) as (preview, overlay):
            weighed = preview.weigh()
        at = {step.index - memory.steps[0].index: place for place, step in enumerate(memory.steps)}
        left_out = {overlay.order[place] for place in weighed.left_out}
        edits = tuple(at[place] for place, of in overlay.versions.items() if of in left_out)
        return replace(weighed, left_out=tuple(sorted(at[place] for place in left_out)), edits=edits)

    @contextmanager
    def _preview(
        self, name: AgentName, memory: Memory, policy: Policy | None
    ) -> Iterator[tuple[PromptPreview, Overlay]]:
        entry = self._entry(name)
        overlay = _overlay(entry, with_gaps(memory.steps), memory.attachments)
        agent, policy = self._new(entry), entry.info.policy if policy is None else policy
        try:
            yield PromptPreview(agent, overlay.memory(), policy, entry.own_policies), overlay
        finally:
            clean_up(agent)

    def _new(self, entry: _Entry) -> MultiStepAgent:
        try:
            return _made(entry.info.version.name, entry.factory)
        except (Exception, SystemExit) as error:
            log.exception("the factory of agent %s failed", entry.info.version.name, extra={"action": "agent.unmade"})
            raise FactoryFailedError from error

    def describe_step(self, name: AgentName, step: bytes, attachments: dict[str, bytes]) -> dict[str, Any]:
        """Give a step as JSON."""
        return describe(unpack(step, attachments, self._entry(name).carries))

    def export(
        self, name: AgentName, steps: Sequence[bytes], attachments: dict[str, bytes], variables: dict[str, bytes]
    ) -> ExportedMemory:
        """Give steps, images and variables as JSON data."""
        return documents.export(steps, attachments, variables, self._entry(name).carries)

    def import_document(self, name: AgentName, data: Any, max_pixels: int) -> ImportedMemory:
        """Make steps and pieces of such data, or of what smolagents' own memory gives."""
        return documents.import_document(data, self._entry(name).places, max_pixels)

    def image_file(self, data: bytes) -> tuple[str, bytes]:
        """Give an attachment as an image file: its media type and its bytes."""
        return browser_image(data)

    def journal_usage(self, replay: ReplayState) -> Usage:
        """Return the tokens of the model calls that a turn's journal holds."""
        used = [usage_of(data) for key, data in replay.effects.items() if key.startswith(MODEL_KEY)]
        return Usage(sum(each.input_tokens for each in used), sum(each.output_tokens for each in used))

    def _entry(self, name: AgentName) -> _Entry:
        if name not in self._entries:
            raise AgentUnavailableError(f"The conversation's agent {name!r} is not configured here.")
        return self._entries[name]


def _overlay(entry: _Entry, entries: Sequence[bytes], attachments: dict[str, bytes]) -> Overlay:
    opened = functools.cache(image_from_bytes)  # steps that show the same image share it, as when they were made
    overlay = Overlay()
    for data in entries:
        overlay.add(unpack(data, attachments, entry.carries, opened) if data else None)
    return overlay


def factories_of(spec: str) -> list[tuple[str, Callable[[], MultiStepAgent]]]:
    """Import what `name=module:factory,…` names; modules are also looked for in the working directory."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [_import(entry.strip()) for entry in spec.split(",") if entry.strip()]


def _import(entry: str) -> tuple[str, Callable[[], MultiStepAgent]]:
    match = re.fullmatch(r"([^=]+)=([\w.]+):(\w+)", entry)
    if not match:
        raise StartError(f"SMOLSESSIONS_AGENTS has {entry!r}; write each agent as name=module:factory")
    name, module_name, attribute = match.groups()
    _refuse_namesake(module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("smolsessions."):
            _refuse_namesake(error.name or "")
        raise StartError(
            f"the agent {name!r}: importing {module_name} failed with {type(error).__name__}: "
            f"{error}; mend the module, or start the service in the folder that holds it"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise StartError(f"the agent {name!r}: {module_name} has no function {attribute}; name the one that makes it")
    return name, factory


def _refuse_namesake(module_name: str) -> None:
    ours = Path(next(iter(smolsessions.__path__)))
    theirs = [
        path for path in (Path.cwd() / "smolsessions", Path.cwd() / "smolsessions.py") if path.exists() and path != ours
    ]
    if module_name.split(".", maxsplit=1)[0] == "smolsessions" and theirs:
        raise StartError(
            f"your {theirs[0].name} has the name of the service's own package, so {module_name} cannot be imported; "
            "rename yours, say to my_agents"
        )


def _checked(name: str, factory: Callable[[], MultiStepAgent]) -> _Entry:
    first, second = _called(name, factory), _called(name, factory)
    for one, other in zip(_family(first), _family(second), strict=False):
        for what, part in (
            ("agent", one),
            ("memory", one.memory),
            ("interpreter", getattr(one, "python_executor", None)),
        ):
            others = {"agent": other, "memory": other.memory, "interpreter": getattr(other, "python_executor", None)}
            if part is not None and part is others[what]:
                raise StartError(
                    f"the factory of agent {name!r} gave the same {what} twice, so conversations would mix; make "
                    "a new one in every call"
                )
    carries = getattr(first, "carries", ())
    if not isinstance(carries, list | tuple | set | frozenset):
        raise StartError(f"the agent {name!r} carries {carries!r}; make it a list of classes")
    for kind in carries:
        if not isinstance(kind, type) or "." in kind.__qualname__:
            raise StartError(f"the agent {name!r} carries {kind!r}; it must be a class at the top of its module")
    _check_tools(name, first, second)
    _look_at_retries(name, first)
    own_policies = import_own_policies(name, first)
    fingerprint = fingerprint_of(first, second)
    clean_up(first)
    clean_up(second)
    version = AgentVersion(AgentName(name), _kind(first), SMOLAGENTS)
    tools = tuple(tool for tool in (*first.tools, *first.managed_agents) if tool != "final_answer")
    info = AgentInfo(
        version,
        str(getattr(first, "description", None) or ""),
        tools,
        int(first.max_steps),
        code_runs_in(first),
        fingerprint,
        agent_policy(name, first, own_policies),
    )
    family = [agent for agent in _family(first) if runs_in_child(agent)]
    for agent in family:
        _check_limits(name, agent)
    imports = {module for agent in family for module in getattr(agent, "additional_authorized_imports", ())}
    preload = frozenset(module.removesuffix(".*") for module in imports if module != "*")
    preload |= {kind.__module__ for kind in carries} if family else set()
    executors = frozenset(place for agent in _family(first) if (place := code_runs_in(agent)))
    return _Entry(factory, info, tuple(carries), preload, executors, own_policies, import_targets(first))


def _check_tools(name: str, first: MultiStepAgent, second: MultiStepAgent) -> None:
    for one, other in zip(_family(first), _family(second), strict=False):
        shared = [
            tool for tool in one.tools if one.tools[tool] is other.tools.get(tool) and has_own_state(one.tools[tool])
        ]
        if shared:
            raise StartError(
                f"the factory of agent {name!r} gave the same tool {shared[0]!r} twice, which has a state of its own, "
                "so conversations would mix; make a new one in every call"
            )
        unsafe = getattr(one, "unsafe_to_repeat", ())
        if not isinstance(unsafe, list | tuple | set | frozenset) or not set(unsafe) <= set(one.tools):
            raise StartError(
                f"the agent {name!r} has unsafe_to_repeat = {unsafe!r}; make it a list of names of its tools"
            )


def _look_at_retries(name: str, first: MultiStepAgent) -> None:
    for agent in _family(first):
        wanted = getattr(agent, "model_retries", 0)
        if type(wanted) is not int or not 0 <= wanted <= MOST_RETRIES:
            raise StartError(f"the agent {name!r} has model_retries = {wanted!r}; make it 0 to {MOST_RETRIES}")
        retries = getattr(getattr(agent.model, "client", None), "max_retries", 0)
        if isinstance(retries, int) and retries > 0:
            log.warning(
                "the model client of agent %r repeats failed calls %d times, unseen by the turn; pass "
                'client_kwargs={"max_retries": 0} to the model',
                name,
                retries,
                extra={"action": "model.retries"},
            )


def _check_limits(name: str, agent: MultiStepAgent) -> None:
    executor = getattr(agent, "executor", "process")
    if executor not in {"process", "thread"}:
        raise StartError(f"the agent {name!r} has executor = {executor!r}; make it 'process' or 'thread'")
    try:
        limits_of(getattr(agent, "code_limits", {}))
    except (ValueError, AttributeError) as error:
        raise StartError(f"the code_limits of agent {name!r}: it {error}") from error


def _made(name: str, factory: Callable[[], MultiStepAgent]) -> MultiStepAgent:
    """Call a factory, and add the tools that its agent asks of the service."""
    agent = factory()
    if isinstance(agent, MultiStepAgent):
        add_scratchpad(name, agent)
    return agent


def _called(name: str, factory: Callable[[], MultiStepAgent]) -> MultiStepAgent:
    try:
        agent = _made(name, factory)
    except StartError:
        raise
    except (Exception, SystemExit) as error:
        raise StartError(
            f"the factory of agent {name!r} failed with {type(error).__name__}: {error}; mend it, or what it needs; it "
            "is called without arguments"
        ) from error
    if not isinstance(agent, MultiStepAgent):
        raise StartError(
            f"the factory of agent {name!r} gave {type(agent).__name__}, not a smolagents agent; return one"
        )
    return agent


def _family(agent: MultiStepAgent) -> Iterator[MultiStepAgent]:
    yield agent
    for managed in agent.managed_agents.values():
        yield from _family(managed)


def _kind(agent: MultiStepAgent) -> str:
    """Name the smolagents class behind an agent's own."""
    return next(kind.__name__ for kind in type(agent).__mro__ if kind.__module__.startswith("smolagents"))
