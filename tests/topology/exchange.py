"""Proxy that classifies connections by the commands sent on them, and resets or silences all of one kind."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.topology.node import HOST

CHUNK_BYTES = 1 << 16
END_S = 120.0
AT_ONCE = struct.pack("ii", 1, 0)  # a linger time of zero: closing resets
KINDS = {"commands": {"EVALSHA"}, "messages": {"SSUBSCRIBE"}, "acks": {"EVALSHA", "WAIT"}}
WORDS = {word: f"${len(word)}\r\n{word}\r\n".encode() for word in set.union(*KINDS.values())}
LONGEST_WORD = max(map(len, WORDS.values()))


@dataclass(eq=False)
class Connection:
    """A client's connection, and the command words seen on it."""

    writer: asyncio.StreamWriter
    words: set[str] = field(default_factory=set)
    silent: bool = False
    tail: bytes = b""

    def hear(self, data: bytes) -> None:
        seen = self.tail + data
        self.words |= {word for word, packed in WORDS.items() if packed in seen}
        self.tail = seen[-LONGEST_WORD:]


class Exchange:
    """`with Exchange(port) as exchange:` listens in a thread of its own and forwards to that port of this machine."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._flows, self._caught, self._wanted = asyncio.Event(), asyncio.Event(), b""
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def answered(self, kind: str) -> int:
        """Return the number of open connections of a kind that are not silenced."""
        return self._do(self._count(kind))

    def reset(self, kind: str) -> int:
        """Reset all connections of a kind. Return their number."""
        return self._do(self._reset(kind))

    def silence(self, kind: str) -> int:
        """Read from the connections of a kind and forward nothing more. Return their number."""
        return self._do(self._silence(kind))

    def catch(self, word: str) -> None:
        """Hold back the next data that contains this word, and all data after it, until `flow`."""
        self._do(self._catch(word.encode()))

    def flow(self) -> None:
        self._do(self._flow())

    def _do(self, work: Coroutine[None, None, int]) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(END_S)

    def _of(self, kind: str) -> list[Connection]:
        return [each for each in self._connections if each.words == KINDS[kind] and not each.silent]

    async def _begin(self) -> int:
        self._server = await asyncio.start_server(self._connect, HOST, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return 0

    async def _end(self) -> int:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return 0

    async def _count(self, kind: str) -> int:
        return len(self._of(kind))

    async def _reset(self, kind: str) -> int:
        found = self._of(kind)
        for each in found:
            near: socket.socket = each.writer.get_extra_info("socket")
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            each.writer.transport.abort()
        return len(found)

    async def _silence(self, kind: str) -> int:
        found = self._of(kind)
        for each in found:
            each.silent = True
        return len(found)

    async def _catch(self, wanted: bytes) -> int:
        self._caught.clear()
        self._wanted = wanted
        await self._caught.wait()
        return 0

    async def _flow(self) -> int:
        self._wanted = b""
        self._flows.set()
        return 0

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        connection, far_writer = Connection(writer), None
        self._connections.add(connection)
        try:
            with suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
                await self._pass_on(connection, (reader, far_writer), (far_reader, writer))
        finally:
            self._connections.discard(connection)
            self._tasks.discard(task)
            for each in (writer, far_writer):
                if each:
                    each.transport.abort()

    async def _pass_on(self, connection: Connection, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Forward both ways until one side closes."""
        tasks = [asyncio.create_task(self._pass(connection, *way)) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if writer is not connection.writer:
                connection.hear(data)
                if self._wanted and self._wanted in data:
                    self._wanted = b""
                    self._flows.clear()
                    self._caught.set()
            await self._flows.wait()
            if not connection.silent:
                writer.write(data)
                await writer.drain()
