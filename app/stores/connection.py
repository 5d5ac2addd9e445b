"""The way to the server: one pipelining connection for all commands of the process, and one that listens."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis.asyncio import Redis
from redis.exceptions import (
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from app.errors import StartError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redis.asyncio.connection import AbstractConnection

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
_WRONG_SERVER = (NoScriptError, ReadOnlyError, MasterDownError)
_NOT_NOW = (*_WRONG_SERVER, OutOfMemoryError)

Command = tuple[str | bytes | int, ...]
Answer = asyncio.Future[Any]


def connect(url: str) -> Redis:
    """Make a client of a `redis://`, `rediss://` or `unix://` address; nothing is sent yet."""
    try:
        client = Redis.from_url(url, socket_timeout=None, socket_connect_timeout=CONNECT_TIMEOUT_S, protocol=2)
        client.connection_pool.make_connection()  # an option in the address that nothing takes shows here
    except TypeError as error:  # names the option and holds no value
        raise StartError(f"SMOLSESSIONS_REDIS_URL has an option that nothing takes: {error}") from error
    except ValueError:
        raise StartError(
            "SMOLSESSIONS_REDIS_URL is not an address of a Redis server: redis://user:password@host:port, rediss:// or "
            "unix://; write reserved letters of a password in percent form"
        ) from None
    return client


class Pipeline:
    """Sends whatever any task wants in as few packets as possible; answers come back in order.

    A command that was on its way when the connection broke fails with `StoreUnavailableError`: its outcome is unknown,
    so whoever sent it decides whether it may be sent again. Commands wait for a connection that is being made.
    """

    def __init__(
        self, client: Redis, on_connect: Iterable[Command], on_return: Iterable[Command], on_loss: Callable[[], None]
    ) -> None:
        """Take the client to connect with, the commands that open every connection, and who hears of lost ones.

        `on_return` is sent on every connection but the first.
        """
        self._on_loss = on_loss
        self._client = client
        self._on_connect = tuple(on_connect)
        self._on_return = tuple(on_return)
        self._waiting: deque[tuple[Command, Answer]] = deque()
        self._sent: deque[tuple[float, Answer]] = deque()
        self._news = asyncio.Event()
        self._heard_at = 0.0

    def send(self, *command: str | bytes | int) -> Answer:
        """Queue a command and give the future of its answer (bytes, ints and lists of them)."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        self._news.set()
        return answer

    async def run(self) -> None:
        """Keep one connection up until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    connection = await self._open()
                    pause_s = FIRST_PAUSE_S
                    self._on_connect += self._on_return
                    self._on_return = ()
                    await self._serve(connection)
                except (RedisError, OSError, TimeoutError) as error:
                    self._on_loss()
                    log.warning("the store does not answer: %s", error, extra={"action": "store.lost"})
                    self._fail(StoreUnavailableError())
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._fail(StoreUnavailableError("The service is closing its connection to the store."))

    async def _open(self) -> AbstractConnection:
        connection: AbstractConnection = self._client.connection_pool.make_connection()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await connection.connect()
            for command in self._on_connect:
                await connection.send_packed_command(_packed(command), check_health=False)
                await connection.read_response()
        return connection

    async def _serve(self, connection: AbstractConnection) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(connection))
                tasks.create_task(self._read(connection))
                tasks.create_task(self._watch())
        except* (RedisError, OSError, TimeoutError) as group:
            raise group.exceptions[0] from None
        finally:
            await connection.disconnect(nowait=True)

    async def _write(self, connection: AbstractConnection) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._news.wait()
            self._news.clear()
            batch = list(self._waiting)
            self._waiting.clear()
            at = clock()
            self._sent.extend((at, answer) for _, answer in batch)
            packed = [_packed(command) for command, _ in batch]
            try:
                await connection.send_packed_command(packed, check_health=False)
            except RuntimeError as error:  # uvloop's word for a transport that was reset meanwhile
                raise ConnectionError(str(error)) from error

    async def _read(self, connection: AbstractConnection) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                value = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                value = error
            self._heard_at = clock()
            _, answer = self._sent.popleft()
            if answer.done():
                continue
            if isinstance(value, ResponseError):
                self._on_loss()
                answer.set_exception(StoreUnavailableError() if isinstance(value, _NOT_NOW) else value)
                if isinstance(value, _WRONG_SERVER):
                    raise value  # it forgot what opens a connection, or was demoted: open another one
            else:
                answer.set_result(value)

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(ANSWER_TIMEOUT_S / 5)
            if self._sent and clock() - max(self._sent[0][0], self._heard_at) > ANSWER_TIMEOUT_S:
                raise TimeoutError(f"no answer for {ANSWER_TIMEOUT_S:g} s")

    def _fail(self, error: StoreUnavailableError) -> None:
        answers = [answer for _, answer in self._sent] + [answer for _, answer in self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: a write that nobody awaits must not be reported as never retrieved


def _packed(command: Command) -> bytes:
    # Not redis-py's own way, which is in Python: a tenth of a short turn. (The stub means tuples of any length.)
    packed: bytes = pack_command(command)  # type: ignore[arg-type]
    return packed


class Listener:
    """One subscription of this process; `on_message` gets channel and payload, `on_gap` hears that some may be lost."""

    def __init__(
        self,
        client: Redis,
        channels: Iterable[str | bytes],
        on_message: Callable[[bytes, bytes], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._client = client
        self._channels = tuple(channels)
        self._on_message = on_message
        self._on_gap = on_gap

    async def run(self) -> None:
        """Stay subscribed until cancelled."""
        while True:
            with suppress(RedisError, OSError, TimeoutError):
                await self._listen()
            await asyncio.sleep(LONGEST_PAUSE_S)

    async def _listen(self) -> None:
        async with self._client.pubsub() as pubsub:
            await pubsub.ssubscribe(*self._channels)
            self._on_gap()
            async for message in pubsub.listen():
                if message["type"] == "smessage":
                    self._on_message(message["channel"], message["data"])
