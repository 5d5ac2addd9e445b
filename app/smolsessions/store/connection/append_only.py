"""Append-only file: a warning at start if the store's server would not replay all of it after a restart."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

# Older releases check each replayed transaction, hence each script that wrote twice, against the rights of the user
# `default`. They log a refused transaction and go on without it (redis#14541, valkey#3983).
_MENDED = {"Redis": (8, 6, 0), "Valkey": (9, 1, 2)}
_MEND = (
    "write `user default off resetpass +@all ~* &*` in the store's list of users, which leaves `default` disabled "
    '(docs/deploying.md, "Data that is gone after a restart of the store")'
)


async def check_append_only(client: Redis, name: str, version: str, key: str) -> None:
    """Warn if a restart of the server loses transactions that wrote `key`."""
    if _numbers(version) >= _MENDED[name] or not (await client.info("persistence")).get("aof_enabled"):
        return
    try:
        answer: Any = await client.execute_command("ACL", "DRYRUN", "default", "HSET", key, "field", "value")
    except ResponseError:  # this is no right that turns need
        log.warning(
            "cannot check whether the store keeps its data over a restart: %s %s may not. Grant its user +acl|dryrun; "
            "if the store's user `default` is off or limited, %s",
            name,
            version,
            _MEND,
        )
        return
    if answer != b"OK":
        log.warning(
            "the store loses conversations when it restarts: %s %s replays its append-only file with the rights of the "
            "user `default`, which may not write; do not restart it before you %s",
            name,
            version,
            _MEND,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
