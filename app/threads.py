"""Daemon threads of the service's own, in which agents run."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Threads:
    """A fixed number of threads. They are daemons: a stuck one does not keep the process from ending."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy = 0
        self.stuck = 0
        self._jobs: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._given_up: dict[asyncio.Future[Any], Callable[[], None]] = {}
        for _ in range(count):
            self._hire()

    @property
    def free(self) -> int:
        return self.count - self.busy

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job in a free thread; the future has what it returns or raises."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            if result in self._given_up:
                self.stuck -= 1
                self._given_up.pop(result)()
            if result.done():
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]

        def work() -> bool:
            value, failure = None, None
            try:
                value = job()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to who waits
                failure = error
            except BaseException as error:  # noqa: BLE001 - a SystemExit would end the loop that waits
                failure = RuntimeError(f"a job left with {type(error).__name__}")
            is_mine = result not in self._given_up
            loop.call_soon_threadsafe(settle, value, failure)
            return is_mine

        self._jobs.put(work)
        return result

    def give_up(self, result: asyncio.Future[T], afterwards: Callable[[], None]) -> None:
        """Count a job's thread as stuck and take on another one; `afterwards` is called if the job ever ends."""
        self._given_up[result] = afterwards
        self.stuck += 1
        result.cancel()
        self._hire()

    def _hire(self) -> None:
        threading.Thread(target=self._work, name="turn", daemon=True).start()

    def _work(self) -> None:
        while self._jobs.get()():
            pass  # a thread that was given up has been replaced: it ends with its job
