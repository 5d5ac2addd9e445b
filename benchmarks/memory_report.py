"""Table M (memory policies) as text, and the figure of its goal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.memory import POLICIES, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.memory import Bounded, Record

FLAT_FROM = 50  # by this turn, every policy that bounds the prompt has reached its bound


@dataclass(frozen=True)
class Memories:
    """All of table M."""

    bounded: list[Bounded]
    records: list[Record]

    def growth(self, policy: str) -> tuple[int, float]:
        """Return the last turn, and its CPU divided by that of the first turn from which it must stay flat."""
        early, late = (
            next(each for each in order if each.policy == policy and each.turn >= FLAT_FROM)
            for order in (self.bounded, self.bounded[::-1])
        )
        return late.turn, late.cpu_ms / early.cpu_ms


def memories(found: Memories) -> Iterator[str]:
    """Lay out table M."""
    yield (
        "M. A conversation under each memory policy, a tool call of 1,000 characters and an answer a turn: "
        f"the mean of {WINDOW} turns"
    )
    yield "                                                      x no_pruning:   the prompt then:"
    yield "   policy                   turn      ms  CPU ms  store    ms    CPU  messages characters  tokens  left out"
    bases = {each.turn: each for each in found.bounded if each.policy == "no_pruning"}
    for each in sorted(found.bounded, key=lambda each: list(POLICIES).index(each.policy)):
        base = bases[each.turn]
        yield (
            f"   {each.policy:<22} {each.turn:6} {each.ms:7.2f} {each.cpu_ms:7.2f} {each.store_ms:6.2f} "
            f"{each.ms / base.ms:5.2f} {each.cpu_ms / base.cpu_ms:6.2f} {each.messages:9} {each.characters:10} "
            f"{each.tokens:7} {each.left_out:9}"
        )
    yield "   tokens: estimated, without the descriptions of tools; left out: steps; the model takes no time"
    for record in found.records:
        word = "all there" if not record.missing else f"{record.missing} MISSING"
        yield (
            f"   {record.policy:<22} {record.turns} turns each, {record.steps} steps in …/steps, {record.summaries} of "
            f"them summaries: {word}"
        )
