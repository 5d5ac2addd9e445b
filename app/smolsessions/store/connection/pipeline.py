"""The line to a partition's server: commands in one pipeline, news of it, and, if asked for, a replica's witness."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from smolsessions.core.errors import StoreUnavailableError
from smolsessions.store.connection.command import write
from smolsessions.store.connection.replica_ack import ReplicaAck
from smolsessions.store.connection.server_errors import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from redis.asyncio.connection import AbstractConnection

    from smolsessions.store.connection.command import Command
    from smolsessions.store.connection.servers import Servers

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0
STALLED_S = 0.5
BEAT_S = 15.0
SAY_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
_WRONG_SERVER = (NoScriptError, ReadOnlyError, MasterDownError, MovedError, ClusterDownError)
_NOT_NOW = (*_WRONG_SERVER, OutOfMemoryError, AskError, TryAgainError)

Reply = asyncio.Future[Any]


class Pipeline:
    """Sends whatever any task wants in as few packets as possible; answers come back in order.

    A command that was on its way when the line broke fails with `StoreUnavailableError`: its outcome is unknown, so
    whoever sent it decides whether it may be sent again. Commands wait for a line that is being made. All connections
    of a line are to one server, and break together: in a failover it moves as a whole.
    """

    def __init__(
        self,
        servers: Servers,
        partition: str,
        *,
        on_connect: Iterable[Command],
        on_return: Iterable[Command],
        on_loss: Callable[[], None],
        replicated: bool,
    ) -> None:
        """Take whom to ask, the commands that open every connection, and who hears of lost ones.

        `on_return` is sent on every line but the first; what becomes of it is nobody's concern. `replicated`: nothing
        that the server says is passed on before a replica has it.
        """
        self._servers = servers
        self._partition = partition
        self._on_return = tuple(on_return)
        self._on_loss = on_loss
        self._witness = ReplicaAck(partition) if replicated else None
        self._on_connect = [*on_connect, *([self._witness.opening] if self._witness else [])]
        self._heard: Mapping[bytes, Callable[[bytes, bytes], None]] = {}
        self._on_gap: Callable[[], None] = lambda: None
        self._was_open = self._is_open = False
        self._waiting: deque[tuple[Command, Reply, bool]] = deque()
        self._sent: deque[tuple[float, Reply, bool]] = deque()
        self._news = asyncio.Event()
        self._is_heard = asyncio.Event()
        self._heard_at = self._said_at = 0.0
        self._said: set[str] = set()

    def listen(self, heard: Mapping[str, Callable[[bytes, bytes], None]], on_gap: Callable[[], None]) -> None:
        """Say who hears which channel, before `run`; `on_gap` hears that messages may have been lost."""
        self._heard = {channel.encode(): hear for channel, hear in heard.items()}
        self._on_gap = on_gap

    @property
    def is_up(self) -> bool:
        """The server answers, as far as is known."""
        return self._is_open and not (self._sent and self._silence_s > STALLED_S)

    def send(self, *command: str | bytes | int, told: bool = True) -> Reply:
        """Queue a command and give the future of its answer (bytes, ints and lists of them).

        One whose answer is not `told` to anybody, whatever it is, needs no witness.
        """
        answer: Reply = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer, told))
        self._news.set()
        return answer

    async def run(self) -> None:
        """Keep the line up until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._serve()
                except (RedisError, OSError, TimeoutError) as error:
                    self._say_lost(error)
                except Exception:
                    log.exception(
                        "partition %s: its line met a defect", self._partition, extra={"action": "store.lost"}
                    )
                self._on_loss()
                self._fail(StoreUnavailableError())
                pause_s = FIRST_PAUSE_S if self._is_open else min(2 * pause_s, LONGEST_PAUSE_S)
                self._is_open = False
                await asyncio.sleep(pause_s)
        finally:
            self._fail(StoreUnavailableError("The service is closing its connection to the store."))

    async def _serve(self) -> None:
        """Open all connections, and work until one of them breaks."""
        opened: list[AbstractConnection] = []
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                commands = await self._open(opened)
                await _ask(commands, self._on_connect)
                news = await self._open(opened)
                await _ask(news, [("SSUBSCRIBE", channel) for channel in self._heard])
                witness = await self._open(opened) if self._witness else None
            self._is_open = True
            self._certain().add_done_callback(self._say_back)
            if self._was_open:
                for command in self._on_return:
                    self.send(*command)
            self._was_open = True
            self._on_gap()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(commands))
                tasks.create_task(self._read(commands))
                tasks.create_task(self._watch())
                tasks.create_task(self._hear_news(news))
                tasks.create_task(self._beat(news))
                if self._witness and witness:
                    tasks.create_task(self._witness.run(witness))
        except* (RedisError, OSError, TimeoutError) as group:
            raise _first(group) from None
        finally:
            for connection in opened:
                await connection.disconnect(nowait=True)

    async def _open(self, opened: list[AbstractConnection]) -> AbstractConnection:
        client = await self._servers.client(self._partition)
        connection: AbstractConnection = client.connection_pool.make_connection()
        opened.append(connection)
        await connection.connect()
        if _place(connection) != _place(opened[0]):
            raise ConnectionError("the store's server has just changed")
        return connection

    async def _hear_news(self, connection: AbstractConnection) -> NoReturn:
        while True:
            kind, *rest = await connection.read_response(disable_decoding=True)
            if kind == b"smessage":
                channel, payload = rest
                self._pass_on(self._heard[channel], channel, payload)
            elif kind == b"ssubscribe":
                self._is_heard.set()
            elif kind == b"sunsubscribe":
                raise ConnectionError("the partition is moving to another server")

    async def _beat(self, news: AbstractConnection) -> NoReturn:
        """Use what is seldom used, so that nothing between cuts it as idle, and a dead end of it shows.

        What is subscribed to is subscribed to again, which changes nothing: a PING would be one right more.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            self.send("TIME", told=False)
            self._is_heard.clear()
            self._certain()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await write(news, [("SSUBSCRIBE", next(iter(self._heard)))])
                await self._is_heard.wait()

    def _say_lost(self, error: Exception) -> None:
        """Say each reason at once, and now and then while it lasts: what keeps a line away is seldom what broke it."""
        now, why = asyncio.get_running_loop().time(), error_text(error)
        if why not in self._said or now - self._said_at > SAY_S:
            self._said_at = now
            self._said.add(why)
            log.warning("partition %s is away: %s", self._partition, why, extra={"action": "store.lost"})

    def _say_back(self, certain: Reply) -> None:
        """Say it when all is as it should be: a server alone is not, where a replica must have what it says."""
        if self._said_at and not certain.exception():
            self._said_at = 0.0
            self._said.clear()
            log.info("partition %s is back", self._partition, extra={"action": "store.back"})

    def _pass_on(self, hear: Callable[[bytes, bytes], None], channel: bytes, payload: bytes) -> None:
        if not self._witness:
            hear(channel, payload)
            return
        # One that is refused is lost, as messages may be: whoever waits for it looks for himself.
        self._certain().add_done_callback(lambda answer: None if answer.exception() else hear(channel, payload))

    def _certain(self) -> Reply:
        """Give what is done when a replica has all that there is now; at once where none is asked."""
        answer: Reply = asyncio.get_running_loop().create_future()
        if self._witness:
            self._witness.hold(answer, None)
        else:
            answer.set_result(None)
        return answer

    async def _write(self, connection: AbstractConnection) -> NoReturn:
        clock = asyncio.get_running_loop().time
        while True:
            await self._news.wait()
            self._news.clear()
            batch = list(self._waiting)
            self._waiting.clear()
            at = clock()
            self._sent.extend((at, answer, told) for _, answer, told in batch)
            await write(connection, [command for command, _, _ in batch])

    async def _read(self, connection: AbstractConnection) -> NoReturn:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                value = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                value = error
            self._heard_at = clock()
            _, answer, told = self._sent.popleft()
            if isinstance(value, ResponseError):
                self._on_loss()
                _refuse(answer, StoreUnavailableError() if _is_not_now(value) else value)
                if isinstance(value, _WRONG_SERVER):
                    raise value  # it forgot what opens a connection, or was demoted: open another one
            elif self._witness and told:
                self._witness.hold(answer, value)
            elif not answer.done():
                answer.set_result(value)

    async def _watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(ANSWER_TIMEOUT_S / 5)
            if self._sent and self._silence_s > ANSWER_TIMEOUT_S:
                raise TimeoutError(f"no answer for {ANSWER_TIMEOUT_S:g} s")

    @property
    def _silence_s(self) -> float:
        return asyncio.get_running_loop().time() - max(self._sent[0][0], self._heard_at)

    def _fail(self, error: StoreUnavailableError) -> None:
        answers = [answer for _, answer, _ in (*self._sent, *self._waiting)]
        self._sent.clear()
        self._waiting.clear()
        if self._witness:
            self._witness.give_up(error)
        for answer in answers:
            _refuse(answer, error)


def _refuse(answer: Reply, error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # seen: a write that nobody awaits must not be reported as never retrieved


async def _ask(connection: AbstractConnection, commands: Sequence[Command]) -> None:
    await write(connection, commands)
    for _ in commands:
        await connection.read_response()


def _place(connection: AbstractConnection) -> tuple[object, object]:
    return getattr(connection, "host", None), getattr(connection, "port", None)


def _is_not_now(error: ResponseError) -> bool:
    return isinstance(error, _NOT_NOW) or str(error).startswith("NOREPLICAS")


def _first(group: BaseExceptionGroup) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
