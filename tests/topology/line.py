"""Line to a server, which can be silent towards clients at chosen addresses, and which ends TLS if asked."""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TypeVar

from tests.support.waiting import PATIENCE_S
from tests.topology.node import HOST, free_port

CHUNK_BYTES = 1 << 16
TLS_HANDSHAKE = b"\x16"
T = TypeVar("T")


@dataclass(eq=False)
class Connection:
    """A client's connection, and the one that was made for it. `words` and `tail` are of its subclass `Exchange`."""

    address: str
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    silent: bool = False
    tail: bytes = b""


class Line:
    """Listens from `open` on, in a thread of its own, until `close`.

    A client that begins with a TLS handshake is answered in TLS if the line has a context. All other traffic is
    forwarded unchanged, because the server's own replicas do not speak TLS.
    """

    def __init__(self, tls: SSLContext | None = None) -> None:
        self.port = free_port()
        self._tls = tls
        self._cut: set[str] = set()
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def open(self, target_port: int) -> None:
        listening = socket.create_server((HOST, self.port), backlog=100)
        listening.setblocking(False)
        self._listening, self._target = listening, target_port
        self._thread.start()
        self._do(self._begin())

    def cut(self, address: str) -> None:
        """Fall silent towards an address, like a network that drops its packets. Neither side sees an error."""
        self._cut.add(address)

    def mend(self, address: str) -> None:
        self._cut.discard(address)
        self._do(self._break(address))

    def close(self) -> None:
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _begin(self) -> None:
        self._keep(self._accept())

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listening.close()

    async def _break(self, address: str) -> None:
        for connection in self._connections:
            if connection.address == address:
                for writer in connection.writers:
                    writer.transport.abort()

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            near, (address, *_) = await self._loop.sock_accept(self._listening)
            near.setblocking(False)
            self._keep(self._connect(near, Connection(address)))

    async def _connect(self, near: socket.socket, connection: Connection) -> None:
        self._connections.add(connection)
        try:
            with suppress(OSError):
                reader, writer = await self._streams(near)
                connection.writers.append(writer)
                far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
                connection.writers.append(far_writer)
                ways = ((reader, far_writer), (far_reader, writer))
                tasks = [asyncio.create_task(self._pass_on(connection, *way)) for way in ways]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            for writer in connection.writers:
                writer.transport.abort()
            if not connection.writers:
                near.close()

    async def _streams(self, near: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ssl = self._tls
        if ssl and await self._first(near) != TLS_HANDSHAKE:
            ssl = None
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, near, ssl=ssl)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _first(self, near: socket.socket) -> bytes:
        readable = asyncio.Event()
        self._loop.add_reader(near, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(near)
        return near.recv(1, socket.MSG_PEEK)

    async def _pass_on(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                self._hear(connection, data, is_command=writer is connection.writers[1])
                if connection.silent or connection.address in self._cut:
                    await asyncio.Event().wait()  # no more data comes through; `mend` breaks the connection
                writer.write(data)
                await writer.drain()

    def _hear(self, connection: Connection, data: bytes, *, is_command: bool) -> None:
        """Look at the data before it is forwarded."""
