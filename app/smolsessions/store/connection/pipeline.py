"""Pipelining connection to the server of one partition, with its subscriptions and, if asked for, replica acks."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NoReturn

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection

from smolsessions.core.errors import StoreFullError, StoreUnavailableError
from smolsessions.store.connection.commands import Command, Reply, ask, pack, refuse
from smolsessions.store.connection.replica_ack import ReplicaAck
from smolsessions.store.connection.reply_protocol import ReplyProtocol
from smolsessions.store.connection.server_errors import error_text
from smolsessions.store.connection.servers import Servers

Handler = Callable[[bytes], None]

log = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 5.0
STALLED_S = 0.5
KEEPALIVE_S = 15.0
LOG_AGAIN_S = 30.0
MOST_OPENING = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
_WRONG_SERVER = (
    exceptions.NoScriptError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.MovedError,
    exceptions.ClusterDownError,
    exceptions.ConnectionError,
)
_TEMPORARY = (*_WRONG_SERVER, exceptions.AskError, exceptions.TryAgainError)


class Pipeline:
    """Sends the commands of all tasks over one connection. Replies come in order.

    A command in flight when the connection breaks fails with `StoreUnavailableError`: its outcome is unknown, so the
    caller decides about a retry. Commands queue while a connection is made. All connections of a pipeline lead to one
    server and break together, so that a failover moves them together.
    """

    def __init__(
        self,
        servers: Servers,
        partition: str,
        *,
        on_connect: Iterable[Command],
        on_reconnect: Iterable[Command],
        on_loss: Callable[[str], None],
        openings: Mapping[Redis, asyncio.Semaphore],
        replicated: bool,
        keepalive_s: float,
        reply_timeout_s: float,
    ) -> None:
        """`on_connect` opens every connection. `on_reconnect` is sent after a loss, and may fail.

        `openings` admits `MOST_OPENING` pipelines to each server at the start of the process.
        `on_loss` is called with the cause: `lost`, `refused` or `full`.
        `replicated`: replies and messages wait until a replica has the writes before them.
        """
        self._servers, self._openings = servers, openings
        self.partition, self._part = partition, f"the store under the key prefix {partition}"
        self._keepalive_s, self._reply_timeout_s = keepalive_s, reply_timeout_s
        self._on_reconnect = tuple(on_reconnect)
        self._on_loss = on_loss
        self._ack = ReplicaAck(partition) if replicated else None
        self._on_connect = [*on_connect, *([self._ack.opening] if self._ack else [])]
        self._handlers: Mapping[bytes, Handler] = {}
        self._on_gap: Callable[[], None] = lambda: None
        self._was_open = self._is_open = False
        self._loop = asyncio.get_running_loop()
        self._commands: ReplyProtocol | None = None
        self._queue: deque[tuple[bytes, Reply, bool]] = deque()
        self._sent: deque[tuple[float, Reply, bool]] = deque()
        self._is_subscribed = asyncio.Event()
        self._received_at = self._logged_at = self._full_at = 0.0
        self._logged: set[str] = set()

    def listen(self, handlers: Mapping[str, Handler], on_gap: Callable[[], None]) -> None:
        """Register the handler of each channel, before `run`. `on_gap`: messages may have been lost."""
        self._handlers = {channel.encode(): handler for channel, handler in handlers.items()}
        self._on_gap = on_gap

    @property
    def is_up(self) -> bool:
        """True if the server answers, as far as is known."""
        return self._is_open and not (self._sent and self._silence_s > STALLED_S)

    def send(self, *command: str | bytes | int, acknowledged: bool = True) -> Reply:
        """Queue a command, and return the future of its reply (bytes, ints and lists of them).

        `acknowledged` False: the reply does not wait for a replica, as it confirms nothing to a client.
        """
        reply: Reply = self._loop.create_future()
        self._queue.append((pack(command), reply, acknowledged))
        self._flush()
        return reply

    async def run(self) -> None:
        """Keep the connections open until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._serve()
                except (exceptions.RedisError, OSError, TimeoutError) as error:
                    # Each new reason at once, and any reason at times: a loss and its persistence often have two.
                    now, why = self._loop.time(), error_text(error)
                    if why not in self._logged or now - self._logged_at > LOG_AGAIN_S:
                        self._logged_at = now
                        self._logged.add(why)
                        log.warning("%s is away: %s", self._part, why, extra={"action": "store.lost"})
                except Exception:  # the line must be opened again in any case
                    log.exception("%s: its connection met a defect", self._part, extra={"action": "store.lost"})
                self._on_loss("lost")
                self._fail(StoreUnavailableError())
                pause_s = FIRST_PAUSE_S if self._is_open else min(2 * pause_s, LONGEST_PAUSE_S)
                self._is_open = False
                await asyncio.sleep(pause_s)
        finally:
            self._fail(StoreUnavailableError("The service is closing its connection to the store."))

    async def _serve(self) -> None:
        """Open all connections, and serve until one of them breaks."""
        opened: list[AbstractConnection] = []

        def log_back(ack: Reply) -> None:
            if self._logged_at and not ack.exception():
                self._logged_at = 0.0
                self._logged.clear()
                log.info("%s is back", self._part, extra={"action": "store.back"})

        try:
            async with asyncio.TaskGroup() as tasks:
                admission: AbstractAsyncContextManager[object] = nullcontext()
                if not self._was_open:  # with TLS, all openings at once can take longer than the timeout of each
                    async with asyncio.timeout(self._reply_timeout_s):
                        admission = self._openings[await self._servers.client(self.partition)]
                async with admission, asyncio.timeout(self._reply_timeout_s):
                    connection = await self._open(opened)
                    await ask(connection, self._on_connect)
                    commands = ReplyProtocol(connection, self._on_reply, self._flush)
                    tasks.create_task(commands.wait_lost())
                    messages = ReplyProtocol(await self._open(opened), self._on_message, lambda: None)
                    tasks.create_task(messages.wait_lost())
                    await self._subscribe(messages)
                    acks = await self._open(opened) if self._ack else None
                self._is_open, self._commands = True, commands
                self._flush()
                self._acknowledged().add_done_callback(log_back)
                for command in self._on_reconnect if self._was_open else ():
                    self.send(*command)
                self._was_open = True
                self._on_gap()
                tasks.create_task(self._check_silence())
                tasks.create_task(self._keep_alive(messages))
                if self._ack and acks:
                    tasks.create_task(self._ack.run(acks))
        except BaseExceptionGroup as group:  # before Python 3.11.4, `raise` in an `except*` stays wrapped
            # Before Python 3.11.3 a task group that a child's failure ends leaves a cancellation in its task. The next
            # `asyncio.timeout`, here or in redis-py, then ends the process with a CancelledError.
            task = asyncio.current_task() if sys.version_info < (3, 11, 3) else None
            while task and task.cancelling():
                task.uncancel()
            _, defects = group.split((exceptions.RedisError, OSError, TimeoutError))
            raise defects or _first(group) from None
        finally:
            self._commands = None
            for connection in opened:
                await connection.disconnect(nowait=True)

    async def _open(self, opened: list[AbstractConnection]) -> AbstractConnection:
        client = await self._servers.client(self.partition)
        connection: AbstractConnection = client.connection_pool.make_connection()
        opened.append(connection)
        if isinstance(connection, SSLConnection) and isinstance(opened[0], SSLConnection):
            connection.ssl_context = opened[0].ssl_context  # to load all authorities takes 10 ms of the event loop
        await connection.connect()
        if _address(connection) != _address(opened[0]):
            raise ConnectionError("the store's server has just changed")
        return connection

    async def _subscribe(self, messages: ReplyProtocol) -> None:
        self._is_subscribed.clear()
        messages.write(pack(("SSUBSCRIBE", *self._handlers)))
        await self._is_subscribed.wait()

    def _on_message(self, message: Any) -> None:
        if isinstance(message, exceptions.RedisError):
            raise message
        kind, channel, payload = message
        if kind == b"smessage":
            handler = self._handlers[channel]
            if not self._ack:
                handler(payload)
                return
            # A message without an ack is lost, as messages may be: its readers read the log again.
            self._acknowledged().add_done_callback(lambda ack: None if ack.exception() else handler(payload))
        elif kind == b"ssubscribe":
            if payload == len(self._handlers):
                self._is_subscribed.set()
        elif kind == b"sunsubscribe":
            raise ConnectionError("the partition is moving to another server")

    async def _keep_alive(self, messages: ReplyProtocol) -> NoReturn:
        """Use idle connections, so that no proxy cuts them. To subscribe again needs no permission, unlike PING."""
        while True:
            await asyncio.sleep(self._keepalive_s)
            self.send("TIME", acknowledged=False)
            self._acknowledged()
            async with asyncio.timeout(self._reply_timeout_s):
                await self._subscribe(messages)

    def _acknowledged(self) -> Reply:
        """Return a future that resolves once a replica has acknowledged all writes so far."""
        reply: Reply = self._loop.create_future()
        if self._ack:
            self._ack.hold(reply, None)
        else:
            reply.set_result(None)
        return reply

    def _flush(self) -> None:
        """Write the queue, unless the connection is not open or its buffer is full."""
        while self._queue and self._commands and self._commands.is_writable:
            packet, reply, acknowledged = self._queue.popleft()
            self._sent.append((self._loop.time(), reply, acknowledged))
            self._commands.write(packet)

    def _on_reply(self, value: Any) -> None:
        self._received_at = self._loop.time()
        _, reply, acknowledged = self._sent.popleft()
        if isinstance(value, exceptions.OutOfMemoryError):
            self._on_loss("full")
            if not self._full_at or self._received_at - self._full_at > LOG_AGAIN_S:
                self._full_at = self._received_at
                log.error(
                    "%s takes no writes, as its memory is full: raise its maxmemory, or delete conversations",
                    self._part,
                    extra={"action": "store.full"},
                )
            refuse(reply, StoreFullError())
        elif isinstance(value, exceptions.RedisError):
            self._on_loss("refused")
            is_temporary = isinstance(value, _TEMPORARY) or str(value).startswith("NOREPLICAS")
            refuse(reply, StoreUnavailableError() if is_temporary else value)
            if isinstance(value, _WRONG_SERVER):
                raise value  # the server was demoted, lost the scripts or loads its data: connect again
        elif self._ack and acknowledged:
            self._ack.hold(reply, value)
        elif not reply.done():
            reply.set_result(value)

    async def _check_silence(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._reply_timeout_s / 5)
            if self._sent and self._silence_s > self._reply_timeout_s:
                raise TimeoutError(f"no answer for {self._reply_timeout_s:g} s")

    @property
    def _silence_s(self) -> float:
        return self._loop.time() - max(self._sent[0][0], self._received_at)

    def _fail(self, error: StoreUnavailableError) -> None:
        replies = [reply for _, reply, _ in (*self._sent, *self._queue)]
        self._sent.clear()
        self._queue.clear()
        if self._ack:
            self._ack.fail(error)
        for reply in replies:
            refuse(reply, error)


def _address(connection: AbstractConnection) -> tuple[object, object]:
    return getattr(connection, "host", None), getattr(connection, "port", None)


def _first(group: BaseExceptionGroup) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
