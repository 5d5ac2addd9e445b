"""Asynchronous tools: their coroutines run on one event loop of the process, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import nullcontext
from functools import cache
from inspect import iscoroutinefunction, unwrap
from typing import Any

from smolsessions.agents.run.turn_run import TurnRun

_THREAD = "async-tools"
_LOCK = threading.Lock()


def is_asynchronous(tool: Any) -> bool:
    """Return whether a tool is made of an `async def` function, or has such a `forward`."""
    return iscoroutinefunction(unwrap(getattr(tool, "forward", tool)))


def result_of(coroutine: Coroutine[Any, Any, Any], turn_run: TurnRun | None) -> Any:
    """Run a coroutine on the event loop, wait until it ends, and return or raise its result.

    A stop of the turn cancels it. One that goes on in spite of that keeps its thread, as any other tool does.
    """
    with _LOCK:
        loop = _loop_of_process()
    tasks: list[asyncio.Task[Any] | None] = []

    async def caught() -> tuple[Any, BaseException | None]:
        tasks.append(asyncio.current_task())
        try:
            if turn_run and turn_run.bridge.stop_requested:  # by a stop that came before the task
                raise asyncio.CancelledError  # noqa: TRY301 - as from the coroutine
            return await coroutine, None
        except BaseException as error:  # noqa: BLE001 - a SystemExit would end the loop for all tools
            return None, error

    def cancel() -> None:
        for task in filter(None, tasks):
            task.cancel()

    try:
        if threading.current_thread().name == _THREAD:
            raise RuntimeError(
                "an asynchronous tool called another one through its agent, which would wait for ever; "
                "await its function, or call it by asyncio.to_thread"
            )
        with turn_run.stoppable(lambda: loop.call_soon_threadsafe(cancel)) if turn_run else nullcontext():
            # In a copy of this thread's context. A stop cancels the task, and not this future: it waits for the end.
            value, error = asyncio.run_coroutine_threadsafe(caught(), loop).result()
    finally:
        coroutine.close()  # if it never began
    if isinstance(error, asyncio.CancelledError):
        if turn_run:
            turn_run.check()
        error = RuntimeError("the tool was cancelled, and not by a stop of the turn")
    if error:
        raise error
    return value


@cache
def _loop_of_process() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True).start()
    return loop
