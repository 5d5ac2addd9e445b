"""Name of an image in its conversation: a hash of its bytes."""

from __future__ import annotations

import hashlib

NAME_DIGITS = 32


def image_name(data: bytes) -> str:
    """Return the name under which the store keeps these bytes."""
    return hashlib.sha256(data).hexdigest()[:NAME_DIGITS]
