"""Records of conversations' memories: their steps, versions, exports and imports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from smolsessions.core import records
from smolsessions.core.frozen import record
from smolsessions.core.records import AgentName, StepType, Turn


@record
class PrunePreview:
    """Effect of a prune: the prompt before and after, and the places of the steps that it leaves out.

    `shortened` steps are cut by the policy in a prompt. A prune does not change them.
    """

    before: records.PromptSize
    after: records.PromptSize
    left_out: tuple[int, ...]
    shortened: int
    edits: tuple[int, ...] = ()
    """Places of the later versions of these steps."""


@record
class PackedStep:
    """Finished step, its media by content hash, and the changed `variables` by name. None deletes a piece."""

    type: records.EntryType
    turn: int
    data: bytes
    attachments: dict[str, bytes]
    variables: dict[str, bytes | None] = field(default_factory=dict)


@record
class ExportedMemory:
    """Memory of a conversation as JSON data (docs/export.md).

    `steps` lack their turn and marks. They can be read once, and are encoded meanwhile. `images` and `files` are by
    name. `not_exported` lists lost values: the agent's path, the kind, the name and the reason.
    """

    steps: Iterable[dict[str, Any]]
    images: dict[str, dict[str, str]]
    variables: dict[str, Any]
    not_exported: tuple[dict[str, str], ...]
    files: dict[str, dict[str, Any]]


@record
class ImportedMemory:
    """Memory from a document. `archived` and `hidden` are positions in `steps`."""

    steps: tuple[PackedStep, ...]
    archived: frozenset[int] = frozenset()
    hidden: frozenset[int] = frozenset()
    variables: dict[str, bytes] = field(default_factory=dict)


@record
class StoredStep:
    """Step as the store returns it."""

    index: int
    type: records.EntryType
    turn: int
    data: bytes
    attachments: tuple[str, ...]
    hidden: bool
    archived: bool = False
    rolled_back: bool = False
    unanswered: bool = False
    """True for a task whose turn ended before its first finished step. Set in pages of steps only."""


def with_gaps(steps: Sequence[StoredStep]) -> list[bytes]:
    """Return the steps' bytes by index, with empty bytes for a missing step."""
    data = {step.index: step.data for step in steps}
    return [data.get(index, b"") for index in range(min(data), max(data) + 1)] if data else []


@record
class Memory:
    """Memory of a conversation between turns. A change with `version` fails if the memory has changed since."""

    agent: AgentName
    metadata: dict[str, Any]
    settings: records.ConversationSettings
    version: Version
    steps: tuple[StoredStep, ...]
    attachments: dict[str, bytes]


@record
class Version:
    """Version of a memory: sealed head and settings, as stored."""

    head: bytes
    settings: bytes


@record
class ConversationRecord:
    """Whole conversation for an export, without events. `pieces` are its variables."""

    conversation: records.Conversation
    turns: tuple[Turn, ...]
    rollbacks: tuple[records.Rollback, ...]
    steps: tuple[StoredStep, ...]
    attachments: dict[str, bytes]
    pieces: dict[str, bytes]


@record
class ImportedConversation:
    """Conversation for an import. Its turns are encoded, so that a process that reads a document does the work."""

    turns: tuple[bytes, ...]
    rollbacks: tuple[records.Rollback, ...]
    memory: ImportedMemory


@record
class DocumentContent:
    """Checked content of a document. Its agent may be unknown here, and then its memory is empty. None: no agent."""

    agent: AgentName | None
    fields: records.ConversationFields
    imported: ImportedConversation
    files: dict[str, bytes]
    """The files of its workspace by path."""


@record
class Head:
    """Sealed summary of a conversation's steps: count, and a running hash over their tags.

    `shown_from` is the first index that the model sees, `shown_hash` the running hash before it, `variables` the tag
    of the sealed list of pieces. `archived`, `rolled_back` and `destroyed` are sets of indexes, as bits. A destroyed
    step has only its tag in the store.
    """

    count: int = 0
    hash: bytes = b""
    shown_from: int = 0
    shown_hash: bytes = b""
    step_counts: dict[StepType, int] = field(default_factory=dict)
    variables: bytes = b""
    archived: int = 0
    rolled_back: int = 0
    destroyed: int = 0

    @property
    def out(self) -> int:
        """Indexes of the steps that are not in memory any more."""
        return self.archived | self.rolled_back | self.destroyed
