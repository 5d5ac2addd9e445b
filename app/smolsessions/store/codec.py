"""Records as bytes: JSON without the fields that are known from the record's place."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from dataclasses import astuple, replace
from typing import Any, NamedTuple, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from smolsessions.core import documents, records
from smolsessions.core.errors import DAMAGED, NEWER, SealBrokenError
from smolsessions.core.events import Event, PersonEvent, StepEvent, TurnQueued, TurnStarted
from smolsessions.core.memories import Head, PackedStep, StoredStep
from smolsessions.core.policies import policy_of
from smolsessions.core.records import AgentName, Ref, Turn, TurnInput
from smolsessions.core.requests import Answer
from smolsessions.store.seal import TAG_BYTES

encode_turn = documents.encode_turn
_TURN = TypeAdapter(Turn)
_ANSWER = TypeAdapter(Answer)
_EVENT_TYPES: tuple[Any, ...] = (TurnQueued, TurnStarted, *get_args(StepEvent), *get_args(PersonEvent))
_EVENTS: dict[str, TypeAdapter[Any]] = {kind.type: TypeAdapter(kind) for kind in _EVENT_TYPES}
_STEP = struct.Struct(">BIH")  # type, turn, number of attachments; their names follow
_HASHES = struct.Struct("17p17p17p")  # of a head: each of 16 bytes, or empty
NAME_BYTES = 16
MOST_DIGITS, MOST_NUMBER = 16, 2**53
HEAD_MEMBERS = frozenset({4, 7})  # the last three, sets of removed steps, are left out if all are empty
_TOOL_SETTINGS = ("approve", "client_tools")
_NO_INPUT = b'{"sizes":[]}\n'
# Stored by number: append only.
_TYPES: tuple[records.EntryType, ...] = ("task", "planning", "action", "note", "summary", "edit")


def number(data: bytes | None) -> int:
    """Parse a whole number that the store keeps unsealed."""
    if data is None or not data.isdigit() or len(data) > MOST_DIGITS or (found := int(data)) > MOST_NUMBER:
        raise SealBrokenError(DAMAGED)
    return found


def text(data: bytes) -> str:
    """Parse a name that the store keeps unsealed."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SealBrokenError(DAMAGED) from None


def moment(data: bytes | None) -> float:
    """Parse a time of the store's clock as Unix seconds."""
    return number(data) / 1_000_000


def decode_turn(data: bytes, ref: Ref, number: int) -> Turn:
    try:
        turn: Turn = _TURN.validate_python(from_json(data) | {"ref": ref, "number": number})
    except ValidationError as error:
        raise SealBrokenError(f"a turn's record {NEWER}") from error
    return turn


def decode_texts(data: bytes) -> list[str]:
    """Return the message and the answer of a turn's record. The whole turn takes ten times as long."""
    fields = from_json(data)
    return [fields["message"], (fields.get("outcome") or {}).get("reply") or ""]


def encode_event(event: Event) -> bytes:
    """Encode an event, except a final one, which is stored as the turn's record."""
    return _EVENTS[event.type].serializer.to_json(event, exclude_defaults=True)


def decode_event(name: str, data: bytes) -> Event:
    if name not in _EVENTS:
        raise ValueError(f"an event {name!r} is of a newer release")
    event: Event = _EVENTS[name].validate_json(data)
    return event


def encode_answer(answer: Answer) -> bytes:
    return _ANSWER.serializer.to_json(answer, exclude_defaults=True)


def pack_events(events: Iterable[tuple[str, bytes]]) -> bytes:
    """Join a whole log into one record: names and events, a line each, as JSON holds no line break."""
    return b"\n".join([name.encode() + b"\n" + data for name, data in events])


def unpack_events(data: bytes) -> list[Event | None]:
    """Return a log's events. None stands for an event of a newer release."""
    lines = data.split(b"\n")
    events: list[Event | None] = []
    for name, line in zip(lines[::2], lines[1::2], strict=True):
        try:
            events.append(decode_event(name.decode(), line))
        except ValueError:
            events.append(None)
    return events


def encode_chunk_list(chunks: dict[str, bytes]) -> bytes:
    """Encode the names and tags of chunks: a line of JSON and one text of bytes, which costs little for many chunks."""
    return to_json([*chunks]) + b"\n" + b"".join(chunks.values())


def decode_chunk_list(data: bytes) -> dict[str, bytes]:
    names, _, tags = data.partition(b"\n")
    places = range(0, len(tags), TAG_BYTES)
    return {name: tags[place : place + TAG_BYTES] for name, place in zip(from_json(names), places, strict=True)}


def encode_head(head: Head) -> bytes:
    fields = [0, head.count, head.shown_from, head.step_counts]
    out = [f"{places:x}" for places in (head.archived, head.rolled_back, head.destroyed)] if head.out else []
    return _HASHES.pack(head.hash, head.shown_hash, head.variables) + to_json([*fields, *out])


def decode_head(data: bytes) -> Head:
    if len(data) < _HASHES.size:
        raise SealBrokenError(f"a conversation's head {NEWER}")
    running, shown_hash, variables = _HASHES.unpack_from(data)
    members = from_json(data[_HASHES.size :])
    if len(members) not in HEAD_MEMBERS:
        raise SealBrokenError(f"a conversation's head {NEWER}")
    _, count, shown_from, step_counts, *out = members
    places = [int(each, 16) for each in out]
    return Head(count, running, shown_from, shown_hash, step_counts, variables, *places)


def encode_input(turn_input: TurnInput) -> bytes:
    if not turn_input.images and not turn_input.claims and not turn_input.files:
        return _NO_INPUT
    parts = (*turn_input.images, *turn_input.files)
    header = {"sizes": list(map(len, parts)), "claims": turn_input.claims, "files": len(turn_input.files)}
    return to_json(header) + b"\n" + b"".join(parts)


def decode_input(data: bytes) -> TurnInput:
    if data == _NO_INPUT:
        return TurnInput()
    line, _, rest = data.partition(b"\n")
    header: dict[str, Any] = from_json(line)
    parts, start = [], 0
    for size in header["sizes"]:
        parts.append(rest[start : start + size])
        start += size
    images = len(parts) - header.get("files", 0)
    return TurnInput(tuple(parts[:images]), header.get("claims", {}), tuple(parts[images:]))


def encode_step(step: PackedStep) -> bytes:
    names = b"".join(bytes.fromhex(name) for name in step.attachments)
    return _STEP.pack(_TYPES.index(step.type), step.turn, len(step.attachments)) + names + step.data


def decode_step(data: bytes, index: int, head: Head) -> StoredStep:
    """Decode a step, marked as hidden, archived or rolled back by `head`."""
    kind, turn, count = _STEP.unpack_from(data)
    if kind >= len(_TYPES):
        raise SealBrokenError(f"a stored step {NEWER}")
    end = _STEP.size + count * NAME_BYTES
    names = [data[start : start + NAME_BYTES].hex() for start in range(_STEP.size, end, NAME_BYTES)] if count else ()
    archived, rolled_back = bool(head.archived >> index & 1), bool(head.rolled_back >> index & 1)
    is_hidden = index < head.shown_from
    return StoredStep(index, _TYPES[kind], turn, data[end:], tuple(names), is_hidden, archived, rolled_back)


def started(turn: Turn, at: float, attempts: int, *, waits: bool = False) -> Turn:
    """Return a begun turn with its start and attempts. One that goes on still has the requests of its last wait."""
    timing = replace(turn.timing, started_at=at)
    if waits or not turn.requests:
        return replace(turn, timing=timing, attempts=attempts)
    return replace(turn, timing=timing.wait_over(time.time()), attempts=attempts, requests=())


def ref_of(scope: str) -> Ref:
    owner, _, conversation_id = scope.partition("/")
    return Ref(records.Owner(owner), conversation_id)


class SealedFields(NamedTuple):
    """Record of a conversation.

    `title` is empty for none, and None until the first message, which adds a title beside the record. `has_settings`:
    it had settings when the record was sealed. A rollback may have added some since.
    """

    agent: AgentName
    metadata: dict[str, Any]
    title: str | None
    has_settings: bool


def encode_conversation(
    agent: str, metadata: dict[str, Any], title: str | None, *, has_settings: bool = False
) -> bytes:
    fields = {"agent": agent, "metadata": metadata, "title": title, "settings": has_settings or None}
    return to_json({name: value for name, value in fields.items() if value is not None})


def decode_conversation(data: bytes, agent: bytes | None) -> SealedFields:
    """Return a conversation's fields. `agent` is the unsealed copy that the scripts use, which must be equal."""
    fields = from_json(data)
    if fields["agent"].encode() != agent:
        raise SealBrokenError
    return SealedFields(AgentName(fields["agent"]), fields["metadata"], fields.get("title"), "settings" in fields)


def decode_metadata(data: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = from_json(data)["metadata"]
    return metadata


def encode_settings(settings: records.ConversationSettings) -> bytes:
    pairs = {"lineage": list(map(astuple, settings.lineage)), "rollbacks": list(map(astuple, settings.rollbacks))}
    given = {name: found for name in _TOOL_SETTINGS if (found := getattr(settings, name))}
    return to_json({"policy": settings.policy} | pairs | given)


def decode_settings(data: bytes) -> records.ConversationSettings:
    fields = from_json(data)
    try:
        policy = None if fields["policy"] is None else policy_of(fields["policy"])
        lineage = tuple(records.Origin(*origin) for origin in fields["lineage"])
        rollbacks = tuple(records.Rollback(*rollback) for rollback in fields["rollbacks"])
        client_tools = tuple(records.ClientTool(**tool) for tool in fields.get("client_tools", ()))
        return records.ConversationSettings(policy, lineage, rollbacks, tuple(fields.get("approve", ())), client_tools)
    except (ValueError, TypeError, KeyError) as error:
        raise SealBrokenError(f"a conversation's record {NEWER}") from error
