"""Answers with a header that the caller needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from smolsessions.client.errors import parsed
from smolsessions.wire.conversations import Conversation

if TYPE_CHECKING:
    import httpx2


class ReadConversation(Conversation):
    """A conversation with its version at the time of the answer."""

    etag: str | None = Field(None, exclude=True, description="Version for `if_match`. None: a proxy removed it.")


def read_conversation(response: httpx2.Response) -> ReadConversation:
    """Return the conversation of an answer."""
    conversation = parsed(ReadConversation, response)
    return conversation.model_copy(update={"etag": response.headers.get("ETag")})
