"""Adapters for test suites of agents: an async callable from a history to the reply and the names of called tools."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Self, TypeVar

from smolsessions.client import AsyncClient, ClientError

__all__ = ["ServiceAdapter", "SmolagentsAdapter", "ToolCall", "TurnFailedError", "UnknownHistoryError"]
T = TypeVar("T")
History = list[dict[str, Any]]
"""Messages with `role` and `content`. The last one is the user's. The list grows from call to call."""
INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})
MAX_HISTORIES = 1000

try:  # the evaluators of pytest-agent-eval read arguments from this class alone
    from pytest_agent_eval.models import ToolCall
except ImportError:

    class ToolCall(str):  # type: ignore[no-redef] # noqa: SLOT000 - as that class, which it stands in for
        """Name of a called tool, with the arguments of the call. `args` is None if they are no JSON object."""

        args: dict[str, Any] | None

        def __new__(cls, name: str, args: dict[str, Any] | None = None) -> Self:
            call = super().__new__(cls, name)
            call.args = args
            return call


class UnknownHistoryError(Exception):
    """A longer history that this adapter has not begun, or has closed."""


class TurnFailedError(ClientError):
    """A turn of the service ended without an answer, or waits for a person. `code` is that of its error."""


class SmolagentsAdapter:
    """Runs histories on smolagents agents of this process.

    A factory makes an agent for each history. A single agent is serialised and has one open history: a second one
    closes the first, which raises `UnknownHistoryError` if it goes on.
    """

    def __init__(self, agent_or_factory: Any, *, include_internal_tools: bool = False) -> None:
        """Take an agent, or a function without parameters that returns a new one."""
        self._factory: Callable[[], Any] | None = None
        if not hasattr(agent_or_factory, "run") or not hasattr(agent_or_factory, "memory"):
            if not callable(agent_or_factory):
                raise TypeError(f"{agent_or_factory!r} is no smolagents agent; pass one, or a function that makes one")
            self._factory = agent_or_factory
        self._single = (agent_or_factory, Lock())
        self._open = _OpenHistories[tuple[Any, Lock]](MAX_HISTORIES if self._factory else 1)
        self._include_internal_tools = include_internal_tools

    async def __call__(self, history: History) -> tuple[str, list[str]]:
        """Run the last message. Return the reply, and the names of the tools that the new steps called."""
        return await asyncio.to_thread(self._run, history, _message_of(history), _is_new(history))

    def _run(self, history: History, message: str, is_new: bool) -> tuple[str, list[str]]:
        if is_new:
            agent, lock = (self._factory(), Lock()) if self._factory else self._single
        else:
            agent, lock = self._open.of(history)
        with lock:
            if not is_new:
                self._open.of(history)  # it may have been closed during the wait
            self._open.add(history, (agent, lock))
            before = list(agent.memory.steps)  # by identity: callbacks may remove steps
            reply = agent.run(message, reset=is_new)
            new = [step for step in agent.memory.steps if not any(step is each for each in before)]
        self._open.answered(history, str(reply))
        names: list[str] = []
        for step in new:
            # smolagents leaves the calls of a failed step in its model's message alone.
            output = getattr(step, "model_output_message", None)
            requested = [each.function for each in getattr(output, "tool_calls", None) or ()]
            calls = getattr(step, "tool_calls", None) or requested
            names += [ToolCall(call.name, _arguments(getattr(call, "arguments", None))) for call in calls]
        if not self._include_internal_tools:
            names = [name for name in names if name not in INTERNAL_TOOLS]
        return str(reply), names


class ServiceAdapter:
    """Runs histories as conversations of a service."""

    def __init__(
        self, url: str, agent: str | None = None, api_key: str | None = None, *, include_internal_tools: bool = False
    ) -> None:
        self._url = url
        self._agent = {"agent": agent} if agent else {}
        self._api_key = api_key
        self._internal = include_internal_tools
        self._open = _OpenHistories[str](MAX_HISTORIES)

    async def __call__(self, history: History) -> tuple[str, list[str]]:
        """Send the last message and wait for the turn's end. Raises `TurnFailedError`, and the errors of the client."""
        message, is_new = _message_of(history), _is_new(history)
        place: Any = self._agent if is_new else {"conversation_id": self._open.of(history)}
        async with AsyncClient(self._url, api_key=self._api_key) as client:  # each test may have a loop of its own
            turn = await client.turn(message, include_internal_tools=self._internal, **place)
        self._open.add(history, turn.conversation_id)
        self._open.answered(history, turn.reply or "")
        if turn.status != "finished":
            ended = "it waits for a person" if turn.status == "waiting" else "it was stopped"
            code, sentence = (turn.error.code, turn.error.message) if turn.error else (turn.status, ended)
            about = f"turn {turn.turn} of conversation {turn.conversation_id}: {code}: {sentence}"
            raise TurnFailedError(code, about)
        return turn.reply or "", [ToolCall(call.name, _arguments(call.arguments)) for call in turn.tool_calls]


@dataclass
class _OpenHistory(Generic[T]):
    history: History
    """The object that was passed last, kept so that no other object takes its id."""
    value: T
    known: History
    """Copy of its messages, with the reply of the last call."""


class _OpenHistories(Generic[T]):
    """Values by history. A history goes on as the same list object, or as a copy that repeats all messages so far."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[int, _OpenHistory[T]] = OrderedDict()
        self._lock = Lock()

    def add(self, history: History, value: T) -> None:
        with self._lock:
            self._entries[id(history)] = _OpenHistory(history, value, list(history))
            self._entries.move_to_end(id(history))
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def answered(self, history: History, reply: str) -> None:
        """Note the reply to the last message, by which a copy of the history is recognised."""
        with self._lock:
            if entry := self._entries.get(id(history)):
                entry.known = [*entry.known, {"role": "assistant", "content": reply}]

    def of(self, history: History) -> T:
        """Return the value of a history. A copy takes the place of its original. Raises `UnknownHistoryError`."""
        with self._lock:
            for key, entry in self._entries.items():
                known = len(entry.known)
                is_copy = len(history) > known and _texts(history[:known]) == _texts(entry.known)
                if key == id(history) or (id(history) not in self._entries and is_copy):
                    entry.history = history
                    self._entries[id(history)] = self._entries.pop(key)
                    return entry.value
        raise UnknownHistoryError(
            "this history goes on, but it was not begun here or another one has closed it; begin it with one user "
            "message, repeat all its messages each time, and give SmolagentsAdapter a factory for several histories "
            "at once"
        )


def _texts(history: History) -> list[tuple[str, str]]:
    return [(message["role"], str(message.get("content"))) for message in history]


def _message_of(history: History) -> str:
    if not history or history[-1]["role"] != "user":
        raise ValueError("the last message of a history is the user's; append it before the call")
    return str(history[-1]["content"])


def _is_new(history: History) -> bool:
    return [message["role"] for message in history].count("user") == 1


def _arguments(arguments: Any) -> dict[str, Any] | None:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return arguments if isinstance(arguments, dict) else None
