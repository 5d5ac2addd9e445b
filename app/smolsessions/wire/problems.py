"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FieldProblem(BaseModel):
    """An invalid field of the body, named by its JSON pointer, or an invalid parameter."""

    pointer: str | None = Field(None, description="JSON pointer into the body. Empty: the body as a whole.")
    place: Literal["path", "query", "header"] | None = Field(None, alias="in", description="Place of a parameter.")
    parameter: str | None = Field(None, description="The parameter's name.")
    message: str


class Problem(BaseModel):
    """An error. `code` is stable, `detail` is for people."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldProblem] | None = None
