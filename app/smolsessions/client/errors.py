"""Errors of the client. Each has a stable `code`."""

from __future__ import annotations

import httpx2
from pydantic import ValidationError

from smolsessions.wire.problems import Problem

MAX_SHOWN_CHARS = 300


class ClientError(Exception):
    """A request did not succeed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiError(ClientError):
    """The service refused a request or failed. `code` and `problem` are those of docs/reference/errors.md.

    The code `foreign_answer` is the client's own: another server answered.
    """

    def __init__(self, response: httpx2.Response, problem: Problem) -> None:
        super().__init__(problem.code, f"{response.status_code} {problem.code}: {problem.detail}")
        self.status = response.status_code
        self.problem = problem
        after = response.headers.get("Retry-After", "")
        self.retry_after_s = float(after) if after.isascii() and after.isdigit() else None


class UnreachableError(ClientError):
    """The service did not answer for `patience_s` seconds. A request may have arrived."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message)


def error_of(response: httpx2.Response, body: bytes) -> ApiError:
    """Return the error of an answer with its body, or the beginning of a long body."""
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return foreign_answer(response, body.decode(errors="replace"))
    return ApiError(response, problem)


def foreign_answer(response: httpx2.Response, cause: str) -> ApiError:
    """Return the error of an answer that is not the service's, such as a page of a gateway."""
    problem = Problem(
        type="about:blank",
        title=response.reason_phrase,
        status=response.status_code,
        code="foreign_answer",
        detail=f"{response.url} does not answer as smolsessions does: {cause[:MAX_SHOWN_CHARS]}; is the address right?",
    )
    return ApiError(response, problem)
