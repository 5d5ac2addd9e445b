"""Trains the compression dictionary of a seal format from what turns of the demo agents store.

Run it once for a new format (`python tools/make_dictionary.py seal-2.zdict`). A dictionary in use never changes.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import zstandard

from smolsessions.roles import Role
from smolsessions.settings import Settings
from smolsessions.store.seal import Sealer
from smolsessions.wiring import make_service

SIZE_BYTES = 16 * 1024
MOST_SAMPLE_BYTES = 8 * 1024
MOST_TURNS = 12  # of a conversation
WORDS = "order invoice Berlin weather report user total flight search ticket status price query result page".split()


def messages() -> Iterator[str]:
    for number, (word, other) in enumerate(itertools.product(WORDS, WORDS[:5])):
        yield f"What is {number * 37} * {len(word) + number}?"
        yield f"Note that the {word} of the {other} is number {number}."
        yield f"What time is it, and what is {number} + {number * 7}?"
        yield f"Count the words in: the {word} {other} was found, {number} of them"
        yield f"What is {number} / 0?"
        yield "What did I ask first?"


async def samples(folder: Path) -> list[bytes]:
    """Play turns on a service in this process, and return the records that it stored."""
    found: list[bytes] = []
    seal = Sealer.seal

    def recorded(self: Sealer, plaintext: bytes, scope: str, *place: str | int, packed: bytes | None = None) -> bytes:
        found.append(plaintext)
        return seal(self, plaintext, scope, *place, packed=packed)

    Sealer.seal = recorded  # type: ignore[method-assign]
    settings = Settings(data_dir=folder, demo_agents=True)
    async with make_service(settings, Role.SERVE) as service:
        assert service.worker
        worker = asyncio.create_task(service.worker.run())
        transport = httpx2.ASGITransport(app=service.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for agent in ("demo", "demo-code"):
                for number, message in enumerate(messages()):
                    if number % MOST_TURNS == 0:
                        place = {"agent": agent}
                    turn = (await client.post("/turn", json={"message": message, **place})).raise_for_status().json()
                    place = {"conversation_id": turn["conversation_id"]}
        service.worker.drain()
        await worker
    return [sample[:MOST_SAMPLE_BYTES] for sample in found if sample]


def main() -> None:
    with TemporaryDirectory() as folder:
        found = asyncio.run(samples(Path(folder)))
    data = zstandard.train_dictionary(SIZE_BYTES, list(found), level=3).as_bytes()
    Path(sys.argv[1]).write_bytes(data)
    compressor = zstandard.ZstdCompressor(level=5, dict_data=zstandard.ZstdCompressionDict(data))
    packed = sum(len(compressor.compress(sample)) for sample in found)
    print(f"{len(data)} bytes from {len(found)} samples: {sum(map(len, found))} → {packed} bytes")


if __name__ == "__main__":
    main()
