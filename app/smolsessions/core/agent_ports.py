"""Contracts of agents, as the core and the worker call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from smolsessions.core import records
from smolsessions.core.callers import Caller
from smolsessions.core.effects import EffectOutcome
from smolsessions.core.events import ReplayState, StepEvent
from smolsessions.core.frozen import record
from smolsessions.core.memories import DocumentContent, ExportedMemory, Memory, PackedStep, PrunePreview
from smolsessions.core.policies import Policy
from smolsessions.core.records import AgentName, Turn, TurnInput


@record
class ToolInfo:
    """Tool or managed agent, as the model sees it. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@record
class AgentInfo:
    """Description of an agent, as `GET /agents` returns it."""

    version: records.AgentVersion
    description: str
    tools: tuple[ToolInfo, ...]
    max_steps: int
    code_runs_in: str | None = None
    """`child`, `thread`, or the name of its remote executor."""
    policy: Policy = ()
    """Its memory policy, used if the conversation has none."""
    examples: tuple[str, ...] = ()
    """Questions that a page may offer."""
    deadline_s: float | None = None
    """Longest time of a turn that sets none. None: the service's."""
    limitations: tuple[str, ...] = ()
    """Sentences on what the service cannot do for it."""
    approve: tuple[str, ...] | None = ()
    """Tools whose calls need an approval, also of agents below it. None: a function decides."""
    ask_user: bool = False
    """True if it or an agent below it may ask a question."""
    client_tools: bool = True
    """False if it takes no tools of clients."""


@dataclass(frozen=True)
class ToolServer:
    """Health of a server of tools, as this process sees it."""

    name: str
    is_up: bool
    restarts: int
    """Attempts to connect after the first."""
    list_changes: int
    """Changes of its list of tools, which a restart of this process adopts."""
    calls: Mapping[str, int]
    """Numbers of calls by their outcome."""


class EventBridge(Protocol):
    """Bridge from an agent's threads to the event loop: events and steps go out, stop requests come in."""

    @property
    def stop_requested(self) -> bool:
        """True if the turn must stop. Read at every model call, delta and tool call. Never false again."""

    @property
    def pause_requested(self) -> bool:
        """True if the turn goes to another worker after the current step."""

    @property
    def hands_over(self) -> bool:
        """True if a stopped turn continues in another worker, which shows the rest."""

    @property
    def ends_at(self) -> float:
        """Deadline of the turn, by the monotonic clock."""

    @property
    def is_late(self) -> bool:
        """True if writes wait for long, or the lease may have expired."""

    @property
    def steers(self) -> bool:
        """True if messages may wait that are to join the turn. Read before each prompt."""

    def steering(self) -> Sequence[tuple[Turn, TurnInput]]:
        """Wait for the turns whose messages are to join. Their effect is journaled as `joined:PLACE:TURN`."""

    def emit(
        self, event: StepEvent | None, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None
    ) -> None:
        """Queue an event, with a finished step or an effect (key and result) to store with it."""

    def flush(self, effect: tuple[str, bytes] | None = None) -> None:
        """Wait until everything emitted, and this effect, is written, or the turn must stop."""


class Session(Protocol):
    """Live agent of one conversation in this process. It runs one turn at a time."""

    held_bytes: int
    """Size of the images and variables that it holds between turns."""

    @property
    def version(self) -> records.AgentVersion:
        """The agent that answers, for the record of its turns."""

    def serves(self, caller: Caller) -> bool:
        """Return whether the agent is as its factory would make it for this caller."""

    def run_turn(
        self,
        turn: Turn,
        turn_input: TurnInput,
        caller: Caller,
        bridge: EventBridge,
        *,
        replay: ReplayState | None = None,
        settings: records.ConversationSettings = records.NO_SETTINGS,
    ) -> records.Outcome | records.Suspension:
        """Run the agent in the calling thread, and emit its events and finished steps.

        Effects of earlier attempts (`replay`) are not repeated. An exception of the agent is a failed outcome, and a
        requested stop a cancelled one. A run that needs a person's decision, or a result of the client, ends as a
        suspension. `settings` are those of the conversation.
        """

    def cut_model_calls(self) -> None:
        """End waits for a model's provider, after a stop was requested. Called on the loop while `run_turn` runs."""

    def partial_outcome(self) -> records.Outcome:
        """Return the running turn as cancelled, with its steps so far. Its thread does not return."""

    def close(self) -> None:
        """Release everything that the agent holds."""


class AgentCatalog(Protocol):
    """Agents that this process can run. Methods that read or build memory are called in a thread."""

    @property
    def infos(self) -> dict[AgentName, AgentInfo]: ...

    @property
    def unavailable(self) -> dict[AgentName, str]:
        """Agents that could not be made at start, with a sentence."""

    def tool_servers(self) -> list[ToolServer]: ...

    def confinement(self) -> dict[AgentName, Literal["namespaces", "landlock", "uid", "none", "not run here"] | None]:
        """Return the confinement of each agent's code. It may wait for processes to start."""

    def build(
        self,
        name: AgentName,
        caller: Caller,
        steps: Sequence[bytes],
        attachments: dict[str, bytes],
        variables: dict[str, bytes],
    ) -> Session:
        """Create a session with this memory and these variables. Empty bytes are a step that is not in memory."""

    @property
    def has_workspaces(self) -> bool:
        """True if an agent has a workspace for each conversation."""

    def shows_file(self, name: AgentName, path: str) -> bool:
        """Return whether an agent may read this path in a conversation's workspace."""

    def task_step(self, turn: Turn, turn_input: TurnInput) -> PackedStep:
        """Return the task of a turn that ended before its agent ran. Raises `ServiceError` if it is too large."""

    def journal_usage(self, replay: ReplayState) -> records.Usage:
        """Return the tokens of the model calls in a turn's journal."""

    def effect_outcome(self, start: bytes) -> EffectOutcome:
        """Return the outcome of a call by the first bytes of its journaled result. Called on the loop."""

    def check_policy(self, name: AgentName, policy: Policy, pointer: str) -> None:
        """Raise `InvalidRequestError` at this pointer for a policy that the agent cannot have."""

    def check_approve(self, name: AgentName, tools: Sequence[str], client_tools: Sequence[records.ClientTool]) -> None:
        """Raise `InvalidRequestError` at `/approve` for tools that the agent lacks, or if it cannot wait."""

    def check_client_tools(self, name: AgentName, tools: Sequence[records.ClientTool]) -> None:
        """Raise `InvalidRequestError` for tools that the agent cannot have beside its own, or if it cannot wait."""

    def check_output_schema(self, schema: dict[str, Any]) -> None:
        """Raise `InvalidRequestError` for a schema that no answer of an agent can have."""

    def schema_problems(self, schema: dict[str, Any], value: Any) -> Sequence[tuple[str, str]]:
        """Return pointer and message of each mistake in a call's arguments or result, by their JSON Schema."""

    def depends_on_caller(self, name: AgentName) -> bool:
        """Return whether the agent is made for each caller, so that its fingerprint is known in its turns alone."""

    def messages(
        self, caller: Caller, memory: Memory, policy: Policy | None, *, summary_mode: bool
    ) -> tuple[list[dict[str, Any]], records.LeftOut | None]:
        """Return the model's next messages, and the part that the policy (None: the agent's) leaves out."""

    def preview_prune(self, caller: Caller, memory: Memory, policy: Policy | None) -> PrunePreview:
        """Return the effect of a prune. Raises `InvalidRequestError` if no policy bounds the memory."""

    def describe_step(self, name: AgentName, step: bytes, attachments: dict[str, bytes]) -> dict[str, Any]:
        """Return a step as JSON."""

    def export(
        self, name: AgentName, steps: Sequence[bytes], attachments: dict[str, bytes], variables: dict[str, bytes]
    ) -> ExportedMemory:
        """Return steps, images and variables as JSON data (docs/export.md), steps without their turn and marks."""

    def read_document(
        self, document: bytes | dict[str, Any], agent: AgentName | None, default: AgentName, max_pixels: int
    ) -> DocumentContent:
        """Read a document. A large one is read in a process of its own.

        `agent` replaces the document's, and `default` is for one without. `max_pixels` bounds a step's images. Raises
        `InvalidRequestError`, `TooLargeError`, and `OverloadedError` if the process was ended.
        """

    def image_file(self, data: bytes) -> tuple[str, bytes]:
        """Return an attachment as an image file: media type and bytes."""
