"""Health of a process, as answers hold it."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Health(BaseModel):
    """Health of a process."""

    status: str = Field(description="`ok`.", examples=["ok"])
