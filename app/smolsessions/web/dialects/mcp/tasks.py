"""Tasks of the Model Context Protocol: a client that declares them polls a long turn, at any process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from smolsessions.core.errors import NotFoundError
from smolsessions.core.records import Owner, Turn
from smolsessions.core.times import time_text
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.places import place_of, turn_of_request

EXTENSION = "io.modelcontextprotocol/tasks"
VERSION = "2026-07-28"  # the first with this extension; tasks of 2025-11-25 are other ones
LONG_S = 2.0  # after which a turn becomes a task
POLL_MS = 1000


class TaskParams(types.RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


def declares_tasks(context: ServerRequestContext[Any, Any]) -> bool:
    """Return whether a client says that it polls tasks of this extension."""
    capabilities = context.session.client_capabilities
    return context.protocol_version >= VERSION and EXTENSION in ((capabilities and capabilities.extensions) or ())


async def turn_of_task(gateway: Gateway, context: ServerRequestContext[Any, Any], task_id: str) -> Turn:
    """Return the turn that a task is. Raises `MCPError`."""
    assert context.request, "the transport is HTTP"
    if not declares_tasks(context):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "The client declares no tasks.", needed)
    if context.request.headers.get("mcp-name") != task_id:
        raise MCPError(types.HEADER_MISMATCH, "The header Mcp-Name is not the taskId.")
    turn = None
    with suppress(NotFoundError):
        turn = await gateway.turn_at(Owner(context.request.scope["owner"]), turn_of_request(task_id))
    if turn is None:
        raise MCPError(types.INVALID_PARAMS, f"No task has the id {task_id[:80]!r}.")
    return turn


def new_task(turn: Turn, after: int) -> dict[str, Any]:
    """Return the result that a turn becomes a task, as it is after event number `after`.

    The number makes the id that of one call: an earlier call of the same turn may have ended with a question.
    """
    return {"resultType": "task", **task_of(turn, f"{place_of(turn)}:{after}", "working")}


def task_of(turn: Turn, task_id: str, status: str, **members: Any) -> dict[str, Any]:
    """Return a turn as a task with an id, a status of the extension, and members that go with it."""
    timing = turn.timing
    changed_at = timing.finished_at or timing.waits_since or timing.started_at or timing.submitted_at
    return {
        "taskId": task_id,
        "status": status,
        "createdAt": time_text(timing.submitted_at),
        "lastUpdatedAt": time_text(changed_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
        **members,
    }
