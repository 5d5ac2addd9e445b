"""What must hold for a store to be used: it answers, lets us do our work, and its data is ours, now and after gaps."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from smolsessions.core.errors import SealBrokenError, StartError, StoreUnavailableError
from smolsessions.store.connection.acl_check import check_permissions
from smolsessions.store.connection.append_only import check_append_only
from smolsessions.store.connection.pipeline import ANSWER_TIMEOUT_S
from smolsessions.store.connection.replica_ack import REPLICAS, WAIT_MS
from smolsessions.store.connection.server_errors import NODE_SENTENCE, start_errors

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from smolsessions.store.connection.pipeline import Pipeline
    from smolsessions.store.connection.servers import Address, Servers
    from smolsessions.store.seal import Sealer

log = logging.getLogger(__name__)

OLDEST_MAJOR = 7
SCHEMA = b"1"
FIRST = "{p000}"  # the partition where the store says what it is
PARTITIONS_OF_A_CLUSTER = 16
CANARY = b"smolsessions"
PEPPER_BYTES = 32


@dataclass(frozen=True, slots=True)
class About:
    """What a store is, and the secret that all processes on it share."""

    server: str
    partitions: int
    pepper: bytes


async def check_store(
    servers: Servers, address: Address, sealer: Sealer, partitions: int | None, *, replicated: bool
) -> About:
    """Look at the store, make it ours if it is new, or raise `StartError` with the mend."""
    with start_errors(address):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            found = await servers.client(FIRST)
            async with found.client() as client:
                name, version = await _server(client, is_cluster=servers.is_cluster)
                await _may_listen(found)
                await check_permissions(client, FIRST)
                await check_append_only(client, name, version, f"{FIRST}:about")
                count, pepper = await _data(client, sealer, partitions, is_cluster=servers.is_cluster)
                if replicated and not await client.wait(REPLICAS, WAIT_MS):
                    log.warning(
                        "no replica of the store answers, and SMOLSESSIONS_DURABILITY is replicated: until one does, "
                        "every request that needs the store is a 503"
                    )
            await found.connection_pool.disconnect()  # lines make connections of their own
    return About(f"{name} {version}{', a cluster' if servers.is_cluster else ''}", count, pepper)


async def _may_listen(client: Redis) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.ssubscribe(f"{FIRST}:wake")
        await pubsub.get_message(timeout=ANSWER_TIMEOUT_S)


async def _server(client: Redis, *, is_cluster: bool) -> tuple[str, str]:
    info = await client.info("server")
    if info.get("redis_mode") == "cluster" and not is_cluster:
        raise StartError(NODE_SENTENCE)
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if int(str(info.get("redis_version")).split(".", maxsplit=1)[0]) < OLDEST_MAJOR:
        raise StartError(f"the store is {name} {version}; Redis 7 or Valkey 7.2 is needed")
    policy = (await client.info("memory")).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        log.warning(
            "the store may throw data away when it is full: set its maxmemory-policy to noeviction, not %s", policy
        )
    return name, version


class ReplacementCheck:
    """Sees after every gap that the store is still the one that was found: one that lost its data came back empty.

    Then it is told again what it is, by whoever comes first; who finds that it is another one by now must not go on:
    keys of one process would mean nothing to the others, and conversations lie elsewhere.
    """

    def __init__(self, line: Pipeline, about: About, sealer: Sealer) -> None:
        self._line = line
        self._about = about
        self._sealer = sealer
        self._looking: asyncio.Task[None] | None = None
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with a `StartError`, or is never done."""

    def on_gap(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def close(self) -> None:
        if self._looking:
            self._looking.cancel()

    async def _look(self) -> None:
        fields = _fields(self._sealer, self._about.partitions)
        fields["pepper"] = self._sealer.seal(self._about.pepper, "", "pepper")
        try:
            for field, value in fields.items():
                await self._line.send("HSETNX", f"{FIRST}:about", field, value)
            found = await self._line.send("HMGET", f"{FIRST}:about", "partitions", "pepper")
            is_same = int(found[0]) == self._about.partitions and self._is_ours(found[1])
        except (StoreUnavailableError, ResponseError):
            return  # there will be another gap
        if not is_same and not self.changed.done():
            self.changed.set_exception(
                StartError("the store was replaced by another one while this process used it; start the process again")
            )

    def _is_ours(self, sealed: bytes) -> bool:
        try:
            return self._sealer.open(sealed, "", "pepper") == self._about.pepper
        except SealBrokenError:  # by a key that this process was not told of yet
            return True


def _fields(sealer: Sealer, partitions: int) -> dict[str, bytes]:
    """Give what a store says of itself, but for the pepper."""
    return {"schema": SCHEMA, "partitions": b"%d" % partitions, "canary": sealer.seal(CANARY, "", "about")}


async def _data(client: Redis, sealer: Sealer, wanted: int | None, *, is_cluster: bool) -> tuple[int, bytes]:
    """See that the store holds nothing, or what this release can read with these keys.

    The pepper is a secret that all processes on this store share, whichever keys seal: made once, by whoever is first.
    How many partitions there are is fixed by whoever is first, too.
    """
    secret: Any
    key = f"{FIRST}:about"
    fields = _fields(sealer, wanted or (PARTITIONS_OF_A_CLUSTER if is_cluster else 1))
    for field, value in fields.items():
        await client.hsetnx(key, field, value)
    found: Any = await client.hmget(key, ["schema", "partitions", "canary"])
    schema, partitions, canary = found
    if schema != SCHEMA:
        raise StartError(
            f"the store holds data of schema {schema.decode(errors='replace')}, this release knows {SCHEMA.decode()}; "
            "run the release that wrote it, or use another store"
        )
    if is_cluster and int(partitions) == 1:
        log.warning("the store has one partition, made at its first use: a cluster's other servers have nothing to do")
    if wanted not in {None, int(partitions)}:
        raise StartError(
            f"the store's data has {int(partitions)} partitions, which is fixed when a store is first used, and "
            f"SMOLSESSIONS_PARTITIONS is {wanted}: unset it, or use another store"
        )
    try:
        sealer.open(canary, "", "about")
        await client.hsetnx(key, "pepper", sealer.seal(os.urandom(PEPPER_BYTES), "", "pepper"))
        secret = await client.hget(key, "pepper")
        pepper = sealer.open(secret, "", "pepper")
    except SealBrokenError as error:
        raise StartError(
            "the store's data was sealed with another key; set SMOLSESSIONS_SEAL_KEYS or its file (or put the seal.key "
            "file back) to the key that it was written with, or use another store or data folder"
        ) from error
    # Sealed anew, so that an old key, once nothing else needs it, can be taken away.
    await client.hset(key, mapping={"canary": fields["canary"], "pepper": sealer.seal(pepper, "", "pepper")})
    return int(partitions), pepper
