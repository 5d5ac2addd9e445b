"""What must hold before a store is used: it answers, lets us do our work, and its data is ours to read."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from app.errors import SealBrokenError, StartError
from app.stores.connection import ANSWER_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis.asyncio import Redis

    from app.seal import Sealer

log = logging.getLogger(__name__)

OLDEST_MAJOR = 7
SCHEMA, PARTITIONS = b"1", b"1"
CANARY = b"smolsessions"
PEPPER_BYTES = 32


async def look_at(client: Redis, sealer: Sealer, partition: str, channels: Sequence[str]) -> tuple[str, bytes]:
    """Say which server it is and give the store's pepper, or raise `StartError` with the mend."""
    with _refusals():
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            name = await _server(client)
            async with client.pubsub() as pubsub:
                await pubsub.ssubscribe(*channels)
                await pubsub.get_message(timeout=ANSWER_TIMEOUT_S)
            pepper = await _data(client, sealer, f"{partition}:about")
    return name, pepper


async def _server(client: Redis) -> str:
    info = await client.info("server")
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if int(str(info.get("redis_version")).split(".", maxsplit=1)[0]) < OLDEST_MAJOR:
        raise StartError(f"the store is {name} {version}; Redis 7 or Valkey 7.2 is needed")
    policy = (await client.info("memory")).get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        log.warning(
            "the store may throw data away when it is full: set its maxmemory-policy to noeviction, not %s", policy
        )
    return f"{name} {version}"


async def _data(client: Redis, sealer: Sealer, key: str) -> bytes:
    """See that the store holds nothing, or what this release can read with these keys.

    The pepper is a secret that all processes on this store share, whichever keys seal: made once, by whoever is first.
    """
    canary: Any
    secret: Any
    sealed = sealer.seal(CANARY, "", "about")
    for field, value in (("schema", SCHEMA), ("partitions", PARTITIONS), ("canary", sealed)):
        await client.hsetnx(key, field, value)
    schema, partitions, canary = await client.hmget(key, ["schema", "partitions", "canary"])
    if (schema, partitions) != (SCHEMA, PARTITIONS):
        raise StartError(
            f"the store holds data of schema {schema!r} with {partitions!r} partitions, this release knows {SCHEMA!r} "
            f"with {PARTITIONS!r}; run the release that wrote it, or use another store"
        )
    try:
        sealer.open(canary, "", "about")
        await client.hsetnx(key, "pepper", sealer.seal(os.urandom(PEPPER_BYTES), "", "pepper"))
        secret = await client.hget(key, "pepper")
        pepper = sealer.open(secret, "", "pepper")
    except SealBrokenError as error:
        raise StartError(
            "the store's data was sealed with another key; set SMOLSESSIONS_SEAL_KEYS (or put the seal.key file back) "
            "to the key that it was written with, or use another store or data folder"
        ) from error
    # Sealed anew, so that an old key, once nothing else needs it, can be taken away.
    await client.hset(key, mapping={"canary": sealed, "pepper": sealer.seal(pepper, "", "pepper")})
    return pepper


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the server's words into sentences that name the mend."""
    try:
        yield
    except NoPermissionError as error:
        raise StartError(
            f"the store gives the user of SMOLSESSIONS_REDIS_URL no permission: {error}; it needs the keys ~{{p*, the "
            "channels &{p* and all data commands with EVALSHA, SCRIPT LOAD and INFO"
        ) from error
    except (RedisError, OSError, TimeoutError, UnicodeError) as error:
        if "auth" in str(error).lower() or "username-password" in str(error):
            raise StartError(
                f"the store refuses us ({error}); put user and password into SMOLSESSIONS_REDIS_URL"
            ) from error
        raise StartError(
            f"the store at SMOLSESSIONS_REDIS_URL does not answer ({error or 'timeout'}); start it, or unset the "
            "variable to use the embedded store"
        ) from error
