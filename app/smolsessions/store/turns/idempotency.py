"""What an Idempotency-Key becomes in the store: names and digests that tell nobody what was sent."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsessions.core.records import IdempotentRequest, Owner

MOST_DERIVED = 20
ID_CHARS = 24


class IdempotencyKeys:
    """A secret of the store, the same for all processes on it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def name(self, owner: Owner, once: IdempotentRequest) -> str:
        """Give what stands for owner and key."""
        return self._digest("key", owner, once.key).hex()

    def digest(self, owner: Owner, once: IdempotentRequest) -> str:
        """Give what stands for all that was asked."""
        return self._digest("request", owner, once.key, once.request).hex()

    def conversation_id(self, owner: Owner, once: IdempotentRequest, nth: int) -> str:
        """Give the id of a conversation that begins with this key; the nth one, where those before are taken.

        They are of days that the key has outlived, so a key that is used for ever gets any id at last.
        """
        if nth >= MOST_DERIVED:
            return secrets.token_hex(ID_CHARS // 2)
        return self._digest("conversation", owner, once.key, str(nth)).hex()[:ID_CHARS]

    def _digest(self, *parts: str | bytes) -> bytes:
        joined = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
        return hmac.digest(self._secret, joined, "sha256")
