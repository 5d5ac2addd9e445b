"""Costs of sse-starlette alone: topics that send a stamped event to readers each second, without store and turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

Queues = set["asyncio.Queue[bytes]"]


def create_app(topics: int) -> Starlette:
    """Make the application: `GET /{topic}`."""
    listening: list[Queues] = [set() for _ in range(topics)]

    async def listen(request: Request) -> EventSourceResponse:
        queues = listening[request.path_params["topic"]]
        return EventSourceResponse(_events(queues), ping=15, sep="\n", send_timeout=30)

    @asynccontextmanager
    async def tickers(_app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_tick(queues, at / topics)) for at, queues in enumerate(listening)]
            yield
            for task in running:
                task.cancel()

    return Starlette(routes=[Route("/{topic:int}", listen)], lifespan=tickers)


async def _events(queues: Queues) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    queues.add(queue)
    try:
        while True:
            yield await queue.get()
    finally:
        queues.discard(queue)


async def _tick(queues: Queues, first_s: float) -> None:
    await asyncio.sleep(first_s)
    seq = 0
    while True:
        await asyncio.sleep(1)
        seq += 1
        for queue in queues:
            queue.put_nowait(_frame(seq))


def _frame(seq: int) -> bytes:
    """Return an event with as many bytes as the service's."""
    data = {"type": "message.delta", "seq": seq, "conversation_id": "0" * 24, "turn": 1, "attempt": 1, "step_id": "1"}
    where = {"step": 1, "agent": "speaker", "parent_call_id": None, "call_id": "1.m1", "channel": "thought"}
    text = f"@{time.monotonic_ns()} "
    return f"event: message.delta\nid: {seq}\ndata: {json.dumps({**data, **where, 'text': text})}\n\n".encode()


def main() -> None:
    """Serve on a free port and print it. uvicorn is set as in the service."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", type=int)
    options = parser.parse_args()
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = uvicorn.Server(uvicorn.Config(create_app(options.topics), log_config=None, access_log=False))
    sys.stdout.write(f"plain serves on 127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run([listening])


if __name__ == "__main__":
    main()
