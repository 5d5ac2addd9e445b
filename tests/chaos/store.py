"""Store of a run: a Valkey server that can be ended and frozen, and an inspection that bypasses the proxy."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from smolsessions.store.embedded.server import find_binary
from smolsessions.store.seal import new_key

P = "{p000}"
AWAY = (RedisError, OSError, TimeoutError)
START_S = 20
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


@dataclass
class Store:
    """A Valkey server on disk. Its folder and its socket outlive its processes."""

    folder: Path
    key: str = field(default_factory=new_key)
    frozen: bool = False
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def socket_path(self) -> Path:
        return self.folder / "store.sock"

    async def start(self) -> None:
        """Start the server and wait until it has loaded its data."""
        self.process = await asyncio.to_thread(self._spawn)
        async with asyncio.timeout(START_S):
            while not await self._answers():
                assert self.process.poll() is None, "the store does not start"
                await asyncio.sleep(0.01)

    async def end(self, number: signal.Signals) -> None:
        """End the server by a signal, even while it is frozen."""
        self.process.send_signal(number)
        self.thaw()
        await asyncio.to_thread(self.process.wait, START_S)

    def freeze(self) -> None:
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        self.process.send_signal(signal.SIGCONT)

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

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(exist_ok=True)
        # Sync each write. Otherwise a killed server may lose up to two seconds of acknowledged writes.
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        options = ["--port", "0", "--daemonize", "no", "--loglevel", "warning", *durable]
        place = ["--unixsocket", str(self.socket_path), "--dir", str(self.folder)]
        command = [str(find_binary()), *options, *place]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def _answers(self) -> bool:
        with suppress(*AWAY):
            async with self.looking() as client:
                return bool(await client.ping())
        return False


@asynccontextmanager
async def running_store(folder: Path) -> AsyncIterator[Store]:
    store = Store(folder)
    await store.start()
    try:
        yield store
    finally:
        await store.end(signal.SIGKILL)
