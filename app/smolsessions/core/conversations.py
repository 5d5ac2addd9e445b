"""Conversations as callers use them: create, read, list, patch, delete, steps and images."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from smolsessions.core.errors import UnknownAgentError
from smolsessions.core.json_data import bounded
from smolsessions.core.records import AgentName, ConversationFields, Page, Ref

if TYPE_CHECKING:
    from smolsessions.core.agent_ports import AgentCatalog
    from smolsessions.core.records import AgentInfo, Conversation, Owner, StepType, StoredStep, Turn
    from smolsessions.core.store_ports import ConversationStore


Patch = Callable[[ConversationFields], ConversationFields]


class Conversations:
    """Conversations of all owners."""

    def __init__(
        self, store: ConversationStore, agents: AgentCatalog, default_agent: AgentName, on_end: Callable[[Turn], None]
    ) -> None:
        self._on_end = on_end
        self._store = store
        self._agents = agents
        self._default_agent = default_agent

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
        agent = self.known(agent)
        self.check(agent, draft)
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        return await self._store.create(ref, agent, draft)

    def known(self, agent: AgentName | None) -> AgentName:
        """Return the agent of a new conversation. Raises `UnknownAgentError`."""
        if agent is not None and agent not in self._agents.infos:
            raise UnknownAgentError.at("/agent", f"no agent {agent!r} here; GET /agents lists them")
        return agent or self._default_agent

    async def show(self, ref: Ref) -> Conversation:
        return await self._store.conversation(ref)

    async def page(self, owner: Owner, cursor: str | None, limit: int) -> Page[Conversation]:
        """Return an owner's conversations, newest first."""
        return await self._store.conversations(owner, cursor, limit)

    async def patch(self, ref: Ref, patch: Patch) -> Conversation:
        """Change the fields of a caller. Metadata is changed by a JSON merge patch (RFC 7396)."""

        def changed(now: Conversation) -> ConversationFields:
            draft = patch(ConversationFields(now.metadata, now.policy, now.ttl_s))
            self.check(now.agent, draft)
            return draft

        return await self._store.patch(ref, changed)

    async def delete(self, ref: Ref) -> None:
        """Delete a conversation with everything in it."""
        for ended in await self._store.delete(ref):
            self._on_end(ended)

    async def steps(
        self, ref: Ref, first: int, limit: int, kind: StepType | None, *, archived: bool
    ) -> Page[dict[str, Any]]:
        """Return steps as JSON, with hidden ones. `archived` adds archived and rolled back ones."""
        agent, page, attachments = await self._store.steps(ref, first, limit, kind, archived=archived)
        describe = self._agents.describe_step

        def describe_all() -> tuple[dict[str, Any], ...]:
            return tuple(_about(step) | describe(agent, step.data, attachments) for step in page.items)

        return Page(await asyncio.to_thread(describe_all), page.next_cursor)  # pages can be large

    async def image(self, ref: Ref, name: str) -> tuple[str, bytes]:
        """Return the media type and the bytes of a step's image."""
        return await asyncio.to_thread(self._agents.image_file, await self._store.image(ref, name))

    def check(self, agent: AgentName, draft: ConversationFields) -> None:
        """Raise a `ServiceError` for fields that a conversation with this agent cannot have."""
        bounded(draft.metadata)
        if draft.policy is not None:
            self._agents.check_policy(agent, draft.policy, "/policy")


def _about(step: StoredStep) -> dict[str, Any]:
    return {
        "index": step.index,
        "turn": step.turn,
        "type": step.type,
        "hidden": step.hidden,
        "archived": step.archived,
        "rolled_back": step.rolled_back,
    } | ({"unanswered": step.unanswered} if step.type == "task" else {})
