"""What a client prefers: how long to wait (`Prefer`, RFC 7240), and to get events rather than JSON (`Accept`)."""

from __future__ import annotations

import re

_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)
_QUALITY = re.compile(r"[01](\.\d{0,3})?")


def wait_of(prefer: str | None, longest_s: float) -> tuple[float, str | None]:
    """Return the seconds to wait for a turn's end, and the value of `Preference-Applied` (None: no preference).

    Both together mean: wait so long, and then go on without the client.
    """
    words = [part.partition(";")[0].strip() for part in (prefer or "").split(",")]
    waits = [match for word in words if (match := _WAIT.fullmatch(word))]
    is_async = "respond-async" in map(str.lower, words)
    applied = ["respond-async"] if is_async else []
    wait_s = 0.0 if is_async else longest_s
    if waits:
        wait_s = float(min(int(waits[0][1]), int(longest_s) or longest_s))
        applied.append(f"wait={wait_s:g}")
    return wait_s, ", ".join(applied) or None


def wants_stream(accept: str | None) -> bool:
    """Tell whether `text/event-stream` is named and not ranked below JSON."""
    if not accept:
        return False
    ranks: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        ranks[kind] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    stream = ranks.get("text/event-stream", 0.0)
    json = ranks.get("application/json", ranks.get("application/*", ranks.get("*/*", 0.0)))
    return stream > 0 and stream >= json
