"""Damages of stored records: keys, fields and elements of a conversation are spoilt one by one."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.support.service import Service
from tests.support.store_server import PARTITION, Raw

Damage = tuple[str, Callable[[], object]]

MANY = 100_000
SEALED_BYTES = 30  # a sealed value is longer


@dataclass
class Snapshot:
    """The whole content of a store, which `put_back` restores."""

    raw: Raw
    keys: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.raw.keys("*"):
            self.keys[name] = (self.raw.dump(name), max(0, self.raw.pttl(name)))

    def put_back(self) -> None:
        pipeline = self.raw.pipeline()
        pipeline.flushall()
        for name, (value, ttl_ms) in self.keys.items():
            pipeline.restore(name, ttl_ms, value)
        pipeline.execute()


def one_of_each(cases: Iterable[Damage]) -> list[Damage]:
    """Return the first case of each kind of key, and of each way to damage one."""
    chosen: dict[str, Damage] = {}
    for case in cases:
        named = re.fullmatch(r"b'[^:]+:(\w+):[^']*'(?:\.b.*|\[\d+\])? (.*)", case[0])
        assert named, case[0]
        for mark in named.groups():
            chosen.setdefault(mark, case)
    return [*dict(chosen.values()).items()]


def one_of_each_kind(kinds: Sequence[Sequence[Damage]]) -> list[Damage]:
    """Return one case of each kind of key, and of different ways to damage them."""
    return [cases[7 * place % len(cases)] for place, cases in enumerate(kinds)]


def damages(snapshot: Snapshot, kind: str, of: str, like: str) -> Iterator[Damage]:
    """Yield every damage to the keys of a kind of one conversation. Another one lends its keys."""
    raw, start = snapshot.raw, f"{PARTITION}:{kind}:local/{of}".encode()
    for name in [name for name in snapshot.keys if name == start or name.startswith(start + b":")]:
        theirs = name.replace(of.encode(), like.encode())
        yield f"{name!r} deleted", partial(raw.delete, name)
        yield f"{name!r} a text", partial(raw.set, name, "junk")
        yield f"{name!r} a number", partial(raw.set, name, 7)
        yield f"{name!r} a sorted set", partial(_other_type, raw, name)
        if theirs in snapshot.keys:
            yield f"{name!r} another's", partial(raw.copy, theirs, name, replace=True)
        form = raw.type(name)
        if form == b"hash":
            yield from _of_hash(raw, name, theirs)
        elif form == b"list":
            yield from _of_list(raw, name, theirs)
        elif form == b"set":
            yield f"{name!r} with more", partial(raw.sadd, name, b"\xff\xfe junk", "", "{p001}:x", "x" * 70_000)
            yield f"{name!r} with many more", partial(raw.sadd, name, *range(MANY))


def _other_type(raw: Raw, name: bytes) -> None:
    raw.delete(name)
    raw.zadd(name, {"junk": 1})


def _of_hash(raw: Raw, name: bytes, theirs: bytes) -> Iterator[Damage]:
    others = raw.hgetall(theirs) if raw.type(theirs) == b"hash" else {}
    for key, value in raw.hgetall(name).items():
        yield f"{name!r}.{key!r} deleted", partial(raw.hdel, name, key)
        for what, junk in _spoilt(value):
            yield f"{name!r}.{key!r} {what}", partial(raw.hset, name, key, junk)
        if key in others and others[key] != value:
            yield f"{name!r}.{key!r} another's", partial(raw.hset, name, key, others[key])
    yield f"{name!r} with a field more", partial(raw.hset, name, b"\xff\xfe junk", b"junk")
    yield f"{name!r} with many more", partial(raw.hset, name, mapping=dict.fromkeys(range(MANY), "junk"))


def _of_list(raw: Raw, name: bytes, theirs: bytes) -> Iterator[Damage]:
    length = raw.llen(name)
    others = raw.lrange(theirs, 0, -1) if raw.type(theirs) == b"list" else []
    yield f"{name!r} without its first", partial(raw.lpop, name)
    yield f"{name!r} without its last", partial(raw.rpop, name)
    yield f"{name!r} doubled", partial(raw.rpush, name, *raw.lrange(name, 0, -1))
    yield f"{name!r} with junk before", partial(raw.lpush, name, b"\xff\xfe junk")
    yield f"{name!r} with junk behind", partial(raw.rpush, name, b"\xff\xfe junk")
    yield f"{name!r} with a large number before", partial(raw.lpush, name, 2**40)
    yield f"{name!r} with much junk before", partial(raw.lpush, name, *range(MANY))
    for place in sorted({0, length - 1}):
        for what, junk in _spoilt(raw.lindex(name, place)):
            yield f"{name!r}[{place}] {what}", partial(raw.lset, name, place, junk)
        if place < len(others):
            yield f"{name!r}[{place}] another's", partial(raw.lset, name, place, others[place])


def _spoilt(value: bytes) -> list[tuple[str, bytes]]:
    """Return one value of each kind that readers distinguish. Sealed values are too short or have a wrong tag."""
    made = {"junk": b"\xff\xfe\x00 junk", "empty": b""}
    if len(value) < SEALED_BYTES:
        made |= {"huge": b"9" * 30, "large": b"%d" % 2**40, "negative": b"-7", "hexadecimal": b"0x7"}
        made |= {"longer": value + b"\x00"}
    else:
        made |= {"cut": value[:-1]}
    return [(what, junk) for what, junk in made.items() if junk != value]


def code_of(body: Any) -> str | None:
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    found: str | None = error["code"] if isinstance(error, dict) else body.get("code")
    return found


def assert_said(
    service: Service, snapshot: Snapshot, cases: Iterable[Damage], faults: Callable[[str], Iterable[str]]
) -> None:
    """Apply each damage to the content of the store. `faults` are to find none, and the log no traceback."""
    found, logged = dict[str, list[str]](), len(service.log())
    for what, damage in cases:
        snapshot.put_back()
        damage()
        if wrong := [*faults(what)]:
            found[what] = wrong
    assert service.process.poll() is None, service.log()[-3000:]
    assert not found, json.dumps(found, indent=1)[:20_000]
    assert "Traceback" not in service.log()[logged:], service.log()[logged:][-5000:]
