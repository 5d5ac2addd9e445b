"""Partitions of a store, and the conversations in them."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from smolsessions.core.errors import SealBrokenError, StoreUnavailableError
from smolsessions.core.events import Logged
from smolsessions.core.records import NO_SETTINGS, ConversationSettings, Ref
from smolsessions.store import codec
from smolsessions.store.connection.commands import Reply
from smolsessions.store.connection.pipeline import KEEPALIVE_S, REPLY_TIMEOUT_S, Pipeline
from smolsessions.store.scripts.loader import PERIODIC, SAFE_TO_REPEAT, Argument, reply_of, script
from smolsessions.store.seal import Sealer

PATIENCE_S, RETRY_S = 1.0, 0.1  # a broken connection mostly recovers in this time
MOST_KNOWN_SETTINGS = 10_000
COPIED = frozenset({"turn", "log", "event", "step", "image", "variable", "variables"})
"""Blobs that a fork copies as its origin sealed them."""
OF_TURNS = frozenset({"turn", "log", "event"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a store.

    `max_behind` bounds the turns behind a conversation's first, `max_queued` the conversations of an agent that wait
    for a thread. `partitions` is the number that the store must have, if any. `replicated`: no write is acknowledged
    before a replica has it. `patience_s` reserves a begun turn for workers with its agent's fingerprint, `affinity_s` a
    conversation for its last worker. `expects_data` refuses an empty store.
    `keepalive_s` is the pause between two probes of an idle connection.
    `ours_alone`: no other process uses the store, so all leases of an earlier process end at once.
    """

    lease_s: float
    log_ttl_s: int
    max_behind: int
    max_queued: int
    id_reuse_s: int = 3600
    partitions: int | None = None
    replicated: bool = False
    patience_s: float = 0.0
    affinity_s: float = 0.0
    expects_data: bool = False
    keepalive_s: float = KEEPALIVE_S
    reply_timeout_s: float = REPLY_TIMEOUT_S
    ours_alone: bool = False

    @property
    def lease_us(self) -> int:
        return int(self.lease_s * 1_000_000)


class Reader(Protocol):
    """Reader of one conversation's events in this process."""

    def push(self, turn: int, logged: Logged) -> None: ...

    def look(self) -> None:
        """Read the log."""


class Readers:
    """Readers of one conversation in this process. Held by each reader, and by the lease of a running turn."""

    def __init__(self) -> None:
        self.members: set[Reader] = set()
        self.following = 0
        """Number of readers that follow all events. Safe to read in any thread."""

    def deliver(self, turn: int, logged: Logged) -> None:
        for reader in self.members:
            reader.push(turn, logged)


class Partition:
    """One partition. `channel` carries the events of turns to this process, `wake` tells workers of ready turns."""

    def __init__(self, pipeline: Pipeline, sealer: Sealer, process_id: str, options: Options) -> None:
        self.name = name = pipeline.partition
        self._pipeline = pipeline
        self.sealer = sealer
        self.channel = f"{name}:replica:{process_id}"
        self.stop_channel = f"{name}:stop:{process_id}"
        self.wake = f"{name}:wake"
        self.options = options
        self.readers: WeakValueDictionary[Ref, Readers] = WeakValueDictionary()
        self.settings: OrderedDict[str, tuple[bytes, ConversationSettings]] = OrderedDict()
        """Settings of conversations as last read, by name, with their blobs."""

    @property
    def is_up(self) -> bool:
        return self._pipeline.is_up

    def scope(self, name: str) -> Scope:
        return Scope(self, name)

    def readers_of(self, ref: Ref) -> Readers:
        """Return the readers of a conversation, the same object as long as it is in use."""
        return self.readers.setdefault(ref, Readers())

    def deliver(self, ref: Ref, turn: int, logged: Logged) -> None:
        if readers := self.readers.get(ref):
            readers.deliver(turn, logged)

    def on_gap(self) -> None:
        """Make every reader read the log: messages may have been lost."""
        for readers in self.readers.values():
            for reader in readers.members:
                reader.look()

    def ask(self, *command: Argument) -> Reply:
        """Queue a command of the server."""
        return self._pipeline.send(*command)

    def send(self, name: str, *rest: Argument, **named: Argument) -> Reply:
        """Queue the call of a script. Calls run in the order in which they are queued."""
        command = script(name).command(self._pipeline.partition, rest, named)
        return self._pipeline.send(*command, acknowledged=name not in PERIODIC)

    async def call(self, name: str, *rest: Argument, **named: Argument) -> Any:
        """Run a script and return its reply. Idempotent scripts are retried for `PATIENCE_S`."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await reply_of(name, self.send(name, *rest, **named))
            except StoreUnavailableError:
                if name not in SAFE_TO_REPEAT or time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(RETRY_S)


@dataclass(frozen=True, slots=True)
class Scope:
    """One conversation in its partition: its scripts, and its seal, which also opens blobs of a fork's origins."""

    partition: Partition
    name: str

    def call(self, script: str, *rest: Argument, **named: Argument) -> Coroutine[Any, Any, Any]:
        return self.partition.call(script, *rest, ref=self.name, **named)

    def seal(self, data: bytes, *place: str | int, packed: bytes | None = None) -> bytes:
        return self.partition.sealer.seal(data, self.name, *place, packed=packed)

    def settings(self, blob: bytes | None) -> ConversationSettings:
        """Open the conversation's settings, if it has any, and remember its origins."""
        cache = self.partition.settings
        if not blob:
            cache.pop(self.name, None)
            return NO_SETTINGS
        known = cache.get(self.name)
        if known is None or known[0] != blob:
            known = (blob, codec.decode_settings(self.partition.sealer.open(blob, self.name, "settings")))
            cache[self.name] = known
        cache.move_to_end(self.name)
        if len(cache) > MOST_KNOWN_SETTINGS:
            cache.popitem(last=False)
        return known[1]

    def seal_settings(self, settings: ConversationSettings) -> bytes:
        """Seal the conversation's settings. Most have none."""
        return self.seal(codec.encode_settings(settings), "settings") if settings != NO_SETTINGS else b""

    def open(self, blob: bytes, *place: str | int, is_past_head: bool = False) -> bytes:
        """Open a blob that was sealed for this place in the conversation or in one of its origins.

        `is_past_head`: a head that the conversation or one of its origins had after an earlier turn.
        """
        return self._from_origins(self.partition.sealer.open, blob, place, is_past_head=is_past_head)

    def rekey(self, blob: bytes, *place: str | int) -> bytes:
        """Seal a blob of the conversation, or of one of its origins, again with the first key."""
        return self._from_origins(self.partition.sealer.rekey, blob, place, is_past_head=place == ("head",))

    def _from_origins(
        self, work: Callable[..., bytes], blob: bytes, place: tuple[str | int, ...], *, is_past_head: bool
    ) -> bytes:
        try:
            return work(blob, self.name, *place)
        except SealBrokenError:
            known = self.partition.settings.get(self.name)
            for origin in known[1].lineage if known and (is_past_head or place[0] in COPIED) else ():
                if place[0] in OF_TURNS and int(place[1]) > origin.turn:
                    break  # later than the fork
                with suppress(SealBrokenError):
                    return work(blob, origin.scope, *place)
            raise

    def open_all(self, blobs: Sequence[tuple[int, bytes]], *place: str | int) -> list[bytes]:
        """Open blobs whose places begin with `place`. The last part of each comes with the blob."""
        try:
            return self.partition.sealer.open_all(blobs, self.name, *place)
        except SealBrokenError:  # one is an origin's, or broken
            return [self.open(blob, *place, part) for part, blob in blobs]


class Partitions:
    """All partitions. The partition of a name never changes, in any process."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = tuple(partitions)

    def of(self, ref: Ref) -> Partition:
        return self.named(str(ref))

    def scope(self, ref: Ref) -> Scope:
        name = str(ref)
        return self.named(name).scope(name)

    def named(self, name: str) -> Partition:
        count = len(self._partitions)
        return self._partitions[zlib.crc32(name.encode()) % count if count > 1 else 0]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)


@dataclass(frozen=True, slots=True)
class SealedMetadata:
    """Metadata of a conversation, opened when they are called for. Equal if the conversation's record is the same."""

    blob: bytes
    scope: Scope = field(compare=False)

    def __call__(self) -> dict[str, Any]:
        return codec.decode_metadata(self.scope.open(self.blob, "conversation"))
