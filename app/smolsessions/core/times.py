"""Times as texts in JSON."""

from __future__ import annotations

from datetime import UTC, datetime

MOST_SECONDS = 2e10


def time_text(seconds: float, timespec: str = "microseconds") -> str:
    """Return a time in UTC (ISO 8601). Seconds that are no time of this age become 0."""
    moment = datetime.fromtimestamp(seconds if 0 <= seconds <= MOST_SECONDS else 0, UTC)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def seconds_of(text: object) -> float:
    """Return the Unix seconds of a time with its zone. Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("is no time such as 2026-11-28T09:30:00.000000Z")
    return moment.timestamp()
