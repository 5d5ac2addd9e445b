"""Images and files of a conversation, whose bytes the store keeps by a hash of their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from smolsessions.core.frozen import record

IMAGE_NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class StepImage:
    """Image of a step: its name in the conversation (a content hash) and its size in pixels."""

    name: Annotated[str, Field(pattern=f"^[0-9a-f]{{{IMAGE_NAME_DIGITS}}}$")]
    width: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class StepFile:
    """File of a step: its name in the conversation (a content hash), its own name, its media type and size."""

    name: Annotated[str, Field(pattern=f"^[0-9a-f]{{{IMAGE_NAME_DIGITS}}}$")]
    file_name: Annotated[str, Field(max_length=200)]
    media_type: Annotated[str, Field(max_length=200)]
    size_bytes: Annotated[int, Field(ge=0)]


@record
class ShownPart:
    """Image or file among the arguments that a person approves: its place (a JSON pointer) and its SHA-256."""

    pointer: str
    sha256: str
    part: StepImage | StepFile


def image_name(data: bytes) -> str:
    """Return the name under which the store keeps an image's bytes."""
    return hashlib.sha256(data).hexdigest()[:IMAGE_NAME_DIGITS]
