"""Conversations between turns, as callers use them: their fields, their memory, export and import."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from smolsessions.core import errors, records
from smolsessions.core.agent_ports import AgentCatalog, AgentInfo
from smolsessions.core.attachments import File, decode_file
from smolsessions.core.callers import Caller
from smolsessions.core.documents import encode_document
from smolsessions.core.json_data import bounded, json_pointer, merge
from smolsessions.core.memories import DocumentContent, ExportedMemory, Memory, PrunePreview, StoredStep, with_gaps
from smolsessions.core.policies import Policy
from smolsessions.core.records import AgentName, Conversation, Owner, Page, Ref, Turn
from smolsessions.core.store_ports import ConversationStore, HistoryStore, TurnStore, WorkspaceFolders, WriteFiles

log = logging.getLogger(__name__)

MOST_TRIES = 5


class FilesUnwrittenError(errors.ServiceError, code="internal"):
    """The files of the workspace could not be written, so nothing was made; the service's log says why."""


class Conversations:
    """Conversations of all owners. A change of the memory raises `BusyError` while a turn runs."""

    def __init__(
        self,
        store: ConversationStore,
        history: HistoryStore,
        turns: TurnStore,
        agents: AgentCatalog,
        default_agent: AgentName,
        *,
        on_end: Callable[[Turn], None],
        max_pixels: int,
        folders: WorkspaceFolders | None = None,
    ) -> None:
        """`turns` knows Idempotency-Keys. `max_pixels` bounds an imported step. `folders` hold workspaces."""
        self.store = store
        self.history = history
        self._turns = turns
        self._agents = agents
        self._default_agent = default_agent
        self._on_end = on_end
        self._max_pixels = max_pixels
        self._folders = folders

    def agents(self) -> list[AgentInfo]:
        """Return all agents, the default one first."""
        return sorted(self._agents.infos.values(), key=lambda info: info.version.name != self._default_agent)

    def agent(self, name: AgentName) -> AgentInfo:
        """Raises `AgentNotFoundError` and `AgentUnavailableError`."""
        if sentence := self._agents.unavailable.get(name):
            raise errors.AgentUnavailableError(sentence)
        if name not in self._agents.infos:
            raise errors.AgentNotFoundError
        return self._agents.infos[name]

    async def confinement(self) -> Mapping[AgentName, str | None]:
        return await asyncio.to_thread(self._agents.confinement)

    async def create(
        self,
        owner: Owner,
        conversation_id: str | None,
        agent: AgentName | None,
        draft: records.ConversationFields,
        once: records.IdempotentRequest | None = None,
    ) -> Conversation:
        agent = self._known(agent)
        self._check(agent, draft)
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        return await self._make_once(ref, once, lambda ref: self.store.create(ref, agent, draft))

    async def _make_once(
        self, ref: Ref, once: records.IdempotentRequest | None, make: Callable[[Ref], Awaitable[Conversation]]
    ) -> Conversation:
        """Make a conversation. A request with a known key gets the one that the first made, as it is now."""
        if once is None:
            return await make(ref)
        ref, is_new = await self._turns.reserve_name(ref, once)
        if not is_new:
            with suppress(errors.ConversationNotFoundError):  # its first process ended before it was made
                return await self.store.conversation(ref)
        try:
            return await make(ref)
        except errors.ConversationExistsError:
            if not is_new:  # another request with the key was faster
                return await self.store.conversation(ref)
            await self._turns.release_name(ref.owner, once)
            raise
        except (errors.StoreUnavailableError, asyncio.CancelledError):
            raise  # it may have been made
        except Exception:  # whatever refused it: a retry with the key may succeed
            await self._turns.release_name(ref.owner, once)
            raise

    async def patch(
        self,
        ref: Ref,
        changes: dict[str, Any],
        check: Callable[[Conversation], None],
        first_agent: AgentName | None = None,
    ) -> Conversation:
        """Replace fields that a caller may change. Metadata is changed by a JSON merge patch (RFC 7396).

        `check` raises if the conversation may not be changed as it is. One without a turn gets `first_agent`.
        """

        def changed(now: Conversation) -> records.ConversationFields:
            check(now)
            metadata = merge(now.metadata, changes.get("metadata", {}))
            draft = replace(
                records.ConversationFields({}, now.policy, now.ttl_s, now.title, now.approve, now.client_tools),
                **changes | {"metadata": metadata},
            )
            self._check(now.agent if now.turn_count else first_agent or now.agent, draft)
            return draft

        return await self.store.patch(ref, changed, first_agent)

    async def delete(self, ref: Ref) -> None:
        for ended in await self.store.delete(ref):
            self._on_end(ended)
        if self._folders:
            with suppress(OSError):  # the workers' sweep deletes them later
                await asyncio.to_thread(self._folders.delete, *ref)

    async def fork(
        self, ref: Ref, turn: int | None, metadata: dict[str, Any] | None, once: records.IdempotentRequest | None = None
    ) -> Conversation:
        """Copy the state after a turn, with the files as they are now. Raises `TooLargeError` for too many files."""
        files, left_out = await asyncio.to_thread(self._folders.files, *ref) if self._folders else ({}, {})
        if "" in left_out:
            raise errors.TooLargeError(f"The workspace {left_out['']}; delete files first.")
        write, about = self._writer_of(files), metadata and bounded(metadata)
        return await self._make_once(
            self.history.name_beside(ref), once, lambda new: self.history.fork(ref, new, turn, about, write)
        )

    async def steps(
        self,
        ref: Ref,
        first: int | None,
        limit: int,
        kind: records.StepType | None,
        *,
        archived: bool,
        order: records.Order,
    ) -> Page[dict[str, Any]]:
        """Return steps as JSON, with hidden ones. `archived` adds archived and rolled back ones."""
        agent, page, attachments = await self.store.steps(ref, first, limit, kind, archived=archived, order=order)

        def describe(step: StoredStep) -> dict[str, Any]:
            names = ["index", "turn", "type", "hidden", "archived", "rolled_back"]
            names += ["unanswered"] if step.type == "task" else []
            marks = {name: getattr(step, name) for name in names}
            return marks | self._agents.describe_step(agent, step.data, attachments)

        described = await asyncio.to_thread(lambda: tuple(map(describe, page.items)))  # pages can be large
        return Page(described, page.next_cursor)

    async def image(self, ref: Ref, name: str) -> tuple[str, bytes]:
        data = await self.store.attachment(ref, name)
        if decode_file(data):
            raise errors.NotFoundError
        return await asyncio.to_thread(self._agents.image_file, data)

    async def file(self, ref: Ref, name: str) -> File:
        if file := decode_file(await self.store.attachment(ref, name)):
            return file
        raise errors.NotFoundError

    async def workspace_files(self, ref: Ref) -> tuple[dict[str, tuple[int, float]], bool]:
        """Return size and time of the files that the agent may read, by path, and whether it is all of them."""
        agent = (await self.store.conversation(ref)).agent
        found, is_whole = await asyncio.to_thread(self._folders.listed, *ref) if self._folders else ({}, True)
        return {path: about for path, about in found.items() if self._agents.shows_file(agent, path)}, is_whole

    async def workspace_file(self, ref: Ref, path: str) -> bytes:
        agent = (await self.store.conversation(ref)).agent
        if self._folders and self._agents.shows_file(agent, path):
            data = await asyncio.to_thread(self._folders.file, *ref, path)
            if data is not None:
                return data
        raise errors.NotFoundError

    async def prompt(
        self, ref: Ref, claims: Mapping[str, Any], *, summary_mode: bool, turn: int | None = None, step: int = 1
    ) -> tuple[list[dict[str, Any]], records.LeftOut | None]:
        """Return the model's next messages without the next task, and the part that the policy leaves out.

        They are those of a caller with these claims. With `turn` they are rebuilt: those before a step of that turn,
        with today's agent and policy.
        """
        if turn is None:
            memory = await self.history.memory(ref, may_run=True)
        else:
            memory = await self.history.past_memory(ref, turn, step)
        caller = _caller(ref, claims, memory)
        return await asyncio.to_thread(
            lambda: self._agents.messages(caller, memory, memory.settings.policy, summary_mode=summary_mode)
        )

    async def prune(
        self, ref: Ref, claims: Mapping[str, Any], policy: Policy | None, *, dry_run: bool, destroy: bool
    ) -> tuple[PrunePreview, int, Conversation | None]:
        """Archive the steps that a policy (None: the conversation's) leaves out, or destroy them and all archived ones.

        Returns the effect, the number of steps, and the changed conversation. A dry run changes nothing.
        """
        for _ in range(MOST_TRIES):
            memory = await self.history.memory(ref, may_run=dry_run)
            wanted = memory.settings.policy if policy is None else policy
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
        raise errors.StoreUnavailableError("Others keep changing this conversation; try again.")

    async def export(self, ref: Ref) -> bytes:
        """Return a whole conversation as a document, in JSON."""
        record = await self.history.record(ref)
        steps = with_gaps(record.steps)
        agent = record.conversation.agent

        def document() -> bytes:
            files, left_out = self._folders.files(*ref) if self._folders else ({}, {})
            shown = {path: data for path, data in files.items() if self._agents.shows_file(agent, path)}
            missing = [
                {"agent": "", "kind": "workspace", "name": path, "reason": reason}
                for path, reason in left_out.items()
                if not path or self._agents.shows_file(agent, path)
            ]
            exported = self._agents.export(agent, steps, record.attachments, record.pieces)
            exported = replace(exported, not_exported=(*exported.not_exported, *missing))
            return encode_document(record, exported, shown)

        return await asyncio.to_thread(document)

    async def variables(self, ref: Ref) -> ExportedMemory:
        """Return the variables of a conversation as JSON, as an export holds them."""
        agent, pieces = await self.history.variables(ref)
        return await asyncio.to_thread(self._agents.export, agent, (), {}, pieces)

    async def read_document(self, document: bytes | dict[str, Any], agent: AgentName | None) -> DocumentContent:
        """Read a document for an import. `agent` replaces the document's. Raises as the catalog does."""
        read = partial(self._agents.read_document, document, agent, self._default_agent, self._max_pixels)
        return await asyncio.to_thread(read)

    async def create_from(
        self,
        owner: Owner,
        content: DocumentContent,
        conversation_id: str | None,
        once: records.IdempotentRequest | None = None,
    ) -> Conversation:
        """Create a conversation from a document. Raises `InvalidRequestError` for what its agent cannot have."""
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        name, fields, files = self._known(content.agent), content.fields, content.files

        def check() -> None:
            self._check(name, fields)
            refusal = self._folders.refusal(files) if self._folders and files else None
            for path in () if refusal else files:
                if not self._agents.shows_file(name, path):
                    refusal = path, "is no file that this agent's workspace may have"
                    break
            if refusal:
                path, sentence = refusal
                raise errors.InvalidRequestError.at(json_pointer(*filter(None, ["workspace", path])), sentence)

        await asyncio.to_thread(check)
        imported, write = content.imported, self._writer_of(files)
        return await self._make_once(ref, once, lambda to: self.history.store_import(to, name, fields, imported, write))

    def _writer_of(self, files: dict[str, bytes]) -> WriteFiles:
        async def write(ref: Ref) -> Callable[[], Awaitable[None]]:
            restore: Callable[[], object] = dict  # no files, nothing to do
            try:
                if files and self._folders:
                    restore = await asyncio.to_thread(self._folders.create, *ref, files)
            except OSError as error:
                log.error("the files of %s cannot be written: %s", ref, error, extra={"action": "folders.unwritten"})  # noqa: TRY400 - its sentence says all
                raise FilesUnwrittenError from error

            async def take_back() -> None:
                await asyncio.to_thread(restore)

            return take_back

        return write

    def _known(self, agent: AgentName | None) -> AgentName:
        """Return the agent of a new conversation. Raises `UnknownAgentError` and `AgentUnavailableError`."""
        if sentence := self._agents.unavailable.get(agent or self._default_agent):
            raise errors.AgentUnavailableError(sentence)
        if agent is not None and agent not in self._agents.infos:
            raise errors.UnknownAgentError.at("/agent", f"no agent {agent!r} here; GET /agents lists them")
        return agent or self._default_agent

    def _check(self, agent: AgentName, draft: records.ConversationFields) -> None:
        """Raise a `ServiceError` for fields that a conversation with this agent cannot have."""
        bounded(draft.metadata)
        if draft.policy is not None:
            self._agents.check_policy(agent, draft.policy, "/policy")
        if draft.client_tools:
            self._agents.check_client_tools(agent, draft.client_tools)
        if draft.approve:
            self._agents.check_approve(agent, draft.approve, draft.client_tools)


def _caller(ref: Ref, claims: Mapping[str, Any], memory: Memory) -> Caller:
    return Caller(ref.owner, ref.id, claims, lambda: memory.metadata)
