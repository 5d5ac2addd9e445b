"""`Prefer` (RFC 7240): how long a client wants to wait."""

from __future__ import annotations

import re

_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)


def wait_of(prefer: str | None, longest_s: float) -> tuple[float, str | None]:
    """Give the seconds to wait and what to say of the preference in `Preference-Applied` (nothing where none is)."""
    for part in (prefer or "").split(","):
        word = part.partition(";")[0]
        if word.strip().lower() == "respond-async":
            return 0.0, "respond-async"
        match = _WAIT.fullmatch(word)
        if match:
            wait_s = min(int(match[1]), int(longest_s) or longest_s)
            return float(wait_s), f"wait={wait_s:g}"
    return longest_s, None
