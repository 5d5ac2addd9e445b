"""Sealing of all stored data: zstd, then AES-256-GCM bound to its place. Keys are parsed here, too.

Version 1: `0x01 | length of key id | key id | nonce (12) | ciphertext and tag of zstd(plaintext)`, where the zstd frame
has no magic number. Each conversation has a key derived from the master key and its name, so that random nonces stay
far from their bound. The associated data is the place: kind, number, index or name.

`0x81` begins a record that was sealed again with another key. The tag of its first sealing is bound to it and follows
it, because heads and lists of chunks are sealed over these tags.
"""

from __future__ import annotations

import base64
import hmac
import importlib.resources
import os
import re
import secrets
import struct
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from smolsessions.core.errors import NEWER, SealBrokenError, StartError
from smolsessions.core.files import check_private

VERSION = 1
REKEYED = 0x81
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
LEAST_BYTES = 2 + NONCE_BYTES + TAG_BYTES
MAX_PLAINTEXT_BYTES = 512 * 1024 * 1024
LEVEL = 3  # level 5 makes records 5 % smaller, and takes 60 % more time
COMPRESSION_SENTENCE = "a stored record is compressed as no release does"
_KEPT = b"\2"  # no place is as long as the part that would begin with this byte
_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS
_KEY_LINE = re.compile(r"([A-Za-z0-9]{1,16}):([A-Za-z0-9+/_-]{43}=?)")


class Sealer:
    """Seals and opens blobs of all conversations. Safe to share between threads."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        """`keys` are `(key id, 32 bytes)` pairs: the first seals, all of them open."""
        self._keys = dict(keys)
        self.writing_id = keys[0][0]  # of the key that seals
        self._prefix = bytes((VERSION, len(self.writing_id))) + self.writing_id.encode()

        @lru_cache(maxsize=8192)
        def cipher(key_id: str, scope: str) -> AESGCM:
            return AESGCM(hmac.digest(self._keys[key_id], b"smolsessions/1\0" + scope.encode(), "sha256"))

        self._cipher = cipher

    def seal(self, plaintext: bytes, scope: str, *place: str | int, packed: bytes | None = None) -> bytes:
        """Seal for a place in a scope (a conversation's name): opening needs both. `packed` is the compressed form."""
        nonce = os.urandom(NONCE_BYTES)
        packed = packed or compress(plaintext)
        bound = b"".join(map(_bound, place))
        return self._prefix + nonce + self._cipher(self.writing_id, scope).encrypt(nonce, packed, bound)

    def rekey(self, blob: bytes, scope: str, *place: str | int) -> bytes:
        """Seal a blob again with the first key. It keeps its tag."""
        ((packed, _),) = self._unsealed([(place[-1], blob)], scope, place[:-1])
        nonce, tag, bound = os.urandom(NONCE_BYTES), tag_of(blob), b"".join(map(_bound, place))
        sealed = self._cipher(self.writing_id, scope).encrypt(nonce, packed, bound + _KEPT + tag)
        return bytes((REKEYED,)) + self._prefix[1:] + nonce + sealed + tag

    def open(self, blob: bytes, scope: str, *place: str | int) -> bytes:
        """Return the plaintext. Raises `SealBrokenError` before any of it is decoded."""
        return self.open_all([(place[-1], blob)], scope, *place[:-1])[0]

    def open_all(self, blobs: Iterable[tuple[str | int, bytes]], scope: str, *place: str | int) -> list[bytes]:
        """Open blobs whose places begin with `place`. The last part of each comes with the blob."""
        decompress = _zstd.decompressor.decompress
        try:
            return [decompress(packed) for packed, _ in self._unsealed(blobs, scope, place)]
        except zstandard.ZstdError:
            raise SealBrokenError(COMPRESSION_SENTENCE) from None

    def peek(self, blob: bytes, scope: str, *place: str | int, most: int) -> tuple[int, bytes]:
        """Return the size of a plaintext and its first bytes. The whole blob is verified."""
        ((packed, size),) = self._unsealed([(place[-1], blob)], scope, place[:-1])
        try:
            with _zstd.decompressor.stream_reader(packed) as reader:
                return size, reader.read(min(most, size))
        except zstandard.ZstdError:
            raise SealBrokenError(COMPRESSION_SENTENCE) from None

    def _unsealed(
        self, blobs: Iterable[tuple[str | int, bytes]], scope: str, place: tuple[str | int, ...]
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the compressed form of each plaintext, and the size of the plaintext."""
        prefix, cipher, bound = self._prefix, self._cipher(self.writing_id, scope), b"".join(map(_bound, place))
        for part, blob in blobs:
            if len(blob) < LEAST_BYTES or not blob.startswith(prefix):
                if blob and blob[0] > VERSION and blob[0] != REKEYED:
                    raise SealBrokenError(f"a stored record was changed, or {NEWER}")
                if len(blob) < LEAST_BYTES or not blob[0]:
                    raise SealBrokenError("a stored record is cut short")
                key_id = blob[2 : 2 + blob[1]].decode("ascii", "replace")
                if key_id not in self._keys:
                    sentence = f"a stored record is sealed with key {key_id!r}, which SMOLSESSIONS_SEAL_KEYS lacks"
                    raise SealBrokenError(sentence)
                prefix, cipher = blob[: 2 + blob[1]], self._cipher(key_id, scope)
            start, end, kept = len(prefix) + NONCE_BYTES, len(blob), b""
            if prefix[0] == REKEYED:
                end, kept = end - TAG_BYTES, _KEPT + tag_of(blob)
            try:
                packed = cipher.decrypt(blob[len(prefix) : start], blob[start:end], bound + _bound(part) + kept)
                size = zstandard.get_frame_parameters(packed, format=_FORMAT).content_size
            except InvalidTag:
                raise SealBrokenError from None
            except zstandard.ZstdError:
                raise SealBrokenError(COMPRESSION_SENTENCE) from None
            if size > MAX_PLAINTEXT_BYTES:
                raise SealBrokenError("a stored record is larger than this release reads")
            yield packed, size


def compress(plaintext: bytes) -> bytes:
    return _zstd.compressor.compress(plaintext)


def tag_of(blob: bytes) -> bytes:
    """Return the tag of the first sealing, the input of a conversation's running hash."""
    return blob[-TAG_BYTES:]


def new_key() -> str:
    """Return a new key in the form of SEAL_KEYS."""
    return f"k{secrets.token_hex(3)}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"


def parse_keys(text: str) -> list[tuple[str, bytes]]:
    """Parse `id:base64` keys, separated by commas or white space. The first one seals."""
    keys: list[tuple[str, bytes]] = []
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for word in " ".join(lines).replace(",", " ").split():
        match = _KEY_LINE.fullmatch(word)
        if not match:
            raise StartError(
                "a seal key is not of the form id:base64-of-32-bytes; `smolsessions keys seal` prints a good one"
            )
        encoded = match[2].replace("-", "+").replace("_", "/").rstrip("=") + "="
        keys.append((match[1], base64.b64decode(encoded)))
    if not keys:
        raise StartError("no seal key is given; `smolsessions keys seal` prints one for SMOLSESSIONS_SEAL_KEYS")
    if len({key_id for key_id, _ in keys}) != len(keys):
        raise StartError("two seal keys have the same id; give each key its own")
    return keys


def keys_in(path: Path, *, create: bool = False) -> list[tuple[str, bytes]]:
    """Read the keys of a private file. `create` makes a missing file, readable by its owner alone."""
    if create and not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".seal-", delete=False) as file:  # 0600
            file.write(new_key() + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).rename(path)  # atomic, even if the power fails
    try:
        keys = parse_keys(path.read_text())
    except StartError as error:
        raise StartError(f"the seal key file {path}: {error.message}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StartError(
            f"the seal key file {path} cannot be read ({why}): put the keys there that the store was written with, or, "
            "if it is new, what `smolsessions keys seal` prints, and let the service's user read it"
        ) from error
    check_private(path, "seal key file" if create else "SMOLSESSIONS_SEAL_KEYS_FILE")
    return keys


@lru_cache(maxsize=4096)
def _bound(part: str | int) -> bytes:
    encoded = str(part).encode()
    return struct.pack(">I", len(encoded)) + encoded


class _Zstd(threading.local):
    """Compressor and decompressor of a thread."""

    def __init__(self) -> None:
        shared = _dictionary()
        parameters = zstandard.ZstdCompressionParameters(
            compression_level=LEVEL, format=_FORMAT, write_content_size=True
        )
        self.compressor = zstandard.ZstdCompressor(dict_data=shared, compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor(dict_data=shared, format=_FORMAT)


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    """Return a part of format 1. A small record compresses well only against similar ones."""
    folder = importlib.resources.files("smolsessions.store")
    return zstandard.ZstdCompressionDict(folder.joinpath("seal-1.zdict").read_bytes())


_zstd = _Zstd()
