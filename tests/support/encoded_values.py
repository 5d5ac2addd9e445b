"""Encoded values of the sandbox protocol, byte by byte."""

import struct
import sys

PRIME = sys.hash_info.modulus


def count(number: int) -> bytes:
    return struct.pack("<I", number)


def text(value: str) -> bytes:
    return b"s" + count(len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"i" + struct.pack("<q", value)


def long(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"I" + count(len(data)) + data


def blob(data: bytes) -> bytes:
    return b"b" + count(len(data)) + data


def many(tag: bytes, *items: bytes, claimed: int | None = None) -> bytes:
    return tag + count(len(items) if claimed is None else claimed) + b"".join(items)


def parts(kind: str, *items: bytes) -> bytes:
    return b"P" + bytes([len(kind.encode()), len(items)]) + kind.encode() + b"".join(items)


def pairs(**items: bytes) -> bytes:
    return b"d" + count(len(items)) + b"".join(text(key) + item for key, item in items.items())


ONE = number(1)
