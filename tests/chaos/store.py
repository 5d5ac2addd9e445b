"""Store of a run: a Valkey server that can be ended and frozen, and an inspection that bypasses the proxy."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.support.store_server import SEAL_KEY, StoreServer
from tests.support.waiting import PATIENCE_S

P = "{p000}"
AWAY = (RedisError, OSError, TimeoutError)
# Conversations with work that no worker would find or that two could find, and leases without a holder.
ASTRAY = f"""
local astray, queues = {{}}, '{P}:queue:'
for _, name in ipairs(redis.call('KEYS', queues .. '*')) do
  local ref = string.sub(name, #queues + 1)
  local agent = redis.call('HGET', '{P}:conversation:' .. ref, 'agent') or ''
  local ready = redis.call('ZSCORE', '{P}:ready:' .. agent, ref)
  local leased = redis.call('ZSCORE', '{P}:leases', ref)
  local waits = redis.call('ZSCORE', '{P}:waiting', ref)
  if waits and (ready or leased) then astray[#astray + 1] = ref .. ' waits for a person, and has work or a lease' end
  if not ready and not leased and not waits then astray[#astray + 1] = ref .. ' has work and is in no set' end
  if ready and leased then astray[#astray + 1] = ref .. ' is in both sets' end
end
for _, ref in ipairs(redis.call('ZRANGE', '{P}:leases', 0, -1)) do
  if redis.call('HEXISTS', '{P}:conversation:' .. ref, 'fence') == 0 then
    astray[#astray + 1] = ref .. ' is leased without a fence'
  end
end
return astray
"""
WORKING = ("ready", "owned", "owners", "leases", "waiting", "run", "journal", "queue", "pending", "watch")


class Store(StoreServer):
    """A Valkey server on disk. Its folder and its socket outlive its processes."""

    key = SEAL_KEY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options["appendfsync"] = "always"  # a killed server may otherwise lose acknowledged writes

    async def begin(self) -> None:
        """Start the server and wait until it has loaded its data."""
        await asyncio.to_thread(self.start)

    async def end(self, number: signal.Signals) -> None:
        """End the server by a signal, even while it is frozen."""
        assert self.process
        self.process.send_signal(number)
        self.thaw()
        await asyncio.to_thread(self.process.wait, PATIENCE_S)

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Redis]:
        """Yield a connection with short timeouts."""
        path = str(self.socket_path)
        client = Redis(unix_socket_path=path, socket_timeout=1, socket_connect_timeout=1, decode_responses=True)
        try:
            yield client
        finally:
            await client.aclose()

    async def astray(self) -> list[str]:
        """Look once for lost conversations. Find none while the store is away."""
        with suppress(*AWAY):
            async with self.looking() as client:
                found: list[str] = await client.eval(ASTRAY, 0)
                return found
        return []

    async def left_over(self) -> list[str]:
        """Return the names of keys that only turns in progress have."""
        async with self.looking() as client:
            names = [str(name) for name in await client.keys(f"{P}:*")]
        return sorted(name for name in names if name.split(":")[1] in WORKING)


@asynccontextmanager
async def running_store(folder: Path) -> AsyncIterator[Store]:
    store = Store(folder)
    await store.begin()
    try:
        yield store
    finally:
        store.kill()
