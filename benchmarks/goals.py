"""Goals as rows of a table: the wanted and the measured figure, and whether it was reached."""

from __future__ import annotations

from benchmarks.report import Row


def at_least(goal: str, wanted: float, measured: float) -> Row:
    return _row(goal, f">= {wanted:,.4g}", measured, reached=measured >= wanted)


def at_most(goal: str, wanted: float, measured: float) -> Row:
    return _row(goal, f"<= {wanted:,.4g}", measured, reached=measured <= wanted)


def _row(goal: str, wanted: str, measured: float, *, reached: bool) -> Row:
    return {"goal": goal, "wanted": wanted, "measured": float(measured), "": "met" if reached else "MISSED"}
