"""Sweep of workspaces: the files of conversations that were deleted, or whose time to live is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from smolsessions.core.errors import ConversationNotFoundError, SealBrokenError, StoreUnavailableError
from smolsessions.core.records import Owner, Ref
from smolsessions.core.store_ports import ConversationStore, WorkspaceFolders

log = logging.getLogger(__name__)

SWEEP_S = 60.0
AT_ONCE = 20
PAUSE_S = 0.1  # between batches, so that many folders load the store little


async def sweep_folders(
    folders: WorkspaceFolders, conversations: ConversationStore, is_same_store: Callable[[], Awaitable[bool]]
) -> None:
    """Delete the folders of conversations that do not exist. Never ends.

    A store that has lost its data knows no conversation, so nothing is deleted unless it `is_same_store`.
    """

    async def is_deleted(ref: Ref) -> bool:
        try:
            await conversations.conversation(ref)
        except ConversationNotFoundError:
            return True
        except SealBrokenError:
            pass
        return False

    while True:
        try:
            found = await asyncio.to_thread(lambda: list(folders.conversations()))
            for start in range(0, len(found), AT_ONCE):
                refs = [Ref(Owner(owner), name) for owner, name in found[start : start + AT_ONCE]]
                flags = await asyncio.gather(*map(is_deleted, refs))
                deleted = [ref for ref, flag in zip(refs, flags, strict=True) if flag]
                if deleted and await is_same_store():
                    for ref in deleted:
                        await asyncio.to_thread(folders.delete, *ref)
                await asyncio.sleep(PAUSE_S)
        except StoreUnavailableError:
            pass  # the store's connection logs it
        except Exception as error:  # noqa: BLE001 - a failed sweep must not end the process
            log.warning("the files of deleted conversations are not swept: %s", error, extra={"action": "folders.left"})
        await asyncio.sleep(SWEEP_S)
