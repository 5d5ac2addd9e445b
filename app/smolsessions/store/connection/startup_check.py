"""Checks of the store: version, permissions and durability at start, and its identity after every lost connection.

The identity is schema, number of partitions, seal key, and a secret shared by the store's processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from smolsessions.core.errors import SealBrokenError, StartError, StoreUnavailableError
from smolsessions.store.connection.pipeline import REPLY_TIMEOUT_S, Pipeline
from smolsessions.store.connection.replica_ack import REPLICAS, WAIT_MS
from smolsessions.store.connection.server_errors import NODE_SENTENCE, start_errors
from smolsessions.store.connection.servers import Address, Servers
from smolsessions.store.partition import Options
from smolsessions.store.scripts.loader import NAMES, script
from smolsessions.store.seal import Sealer

log = logging.getLogger(__name__)

OLDEST_MAJOR = 7
SCHEMA = b"2"
FIRST_PARTITION = "{p000}"
ABOUT = f"{FIRST_PARTITION}:about"
PARTITIONS_OF_A_CLUSTER = 16
CANARY = b"smolsessions"
PEPPER_BYTES = 32
_CALL = re.compile(r"redis\.call\('([A-Z]+)'(?:, '([A-Z]+)')?")  # a command, and a subcommand of some
# A renamed command is unknown to the server, so it counts as refused.
_REFUSED_COMMANDS = """
local refused, name = {}, KEYS[1] .. ':rights'
for i, command in ipairs(ARGV) do
  local word, subcommand = string.match(command, '^(%a+) ?(%a*)$')
  local is_known, is_allowed = pcall(redis.acl_check_cmd, word, subcommand ~= '' and subcommand or name, name, name)
  if not (is_known and is_allowed) then refused[#refused + 1] = command end
end
return refused
"""
# Older releases check each replayed transaction, hence each script with two writes, against the permissions of the user
# `default`. They log a refused transaction and go on without it (redis#14541, valkey#3983).
_REPLAY_FIXED = {"Redis": (8, 6, 0), "Valkey": (9, 1, 2)}


@dataclass(frozen=True, slots=True)
class Identity:
    """Number of partitions, fixed at the first use, and the store's secret."""

    partitions: int
    pepper: bytes


async def bind_store(servers: Servers, address: Address, sealer: Sealer, options: Options) -> tuple[str, Identity]:
    """Check the store, log its risks, and return its name and identity, new for a new one. Raises `StartError`."""
    async with _connected(servers, address) as client:
        name, risks = await _inspect(servers, client, sealer, options)
        for risk in risks:
            log.warning(risk, extra={"action": "store.risk"})
        fields = _fields(sealer, options.partitions or (PARTITIONS_OF_A_CLUSTER if servers.is_cluster else 1))
        for field, value in fields.items():
            await client.hsetnx(ABOUT, field, value)
        partitions = await _check_identity(client, sealer, options.partitions)
        await client.hsetnx(ABOUT, "pepper", sealer.seal(os.urandom(PEPPER_BYTES), "", "pepper"))
        sealed: Any = await client.hget(ABOUT, "pepper")
        pepper = _opened(sealer, sealed, "pepper")
        # Sealed again, so that an old key can be retired.
        await client.hset(ABOUT, mapping={"canary": fields["canary"], "pepper": sealer.seal(pepper, "", "pepper")})
        return name, Identity(partitions, pepper)


async def inspect_store(
    servers: Servers, address: Address, sealer: Sealer, options: Options
) -> tuple[str, list[str], int]:
    """Check the store without a write. Return its name, the risks and the number of partitions (0: it is new)."""
    async with _connected(servers, address) as client:
        name, risks = await _inspect(servers, client, sealer, options)
        partitions: Any = await client.hget(ABOUT, "partitions")
        return name, risks, int(partitions or 0)


@asynccontextmanager
async def _connected(servers: Servers, address: Address) -> AsyncIterator[Redis]:
    with start_errors(address):
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            found = await servers.client(FIRST_PARTITION)
            async with found.client() as client:
                yield client
            await found.connection_pool.disconnect()  # pipelines make connections of their own


async def _inspect(servers: Servers, client: Redis, sealer: Sealer, options: Options) -> tuple[str, list[str]]:
    """Return the server's name, and a sentence for each risk of losing data. Raises `StartError`, redis-py's errors."""
    info = await client.info("server")
    if info.get("redis_mode") == "cluster" and not servers.is_cluster:
        raise StartError(NODE_SENTENCE)
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if _numbers(str(info.get("redis_version"))) < (OLDEST_MAJOR,):
        raise StartError(f"the store is {name} {version}; Redis 7 or Valkey 7.2 is needed")
    async with client.pubsub() as pubsub:
        await pubsub.ssubscribe(f"{FIRST_PARTITION}:wake")
        await pubsub.get_message(timeout=REPLY_TIMEOUT_S)
    sha = await client.script_load(_REFUSED_COMMANDS)
    refused: Any = await client.evalsha(sha, 1, FIRST_PARTITION, *called_commands())
    if refused:  # known before a script runs, as what it did before the refusal would not be undone
        raise NoPermissionError(f"it may not run {', '.join(word.decode() for word in refused)}")
    if await client.hexists(ABOUT, "canary"):
        await _check_identity(client, sealer, options.partitions)
    elif options.expects_data:
        raise StartError(
            "the store is empty, and this command or SMOLSESSIONS_EXPECT_STORE says that it holds data: restore it "
            "(docs/how-to/store.md), name another store, or unset the variable to begin anew"
        )
    risks = []
    policy = (await client.info("memory")).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        risks.append(f"a full store may throw data away: set its maxmemory-policy to noeviction, not {policy}")
    if not (await client.info("persistence")).get("aof_enabled"):
        risks.append(
            "the store writes no append-only file: a restart of it loses what was written since its last snapshot, or "
            "all data; set its appendonly to yes"
        )
    elif _numbers(version) < _REPLAY_FIXED[name]:
        allowed: Any = b"it may not say (the right +acl|dryrun lets it)"
        with suppress(ResponseError):  # turns do not need this permission
            allowed = await client.execute_command("ACL", "DRYRUN", "default", "HSET", ABOUT, "field", "value")
        if allowed != b"OK":
            risks.append(
                f"the store loses conversations when it restarts if its user `default` may not write: {name} {version} "
                f"replays its append-only file with that user's rights. Asked for them, it says: {allowed.decode()}. "
                "Do not restart it before you write `user default off resetpass +@all ~* &*` in its list of users, "
                'which leaves `default` disabled (docs/how-to/store.md, "Data that is gone after a restart of the '
                'store")'
            )
    if options.replicated and not await client.wait(REPLICAS, WAIT_MS):
        risks.append(
            "no replica of the store answers, and SMOLSESSIONS_DURABILITY is replicated: until one does, "
            "every request that needs the store is a 503"
        )
    return f"{name} {version}{', a cluster' if servers.is_cluster else ''}", risks


@cache
def called_commands() -> list[str]:
    return sorted({" ".join(words).strip() for name in NAMES for words in _CALL.findall(script(name).source)})


async def _check_identity(client: Redis, sealer: Sealer, wanted: int | None) -> int:
    """Return the number of partitions of a store that has an identity. Raises `StartError` if it is not usable."""
    found: Any = await client.hmget(ABOUT, ["schema", "partitions", "canary"])
    schema, partitions, canary = found
    if schema != SCHEMA:
        raise StartError(
            f"the store holds data of schema {schema.decode(errors='replace')}, this release knows {SCHEMA.decode()}; "
            "run the release that wrote it, or use another store"
        )
    if wanted not in {None, int(partitions)}:
        raise StartError(
            f"the store's data has {int(partitions)} partitions, which is fixed when a store is first used, and "
            f"SMOLSESSIONS_PARTITIONS is {wanted}: unset it, or use another store"
        )
    _opened(sealer, canary, "about")
    return int(partitions)


def _opened(sealer: Sealer, blob: bytes, place: str) -> bytes:
    try:
        return sealer.open(blob, "", place)
    except SealBrokenError as error:
        raise StartError(
            "the store's data was sealed with another key; set SMOLSESSIONS_SEAL_KEYS or its file (or put the seal.key "
            "file back) to the key that it was written with, or use another store or data folder"
        ) from error


class IdentityCheck:
    """Checks after every lost connection that the server still holds this store.

    A server that lost its data gets the identity again, from the first process to notice. A process that finds another
    identity must end: its keys and partitions would mean nothing to the others.
    """

    def __init__(self, pipeline: Pipeline, identity: Identity, sealer: Sealer) -> None:
        self._pipeline = pipeline
        self._identity = identity
        self._sealer = sealer
        self._task: asyncio.Task[None] | None = None
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with a `StartError` if the store was replaced. Otherwise it stays pending."""

    def on_gap(self, pipeline: Pipeline) -> None:
        if pipeline is self._pipeline and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._check())

    def close(self) -> None:
        if self._task:
            self._task.cancel()

    async def _check(self) -> None:
        fields = _fields(self._sealer, self._identity.partitions)
        fields["pepper"] = self._sealer.seal(self._identity.pepper, "", "pepper")
        try:
            created = [await self._pipeline.send("HSETNX", ABOUT, field, value) for field, value in fields.items()]
            partitions, pepper = await self._pipeline.send("HMGET", ABOUT, "partitions", "pepper")
        except (StoreUnavailableError, ResponseError):
            return  # the next reconnection checks again
        if created[0]:
            log.error(
                "the store came back empty: what it held is lost, and conversations begin anew. If a backup exists, "
                "stop all processes and restore it (docs/how-to/store.md)",
                extra={"action": "store.emptied"},
            )
        is_same = int(partitions) == self._identity.partitions
        with suppress(SealBrokenError):  # sealed with a newer key, which this process does not have yet
            is_same &= self._sealer.open(pepper, "", "pepper") == self._identity.pepper
        if not is_same and not self.changed.done():
            self.changed.set_exception(
                StartError("the store was replaced by another one while this process used it; start the process again")
            )


def _fields(sealer: Sealer, partitions: int) -> dict[str, bytes]:
    return {"schema": SCHEMA, "partitions": b"%d" % partitions, "canary": sealer.seal(CANARY, "", "about")}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
