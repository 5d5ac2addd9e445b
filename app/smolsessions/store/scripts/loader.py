"""The Lua scripts by name: arguments are bound by the names in each script's header."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.resources
import logging
import re
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from smolsessions.core.errors import DAMAGED, SealBrokenError, ServiceError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smolsessions.store.connection.command import Command
    from smolsessions.store.connection.pipeline import Pipeline, Reply

log = logging.getLogger(__name__)

_HEADER = re.compile(r"^-- ARGV: (.+)$", re.MULTILINE)
PATIENCE_S, RETRY_S = 1.0, 0.1  # a line that broke is mostly there again by then
Argument = str | bytes | int
_SAFE_TO_REPEAT = frozenset(
    "cancel has_images images list moment peek pieces recall show steps turns variables watch".split()
)
_OF_ONE = frozenset({"ref", "owner", "idem"})  # arguments of the scripts that work on one conversation, or one owner's
# Not the words of a Lua error: that is a defect of a script, and the data may be good.
_DAMAGE = re.compile(
    "DAMAGED |WRONGTYPE |(hash )?value is not an integer|value is not a valid float|index out of range|no such key"
    "|increment or decrement would overflow"
)
_TELL_NOBODY = frozenset({"sweep", "queue", "outage"})  # asked for ever, also when nothing goes on


class Script:
    """One operation on one partition, atomic on the server. Source: `scripts/NAME.lua` behind `scripts/prelude.lua`."""

    def __init__(self, name: str) -> None:
        folder = importlib.resources.files("smolsessions.store.scripts")
        body = folder.joinpath(f"{name}.lua").read_text()
        header = _HEADER.search(body)
        assert header, f"{name}.lua has no ARGV header"
        names = header[1].split()
        self.name = name
        self.rest = names.pop()[3:] if names[-1].startswith("...") else None
        self.names = tuple(names)
        self.source = f"{self._binding()}{folder.joinpath('prelude.lua').read_text()}\n{body}"
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def _binding(self) -> str:
        lines = ["local partition = KEYS[1]"]
        lines += [f"local {name} = ARGV[{i}]" for i, name in enumerate(self.names, 1)]
        if self.rest:
            first = len(self.names) + 1
            lines.append(
                f"local {self.rest} = {{}} for i = {first}, #ARGV do {self.rest}[i - {first - 1}] = ARGV[i] end"
            )
        return "\n".join(lines) + "\n"

    def command(self, partition: str, rest: tuple[Argument, ...], named: Mapping[str, Argument]) -> Command:
        """Give the EVALSHA of this call; a missing or a surplus argument is a KeyError or an assertion here."""
        assert len(named) == len(self.names), f"{self.name} takes {self.names}, got {tuple(named)}"
        return ("EVALSHA", self.sha, 1, partition, *map(named.__getitem__, self.names), *rest)


class Scripts:
    """Runs the scripts at one partition."""

    def __init__(self, line: Pipeline, partition: str) -> None:
        self._line = line
        self._partition = partition

    @property
    def is_up(self) -> bool:
        """The partition's server answers, as far as is known."""
        return self._line.is_up

    def send(self, name: str, *rest: Argument, **named: Argument) -> Reply:
        """Queue a call; calls that are queued one after the other run in that order."""
        return self._line.send(*script(name).command(self._partition, rest, named), told=name not in _TELL_NOBODY)

    async def call(self, name: str, *rest: Argument, **named: Argument) -> Any:
        """Run a script and give its answer; what changes nothing, or nothing twice, is asked again for a moment."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await answered(name, self.send(name, *rest, **named))
            except StoreUnavailableError:
                if name not in _SAFE_TO_REPEAT or time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(RETRY_S)


async def answered(name: str, answer: Reply) -> Any:
    """Wait for a script's answer."""
    try:
        return await answer
    except ResponseError as error:
        raise as_service_error(name, error) from None


def as_service_error(name: str, error: ResponseError) -> ServiceError:
    """Tell a script that met damaged data of one conversation from a store that refuses to work."""
    if _OF_ONE & {*script(name).names} and _DAMAGE.match(str(error)):
        log.error("the store's data is damaged, %s: %s", name, error, extra={"action": "store.damaged"})
        return SealBrokenError(DAMAGED)
    log.error("the store refused %s: %s", name, error, extra={"action": "store.refused"})
    return StoreUnavailableError("The store refused an operation.")


NAMES = (
    "adopt amend cancel claim commit create delete emit fork hand_back has_images images list moment note outage past "
    "patch peek pieces queue recall renew show steps submit sweep turns variables watch"
).split()


@cache
def script(name: str) -> Script:
    return Script(name)


def load_commands() -> list[Command]:
    """Give what every new connection sends first."""
    return [("SCRIPT", "LOAD", script(name).source) for name in NAMES]
