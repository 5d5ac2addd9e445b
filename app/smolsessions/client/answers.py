"""Answers as models."""

from __future__ import annotations

from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, Field, RootModel, ValidationError

from smolsessions.client.errors import foreign_answer
from smolsessions.wire.conversations import Conversation

M = TypeVar("M", bound=BaseModel)


class ReadConversation(Conversation):
    """A conversation with its version at the time of the answer."""

    etag: str | None = Field(None, exclude=True, description="Version for `if_match`. None: a proxy removed it.")


class Document(RootModel[dict[str, Any]]):
    """An exported conversation."""


def read(model: type[M], response: httpx2.Response) -> M:
    """Return an answer as a model. Raises `ApiError` if it is none."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError:
        raise foreign_answer(response, response.text) from None


def read_conversation(response: httpx2.Response) -> ReadConversation:
    """Return the conversation of an answer."""
    return read(ReadConversation, response).model_copy(update={"etag": response.headers.get("ETag")})
