"""Writes of a step's many chunks of variables, in pieces that become valid at once.

One script with all would delay others. So they are staged under names with a mark, and valid once the mark is written.
"""

from __future__ import annotations

from smolsessions.store import codec
from smolsessions.store.conversations.staging import pieces
from smolsessions.store.scripts.loader import Argument, flattened
from smolsessions.store.turns.write_queue import WriteQueue

MOST_PIECES = 4  # of chunks that one script takes at once: two passes cost the store twice as much
STAGED = "\n"  # between the name of a staged chunk and its mark


def are_many(chunks: list[Argument]) -> bool:
    return len([*pieces(chunks)]) > MOST_PIECES


def stage(writes: WriteQueue, claim: str, chunks: list[Argument]) -> tuple[list[Argument], str]:
    """Write chunks under names with a mark. Return them with these names, and the mark, to write with the step."""
    mark = f"{claim}.{writes.made}"
    names = [str(name) + STAGED + mark for name in chunks[::2]]
    staged = flattened(zip(names, chunks[1::2], strict=True))
    for _, piece in pieces(staged):
        writes.add("v" * (len(piece) // 2), piece)
    return staged, mark


def move(writes: WriteQueue, staged: list[Argument], mark: str) -> None:
    """Rename staged chunks with this mark to their own names, and remove all others, then the mark."""
    for _, piece in pieces(staged):
        moves: list[Argument] = []
        for field in piece[::2]:
            name, _, own_mark = str(field).partition(STAGED)
            moves += [field, name if own_mark == mark else ""]
        writes.add("x" * (len(piece) // 2), moves)
    if mark:
        writes.add("x", ["", ""])


def take_staged(pending: dict[str, bytes]) -> tuple[list[Argument], str]:
    """Take staged chunks out. Those with the mark that was written with their step replace others."""
    mark = codec.text(pending.pop("", b""))
    staged = {field: pending.pop(field) for field in [*pending] if STAGED in field}
    for field, blob in staged.items():
        name, _, own_mark = field.partition(STAGED)
        if own_mark == mark:
            pending[name] = blob
    return flattened(staged.items()), mark
