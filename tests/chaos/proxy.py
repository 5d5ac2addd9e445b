"""Faulty line to the store, which delays, stalls and cuts the traffic."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_BYTES = 1 << 16


@dataclass
class Proxy:
    """Listens on a port of this machine and forwards to a socket."""

    target: Path
    port: int = 0
    delay_s: float = 0
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _answers: asyncio.Event = field(default_factory=asyncio.Event)
    _lines: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> int:
        """Break all connections, even in the middle of an answer. Return their number."""
        lines = list(self._lines)
        for line in lines:
            line.transport.abort()
        return len(lines)

    def stall(self) -> None:
        self._flows.clear()

    def hold_answers(self) -> None:
        """Forward commands and withhold answers. A cut then leaves the outcome unknown."""
        self._answers.clear()

    def flow(self) -> None:
        self._flows.set()
        self._answers.set()
        self.delay_s = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both ways until one side closes."""
        far_writer: asyncio.StreamWriter | None = None
        self._lines.add(writer)
        try:
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_unix_connection(self.target)
                self._lines.add(far_writer)
                async with asyncio.TaskGroup() as tasks:
                    there = tasks.create_task(self._pass_on(reader, far_writer, self._flows))
                    back = tasks.create_task(self._pass_on(far_reader, writer, self._answers))
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()
        finally:
            for line in (writer, far_writer):
                if line:
                    self._lines.discard(line)
                    line.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                await way.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def proxy_to(target: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    proxy.flow()
    try:
        yield proxy
    finally:
        server.close()
        proxy.flow()
        proxy.cut()
        await server.wait_closed()
