"""Errors of the client. Each has a stable `code`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from smolsessions.wire.problems import Problem

if TYPE_CHECKING:
    import httpx2

M = TypeVar("M", bound=BaseModel)
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


def parsed(model: type[M], response: httpx2.Response) -> M:
    """Return a record of the body. Raises `ClientError` if the body holds none."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise foreign_answer(response) from error


class Page(BaseModel):
    """Page of any list."""

    items: list[Any]
    next_cursor: str | None


def parsed_item(model: type[M], item: Any, response: httpx2.Response) -> M:
    """Return a record of an item of a page."""
    try:
        return model.model_validate(item)
    except ValidationError as error:
        raise foreign_answer(response) from error


def foreign_answer(response: httpx2.Response) -> ClientError:
    """Return the error of an answer that is not of this service."""
    kind = response.headers.get("Content-Type", "no content type")
    return ClientError(
        "foreign_answer",
        f"{response.url} answers {response.status_code} with {kind}, which is no answer of this service; "
        "is the address right, and the service of this release?",
    )


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
