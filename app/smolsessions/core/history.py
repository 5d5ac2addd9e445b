"""Memory of a conversation between turns: read, prune, roll back, fork, export, import."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smolsessions.core.documents import document_of, imported_turns, parse_document
from smolsessions.core.errors import StoreUnavailableError
from smolsessions.core.records import ConversationFields, ImportedConversation, Ref, with_gaps

if TYPE_CHECKING:
    from smolsessions.core.agent_ports import AgentCatalog
    from smolsessions.core.conversations import Conversations
    from smolsessions.core.policies import Policy
    from smolsessions.core.records import AgentName, Conversation, LeftOut, Owner, PrunePreview
    from smolsessions.core.store_ports import HistoryStore

MOST_TRIES = 5


class History:
    """Memories of all conversations. A change raises `BusyError` while a turn runs."""

    def __init__(
        self, store: HistoryStore, agents: AgentCatalog, conversations: Conversations, max_pixels: int
    ) -> None:
        """`max_pixels` bounds the images of an imported step."""
        self._store = store
        self._agents = agents
        self._conversations = conversations
        self._max_pixels = max_pixels

    async def messages(self, ref: Ref, *, summary_mode: bool) -> tuple[list[dict[str, Any]], LeftOut | None]:
        """Return the model's next messages without the next task, and the part that the policy leaves out."""
        memory = await self._store.memory(ref, may_run=True)
        return await asyncio.to_thread(
            lambda: self._agents.messages(memory.agent, memory, memory.terms.policy, summary_mode=summary_mode)
        )

    async def prune(
        self, ref: Ref, policy: Policy | None, *, dry_run: bool, destroy: bool
    ) -> tuple[PrunePreview, int, Conversation | None]:
        """Archive the steps that a policy (None: the conversation's) leaves out, or destroy them and all archived ones.

        Returns the effect, the number of steps, and the changed conversation. A dry run changes nothing.
        """
        for _ in range(MOST_TRIES):
            memory = await self._store.memory(ref, may_run=dry_run)
            wanted = memory.terms.policy if policy is None else policy
            if policy is not None:
                self._agents.check_policy(memory.agent, policy, "/policy")
            weighed = await asyncio.to_thread(self._agents.preview_prune, memory.agent, memory, wanted)
            count, places = len(weighed.left_out), [memory.steps[at].index for at in weighed.left_out + weighed.edits]
            if dry_run:
                more = (await self._conversations.show(ref)).archived_steps if destroy else 0
                return weighed, count + more, None
            if destroy:
                destroyed = await self._store.destroy(ref, memory.version, places)
                if destroyed:
                    return weighed, destroyed[1], destroyed[0]
            elif amended := await self._store.archive(ref, memory.version, places):
                return weighed, count, amended
        raise StoreUnavailableError("Others keep changing this conversation; try again.")

    async def roll_back(self, ref: Ref, turn: int) -> Conversation:
        """Restore the conversation as it was after a turn. Later turns stay on record."""
        return await self._store.roll_back(ref, turn)

    async def fork(self, ref: Ref, turn: int | None, metadata: dict[str, Any] | None) -> Conversation:
        """Copy the conversation as it was after a turn (None: the last)."""
        return await self._store.fork(ref, turn, metadata)

    async def export(self, ref: Ref) -> dict[str, Any]:
        """Return a whole conversation as a document."""
        record = await self._store.record(ref)
        steps = with_gaps(record.steps)
        agent = record.conversation.agent
        portable = await asyncio.to_thread(self._agents.export, agent, steps, record.attachments, record.pieces)
        return document_of(record, portable)

    async def bring_in(
        self, owner: Owner, document: Any, conversation_id: str | None, agent: AgentName | None
    ) -> Conversation:
        """Create a conversation from a document. `agent` replaces the document's."""
        told, memory = await asyncio.to_thread(parse_document, document)
        name = self._conversations.known(told.agent if agent is None else agent)
        given = await asyncio.to_thread(self._agents.import_document, name, memory, self._max_pixels)
        draft = ConversationFields(told.metadata, told.policy)
        self._conversations.check(name, draft)
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        version = self._agents.infos[name].version
        last = max((step.turn for step in given.steps), default=0)
        turns = tuple(replace(turn, ref=ref) for turn in imported_turns(told, memory, version, last, time.time()))
        return await self._store.adopt(ref, name, draft, ImportedConversation(turns, told.jumps, given))
