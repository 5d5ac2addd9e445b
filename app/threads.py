"""Daemon threads of the service's own, in which agents run."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Threads:
    """A fixed number of threads. They are daemons: a stuck one does not keep the process from ending."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy = 0
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, name=f"turn-{number}", daemon=True).start()

    @property
    def free(self) -> int:
        return self.count - self.busy

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job in a free thread and give what it returns or raises."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            if result.done():
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]

        def work() -> None:
            value, failure = None, None
            try:
                value = job()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to who waits
                failure = error
            except BaseException as error:  # noqa: BLE001 - a SystemExit would end the loop that waits
                failure = RuntimeError(f"a job left with {type(error).__name__}")
            loop.call_soon_threadsafe(settle, value, failure)

        self._jobs.put(work)
        return await result

    def _work(self) -> None:
        while True:
            self._jobs.get()()
