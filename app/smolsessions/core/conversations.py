"""Conversations between turns, as callers use them: their fields, their memory, export and import."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smolsessions.core.callers import Caller
from smolsessions.core.documents import encode_document, imported_turns, parse_document
from smolsessions.core.errors import StoreUnavailableError, UnknownAgentError
from smolsessions.core.json_data import bounded, merge
from smolsessions.core.memories import ImportedConversation, with_gaps
from smolsessions.core.records import AgentName, ConversationFields, Page, Ref, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smolsessions.core.agent_ports import AgentCatalog
    from smolsessions.core.memories import Memory, PrunePreview, StoredStep
    from smolsessions.core.policies import Policy
    from smolsessions.core.records import AgentInfo, Conversation, LeftOut, Order, Owner, StepType, Turn
    from smolsessions.core.store_ports import ConversationStore, HistoryStore


MOST_TRIES = 5


class Conversations:
    """Conversations of all owners. A change of the memory raises `BusyError` while a turn runs."""

    def __init__(
        self,
        store: ConversationStore,
        history: HistoryStore,
        agents: AgentCatalog,
        default_agent: AgentName,
        *,
        on_end: Callable[[Turn], None],
        max_pixels: int,
    ) -> None:
        """`max_pixels` bounds the images of an imported step."""
        self.store = store
        self.history = history
        self._agents = agents
        self._default_agent = default_agent
        self._on_end = on_end
        self._max_pixels = max_pixels

    def agents(self) -> list[AgentInfo]:
        """Return all agents, the default one first."""
        return sorted(self._agents.infos.values(), key=lambda info: info.version.name != self._default_agent)

    async def confinement(self) -> Mapping[AgentName, str | None]:
        """Return the confinement of each agent's code."""
        return await asyncio.to_thread(self._agents.confinement)

    async def create(
        self, owner: Owner, conversation_id: str | None, agent: AgentName | None, draft: ConversationFields
    ) -> Conversation:
        """Create an empty conversation."""
        agent = self._known(agent)
        self._check(agent, draft)
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        return await self.store.create(ref, agent, draft)

    async def patch(self, ref: Ref, changes: dict[str, Any], check: Callable[[Conversation], None]) -> Conversation:
        """Replace fields that a caller may change. Metadata is changed by a JSON merge patch (RFC 7396).

        `check` raises if the conversation may not be changed as it is.
        """

        def changed(now: Conversation) -> ConversationFields:
            check(now)
            metadata = merge(now.metadata, changes.get("metadata", {}))
            draft = replace(
                ConversationFields({}, now.policy, now.ttl_s, now.title), **changes | {"metadata": metadata}
            )
            self._check(now.agent, draft)
            return draft

        return await self.store.patch(ref, changed)

    async def delete(self, ref: Ref) -> None:
        """Delete a conversation with everything in it."""
        for ended in await self.store.delete(ref):
            self._on_end(ended)

    async def steps(
        self, ref: Ref, first: int | None, limit: int, kind: StepType | None, *, archived: bool, order: Order
    ) -> Page[dict[str, Any]]:
        """Return steps as JSON, with hidden ones. `archived` adds archived and rolled back ones."""
        agent, page, attachments = await self.store.steps(ref, first, limit, kind, archived=archived, order=order)
        describe = self._agents.describe_step

        def describe_all() -> tuple[dict[str, Any], ...]:
            return tuple(_about(step) | describe(agent, step.data, attachments) for step in page.items)

        return Page(await asyncio.to_thread(describe_all), page.next_cursor)  # pages can be large

    async def image(self, ref: Ref, name: str) -> tuple[str, bytes]:
        """Return the media type and the bytes of a step's image."""
        return await asyncio.to_thread(self._agents.image_file, await self.store.image(ref, name))

    async def messages(
        self, ref: Ref, claims: Mapping[str, Any], *, summary_mode: bool
    ) -> tuple[list[dict[str, Any]], LeftOut | None]:
        """Return the model's next messages without the next task, and the part that the policy leaves out.

        They are those of a caller with these claims.
        """
        memory = await self.history.memory(ref, may_run=True)
        caller = _caller(ref, claims, memory)
        return await asyncio.to_thread(
            lambda: self._agents.messages(caller, memory, memory.terms.policy, summary_mode=summary_mode)
        )

    async def prune(
        self, ref: Ref, claims: Mapping[str, Any], policy: Policy | None, *, dry_run: bool, destroy: bool
    ) -> tuple[PrunePreview, int, Conversation | None]:
        """Archive the steps that a policy (None: the conversation's) leaves out, or destroy them and all archived ones.

        Returns the effect, the number of steps, and the changed conversation. A dry run changes nothing.
        """
        for _ in range(MOST_TRIES):
            memory = await self.history.memory(ref, may_run=dry_run)
            wanted = memory.terms.policy if policy is None else policy
            if policy is not None:
                self._agents.check_policy(memory.agent, policy, "/policy")
            weighed = await asyncio.to_thread(self._agents.preview_prune, _caller(ref, claims, memory), memory, wanted)
            count, places = len(weighed.left_out), [memory.steps[at].index for at in weighed.left_out + weighed.edits]
            if dry_run:
                more = (await self.store.conversation(ref)).archived_steps if destroy else 0
                return weighed, count + more, None
            if destroy:
                destroyed = await self.history.destroy(ref, memory.version, places)
                if destroyed:
                    return weighed, destroyed[1], destroyed[0]
            elif amended := await self.history.archive(ref, memory.version, places):
                return weighed, count, amended
        raise StoreUnavailableError("Others keep changing this conversation; try again.")

    async def export(self, ref: Ref) -> bytes:
        """Return a whole conversation as a document, in JSON."""
        record = await self.history.record(ref)
        steps = with_gaps(record.steps)
        agent = record.conversation.agent

        def document() -> bytes:
            return encode_document(record, self._agents.export(agent, steps, record.attachments, record.pieces))

        return await asyncio.to_thread(document)

    async def bring_in(
        self, owner: Owner, document: Any, conversation_id: str | None, agent: AgentName | None
    ) -> Conversation:
        """Create a conversation from a document. `agent` replaces the document's."""
        told, memory = await asyncio.to_thread(parse_document, document)
        name = self._known(told.agent if agent is None else agent)
        given = await asyncio.to_thread(self._agents.import_document, name, memory, self._max_pixels)
        self._check(name, ConversationFields(told.metadata, told.policy))
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        version = self._agents.infos[name].version
        last = max((step.turn for step in given.steps), default=0)
        turns = imported_turns(ref, told, memory, version, last)
        title = title_of(turns[0].message) if turns and "title" not in told.model_fields_set else told.title
        draft = ConversationFields(told.metadata, told.policy, title=title)
        return await self.history.adopt(ref, name, draft, ImportedConversation(tuple(turns), told.jumps, given))

    def _known(self, agent: AgentName | None) -> AgentName:
        """Return the agent of a new conversation. Raises `UnknownAgentError`."""
        if agent is not None and agent not in self._agents.infos:
            raise UnknownAgentError.at("/agent", f"no agent {agent!r} here; GET /agents lists them")
        return agent or self._default_agent

    def _check(self, agent: AgentName, draft: ConversationFields) -> None:
        """Raise a `ServiceError` for fields that a conversation with this agent cannot have."""
        bounded(draft.metadata)
        if draft.policy is not None:
            self._agents.check_policy(agent, draft.policy, "/policy")


def _caller(ref: Ref, claims: Mapping[str, Any], memory: Memory) -> Caller:
    return Caller(ref.owner, ref.id, claims, lambda: memory.metadata)


def _about(step: StoredStep) -> dict[str, Any]:
    names = ("index", "turn", "type", "hidden", "archived", "rolled_back")
    return {name: getattr(step, name) for name in names + (("unanswered",) if step.type == "task" else ())}
