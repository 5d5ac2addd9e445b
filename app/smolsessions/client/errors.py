"""Errors of the client. Each has a stable `code`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from smolsessions.wire.problems import Problem

if TYPE_CHECKING:
    import httpx2

MAX_SHOWN_CHARS = 300


class ClientError(Exception):
    """A request did not succeed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiError(ClientError):
    """The service refused a request or failed. `code` and `problem` are those of docs/reference/errors.md."""

    def __init__(self, status: int, problem: Problem, retry_after_s: float | None) -> None:
        super().__init__(problem.code, f"{status} {problem.code}: {problem.detail}")
        self.status = status
        self.problem = problem
        self.retry_after_s = retry_after_s


class UnreachableError(ClientError):
    """The service did not answer for `patience_s` seconds. A request may have arrived."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message)


def error_of(response: httpx2.Response) -> ApiError:
    """Return the error of a response with a status of 400 or more, whose body is read."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # a proxy in front answers
        detail = f"{response.reason_phrase}: {response.text[:MAX_SHOWN_CHARS]}"
        title = response.reason_phrase
        problem = Problem(
            type="about:blank", title=title, status=response.status_code, code="no_problem", detail=detail
        )
    after = response.headers.get("Retry-After", "")
    return ApiError(response.status_code, problem, float(after) if after.isascii() and after.isdigit() else None)
