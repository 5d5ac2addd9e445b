"""Daemon threads of the service's own, in which agents run, and the share of them that each owner gets."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from smolsessions.core.records import LOCAL, Owner

T = TypeVar("T")

SHARED_S = 60.0  # how long an owner counts as one of several


class Threads:
    """A fixed number of threads. They are daemons: a stuck one does not keep the process from ending."""

    def __init__(self, count: int, owner_share: float = 1.0) -> None:
        """`owner_share` is the part of the threads that one owner gets, except `LOCAL`, who has the service alone."""
        self.count = count
        self._owner_share = owner_share
        self._held: Counter[Owner] = Counter()
        self._last_owner: Owner | None = None
        self._shared_until = 0.0
        self.stuck = 0
        self._jobs: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._given_up: dict[asyncio.Future[Any], Callable[[Any], object]] = {}
        self._ended: set[asyncio.Future[Any]] = set()
        self._lock = threading.Lock()
        for _ in range(count):
            self._hire()

    @property
    def busy(self) -> int:
        return self._held.total()

    @property
    def free(self) -> int:
        return self.count - self.busy

    def take(self, owner: Owner) -> None:
        """Count a thread as busy for an owner."""
        if self._last_owner not in {owner, None}:
            self._shared_until = time.monotonic() + SHARED_S
        self._last_owner = owner
        self._held[owner] += 1

    def give_back(self, owner: Owner) -> None:
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]

    @property
    def most_each(self) -> int:
        """Threads of one owner: its share. One that was alone for a minute gets half of the others', too."""
        share = self._owner_share if time.monotonic() < self._shared_until else (1 + self._owner_share) / 2
        return max(1, int(self.count * share))

    def room(self, owner: Owner) -> int:
        return (self.count if owner == LOCAL else self.most_each) - self._held[owner]

    def rooms(self) -> dict[Owner, int]:
        """Return the room of each owner that is not `most_each`."""
        return {owner: self.room(owner) for owner in (*self._held, LOCAL)}

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job in a free thread. The future gets its result or exception."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def resolve(value: T | None, error: BaseException | None) -> None:
            self._ended.discard(result)
            if result in self._given_up:
                self.stuck -= 1
                self._given_up.pop(result)(value)
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
            except BaseException as error:  # noqa: BLE001 - the caller handles it, and a SystemExit would end the loop
                is_plain = isinstance(error, Exception)
                failure = error if is_plain else RuntimeError(f"a job left with {type(error).__name__}")
            with self._lock:
                was_given_up = result in self._given_up
                self._ended.add(result)
            loop.call_soon_threadsafe(resolve, value, failure)
            return not was_given_up

        self._jobs.put(work)
        return result

    def give_up(self, result: asyncio.Future[T], afterwards: Callable[[T | None], object]) -> None:
        """Replace a stuck job's thread. `afterwards` is called with the job's result, if it ever ends."""
        with self._lock:
            is_over = result in self._ended  # just now: its thread is free
            self._given_up[result] = afterwards
        self.stuck += 1
        result.cancel()
        if not is_over:
            self._hire()

    def _hire(self) -> None:
        def work() -> None:
            # Keeps this thread from interrupting the event loop, which wakes it while holding the interpreter's lock.
            # It would only wait for the lock: two switches for nothing. Processes that it starts do not inherit this.
            if hasattr(os, "SCHED_BATCH"):  # Linux
                with suppress(OSError):  # a sandbox forbids it
                    os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            while self._jobs.get()():
                pass  # a thread that was given up has been replaced: it ends with its job

        threading.Thread(target=work, name="turn", daemon=True).start()
