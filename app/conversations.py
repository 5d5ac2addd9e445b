"""Conversations as callers use them: make, show, list, patch, delete, and what is in their memory."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from app.errors import UnknownAgentError
from app.metadata import bounded, merge
from app.records import AgentName, Owner, Page, Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.ports import Agents
    from app.ports import Conversations as Store
    from app.records import AgentInfo, Conversation, Turn


class Conversations:
    """An owner's conversations."""

    def __init__(self, store: Store, agents: Agents, default_agent: AgentName, on_end: Callable[[Turn], None]) -> None:
        self._on_end = on_end
        self._store = store
        self._agents = agents
        self._default_agent = default_agent

    def agents(self) -> list[AgentInfo]:
        """Say which agents there are, the default one first."""
        return sorted(self._agents.infos.values(), key=lambda info: info.version.name != self._default_agent)

    async def create(
        self, owner: Owner, conversation_id: str | None, agent: AgentName | None, metadata: dict[str, Any]
    ) -> Conversation:
        """Make an empty conversation."""
        if agent is not None and agent not in self._agents.infos:
            raise UnknownAgentError.at("/agent", f"no agent {agent!r} here; GET /agents lists them")
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        return await self._store.create(ref, agent or self._default_agent, bounded(metadata))

    async def show(self, ref: Ref) -> Conversation:
        """Look at one."""
        return await self._store.conversation(ref)

    async def page(self, owner: Owner, cursor: str | None, limit: int) -> Page[Conversation]:
        """Look at many, newest first."""
        return await self._store.conversations(owner, cursor, limit)

    async def patch(self, ref: Ref, patch: dict[str, Any]) -> Conversation:
        """Merge a JSON merge patch (RFC 7396) into the metadata."""
        return await self._store.patch(ref, lambda metadata: bounded(merge(metadata, patch)))

    async def delete(self, ref: Ref) -> None:
        """Take it away, with all that it held."""
        for ended in await self._store.delete(ref):
            self._on_end(ended)

    async def steps(self, ref: Ref, first: int, limit: int) -> Page[dict[str, Any]]:
        """Give steps as JSON, hidden ones too."""
        agent, page, attachments = await self._store.steps(ref, first, limit)
        describe = self._agents.describe

        def describe_all() -> tuple[dict[str, Any], ...]:
            return tuple(
                {"index": step.index, "turn": step.turn, "type": step.type, "hidden": step.hidden}
                | describe(agent, step.data, attachments)
                for step in page.items
            )

        return Page(await asyncio.to_thread(describe_all), page.next_cursor)  # pages can be large

    async def image(self, ref: Ref, name: str) -> tuple[str, bytes]:
        """Give the media type and the bytes of an image that a step shows."""
        return await asyncio.to_thread(self._agents.picture, await self._store.image(ref, name))
