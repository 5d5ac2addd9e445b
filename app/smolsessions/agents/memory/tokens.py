"""Estimated tokens of texts and messages: their bytes divided by a usual ratio.

Tokenizers differ by a factor of two or three between languages. The model's own count of an earlier prompt corrects
the estimate of the next one (`PromptTokens`).
"""

from __future__ import annotations

from collections.abc import Sequence

from smolagents.models import ChatMessage

BYTES_PER_TOKEN = 3.5
"""Bytes of UTF-8. English and Chinese have more than four in today's tokenizers, JSON and numbers two or three."""
MESSAGE_TOKENS = 4
"""Cost of a message beside its text: its role and separators."""
IMAGE_TOKENS = 1000
"""Cost of an image. Models count it by its size, from about a hundred to a few thousand."""


def estimate(text: str) -> int:
    return -int(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def estimate_messages(messages: Sequence[ChatMessage]) -> int:
    """Return the estimated tokens of messages: their texts, and a constant for each message and image."""
    tokens = 0
    for message in messages:
        content = message.content
        parts = [{"text": content or ""}] if not isinstance(content, list) else content
        tokens += MESSAGE_TOKENS
        tokens += sum(estimate(str(part["text"])) if "text" in part else IMAGE_TOKENS for part in parts)
    return tokens
