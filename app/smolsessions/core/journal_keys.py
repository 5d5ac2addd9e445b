"""Keys of the entries in a turn's journal. Each is a word and its parts, joined by colons.

- `KIND:CALL:NAME:DIGEST` is the result of a call (`CallKey`). Models and checks have neither name nor digest.
- `begun:KEY` is the start of a call, and `first:ATTEMPT:KEY` or `again:ATTEMPT:KEY` its start in a later attempt.
- `once:NAME` is a choice.
- `asked:CALL:NUMBER` is a request for a decision, and `answer:REQUEST` the decision.
- `expired:MICROSECONDS` is the end of a wait without a decision.
- `joined:PLACE:TURN` is the message of another turn, after so many steps of the agent.
- `started:ATTEMPT` is the start of an attempt, and `parked:ATTEMPT` its end to wait.

The scripts of the store write `answer` and `expired`, and read `started`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

CallKind = Literal["model", "tool", "code", "check"]
Word = Literal[CallKind, "begun", "first", "again", "once", "asked", "answer", "expired", "started", "parked", "joined"]


def journal_key(word: Word, *parts: object) -> str:
    return ":".join([word, *map(str, parts)])


def split_key(key: str) -> tuple[Word, str]:
    word, _, rest = key.partition(":")
    return cast("Word", word), rest


def joined_turn(key: str) -> int | None:
    """Return the number of the turn whose message an entry stands for. None: it is another entry."""
    word, rest = split_key(key)
    return int(rest.rpartition(":")[2]) if word == "joined" else None


class CallKey(NamedTuple):
    """Key of a call's result: its place, which a replay repeats, the tool, and a digest of the arguments."""

    kind: CallKind
    call_id: str
    name: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return ":".join(self if self.name else self[:2])

    @classmethod
    def parse(cls, text: str) -> CallKey:
        kind, call_id, *rest = text.split(":", 2)
        name, _, digest = "".join(rest).rpartition(":")
        return cls(cast("CallKind", kind), call_id, name, digest)
