"""All that a store on disk ever took, opened: a test looks for texts that must not be there."""

import hmac
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from smolsessions.store import seal
from tests.support.store_server import SEAL_KEY

LONGEST_BYTES = 1024 * 1024


def stored_texts(folder: Path, *conversations: str) -> bytes:
    """Return the append-only file of a store, and all records of these conversations that were written to it."""
    ((key_id, master),) = seal.parse_keys(SEAL_KEY)
    written = b"".join(path.read_bytes() for path in sorted((folder / "appendonlydir").glob("*.aof")))
    prefix = bytes((seal.VERSION, len(key_id))) + key_id.encode()
    texts = [written]
    for conversation in conversations:
        key = hmac.digest(master, b"smolsessions/1\0" + f"local/{conversation}".encode(), "sha256")
        start = written.find(prefix)
        while start >= 0:
            begin = start + len(prefix) + seal.NONCE_BYTES
            texts.append(
                _opened(key, written[begin - seal.NONCE_BYTES : begin], written[begin : begin + LONGEST_BYTES])
            )
            start = written.find(prefix, start + 1)
    return b"\n".join(texts)


def _opened(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """Open a record without knowing its place or its end. Empty if it belongs to another conversation."""
    packed = Cipher(algorithms.AES(key), modes.CTR(nonce + b"\0\0\0\2")).decryptor().update(data)
    try:
        if zstandard.get_frame_parameters(packed, format=zstandard.FORMAT_ZSTD1_MAGICLESS).content_size > LONGEST_BYTES:
            return b""
        return seal._zstd.decompressor.decompress(packed)  # noqa: SLF001 - it has the dictionary
    except zstandard.ZstdError:
        return b""
