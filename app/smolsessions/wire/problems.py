"""Errors as `application/problem+json` (RFC 9457), and the health of a process."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from smolsessions.wire.words import ProblemCode


class FieldProblem(BaseModel):
    """An invalid field of the body, named by its JSON pointer, or an invalid parameter."""

    pointer: str | None = Field(None, description="JSON pointer into the body. Empty: the body as a whole.")
    place: Literal["path", "query", "header"] | None = Field(None, alias="in", description="Place of a parameter.")
    parameter: str | None = Field(None, description="The parameter's name.")
    message: str = Field(description="What is wrong with it.")


class Problem(BaseModel):
    """An error. `code` is stable, `detail` is for people."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="Address of a page about the code.", examples=["/docs/errors/busy"])
    title: str = Field(description="Name of the status.")
    status: int = Field(description="Status of the answer.")
    code: ProblemCode
    detail: str = Field(description="What is wrong, then what to do.")
    instance: str = Field("", description="Id of the request, also in `X-Request-Id` and in the service's log.")
    errors: list[FieldProblem] | None = Field(None, description="Fields and parameters that are invalid. At most 20.")


class Health(BaseModel):
    """Health of a process."""

    status: str = Field(
        description="`ok`. `stale_keys`: the API keys file cannot be read, so keys that were revoked are let in; the "
        "log has the cause.",
        examples=["ok"],
    )
