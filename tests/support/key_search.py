"""Search for keys in all that a service leaves behind: answers, log, files, and open seals. PYTEST_DONT_REWRITE."""

import base64
import hmac
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent

from smolsessions.store import seal
from tests.support.http_server import Handler
from tests.support.store_server import StoreServer

FIRST_BLOCK = (2).to_bytes(4, "big")
"""Counter of the first block that GCM encrypts."""
MOST_BYTES = 64 * 1024 * 1024


class Echo(Handler):
    """Provider that refuses each call, and repeats its headers. The first part of a path is the status."""

    def do_POST(self) -> None:
        self.body()
        told = {"message": f"these headers are wrong: {dict(self.headers)}", "code": "invalid_api_key"}
        headers = {"X-Yours": self.headers.get("Authorization", "")[:200]}
        self.answer(int(self.path.split("/")[1]), json.dumps({"error": told}).encode(), headers)


class Breaking(OpenAIModel):
    """Model of an author whose errors, with their causes, repeat its key."""

    def generate(self, *_: Any, **__: Any) -> Any:
        try:
            {}[self.client_kwargs["api_key"]]
        except KeyError as cause:
            raise RuntimeError(f"no answer for {self.client_kwargs}") from cause

    generate_stream = None  # type: ignore[assignment]


class Careless(Tool):
    name = "careless"
    description = "Fails."
    inputs = {}  # noqa: RUF012 - smolagents asks for it here
    output_type = "string"

    def forward(self) -> str:
        import os  # noqa: PLC0415 - a dump holds this source alone

        raise RuntimeError(f"cannot log in with {os.environ['GOOD_KEY']}")


def make_breaking() -> ToolCallingAgent:
    """Make an agent whose factory reads its key itself."""
    model = Breaking("m", api_base="http://127.0.0.1:9/v1", api_key=os.environ["OWN_KEY"])
    return ToolCallingAgent(tools=[], model=model, verbosity_level=LogLevel.OFF)


def make_lead() -> ToolCallingAgent:
    """Make an agent whose model reads the errors of a managed agent."""
    model = OpenAIModel("gpt-4o", api_base=os.environ["LLM_URL"], api_key=os.environ["GOOD_KEY"])
    helper = make_breaking()
    helper.name, helper.description = "helper", "Helps."
    return ToolCallingAgent(tools=[], model=model, managed_agents=[helper], verbosity_level=LogLevel.OFF)


def make_nothing() -> ToolCallingAgent:
    raise RuntimeError(f"the provider refuses {os.environ['GOOD_KEY']}")


def forms_of(key: str) -> set[bytes]:
    """Return a key as it may stand in a text, an address, a header or a file."""
    forms = {key, quote(key, safe=""), json.dumps(key)[1:-1], repr(key)[1:-1], key[::-1]}
    encoded = {base64.b64encode((lead + key).encode())[4:-4].decode() for lead in ("", "a", "ab")}
    return {form.encode() for form in forms | encoded}


def found_in(data: bytes, keys: dict[str, str]) -> list[str]:
    return [name for name, key in keys.items() if any(form in data for form in forms_of(key))]


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                yield str(path.relative_to(folder)), path.read_bytes()


def values_of(store: StoreServer) -> Iterator[tuple[str, bytes]]:
    with store.client() as raw:
        for name in raw.scan_iter(count=1000):
            for value in _parts(raw, name):
                yield name.decode(errors="replace"), value


def _parts(raw: Any, name: bytes) -> Iterable[bytes]:
    match raw.type(name):
        case b"string":
            return [raw.get(name)]
        case b"list":
            return list(raw.lrange(name, 0, -1))
        case b"hash":
            return [part for pair in raw.hgetall(name).items() for part in pair]
        case b"set":
            return list(raw.smembers(name))
        case b"zset":
            return list(raw.zrange(name, 0, -1))
        case b"stream":
            return [part for _, entry in raw.xrange(name) for pair in entry.items() for part in pair]
        case kind:
            raise AssertionError(kind)


def unsealed(value: bytes, key_line: str, scopes: Iterable[str]) -> Iterator[bytes]:
    """Yield the plaintexts of all sealed blobs in a value. Their places need not be known: no tag is checked."""
    ((key_id, master),) = seal.parse_keys(key_line)
    prefix = bytes((seal.VERSION, len(key_id))) + key_id.encode()
    for scope in scopes:
        key = hmac.digest(master, b"smolsessions/1\0" + scope.encode(), "sha256")
        start = value.find(prefix)
        while start >= 0:
            begin = start + len(prefix)
            nonce, hidden = value[begin : begin + seal.NONCE_BYTES], value[begin + seal.NONCE_BYTES :]
            packed = Cipher(AES(key), CTR(nonce + FIRST_BLOCK)).decryptor().update(hidden)
            with suppress(zstandard.ZstdError, MemoryError):
                size = zstandard.get_frame_parameters(packed, format=zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
                if size < MOST_BYTES:
                    yield seal._zstd.decompressor.decompress(packed)  # noqa: SLF001 - as the service reads it
            start = value.find(prefix, start + 1)
