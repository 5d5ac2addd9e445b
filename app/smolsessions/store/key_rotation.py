"""Rotation of seal keys: count the records of each key, and seal those of older keys again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from smolsessions.core.errors import SealBrokenError
from smolsessions.store import codec
from smolsessions.store.connection.servers import Servers
from smolsessions.store.partition import Partition, Scope
from smolsessions.store.scripts.loader import script
from smolsessions.store.seal import tag_of
from smolsessions.store.turns.chunk_writes import STAGED

KEYS_AT_ONCE = 16  # of the server; a part of one is at most some MiB
SCANNED_AT_ONCE = 500
MOST_PASSES = 10
COPY_S = 1.0  # a pause for copies under way; most take less
MOST_BYTES = 1024 * 1024  # of one call, except for a larger record
COUNT_S = 3.0
NO_KEY = "-"
NUMBERED = frozenset({"steps", "variables", "pending", "run", "journal", "log"})  # their names end with a number
KINDS = NUMBERED | {"conversation", "turns", "images", "heads", "logs", "old"}
_DAMAGED = (SealBrokenError, ResponseError, ValueError, KeyError)
_FIELDS = {b"record": "conversation", b"head": "head", b"settings": "settings", b"title": "title"}


@dataclass
class Rekeyed:
    """Numbers of records that were sealed again, and of those that cannot be opened. `example` is the key of one.

    `is_complete`: the last pass found no other record of an older key.
    """

    records: int = 0
    unreadable: int = 0
    example: str = ""
    is_complete: bool = False

    def skip(self, name: bytes, records: int = 1) -> None:
        self.unreadable += records
        self.example = name.decode(errors="replace")


async def rekey(partitions: Iterable[Partition], progress: Callable[[int], None]) -> Rekeyed:
    """Seal all records with the first key. `progress` gets the number of the server's keys that were read since.

    It repeats until it finds nothing to do: a fork may copy records to a place that was read already. A copy that was
    under way when a pass began may have got its names behind that pass.
    """
    result = Rekeyed()
    for _ in range(MOST_PASSES):
        before, result.unreadable = result.records, 0
        are_copied = await _are_copied(partitions)
        for partition in partitions:
            async for names in _scanned(partition):
                for start in range(0, len(names), KEYS_AT_ONCE):
                    some = names[start : start + KEYS_AT_ONCE]
                    await asyncio.gather(*(_rekey_key(partition, name, result) for name in some))
                    progress(len(some))
        if are_copied:
            await asyncio.sleep(COPY_S)
        elif result.records == before:
            result.is_complete = True
            break
    return result


async def records_by_key(servers: Servers, partitions: int) -> tuple[Counter[str], bool]:
    """Count sealed records by the id of their key. Returns whether these are all: it stops after `COUNT_S`."""
    counts, end = Counter[str](), time.monotonic() + COUNT_S
    for number in range(partitions):
        partition = f"{{p{number:03}}}"
        client = await servers.client(partition)
        await client.script_load(script("sealed").source)
        async for name in client.scan_iter(f"{partition}:*", SCANNED_AT_ONCE):
            cursor: Any = 0
            while cursor is not None:
                if time.monotonic() > end:
                    return counts, False
                command = script("sealed").command(partition, (), {"server_key": name, "own": "", "cursor": cursor})
                found: Any = await client.execute_command(*command)
                for key_id, count in zip(found[1][::2], found[1][1::2], strict=True):
                    counts[key_id.decode(errors="replace")] += count
                cursor = found[0] if int(found[0]) else None
    return counts, True


async def _are_copied(partitions: Iterable[Partition]) -> bool:
    """Return whether copies under way hold records that another key sealed."""
    for partition in partitions:
        async for names in _scanned(partition, "staged:*"):
            for name in names:
                async for _ in _records(partition, name, partition.sealer.writing_id):
                    return True
    return False


async def _scanned(partition: Partition, pattern: str = "*") -> AsyncIterator[list[bytes]]:
    cursor: Any = b"0"
    while cursor is not None:
        match = f"{partition.name}:{pattern}"
        cursor, names = await partition.ask("SCAN", cursor, "MATCH", match, "COUNT", SCANNED_AT_ONCE)
        yield names
        cursor = cursor if int(cursor) else None


async def _rekey_key(partition: Partition, name: bytes, result: Rekeyed) -> None:
    _, kind, rest = f"{name.decode(errors='replace')}:".split(":", 2)
    if kind not in KINDS:
        return
    rest = rest.removesuffix(":")
    ref, _, number = rest.rpartition(":") if kind in NUMBERED else (rest, "", "")
    scope, chunk_names = partition.scope(ref), dict[bytes, str]()
    async for records in _records(partition, name, partition.sealer.writing_id):
        try:
            conversation = f"{partition.name}:conversation:{ref}"
            settings = await partition.ask("HGET", conversation, "settings")
            scope.settings(settings)  # they name the origins, whose lists of chunks a fork has
            if kind == "old" and not chunk_names:
                chunk_names = await _chunk_names(scope, name)
        except _DAMAGED:
            result.skip(name, len(records))
            continue
        changes, size = list[bytes](), 0
        for field, value in records:
            event, line, blob = value.partition(b"\n") if kind == "log" else (b"", b"", value)
            try:
                if kind == "old":
                    field_name = chunk_names.get(tag_of(blob), "")
                    place = _place("variables", "0", field_name.encode(), "")
                else:
                    place = _place(kind, number, field, codec.text(event))
                changes += (field, value, event + line + scope.rekey(blob, *place))
                size += len(value)
            except _DAMAGED:  # or no list names this chunk any more
                result.skip(name)
            if size > MOST_BYTES:
                await _write(partition, name, changes, result)
                changes, size = [], 0
        await _write(partition, name, changes, result)


async def _write(partition: Partition, name: bytes, changes: list[bytes], result: Rekeyed) -> None:
    if changes:
        replaced = await partition.call("rekey", *changes, server_key=name)
        result.records += replaced


async def _records(partition: Partition, name: bytes, own: str) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Yield places and values that another key than `own` sealed, some at a time."""
    cursor: Any = 0
    while cursor is not None:
        cursor, _, found = await partition.call("sealed", server_key=name, own=own, cursor=cursor)
        places = [b"%d" % place if isinstance(place, int) else place for place in found[::2]]
        if places:
            yield list(zip(places, found[1::2], strict=True))
        cursor = cursor if int(cursor) else None


async def _chunk_names(scope: Scope, name: bytes) -> dict[bytes, str]:
    """Return the names of replaced chunks by tag. The lists are among them, and have no name."""
    partition = scope.partition
    blobs = [await partition.ask("HGET", f"{partition.name}:variables:{scope.name}:0", "")]
    names: dict[bytes, str] = {}
    async for records in _records(partition, name, NO_KEY):
        blobs += [blob for _, blob in records]
        for blob in blobs:
            with suppress(SealBrokenError):
                listed = codec.decode_chunk_list(scope.open(blob or b"", "variables", "0"))
                names |= {tag: chunk for chunk, tag in listed.items()}
        blobs.clear()
    return names


def _place(kind: str, number: str, field: bytes, event: str) -> tuple[str, ...]:
    name = codec.text(field).partition(STAGED)[0]
    place: tuple[str, ...] = ("variable", number, name) if name else ("variables", number)
    match kind:
        case "conversation":
            place = (_FIELDS[field],)
        case "turns":
            place = ("turn", str(int(name) + 1))
        case "steps":
            place = ("step", number, name)
        case "images":
            place = ("image", name)
        case "heads":
            place = ("head",)
        case "logs":
            place = ("log", name)
        case "log":
            place = ("log", number) if event == "packed" else ("event", number, event)
        case "run":
            place = ("input", number)
        case "journal":
            place = ("effect", number, name)
    return place
