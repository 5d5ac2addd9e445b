"""Memory that model-written code may take in one process of the service, divided among the blocks that run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from smolagents.local_python_executor import InterpreterError

from smolsessions.agents.sandbox.limits import MB
from smolsessions.core.records import LOCAL, Owner

MOST_WAIT_S = 60.0
SHARE_OF_CODE = 0.75  # of the memory that the process may use
_CHECK_S = 0.1
_LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}  # by the controllers of a hierarchy: version 2 and 1


class NoMemoryLeftError(InterpreterError):
    """Other code takes all memory that code may have here, so this block did not run; try again."""

    def __init__(self) -> None:
        super().__init__(str(type(self).__doc__))


class MemoryBudget:
    """Budget of one process, in MB. A block reserves its limit before it runs. For any thread.

    Owners take turns, and the blocks of one owner run in order of arrival. A process between two blocks of its turn
    keeps what it holds until another block needs that.
    """

    def __init__(self, total_mb: int | None = None, owner_share: float = 1.0, processes: int = 1) -> None:
        """By default the total is a part of the memory that these `processes` may use. An owner gets `owner_share`."""
        self.total_mb = total_mb or int(memory_mb() * SHARE_OF_CODE / processes)
        self._owner_mb = int(self.total_mb * owner_share)
        self._held: Counter[Owner] = Counter()
        self._queue: list[tuple[Owner, int]] = []
        self._served: list[Owner] = []
        """Owners that hold memory or wait, in the order in which they last got some."""
        self._idle: dict[Callable[[], None], tuple[Owner, int]] = {}
        """Functions that end an idle process and give its memory (in MB) back, the longest idle first."""
        self._inside: set[int] = set()
        """Threads in which a block runs. Another one in it belongs to an agent that the block calls."""
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take(self, owner: Owner, mb: int, check: Callable[[], None]) -> None:
        """Wait until an owner's block may take this much. `check` is called meanwhile, and raises to end the wait.

        Raises `NoMemoryLeftError` after a minute. A block within another block does not wait for it.
        """
        wanted, end = (owner, mb), time.monotonic() + MOST_WAIT_S
        with self._changed:
            if threading.get_ident() in self._inside:
                self._grant(owner, mb)
                return
            self._queue.append(wanted)
        try:
            while True:
                with self._changed:
                    if self._is_next(wanted) or (self._changed.wait(_CHECK_S) and self._is_next(wanted)):
                        self._grant(owner, mb)
                        return
                check()
                if time.monotonic() > end:
                    raise NoMemoryLeftError
        finally:
            with self._changed:
                self._queue = [each for each in self._queue if each is not wanted]
                self._changed.notify_all()

    def try_grow(self, owner: Owner, mb: int, to_mb: int) -> bool:
        """Take more for a block that has `mb`, if that can be had without waiting."""
        with self._changed:
            more_mb = to_mb - mb
            is_free = not self._queue and self._held.total() + more_mb <= self.total_mb
            if is_free := is_free and self._fits_owner(owner, self._held[owner] - mb, to_mb):
                self._grant(owner, more_mb)
            return is_free

    def give_back(self, owner: Owner, mb: int) -> None:
        with self._changed:
            self._held[owner] -= mb
            if not self._held[owner]:
                del self._held[owner]
            if self._queue:
                self._changed.notify_all()

    def set_idle(self, owner: Owner, mb: int, end: Callable[[], None]) -> None:
        """Let other blocks call `end` for the memory of an idle process, until `set_busy`."""
        with self._changed:
            self._idle[end] = owner, mb
            self._changed.notify_all()

    def set_busy(self, end: Callable[[], None]) -> None:
        with self._changed:
            self._idle.pop(end, None)

    def end_if_idle(self, end: Callable[[], None]) -> None:
        with self._changed:
            if self._idle.pop(end, None):
                end()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Note that this thread runs a block."""
        thread = threading.get_ident()
        is_outermost = thread not in self._inside
        self._inside.add(thread)
        try:
            yield
        finally:
            if is_outermost:
                self._inside.discard(thread)

    def _is_next(self, wanted: tuple[Owner, int]) -> bool:
        """True if it is the block's turn and the memory suffices, after ending idle processes if need be.

        It is the turn of the owner who waits for longest since it got memory, except in vain for its own share.
        """
        served = {owner: place for place, owner in enumerate(self._served, 1)}
        for each in sorted(self._queue, key=lambda each: served.get(each[0], 0)):
            owner, mb = each
            if not self._fits_owner(owner, self._held[owner] - self._idle_mb({owner}), mb):
                continue
            if self._held.total() - self._idle_mb(self._held) + mb > self.total_mb:
                return False  # idle processes would end in vain
            while not self._fits_owner(owner, self._held[owner], mb) and self._end_idle({owner}):
                pass
            while self._held.total() + mb > self.total_mb and self._end_idle(self._held):
                pass
            return each is wanted and self._held.total() + mb <= self.total_mb
        return False

    def _idle_mb(self, owners: Collection[Owner]) -> int:
        return sum(mb for owner, mb in self._idle.values() if owner in owners)

    def _end_idle(self, owners: Collection[Owner]) -> bool:
        """End the process of these owners that has been idle for longest. Returns False if none is idle."""
        end = next((end for end, (owner, _) in self._idle.items() if owner in owners), None)
        if end:
            self.end_if_idle(end)
        return end is not None

    def _grant(self, owner: Owner, mb: int) -> None:
        self._held[owner] += mb
        self._served = [*(each for each in self._served if each != owner), owner]
        present = {*self._held, *(each for each, _ in self._queue)}
        while self._served[0] not in present:  # one behind an owner that waits keeps its place, else it would overtake
            self._served.pop(0)

    def _fits_owner(self, owner: Owner, held_mb: int, mb: int) -> bool:
        """True if an owner may take more: within its share, or for its only block."""
        return owner == LOCAL or held_mb + mb <= max(self._owner_mb, mb)


def memory_mb(root: Path = Path("/")) -> float:
    """Return the memory that this process may use: that of its control groups, else of the machine."""
    bounds = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers in _LIMITS:
                folder = root / "sys/fs/cgroup" / controllers / own[1:]  # absent where a container sees its own as root
                for each in (folder, *folder.parents):
                    with contextlib.suppress(OSError, ValueError):
                        bounds.append(int((each / _LIMITS[controllers]).read_text()))
    return min(bounds) / MB
