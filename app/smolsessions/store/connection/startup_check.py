"""Checks at start: version, permissions, durability and identity of the store."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from smolsessions.core.errors import StartError
from smolsessions.store.connection.identity import ABOUT, FIRST_PARTITION, Identity, identify
from smolsessions.store.connection.pipeline import REPLY_TIMEOUT_S
from smolsessions.store.connection.replica_ack import REPLICAS, WAIT_MS
from smolsessions.store.connection.server_errors import NODE_SENTENCE, start_errors
from smolsessions.store.scripts.loader import NAMES, script

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from smolsessions.store.connection.servers import Address, Servers
    from smolsessions.store.seal import Sealer

log = logging.getLogger(__name__)

OLDEST_MAJOR = 7
_CALL = re.compile(r"redis\.call\('([A-Z]+)'")
# A renamed command is unknown to the server, so it counts as refused.
_REFUSED_COMMANDS = """
local refused, name = {}, KEYS[1] .. ':rights'
for i, command in ipairs(ARGV) do
  local is_known, is_allowed = pcall(redis.acl_check_cmd, command, name, name, name)
  if not (is_known and is_allowed) then refused[#refused + 1] = command end
end
return refused
"""
# Older releases check each replayed transaction, hence each script with two writes, against the permissions of the user
# `default`. They log a refused transaction and go on without it (redis#14541, valkey#3983).
_REPLAY_FIXED = {"Redis": (8, 6, 0), "Valkey": (9, 1, 2)}
_REPLAY_REMEDY = (
    "write `user default off resetpass +@all ~* &*` in the store's list of users, which leaves `default` disabled "
    '(docs/deploying.md, "Data that is gone after a restart of the store")'
)


async def check_store(
    servers: Servers, address: Address, sealer: Sealer, partitions: int | None, *, replicated: bool
) -> tuple[str, Identity]:
    """Return the server's name and the store's identity, which a new store gets. Raises `StartError`."""
    with start_errors(address):
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            found = await servers.client(FIRST_PARTITION)
            async with found.client() as client:
                name, version = await _check_server(client, is_cluster=servers.is_cluster)
                await _check_subscription(found)
                await _check_permissions(client)
                await _check_append_only(client, name, version)
                identity = await identify(client, sealer, partitions, is_cluster=servers.is_cluster)
                await _check_durability(client, replicated=replicated)
            await found.connection_pool.disconnect()  # pipelines make connections of their own
    return f"{name} {version}{', a cluster' if servers.is_cluster else ''}", identity


async def _check_server(client: Redis, *, is_cluster: bool) -> tuple[str, str]:
    info = await client.info("server")
    if info.get("redis_mode") == "cluster" and not is_cluster:
        raise StartError(NODE_SENTENCE)
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if _numbers(str(info.get("redis_version"))) < (OLDEST_MAJOR,):
        raise StartError(f"the store is {name} {version}; Redis 7 or Valkey 7.2 is needed")
    policy = (await client.info("memory")).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        log.warning(
            "the store may throw data away when it is full: set its maxmemory-policy to noeviction, not %s", policy
        )
    return name, version


async def _check_subscription(client: Redis) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.ssubscribe(f"{FIRST_PARTITION}:wake")
        await pubsub.get_message(timeout=REPLY_TIMEOUT_S)


async def _check_permissions(client: Redis) -> None:
    """Raise `NoPermissionError` if a script calls a command that is refused: no script is undone in the middle."""
    commands = sorted({command for name in NAMES for command in _CALL.findall(script(name).source)})
    sha = await client.script_load(_REFUSED_COMMANDS)
    refused: Any = await client.evalsha(sha, 1, FIRST_PARTITION, *commands)
    if refused:
        raise NoPermissionError(f"it may not run {', '.join(word.decode() for word in refused)}")


async def _check_append_only(client: Redis, name: str, version: str) -> None:
    """Warn if the server would not replay all transactions after a restart."""
    fixed = _numbers(version) >= _REPLAY_FIXED[name]
    if fixed or not (await client.info("persistence")).get("aof_enabled"):
        return
    try:
        allowed: Any = await client.execute_command("ACL", "DRYRUN", "default", "HSET", ABOUT, "field", "value")
    except ResponseError:  # turns do not need this permission
        log.warning(
            "cannot check whether the store keeps its data over a restart: %s %s may not. Grant its user +acl|dryrun; "
            "if the store's user `default` is off or limited, %s",
            name,
            version,
            _REPLAY_REMEDY,
        )
        return
    if allowed != b"OK":
        log.warning(
            "the store loses conversations when it restarts: %s %s replays its append-only file with the rights of the "
            "user `default`, which may not write; do not restart it before you %s",
            name,
            version,
            _REPLAY_REMEDY,
        )


async def _check_durability(client: Redis, *, replicated: bool) -> None:
    """Warn if the process that started last acknowledges writes differently: the weaker promise counts."""
    own = "replicated" if replicated else "primary"
    recorded: Any = await client.hget(ABOUT, "durability")
    last = own if recorded is None else recorded.decode(errors="replace")
    await client.hset(ABOUT, "durability", own)
    if last != own:
        log.warning(
            "the last process on this store started with SMOLSESSIONS_DURABILITY=%s, this one with %s: while both run, "
            "a failover may lose acknowledged writes; set the same for all",
            last,
            own,
            extra={"action": "durability.differs"},
        )
    if replicated and not await client.wait(REPLICAS, WAIT_MS):
        log.warning(
            "no replica of the store answers, and SMOLSESSIONS_DURABILITY is replicated: until one does, "
            "every request that needs the store is a 503"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
