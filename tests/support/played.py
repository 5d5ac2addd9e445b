"""Model of conversations under replicas, in plain Python: `test_replica_model.Machine` compares with it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from smolsessions.core.records import MAX_CRASHES, OnBusy

STRENGTHS = ("1", "interrupt", "rollback")
CODES = {"interrupt": "interrupted", "rollback": "rolled_back"}


class Wish(NamedTuple):
    """Request to stop a turn, from a caller (`1`) or from turn `by`."""

    kind: str = "1"
    by: int = 0

    @property
    def flag(self) -> str:
        return f"{self.kind}:{self.by}" if self.by else self.kind

    @property
    def reason(self) -> str:
        return CODES.get(self.kind, "cancelled")


class Ended(NamedTuple):
    """Record of a turn that has ended. `by` is the turn that requested the end."""

    status: str
    attempts: int
    code: str | None = None
    by: int = 0


@dataclass
class Open:
    """A turn that waits or runs. `grew`: the claim that holds it, or held it last, has written a new effect.

    `spared`: since the claim, a living process had lost the store.
    """

    number: int
    started: bool = False
    attempts: int = 0
    counted: int = 0
    grew: bool = False
    spared: bool = False
    wish: Wish | None = None
    told: bool = True
    journal: dict[str, bool] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)
    fresh: dict[str, bytes | None] = field(default_factory=dict)
    log: list[str] = field(default_factory=lambda: ["turn.queued"])

    @property
    def begun(self) -> bool:
        return f"started:{self.attempts}" in self.journal

    @property
    def suspect(self) -> bool:
        return self.counted == MAX_CRASHES - 1

    def stop(self, wish: Wish) -> None:
        """Accept the request if it is stronger than the current one. The turn's worker may or may not learn of it."""
        if self.wish is None or STRENGTHS.index(wish.kind) > STRENGTHS.index(self.wish.kind):
            self.wish, self.told = wish, False

    def claim(self) -> None:
        self.attempts += self.begun or not self.attempts
        self.started, self.grew, self.spared, self.told = True, False, False, True

    def write(self, name: str, *, effect: bool) -> None:
        self.grew |= effect and name not in self.journal
        self.journal.setdefault(name, effect)

    def endings(self, status: str) -> list[Ended]:
        """Return the possible outcomes of a commit. An interrupt applies only if the worker learned of it in time."""
        own = Ended(status, self.attempts)
        if self.wish is None or not self.wish.by or (self.wish.kind == "interrupt" and status != "cancelled"):
            return [own]
        stopped = Ended("cancelled", self.attempts, self.wish.reason, self.wish.by)
        return [stopped] if self.told or self.wish.kind == "rollback" else [stopped, own]


@dataclass
class Played:
    """A conversation. `holder` plays the first turn of the queue. `expired` says that the lease may be swept."""

    turns: int = 0
    queue: list[Open] = field(default_factory=list)
    holder: int | None = None
    expired: bool = False
    deleted: bool = False
    committed_by: int | None = None
    steps: list[str] = field(default_factory=list)
    variables: dict[str, bytes] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    logs: dict[int, list[str]] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return self.turns > 0 and not self.deleted

    @property
    def first(self) -> Open:
        return self.queue[0]

    @property
    def shown(self) -> list[str]:
        """The steps, including those of an unfinished turn."""
        return self.steps + (self.first.tail if self.queue else [])

    def submit(self, on_busy: OnBusy) -> None:
        self.turns += 1
        self.queue.append(Open(self.turns))
        if len(self.queue) > 1 and on_busy in CODES:
            self.first.stop(Wish(on_busy, self.turns))

    def leave(self) -> None:
        self.holder, self.expired = None, False

    def sweep(self) -> None:
        turn = self.first
        turn.counted = 0 if turn.grew else turn.counted + (turn.begun and not turn.spared)
        self.leave()

    def hand_back(self) -> None:
        self.first.started &= "started:1" in self.first.journal
        self.leave()

    def commit(self, ended: Ended) -> None:
        if ended.code != "rolled_back":
            self.steps += self.first.tail
            merged = {**self.variables, **self.first.fresh}
            self.variables = {name: piece for name, piece in merged.items() if piece is not None}
        self.committed_by = self.holder
        self.end(self.first, ended)
        self.leave()

    def end(self, turn: Open, ended: Ended) -> None:
        self.queue.remove(turn)
        self.ended[turn.number] = ended
        self.logs[turn.number] = [*turn.log, f"turn.{ended.status}"]

    def delete(self) -> None:
        for turn in [*self.queue]:
            self.end(turn, Ended("cancelled", turn.attempts if turn.started else 0, "conversation_deleted"))
        self.leave()
        self.deleted = True


@dataclass
class Ready:
    """Conversations that wait for a worker, the oldest first, and the worker that waits to be alone with one.

    `line`: their owners, the longest wait first.
    """

    names: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    alone: int | None = None

    def add(self, name: str) -> None:
        self.names.append(name)
        if owner_of(name) not in self.line:
            self.line.append(owner_of(name))

    def remove(self, name: str) -> None:
        self.names.remove(name)
        if not self.of(owner_of(name)):
            self.line.remove(owner_of(name))

    def of(self, owner: str) -> list[str]:
        return [name for name in self.names if owner_of(name) == owner]

    def claim(self, worker: int, most: int, *, idle: bool, first: Callable[[str], Open]) -> list[str]:
        """Take the oldest of each owner in turn.

        A conversation with a counted attempt needs an idle worker to itself. Otherwise it is passed over.
        """
        taken: list[str] = []
        passed: set[str] = set()
        while len(taken) < most:
            name = next((name for owner in self.line for name in self.of(owner) if name not in passed), None)
            if name is None:
                break
            suspect = first(name).suspect
            if suspect and (not idle or taken):
                if not taken and self.alone in {None, worker}:
                    self.alone = worker
                    break
                passed.add(name)
                continue
            self.take(name)
            taken.append(name)
            if suspect:
                self.alone = None if self.alone == worker else self.alone
                break
        return taken

    def take(self, name: str) -> None:
        """Remove a conversation, and move its owner to the end of the line."""
        self.remove(name)
        if owner_of(name) in self.line:
            self.line.remove(owner_of(name))
            self.line.append(owner_of(name))


def owner_of(name: str) -> str:
    return name.partition("/")[0]
