"""Effects in a turn's journal, as callers see them: by their keys, without their results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

from smolsessions.core.frozen import record
from smolsessions.core.journal_keys import CallKey, split_key

EffectKind = Literal["model", "tool", "code", "check", "request", "answer", "message"]
EffectState = Literal["begun", "done"]

MAX_PAGE_BYTES = 4 * 1024 * 1024  # of the results that a page looks into
_ORDER: tuple[EffectKind, ...] = ("model", "request", "answer", "tool", "code", "check", "message")  # within one call
_PARTS = re.compile(r"([a-z]*)(\d+)")
_PART_RANKS = {"m": 0, "": 1, "c": 2}  # a step calls its model, then tools, then the checks of its answer


@record
class JournalSizes:
    """Sizes of a journal's stored entries by their keys. One that only marks a call has size 0.

    `is_whole` is false if the journal holds more entries than were read.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    is_whole: bool = True


@record
class JournaledResult:
    """Size of a journaled result, and its first bytes."""

    size_bytes: int
    start: bytes


@record
class EffectOutcome:
    """Outcome of a call, without its result. `error` is the class of its exception. `attempt` is the one that made it.

    `model` is the fallback that answered, if not the agent's first model did.
    """

    error: str | None = None
    repeated: bool = False
    attempt: int = 1
    duration_ms: float | None = None
    model: str | None = None


@record
class EffectKey:
    """Key of an effect: its kind, the id of its call, and the name of the tool. `begun_by` are attempts without an end.

    `is_repeated`: the call was begun more than once. The name of a message is the number of its turn.
    """

    key: str
    kind: EffectKind
    call_id: str
    name: str | None
    begun_by: int | None = None
    is_repeated: bool = False

    @property
    def step_id(self) -> str | None:
        """The step of the call. None: it belongs to no step."""
        run, slash, last = self.call_id.rpartition("/")
        step, dot, _ = last.partition(".")
        return run + slash + step if dot else None


@record
class EffectEntry:
    """Effect in a journal. Without `size_bytes` the call has begun and is not over."""

    key: EffectKey
    outcome: EffectOutcome | None = None
    size_bytes: int | None = None


@record
class EffectPage:
    """Page of effects, of a journal that was read as a whole or not."""

    items: tuple[EffectEntry, ...]
    next_cursor: str | None
    is_whole: bool = True


def effect_keys(journal: JournalSizes) -> list[EffectKey]:
    """Return the keys of a journal's effects in the order of the turn, without entries that only steer a replay."""
    found = {key: parsed for key, size in journal.sizes.items() if size and (parsed := _parsed(key))}
    for name, size in journal.sizes.items():
        word, key = split_key(name)
        attempt = "1"
        if word in {"first", "again"}:
            attempt, _, key = key.partition(":")
        if word in {"begun", "first", "again"} and not size and not journal.sizes.get(key) and (parsed := _parsed(key)):
            known = found.get(key, parsed)
            begun_by = max(int(attempt), known.begun_by or 1)
            found[key] = replace(known, begun_by=begun_by, is_repeated=known.is_repeated or word == "again")

    def place(key: EffectKey) -> tuple[list[tuple[int, int]], int, str]:
        parts = [(_PART_RANKS.get(word, 3), int(number)) for word, number in _PARTS.findall(key.call_id)]
        return parts, _ORDER.index(key.kind), key.key

    return sorted(found.values(), key=place)


def _parsed(key: str) -> EffectKey | None:
    word, rest = split_key(key)
    match word:
        case "model" | "tool" | "code" | "check":
            call = CallKey.parse(key)
            return EffectKey(key, word, call.call_id, call.name or None)
        case "asked":
            return EffectKey(key, "request", rest.partition(":")[0], None)
        case "answer":  # of a request's id: conversation, turn, call, number
            return EffectKey(key, "answer", [*rest.split(":"), "", ""][2], None)
        case "joined":
            step, _, turn = rest.partition(":")
            return EffectKey(key, "message", f"{step}/turn{turn}", turn)
    return None
