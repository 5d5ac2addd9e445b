"""Identity of a store: schema, number of partitions, seal key, and a secret shared by its processes."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from smolsessions.core.errors import SealBrokenError, StartError, StoreUnavailableError

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from smolsessions.store.connection.pipeline import Pipeline
    from smolsessions.store.seal import Sealer

log = logging.getLogger(__name__)

SCHEMA = b"1"
FIRST_PARTITION = "{p000}"
ABOUT = f"{FIRST_PARTITION}:about"
PARTITIONS_OF_A_CLUSTER = 16
CANARY = b"smolsessions"
PEPPER_BYTES = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """Number of partitions, fixed at the first use, and the store's secret."""

    partitions: int
    pepper: bytes


async def identify(client: Redis, sealer: Sealer, wanted: int | None, *, is_cluster: bool) -> Identity:
    """Read the store's identity, or write it if the store is new. Raises `StartError` if it is not usable."""
    fields = _fields(sealer, wanted or (PARTITIONS_OF_A_CLUSTER if is_cluster else 1))
    for field, value in fields.items():
        await client.hsetnx(ABOUT, field, value)
    found: Any = await client.hmget(ABOUT, ["schema", "partitions", "canary"])
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
        await client.hsetnx(ABOUT, "pepper", sealer.seal(os.urandom(PEPPER_BYTES), "", "pepper"))
        sealed: Any = await client.hget(ABOUT, "pepper")
        pepper = sealer.open(sealed, "", "pepper")
    except SealBrokenError as error:
        raise StartError(
            "the store's data was sealed with another key; set SMOLSESSIONS_SEAL_KEYS or its file (or put the seal.key "
            "file back) to the key that it was written with, or use another store or data folder"
        ) from error
    # Sealed again, so that an old key can be retired.
    await client.hset(ABOUT, mapping={"canary": fields["canary"], "pepper": sealer.seal(pepper, "", "pepper")})
    return Identity(int(partitions), pepper)


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
            for field, value in fields.items():
                await self._pipeline.send("HSETNX", ABOUT, field, value)
            partitions, pepper = await self._pipeline.send("HMGET", ABOUT, "partitions", "pepper")
        except (StoreUnavailableError, ResponseError):
            return  # the next reconnection checks again
        is_same = int(partitions) == self._identity.partitions and self._is_ours(pepper)
        if not is_same and not self.changed.done():
            self.changed.set_exception(
                StartError("the store was replaced by another one while this process used it; start the process again")
            )

    def _is_ours(self, sealed: bytes) -> bool:
        try:
            return self._sealer.open(sealed, "", "pepper") == self._identity.pepper
        except SealBrokenError:  # sealed with a newer key, which this process does not have yet
            return True


def _fields(sealer: Sealer, partitions: int) -> dict[str, bytes]:
    return {"schema": SCHEMA, "partitions": b"%d" % partitions, "canary": sealer.seal(CANARY, "", "about")}
