"""Transports to MCP servers. No message may be larger than `MAX_BYTES`.

The SDK's `stdio_client` reads a line of any size, and leaves descendants of a program that has ended by itself. So
programs have a transport of their own here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream
from anyio.streams.memory import MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

log = logging.getLogger(__name__)

MAX_BYTES = 16 * 1024 * 1024
UNREADABLE = "the server sent an answer that cannot be read"
TOO_LARGE = "the server sent more than 16 MiB at once"
MAX_PARTS = 1000
TOO_MANY = f"the server sent a result of more than {MAX_PARTS} parts"
CONNECT_S = 5.0
END_S = 2.0  # of a server whose input was closed, and again after SIGTERM
_POLL_S = 0.02
_LOG_PAUSE_S = 0.05  # a program that writes errors without end waits for its pipe
_READ_BYTES = 256 * 1024
_ID = re.compile(rb'"id"\s*:\s*(\d+)')


class MessageTooLargeError(httpx2.StreamError):
    """A message of the server is larger than `MAX_BYTES`."""


@contextlib.asynccontextmanager
async def stdio(
    command: Sequence[str], environment: Mapping[str, str], log_text: Callable[[str], None], on_end: Callable[[], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a program and speak MCP with it. `on_end` is called when its output ends."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_READ_BYTES,
        env=get_default_environment() | dict(environment),
        start_new_session=True,  # a signal to the service's group must not end it in the middle of a call
    )
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def write() -> None:
        assert process.stdin
        try:
            async for message in from_session:
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(data.encode() + b"\n")
                await process.stdin.drain()
        except (anyio.ClosedResourceError, OSError):
            to_session.close()  # else the requests in flight would wait for their timeouts

    async def read_log() -> None:
        assert process.stderr
        rest = b""
        while data := await process.stderr.read(_READ_BYTES):
            # Whole lines are passed on, as a part of a secret would not be recognised.
            lines, newline, rest = (rest + data).rpartition(b"\n")
            if len(rest) > _READ_BYTES:
                lines, newline, rest = lines + newline + rest, b"", b""
            log_text(lines.decode(errors="replace"))
            await asyncio.sleep(_LOG_PAUSE_S)
        log_text(rest.decode(errors="replace"))

    last_words = asyncio.create_task(read_log())
    tasks = [asyncio.create_task(_read(process, to_session, on_end)), asyncio.create_task(write()), last_words]
    try:
        yield from_server, to_server
    finally:
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()
        try:
            await _end(process)
            await asyncio.wait([last_words], timeout=END_S)
        finally:
            for task in tasks:
                task.cancel()


@contextlib.asynccontextmanager
async def streamable_http(url: str, headers: Mapping[str, str], timeout_s: float) -> AsyncIterator[tuple[Any, Any]]:
    async def bound_end(request: httpx2.Request) -> None:
        if request.method == "DELETE":  # the end of a session, which a frozen server does not answer
            request.extensions["timeout"] = httpx2.Timeout(END_S).as_dict()

    async def bound_body(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise MessageTooLargeError("the server sent a compressed answer, which was not asked for")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):  # those are bounded by event
            response.stream = _BoundedStream(response.stream)

    timeout = httpx2.Timeout(timeout_s + END_S, connect=CONNECT_S)
    hooks: dict[str, list[Any]] = {"request": [bound_end], "response": [bound_body]}
    given = {**headers, "Accept-Encoding": "identity"}  # compressed bytes would pass the bound
    async with (
        httpx2.AsyncClient(headers=given, timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_BYTES) as (from_server, to_server),
    ):
        yield _BoundedMessages(from_server), to_server


async def _read(
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
) -> None:
    """Pass messages on. A line that is too large is dropped as it comes, and an error of its request replaces it."""
    assert process.stdout
    parts: list[bytes] = []
    size = 0
    try:
        while data := await process.stdout.read(_READ_BYTES):
            *ends, rest = data.split(b"\n")
            for end in ends:
                is_whole = size + len(end) <= MAX_BYTES
                message = _message(b"".join([*parts, end])) if is_whole else _failure(parts[0], TOO_LARGE)
                if message:
                    await to_session.send(_bounded(SessionMessage(message)))
                parts, size = [], 0
            size += len(rest)
            if rest and size <= MAX_BYTES:
                parts.append(rest)
            await asyncio.sleep(0)  # a program that writes noise without end leaves time to the others
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        pass
    finally:
        to_session.close()
        on_end()


def _message(line: bytes) -> Any:
    """Return the message of a line. An answer that cannot be read, as it is nested too deep, becomes an error."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        log.debug("an MCP server wrote a line that is no message", extra={"action": "mcp.noise"})
    return _failure(line, UNREADABLE) if line.startswith(b'{"jsonrpc"') else None


def _failure(line: bytes, text: str) -> JSONRPCError | None:
    found = _ID.search(line[:1000])
    error = ErrorData(code=INTERNAL_ERROR, message=text)
    return JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error) if found else None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the program's input, end it if it does not end by itself, and kill the rest of its group."""
    assert process.stdin
    process.stdin.close()
    try:
        if not await _has_ended(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)  # a stopped process gets no other signal
                os.killpg(process.pid, signal.SIGTERM)
            await _has_ended(process)
    finally:  # also if the service ends meanwhile
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await _has_ended(process)
        transport = getattr(process, "_transport", None)  # open as long as a descendant holds a pipe
        if transport:
            transport.close()


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Wait for the end of a program, at most `END_S`."""
    for _ in range(int(END_S / _POLL_S)):  # `wait` would also wait for descendants that hold the pipes
        if process.returncode is not None:
            return True
        await asyncio.sleep(_POLL_S)
    return False


def _bounded(message: SessionMessage | Exception) -> SessionMessage | Exception:
    """Replace a result of many parts by an error. The SDK would validate each of them twice, in the event loop."""
    found = message.message if isinstance(message, SessionMessage) else None
    if isinstance(found, JSONRPCResponse):
        parts = found.result.get("content")
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            error = ErrorData(code=INTERNAL_ERROR, message=TOO_MANY)
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=found.id, error=error))
    return message


class _BoundedMessages(ObjectReceiveStream[Any]):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def receive(self) -> SessionMessage | Exception:
        return _bounded(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_BYTES:
                raise MessageTooLargeError(TOO_LARGE)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
