"""Lua scripts by name. Arguments are bound by the names in each script's header."""

from __future__ import annotations

import hashlib
import importlib.resources
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from redis.exceptions import ResponseError

from smolsessions.core.errors import DAMAGED, SealBrokenError, ServiceError, StoreUnavailableError
from smolsessions.store.connection.commands import Command, Reply

log = logging.getLogger(__name__)

_FOLDER = importlib.resources.files("smolsessions.store.scripts")
_PRELUDE = _FOLDER.joinpath("prelude.lua").read_text()
_FILES = {entry.name.removesuffix(".lua") for entry in _FOLDER.iterdir() if entry.name.endswith(".lua")}
NAMES = sorted(_FILES - {"prelude"})
Argument = str | bytes | int
_HEADER = re.compile(r"^-- ARGV: (.+)$", re.MULTILINE)
_DEFINED = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
SAFE_TO_REPEAT = frozenset(
    "cancel chunks effects find_key has_images images journal keep_chunks list next_turn open_turn read read_log rekey "
    "reserve sealed snapshot stage stage_chunks stage_copy steers steps turns variables".split()
)
# A full store runs these, too, although they write first. A sweep deletes expired conversations, and without renewals
# it would take the leases of living workers.
FREES_MEMORY = frozenset({"delete", "sweep", "renew"})
PERIODIC = frozenset({"sweep", "queue", "outage"})  # their replies confirm nothing to a client
_OF_ONE = frozenset({"ref", "owner", "idem"})  # arguments of scripts that work on one conversation, or one owner's
# A Lua error is not among them: it is a defect of a script.
_DAMAGE = re.compile(
    "DAMAGED |WRONGTYPE |(hash )?value is not an integer|value is not a valid float|index out of range|no such key"
    "|increment or decrement would overflow"
)


class Script:
    """Atomic operation on one partition: `scripts/NAME.lua`, behind `scripts/prelude.lua`."""

    def __init__(self, name: str) -> None:
        body = _FOLDER.joinpath(f"{name}.lua").read_text()
        header = _HEADER.search(body)
        assert header, f"{name}.lua has no ARGV header"
        names = header[1].split()
        self.name = name
        self.rest = names.pop()[3:] if names[-1].startswith("...") else None
        self.names = tuple(names)
        lines = ["#!lua flags=allow-oom"] if name in FREES_MEMORY else []
        lines += ["local partition = KEYS[1]", *(f"local {each} = ARGV[{i}]" for i, each in enumerate(names, 1))]
        if self.rest:
            rest, count = self.rest, len(names)
            lines.append(f"local {rest} = {{}} for i = {count + 1}, #ARGV do {rest}[i - {count}] = ARGV[i] end")
        # Only the paragraphs of the prelude that it uses: a call creates all functions before it.
        for part in reversed(_PRELUDE.split("\n\n")):
            if any(re.search(rf"\b{defined}\b", body) for defined in _DEFINED.findall(part)):
                body = f"{part}\n\n{body}"
        self.source = "\n".join([*lines, body])
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def command(self, partition: str, rest: tuple[Argument, ...], named: Mapping[str, Argument]) -> Command:
        """Raises for a missing or surplus argument."""
        assert len(named) == len(self.names), f"{self.name} takes {self.names}, got {tuple(named)}"
        return ("EVALSHA", self.sha, 1, partition, *map(named.__getitem__, self.names), *rest)


def flattened(pairs: Iterable[tuple[Argument, Argument]]) -> list[Argument]:
    return [part for pair in pairs for part in pair]


async def reply_of(name: str, reply: Reply) -> Any:
    try:
        return await reply
    except ResponseError as error:
        raise as_service_error(name, error) from None


def as_service_error(name: str, error: ResponseError) -> ServiceError:
    """Return `SealBrokenError` for damaged data of one conversation, `StoreUnavailableError` for all other refusals."""
    if _OF_ONE & {*script(name).names} and _DAMAGE.match(str(error)):
        log.error("the store's data is damaged, %s: %s", name, error, extra={"action": "store.damaged"})
        return SealBrokenError(DAMAGED)
    log.error("the store refused %s: %s", name, error, extra={"action": "store.refused"})
    return StoreUnavailableError("The store refused an operation.")


@cache
def script(name: str) -> Script:
    return Script(name)
