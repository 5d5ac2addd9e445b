"""What callers attach to a conversation: bounded, and changed by merge patches."""

from __future__ import annotations

import json
from typing import Any

from app.errors import TooLargeError

MAX_METADATA_BYTES = 64 * 1024


def bounded(metadata: dict[str, Any]) -> dict[str, Any]:
    """Refuse metadata that would make every list of conversations heavy."""
    if len(json.dumps(metadata)) > MAX_METADATA_BYTES:
        raise TooLargeError(f"The metadata is larger than {MAX_METADATA_BYTES} bytes.")
    return metadata


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null takes a member away, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged
