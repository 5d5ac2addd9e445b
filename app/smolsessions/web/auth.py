"""Authentication of callers by API key."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from smolsessions.core.callers import parse_claims
from smolsessions.core.errors import StartError, UnauthorizedError
from smolsessions.core.files import check_private, open_to_all
from smolsessions.core.records import LOCAL, Owner

log = logging.getLogger(__name__)

KEY_DIGITS = 12
MOST_BYTES = 16 * 1024 * 1024  # of the keys file: some 200,000 keys
CHECK_INTERVAL_S = 2.0
READ_INTERVAL_S = 0.4
STALE_S = 5.0
REPEAT_S = 60.0  # between lines of the log about a file that cannot be read
_KEY_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64})\s+([0-9a-fA-F]{64})(?:\s+(\S.*))?")
_READABLE_BY_ALL = "all users of this machine may read %s: run `chmod o-rwx %s`; the next start refuses it"
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


class Identity(NamedTuple):
    """Owner and claims of an API key."""

    owner: Owner
    claims: dict[str, Any]
    key: str | None = None
    """First digits of the key's SHA-256, by which records name it."""


WITHOUT_KEY = Identity(LOCAL, {})


class Authenticator:
    """Finds the owner of a request by its API key. A thread reloads the keys file if the file changes.

    At start it refuses a file that all users can read. Later it reads such a file and logs a warning, because a
    refusal would keep new keys out and revoked keys in.
    """

    def __init__(self, path: Path | None, *, loopback: bool, anonymous: bool = False) -> None:
        """Raise `StartError` if the service is open to a network without keys, unless `anonymous` allows it."""
        if not path and not loopback and not anonymous:
            raise StartError(
                "SMOLSESSIONS_HOST is open to the network and no API keys are set; set SMOLSESSIONS_API_KEYS_FILE "
                "(`smolsessions keys owner OWNER` makes its lines), or SMOLSESSIONS_ALLOW_ANONYMOUS=1 to let all in"
            )
        self._path = path
        self.loopback = loopback
        self._read_at: tuple[int, ...] | None = None
        self._seen_at: tuple[int, ...] | None = None
        self._failure = ""
        self._failed_at = 0.0  # time of its last line in the log
        self._identities: Mapping[bytes, Identity] = {}
        self._checked: Mapping[bytes, Identity] = {}  # keys at the last check of the streams
        self._streams: set[tuple[str | None, Owner, Callable[[], None]]] = set()
        self._checked_at = 0.0  # last look at the file
        self._timer: asyncio.TimerHandle | None = None
        if path:
            try:
                self._refresh(path, is_start=True)
            except OSError as error:
                raise StartError(
                    f"SMOLSESSIONS_API_KEYS_FILE {path}: it cannot be read ({error.strerror}); put a line of "
                    "`smolsessions keys owner OWNER` there, and let the service's user read it"
                ) from error
            check_private(path, "SMOLSESSIONS_API_KEYS_FILE")
            # A thread of its own: the file may be on a network drive that hangs.
            threading.Thread(target=self._reread, args=(path,), name="api-keys", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """True if a request needs no key, or only this machine can send one."""
        return self.loopback or not self._path

    @property
    def needs_key(self) -> bool:
        return self._path is not None

    @property
    def is_stale(self) -> bool:
        """True if the keys file was not looked at for a while, so that a revoked key may be let in."""
        return self._path is not None and time.monotonic() - self._checked_at > STALE_S

    @property
    def sentence(self) -> str:
        """Access in words, for the start message."""
        where = "this machine only" if self.loopback else "anyone who reaches it"
        return f"{where}, {'with an API key' if self._path else 'without a key'}"

    def identify(self, authorization: str | None) -> Identity:
        """Return owner and claims of the key. Raises `UnauthorizedError`."""
        if not self._path:
            return WITHOUT_KEY
        match = _BEARER.fullmatch(authorization or "")
        if not match:
            raise UnauthorizedError
        # The lookup compares digests, so that its duration reveals nothing about a key.
        identity = self._identities.get(hashlib.sha256(match[1].encode()).digest())
        if identity is None:
            raise UnauthorizedError("This API key is not known here.")
        return identity

    @contextmanager
    def watch_key(self, authorization: str | None, owner: Owner, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` within seconds if the key is revoked or changes its owner inside the block."""
        if not self._path:
            yield
            return
        if not self._is_valid(authorization, owner):
            raise UnauthorizedError
        stream = (authorization, owner, end)
        self._streams.add(stream)
        if self._timer is None:
            self._check_streams()
        try:
            yield
        finally:
            self._streams.discard(stream)

    def _check_streams(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CHECK_INTERVAL_S, self._check_streams) if self._streams else None
        if self._identities is self._checked:
            return
        self._checked = self._identities
        for authorization, owner, end in list(self._streams):
            if not self._is_valid(authorization, owner):
                end()

    def _is_valid(self, authorization: str | None, owner: Owner) -> bool:
        try:
            return self.identify(authorization).owner == owner
        except UnauthorizedError:
            return False

    def _reread(self, path: Path) -> None:
        while True:
            time.sleep(READ_INTERVAL_S)
            failure, defect = "", None
            try:
                self._refresh(path)
            except OSError as error:
                failure = f"{path}: {error}"
            except Exception as error:  # noqa: BLE001 - the thread must go on: it keeps revoked keys out
                failure, defect = type(error).__name__, error
            if failure and (failure != self._failure or time.monotonic() - self._failed_at > REPEAT_S):
                self._failed_at = time.monotonic()
                log.error(
                    "the API keys are not reloaded, so revoked keys are let in: %s",
                    failure,
                    exc_info=defect,
                    extra={"action": "keys.unreadable"},
                )
            self._failure = failure

    def _refresh(self, path: Path, *, is_start: bool = False) -> None:
        """Read the file if it has changed. Raises `OSError`, and at start `StartError`."""
        # An open of a pipe would wait for ever without O_NONBLOCK.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            if found.st_size > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES} bytes")
            changed_at = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            is_at_rest, self._seen_at = changed_at == self._seen_at, changed_at
            # One that is being written may lack keys, so it is read once it rests.
            if changed_at != self._read_at and (is_at_rest or is_start):
                self._identities = _identities(file.read(MOST_BYTES), path, is_start=is_start)
                if not is_start:
                    log.info("the API keys are read again: %s", len(self._identities), extra={"action": "keys.read"})
                    if open_to_all(found):
                        log.warning(_READABLE_BY_ALL, path, path, extra={"action": "keys.open"})
                self._read_at = changed_at
                if not self._identities:
                    log.warning("%s holds no key, so all requests are refused", path, extra={"action": "keys.none"})
        self._checked_at = time.monotonic()


def _identities(content: bytes, path: Path, *, is_start: bool) -> dict[bytes, Identity]:
    """Return the identities. A wrong line is logged. At start it raises `StartError`."""
    identities: dict[bytes, Identity] = {}
    wrong = []
    for number, encoded in enumerate(content.split(b"\n"), 1):
        line = encoded.decode(errors="replace").strip()
        if not line or line.startswith("#"):
            continue
        match = _KEY_LINE.fullmatch(line)
        try:
            encoded.decode()
            if not match:
                raise ValueError("it is not `owner sha256-of-key`, or these with claims")  # noqa: TRY301
            claims = parse_claims(match[3]) if match[3] else {}
        except ValueError as error:
            cause = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            wrong.append(f"line {number}: {cause} (`smolsessions keys owner OWNER` makes a line)")
            continue
        identities[bytes.fromhex(match[2])] = Identity(Owner(match[1]), claims, match[2][:KEY_DIGITS].lower())
    if wrong and is_start:
        raise StartError(f"SMOLSESSIONS_API_KEYS_FILE {path}: {wrong[0]}")
    for sentence in wrong:
        log.error("%s: %s; the line is passed over", path, sentence, extra={"action": "keys.wrong_line"})
    return identities
