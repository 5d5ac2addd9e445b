"""Client of an MCP server, and its tools as smolagents needs them.

A client is made anew when its server dies, with back-off. A call is never repeated: its error says that its effect is
unknown. The first list of tools is pinned until the process ends, because prompts and fingerprints depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import mcp_types
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from smolsessions.agents.config.schema import McpTable
from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.run.agent_run import stoppable
from smolsessions.agents.run.failures import TurnStopped
from smolsessions.agents.tools.mcp_results import MAX_ERROR_CHARS, UNKNOWN, ToolServerError, value_of
from smolsessions.agents.tools.mcp_schemas import ListedTool, ToolOfSchema, listed_tools, tools_digest
from smolsessions.agents.tools.mcp_secrets import secrets_of, variables_of
from smolsessions.agents.tools.mcp_transports import MAX_BYTES, stdio, streamable_http
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.agent_ports import ToolServer
from smolsessions.core.errors import AgentUnavailableError, StartError

M = TypeVar("M", bound=BaseModel)
log = logging.getLogger(__name__)

START_S = 10.0  # longest wait for the list of tools, at start and after a reconnection
ALIVE_S = 5.0  # longest wait of a check
CHECK_S = 30.0  # between two checks of an idle server
PAUSE_S = 0.5  # between two checks that failed calls ask for
STEADY_S = 10.0  # a connection that lasted as long clears the back-off
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 30.0
MAX_TOOLS = 500
MAX_PAGES = 100
MAX_LOG_CHARS = 500
_ANSWERS = frozenset({mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND})
"""Codes of errors that only a live server sends."""


class McpServer:
    """One server: its connection, its pinned list and its counts."""

    def __init__(self, name: str, table: McpTable) -> None:
        self.name = name
        self.timeout_s = table.timeout_s
        self.tools: list[ListedTool] = []
        self.cause = "it did not answer in time"
        self._tried = threading.Event()
        """Set once it gave a list. If it is tried once, also once it failed."""
        self._is_missed = False
        """True if agents had to go without its list."""
        self._last_line = ""
        self._table = table
        self._variables = variables_of(name, table)
        self._secrets = secrets_of(self._variables, table.url)
        self._pinned = ""
        self._changed = ""
        self._client: Client | None = None
        self._wake = asyncio.Event()
        self._is_down = False
        """True after a failed attempt to connect, until the next one succeeds."""
        self._connected_at = self._connects_at = 0.0
        self._in_flight = 0
        self._answered_at = 0.0
        self._restarts = self._list_changes = 0
        self._calls: Counter[str] = Counter()

    def pinned_tools(self, until: float, *, tries_once: bool) -> list[ListedTool]:
        """Return its first list of tools, after a wait until this time of the monotonic clock. For any thread.

        Raises `AgentUnavailableError` without a list, or `StartError` if it is tried once.
        """
        self._is_missed = not (self._tried.wait(max(0.0, until - time.monotonic())) and self._pinned)
        if not self._is_missed:
            return self.tools
        if tries_once:
            raise StartError(
                f"[mcp.{self.name}] gives no list of tools ({self._report()}); fix the server or its table"
            )
        raise AgentUnavailableError(
            f"Its MCP server {self.name!r} gave no list of tools when the service started. The service's log says why; "
            "it needs a restart once the server runs."
        ) from ConnectionError(self.cause)

    def _report(self) -> str:
        """Return why it is down, for the operator. No model reads what a program wrote to its standard error."""
        return f"{self.cause}; its program's last words: {self._last_line}" if self._last_line else self.cause

    def health(self) -> ToolServer:
        is_up = self._client is not None
        return ToolServer(self.name, is_up, self._restarts, self._list_changes, dict(self._calls))

    def submit(self, tool: str, arguments: dict[str, Any]) -> Future[mcp_types.CallToolResult]:
        """Begin a call, from any thread. Return its future, whose exceptions are `ToolServerError`."""
        return asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)

    def count(self, outcome: str) -> None:
        """Count a call. One that timed out has the server checked. For any thread."""
        self._loop.call_soon_threadsafe(self._count, outcome)

    def _count(self, outcome: str) -> None:
        self._calls[outcome] += 1
        if outcome == "timeout":
            self._wake.set()

    async def _call(self, tool: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        """Call a tool. Wait for the attempt to connect that runs, unless the last one failed."""
        client = self._client or (None if self._is_down else await asyncio.shield(self._attempt))
        if client is None:
            wait_s = max(1, round(self._connects_at - self._loop.time()))
            raise ToolServerError(
                f"the MCP server {self.name} cannot be reached ({self.cause}), so the call was not made; the next "
                f"attempt to connect is in {wait_s} s"
            )
        request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))
        self._in_flight += 1
        try:
            result = await client.session.send_request(request, mcp_types.CallToolResult)
        except MCPError as error:
            text = utf8_text(without_secrets(error.message, self._secrets)[:MAX_ERROR_CHARS])
            if error.code in _ANSWERS:
                self._answered_at = self._loop.time()
                raise ToolServerError(text) from None
            self._wake.set()
            raise ToolServerError(
                f"the MCP server {self.name} gave no result ({text.rstrip('.')}); {UNKNOWN}"
            ) from None
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds for a foreign answer
            self._wake.set()
            raise ToolServerError(
                f"the MCP server {self.name} gave an answer that cannot be read ({type(error).__name__})"
            ) from None
        finally:
            self._in_flight -= 1
        self._answered_at = self._loop.time()
        return self._without_secrets(result)

    def _without_secrets(self, message: M) -> M:
        if not self._secrets:
            return message
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
        masked = without_secrets(text, self._secrets)
        return message if masked == text else type(message).model_validate_json(masked)

    async def keep_connected(self, *, tries_once: bool = False) -> None:
        """Connect, and connect again with back-off, until it is cancelled. If tried once, end at a failure."""
        self._loop = asyncio.get_running_loop()
        self._attempt: asyncio.Future[Client | None] = self._loop.create_future()
        failures, reported = 0, set[str]()
        while True:
            self._connected_at, self._last_line = 0.0, ""
            try:
                await self._connect_and_watch()
            except Exception as error:  # noqa: BLE001 - foreign servers and the SDK raise many kinds
                cause: BaseException = error
                while isinstance(cause, BaseExceptionGroup):
                    cause = cause.exceptions[0]
                if type(cause) is TimeoutError and not cause.args:
                    self.cause = f"it did not answer within {START_S:g} s"
                else:
                    text = " ".join(f"{type(cause).__name__}: {cause}".split())
                    self.cause = without_secrets(text, self._secrets)[:300].removesuffix(":")
            self._lose()
            if tries_once:
                self._tried.set()
                return
            self._is_down = not self._connected_at
            if self._is_down:
                self._attempt.set_result(None)
                self._attempt = self._loop.create_future()
            was_steady = self._connected_at and self._loop.time() - self._connected_at >= STEADY_S
            failures = 0 if was_steady else min(failures + 1, 10)
            delay_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**failures) * random.uniform(0.5, 1)  # noqa: S311
            if self._connected_at:
                reported.clear()
            if (kind := self.cause.partition(":")[0]) not in reported:  # the same failure again is no news
                reported.add(kind)
                extra = {"action": "mcp.down", "server": self.name}
                log.warning("the MCP server %s is down: %s", self.name, self._report(), extra=extra)
            self._connects_at = self._loop.time() + delay_s
            await asyncio.sleep(delay_s)
            self._restarts += 1

    def _lose(self) -> None:
        """Let calls wait for the next connection."""
        if self._client:
            self._client, self._attempt = None, self._loop.create_future()

    async def _connect_and_watch(self) -> None:
        """Connect, then list the tools now and then, and after failed calls. Raises if the server is dead or frozen."""
        ended = asyncio.Event()

        def on_end() -> None:
            ended.set()
            self._wake.set()
            self._lose()

        async def on_message(message: Any) -> None:
            if isinstance(message, mcp_types.ToolListChangedNotification):
                self._wake.set()

        transport: Any
        if self._table.url:
            transport = streamable_http(self._table.url, self._variables, self.timeout_s)
        else:
            command = [self._table.command or "", *self._table.args]
            transport = stdio(command, self._variables, self._log_text, on_end)
        async with (
            asyncio.timeout(START_S) as limit,
            Client(transport, message_handler=on_message, cache=None) as client,
        ):
            self._note_list(await self._list(client))
            limit.reschedule(None)
            self._client, self._is_down = client, False
            self._connected_at = self._answered_at = self._loop.time()
            self._attempt.set_result(client)
            extra = {"action": "mcp.up", "server": self.name}
            log.info("the MCP server %s is up", self.name, extra=extra)
            if self._is_missed:
                text = "the MCP server %s was down at the start; restart the service to serve the agents that use it"
                log.warning(text, self.name, extra=extra)
            while True:
                await _wait(ended, PAUSE_S)
                await _wait(self._wake, CHECK_S)
                self._wake.clear()
                if ended.is_set():
                    raise ConnectionError("its program ended")
                try:
                    async with asyncio.timeout(ALIVE_S):
                        self._note_list(await self._list(client))
                except TimeoutError:
                    silent_s = self._loop.time() - self._answered_at
                    if self._in_flight and silent_s < self.timeout_s + ALIVE_S:
                        continue  # it may be busy with a call
                    raise TimeoutError("it does not answer") from None
                self._answered_at = self._loop.time()

    async def _list(self, client: Client) -> list[mcp_types.Tool]:
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        size = 0
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            size += len(page.model_dump_json())
            tools += [self._without_secrets(tool) for tool in page.tools]
            cursor = page.next_cursor
            if len(tools) > MAX_TOOLS or size > MAX_BYTES:
                break
            if not cursor:
                return tools
        raise ValueError(f"it lists more than {MAX_TOOLS} tools, {MAX_PAGES} pages or {MAX_BYTES // 1024**2} MiB")

    def _note_list(self, tools: list[mcp_types.Tool]) -> None:
        """Pin the first list. Log and count a change once."""
        digest = tools_digest(tools)
        if not self._pinned:
            self._pinned = digest
            self.tools, left_out = listed_tools(tools)
            for name in left_out:
                self._log_once(f"the tool {name!r} of the MCP server {self.name} has too large a schema; left out")
            self._tried.set()
        elif digest not in {self._pinned, self._changed}:
            self._changed = digest
            self._list_changes += 1
            self._log_once(f"the MCP server {self.name} lists other tools now; restart the service to adopt them")

    def _log_once(self, text: str) -> None:
        log.warning("%s", text, extra={"action": "mcp.tools", "server": self.name})

    def _log_text(self, text: str) -> None:
        """Log what the program wrote to its standard error, bounded."""
        extra = {"action": "mcp.stderr", "server": self.name}
        masked = without_secrets(text, self._secrets)
        lines = [line.rstrip()[:MAX_LOG_CHARS] for line in masked.splitlines() if line.strip()]
        self._last_line = lines[-1] if lines else self._last_line
        for line in lines[:20]:
            log.info("the MCP server %s: %s", self.name, line, extra=extra)


async def _wait(event: asyncio.Event, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


class McpTool(ToolOfSchema):
    """One tool of a server. All sessions share it."""

    def __init__(self, server: McpServer, listed: ListedTool, name: str) -> None:
        self.unsafe_to_repeat = listed.is_unsafe_to_repeat
        self._server = server
        super().__init__(listed, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the server's tool. A stop of the turn ends the wait."""
        server, listed = self._server, self.listed
        future = server.submit(listed.remote_name, listed.remote_arguments(args, kwargs))
        outcome = "failed"
        try:
            with stoppable(future.cancel):
                result = future.result(server.timeout_s)
            outcome = "error" if result.is_error else "ok"
            return value_of(result, is_structured=listed.output_schema is not None)
        except (CancelledError, TurnStopped):  # a stop during the call, or just before the wait
            outcome = "stopped"
            raise TurnStopped from None
        except TimeoutError:
            outcome = "timeout"
            raise ToolServerError(
                f"the MCP server {server.name} did not answer within {server.timeout_s:g} s; {UNKNOWN}"
            ) from None
        finally:
            future.cancel()
            server.count(outcome)
