"""Catalog of the agents that this process serves, and all work on one of them by name."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from smolagents import MultiStepAgent

from smolsessions.agent_options import options_of
from smolsessions.agents.config.mistakes import placed
from smolsessions.agents.factories import CheckedAgent, Factory, check_factory, make_agent
from smolsessions.agents.memory.memory_edits import Overlay
from smolsessions.agents.memory.step_bytes import unpack, unpack_data
from smolsessions.agents.memory.step_data import StepDecoder
from smolsessions.agents.memory.views import PromptPreview, describe_step
from smolsessions.agents.models.token_usage import total_usage
from smolsessions.agents.option_checks import UNCONFINED, check_own_rules, refused_tools, tool_names
from smolsessions.agents.run.effects import outcome_of, usage_of
from smolsessions.agents.run.instrumentation import clean_up
from smolsessions.agents.run.remote_interpreter import wait_for_clean_ups
from smolsessions.agents.run.session import ANSWER_TTL_S, AgentSession, task_step
from smolsessions.agents.sandbox.confinement.levels import CONFINED, Level
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.json_export import VariableReader
from smolsessions.agents.sandbox.memory_budget import MemoryBudget
from smolsessions.agents.smolagents_patches import patch_smolagents
from smolsessions.agents.tools.client_tools import adapted_tools
from smolsessions.agents.tools.json_schemas import schema_problems
from smolsessions.agents.tools.output_schema import check_output_schema, tools_of_turn
from smolsessions.agents.tools.tool_servers import ToolServers
from smolsessions.agents.transfer import documents
from smolsessions.agents.transfer.document_reader import DocumentReader
from smolsessions.agents.values.images import image_from_bytes, image_header
from smolsessions.caller import CALLER
from smolsessions.core.agent_ports import AgentInfo, Session, ToolServer
from smolsessions.core.callers import DUMMY, Caller
from smolsessions.core.documents import SMALL_BYTES
from smolsessions.core.errors import AgentFailedError, AgentUnavailableError, InvalidRequestError, StartError
from smolsessions.core.events import ReplayState
from smolsessions.core.json_data import read_json
from smolsessions.core.memories import DocumentContent, ExportedMemory, Memory, PrunePreview, with_gaps
from smolsessions.core.policies import Policy
from smolsessions.core.records import AgentName, ClientTool, LeftOut, Usage
from smolsessions.workspace.folders import ConversationFolders

log = logging.getLogger(__name__)

CodeLevel = Level | Literal["not run here"] | None
CLEAN_UP_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Catalog:
    """The agents that this process serves. Each factory is checked at start, before the first request."""

    task_step = staticmethod(task_step)
    check_output_schema = staticmethod(check_output_schema)
    schema_problems = staticmethod(schema_problems)
    effect_outcome = staticmethod(outcome_of)

    def __init__(
        self,
        factories: Sequence[tuple[str, Factory]],
        hidden: Sequence[Path] = (),
        code_folders: Sequence[Path] = (),
        *,
        must_confine: bool = False,
        allow_code_in_service: bool = True,
        tool_servers: ToolServers | None = None,
        workspaces: ConversationFolders | None = None,
        answer_ttl_s: float = ANSWER_TTL_S,
        code_memory: MemoryBudget | None = None,
    ) -> None:
        """Model-written code cannot see `hidden` files and folders, nor `workspaces`. It may read `code_folders`.

        `tool_servers` are those of the factories. The catalog closes them. `answer_ttl_s` bounds the wait for a person,
        `code_memory` what all code takes.
        """
        patch_smolagents()
        self._answer_ttl_s = answer_ttl_s
        self._agents: dict[AgentName, CheckedAgent] = {}
        self.infos: dict[AgentName, AgentInfo] = {}
        self.unavailable: dict[AgentName, str] = {}
        self._tool_servers = tool_servers or ToolServers()
        secrets = [*hidden, *([workspaces.base] if workspaces else [])]
        for name, factory in factories:
            if not _NAME.fullmatch(name):
                raise StartError(f"the agent name {name!r} may hold letters, digits, - and _ only; rename it")
            if name in self._agents or name in self.unavailable:
                raise StartError(
                    f"two agents are called {name!r}; give each a name of its own in SMOLSESSIONS_AGENTS"
                    " and SMOLSESSIONS_AGENTS_FILE (SMOLSESSIONS_DEMO_AGENTS=0 frees the names demo and demo-code)"
                )
            try:
                self._agents[AgentName(name)] = checked = check_factory(name, factory, workspaces)
                for bound in checked.workspaces:
                    bound.refuse_secrets(secrets)
            except AgentUnavailableError as error:
                self.unavailable[AgentName(name)] = f"The agent {name!r} is not available here. {error.message}"
                extra = {"action": "agent.unavailable"}
                log.warning("the agent %s is not served: %s (%s)", name, error.message, error.__cause__, extra=extra)
            except StartError as error:
                raise placed(error, name, factory) from error
            else:
                self.infos[AgentName(name)] = checked.info
        preload = {module for agent in self._agents.values() for module in agent.preload}
        self._must_confine = must_confine
        self._allow_code_in_service = allow_code_in_service
        self._workspaces = workspaces
        roots = {bound.workspace.root for agent in self._agents.values() for bound in agent.workspaces}
        self._fork_client = ForkClient(
            sorted(preload), [*secrets, *roots], code_folders, must_confine=must_confine, memory=code_memory
        )
        self._reader = VariableReader(self._fork_client)
        self._document_reader = DocumentReader(secrets)
        self._started = False

    def tool_servers(self) -> list[ToolServer]:
        return self._tool_servers.health()

    def start(self) -> None:
        """Start the server of processes for model-written code, once all `hidden` files exist."""
        if any("child" in agent.executors for agent in self._agents.values()):
            self._fork_client.start()
            self._started = True

    def close(self) -> None:
        """End the clients of MCP servers and all own processes, and wait for the clean-ups of closed sessions.

        Otherwise their remote executors would go on.
        """
        self._tool_servers.close()
        self._fork_client.close()
        self._document_reader.close()
        wait_for_clean_ups(CLEAN_UP_S)

    def check_executors(self) -> None:
        """Raise `StartError` for an agent whose code would run in the service, unless that is allowed."""
        for name, agent in self._agents.items():
            if "thread" in agent.executors and not self._allow_code_in_service:
                raise StartError(
                    f"the agent {name!r} runs its code in the service itself, where one owner's code could read what "
                    "others wrote: leave out its option executor='thread', or set SMOLSESSIONS_ALLOW_CODE_IN_SERVICE=1"
                )

    def check_confinement(self) -> None:
        """Raise `StartError` if code must be confined and cannot be. Waits for the server of processes.

        It must be if the agent's turns may wait for a person: unconfined code could approve its own calls.
        """
        for name, agent in self._agents.items():
            if agent.asks and self._is_unconfined(agent) and self._fork_client.level():
                raise StartError(f"the agent {name!r} has the option approve or ask_user, and {UNCONFINED}")
        if not self._must_confine:
            return
        fix = "or set SMOLSESSIONS_CODE_CONFINEMENT=auto"
        for name, agent in self._agents.items():
            if "thread" in agent.executors:
                raise StartError(
                    f"the agent {name!r} runs its code in the service itself, and SMOLSESSIONS_CODE_CONFINEMENT is "
                    f"required: leave out its option executor='thread', {fix}"
                )
        if self._started and self._fork_client.level() not in CONFINED:
            raise StartError(
                "SMOLSESSIONS_CODE_CONFINEMENT is required, and this system gives neither namespaces nor Landlock: "
                f"allow one of them (docs/security.md), serve no agent that writes code, {fix}"
            )

    def confinement(self) -> dict[AgentName, CodeLevel]:
        level = self._fork_client.level() if self._started else None
        found: dict[AgentName, CodeLevel] = {}
        for name, agent in self._agents.items():
            in_child: CodeLevel = level if "child" in agent.executors else "not run here" if agent.executors else None
            found[name] = "none" if "thread" in agent.executors else in_child
        return found

    def build(
        self,
        name: AgentName,
        caller: Caller,
        steps: Sequence[bytes],
        attachments: dict[str, bytes],
        variables: dict[str, bytes],
    ) -> Session:
        agent = self._agent(name)
        overlay = _overlay(agent, steps, attachments)
        made = self._new(agent, caller)
        return AgentSession(
            made,
            overlay,
            variables,
            agent.stored_classes,
            self._fork_client,
            policy=agent.info.policy,
            own_policies=agent.own_policies,
            made_for=caller,
            version=agent.version_of(made),
            takes_caller=agent.takes_caller,
            answer_ttl_s=self._answer_ttl_s,
            refuses_approvals=self._is_unconfined(agent),
        )

    @property
    def has_workspaces(self) -> bool:
        return any(bound.is_of_conversation for agent in self._agents.values() for bound in agent.workspaces)

    def shows_file(self, name: AgentName, path: str) -> bool:
        bounds = self._agents[name].workspaces if name in self._agents else ()
        return any(bound.is_of_conversation and bound.workspace.access.shows(path) for bound in bounds)

    def check_policy(self, name: AgentName, policy: Policy, pointer: str) -> None:
        check_own_rules(policy, self._agent(name).own_policies, pointer)

    def check_approve(self, name: AgentName, tools: Sequence[str], client_tools: Sequence[ClientTool]) -> None:
        agent = self._agent(name)
        if sentence := self._cannot_wait(agent):
            raise InvalidRequestError.at("/approve", f"the agent {name!r} takes no approvals: {sentence}")
        known = agent.tool_names | {tool.name for tool in client_tools}
        if not agent.takes_caller and (refused := refused_tools(name, known, tools)):
            raise InvalidRequestError.at(f"/approve/{refused[0]}", refused[1])

    def check_client_tools(self, name: AgentName, tools: Sequence[ClientTool]) -> None:
        agent = self._agent(name)
        refusal = self._cannot_wait(agent) if agent.info.client_tools else "its option client_tools is false"
        if refusal:
            raise InvalidRequestError.at("/client_tools", f"the agent {name!r} takes no tools of clients: {refusal}")
        adapted_tools(tools, agent.tool_names)

    def _cannot_wait(self, agent: CheckedAgent) -> str | None:
        return agent.cannot_wait or (UNCONFINED if self._is_unconfined(agent) else None)

    def _is_unconfined(self, agent: CheckedAgent) -> bool:
        """Return whether code of an agent may reach this service's port. Another process may run the code."""
        return self._started and "child" in agent.executors and self._fork_client.level() not in CONFINED

    def depends_on_caller(self, name: AgentName) -> bool:
        return name in self._agents and self._agents[name].takes_caller

    def messages(
        self, caller: Caller, memory: Memory, policy: Policy | None, *, summary_mode: bool
    ) -> tuple[list[dict[str, Any]], LeftOut | None]:
        with self._view(caller, memory, policy) as preview:
            return preview[0].messages(summary_mode=summary_mode)

    def preview_prune(self, caller: Caller, memory: Memory, policy: Policy | None) -> PrunePreview:
        with self._view(caller, memory, policy) as (preview, overlay):
            weighed = preview.weigh()
        at = {step.index - memory.steps[0].index: place for place, step in enumerate(memory.steps)}
        order = list(overlay.steps)
        left_out = {order[place] for place in weighed.left_out}
        edits = tuple(at[place] for place, of in overlay.versions.items() if of in left_out)
        return replace(weighed, left_out=tuple(sorted(at[place] for place in left_out)), edits=edits)

    @contextmanager
    def _view(self, caller: Caller, memory: Memory, policy: Policy | None) -> Iterator[tuple[PromptPreview, Overlay]]:
        checked = self._agent(memory.agent)
        overlay = _overlay(checked, with_gaps(memory.steps), memory.attachments)
        agent, policy = self._new(checked, caller), checked.info.policy if policy is None else policy
        schema, described = options_of(agent).output_schema, memory.settings.client_tools
        if schema or described:  # as in the next turn
            agent.tools = tools_of_turn(agent, adapted_tools(described, tool_names(agent)), schema)
        token = CALLER.set(caller)  # for own policies
        try:
            yield PromptPreview(agent, overlay.memory(), policy, checked.own_policies), overlay
        finally:
            CALLER.reset(token)
            clean_up(agent)

    def system_prompts(self, name: AgentName) -> dict[str, str]:
        """Return the system prompts of an agent and of the agents below it, by their paths."""
        agent = self._new(self._agent(name), DUMMY)
        try:
            found = [("", agent)]
            for path, each in found:  # which grows: two agents may manage others of one name
                found += [(f"{path}/{name}", managed) for name, managed in each.managed_agents.items()]
            return {path: each.system_prompt for path, each in found}
        finally:
            clean_up(agent)

    def _new(self, agent: CheckedAgent, caller: Caller) -> MultiStepAgent:
        try:
            return make_agent(agent.info.version.name, agent.factory, caller, self._workspaces)
        except (Exception, SystemExit) as error:  # of an author
            log.exception("the factory of agent %s failed", agent.info.version.name, extra={"action": "agent.unmade"})
            raise AgentFailedError("The agent's factory failed; the service's log says how.") from error

    def describe_step(self, name: AgentName, step: bytes, attachments: dict[str, bytes]) -> dict[str, Any]:
        return describe_step(unpack_data(step), StepDecoder(attachments, self._agent(name).stored_classes))

    def export(
        self, name: AgentName, steps: Sequence[bytes], attachments: dict[str, bytes], variables: dict[str, bytes]
    ) -> ExportedMemory:
        return documents.export(steps, attachments, variables, self._agent(name).stored_classes, self._reader.read)

    def read_document(
        self, document: bytes | dict[str, Any], agent: AgentName | None, default: AgentName, max_pixels: int
    ) -> DocumentContent:
        targets = {name: each.import_targets for name, each in self._agents.items()}
        if isinstance(document, bytes) and len(document) > SMALL_BYTES:
            return self._document_reader.read(document, agent, default, targets, max_pixels)
        data = read_json(document) if isinstance(document, bytes) else document
        return documents.read_document(data, agent, default, targets, max_pixels)

    def image_file(self, data: bytes) -> tuple[str, bytes]:
        return image_header(data)[0], data

    def journal_usage(self, replay: ReplayState) -> Usage:
        used = (usage_of(data) for key, data in replay.effects.items() if key.startswith("model:"))
        return total_usage([each for each in used if each])

    def _agent(self, name: AgentName) -> CheckedAgent:
        if name not in self._agents:
            unknown = f"The conversation's agent {name!r} is not configured here."
            raise AgentUnavailableError(self.unavailable.get(name, unknown))
        return self._agents[name]


def _overlay(agent: CheckedAgent, entries: Sequence[bytes], attachments: dict[str, bytes]) -> Overlay:
    # Steps that show the same image share it, as when they were made.
    opened = functools.cache(image_from_bytes) if attachments else image_from_bytes
    overlay = Overlay()
    for data in entries:
        overlay.add(unpack(data, attachments, agent.stored_classes, opened) if data else None)
    return overlay
