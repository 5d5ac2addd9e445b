"""Who is calling, and whether this process may be called by them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smolsessions.core.errors import StartError, UnauthorizedError
from smolsessions.core.files import check_private, open_to_all
from smolsessions.core.records import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

LOOK_S = 2.0
LOCAL = Owner("local")
_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64})\s+([0-9a-fA-F]{64})")
_OPEN = "all users of this machine may read %s: run `chmod o-rwx %s`; the next start refuses it"
_KEY = re.compile(r"bearer +(\S+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class _Held:
    """A stream that ends with its key."""

    authorization: str | None
    owner: Owner
    end: Callable[[], None]


class Authenticator:
    """Finds the owner behind a request. The keys file is read again when it changes.

    A file that all users may read is refused at start. One that becomes so later is warned of and read, since a
    refusal would keep its new keys out and its revoked keys in.
    """

    def __init__(self, path: Path | None, *, loopback: bool) -> None:
        self._path = path
        self._loopback = loopback
        self._read_at: tuple[int, ...] | None = None
        self._owners: Mapping[bytes, Owner] = {}
        self._checked: Mapping[bytes, Owner] = {}  # the keys that all held streams were last checked against
        self._held: set[_Held] = set()
        self._timer: asyncio.TimerHandle | None = None
        if path:
            self._refresh(path)
            check_private(path, "SMOLSESSIONS_API_KEYS_FILE")

    @classmethod
    def read(cls, path: Path | None, *, loopback: bool, anonymous: bool) -> Authenticator:
        """Refuse to be open to a network without keys, unless asked to."""
        if not path and not loopback and not anonymous:
            raise StartError(
                "SMOLSESSIONS_HOST is open to the network and no API keys are set; set SMOLSESSIONS_API_KEYS_FILE "
                "(`smolsessions new-api-key OWNER` makes its lines), or SMOLSESSIONS_ALLOW_ANONYMOUS=1 to let all in"
            )
        return cls(path, loopback=loopback)

    @property
    def sentence(self) -> str:
        """Say who may connect."""
        where = "this machine only" if self._loopback else "anyone who reaches it"
        return f"{where}, {'with an API key' if self._path else 'without a key'}"

    @property
    def loopback(self) -> bool:
        return self._loopback

    def owner(self, authorization: str | None) -> Owner:
        """Give the owner of the key, or raise `UnauthorizedError`."""
        if not self._path:
            return LOCAL
        self._refresh(self._path)
        match = _KEY.fullmatch(authorization or "")
        if not match:
            raise UnauthorizedError
        # Looked up by digest: what a comparison's time could tell is about the digest, not about a key.
        owner = self._owners.get(hashlib.sha256(match[1].encode()).digest())
        if owner is None:
            raise UnauthorizedError("This API key is not known here.")
        return owner

    @contextmanager
    def watch_key(self, authorization: str | None, owner: Owner, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` within seconds if the key is revoked, or becomes another owner's, before the block is left."""
        if not self._path:
            yield
            return
        held = _Held(authorization, owner, end)
        if not self._stands(held):
            raise UnauthorizedError
        self._held.add(held)
        if self._timer is None:
            self._look()
        try:
            yield
        finally:
            self._held.discard(held)

    def _look(self) -> None:
        assert self._path
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look) if self._held else None
        self._refresh(self._path)
        if self._owners is self._checked:
            return
        self._checked = self._owners
        for held in list(self._held):
            if not self._stands(held):
                held.end()

    def _stands(self, held: _Held) -> bool:
        try:
            return self.owner(held.authorization) == held.owner
        except UnauthorizedError:
            return False

    def _refresh(self, path: Path) -> None:
        try:
            found = path.stat()
            changed_at = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            if changed_at != self._read_at:
                self._owners = _read(path)
                if self._read_at and open_to_all(found):
                    log.warning(_OPEN, path, path, extra={"action": "keys.open"})
                self._read_at = changed_at
                if not self._owners:
                    log.warning("%s holds no key, so nobody can connect", path, extra={"action": "keys.none"})
        except (OSError, UnicodeDecodeError, StartError) as error:
            if self._read_at is None:
                sentence = error.message if isinstance(error, StartError) else f"it cannot be read: {error}"
                raise StartError(f"SMOLSESSIONS_API_KEYS_FILE {path}: {sentence}") from error
            log.error("the API keys stay as they were: %s: %s", path, error, extra={"action": "keys.unreadable"})  # noqa: TRY400


def _read(path: Path) -> dict[bytes, Owner]:
    owners = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if not match:
            raise StartError(f"line {number} is not `owner sha256-of-key`; `smolsessions new-api-key OWNER` makes one")
        owners[bytes.fromhex(match[2])] = Owner(match[1])
    return owners
