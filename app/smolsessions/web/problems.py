"""Errors on the wire: one table from error to status, `application/problem+json`, and nothing else."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from smolsessions.core import errors
from smolsessions.core.policies import TAGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_PROBLEMS = 20
MOST_POINTER_CHARS = 200
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")

log = logging.getLogger(__name__)

STATUS: dict[type[errors.ServiceError], HTTPStatus] = {
    errors.ServiceError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.MalformedError: HTTPStatus.BAD_REQUEST,
    errors.UnauthorizedError: HTTPStatus.UNAUTHORIZED,
    errors.ForeignHostError: HTTPStatus.FORBIDDEN,
    errors.ForeignOriginError: HTTPStatus.FORBIDDEN,
    errors.NotFoundError: HTTPStatus.NOT_FOUND,
    errors.MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    errors.RequestTimeoutError: HTTPStatus.REQUEST_TIMEOUT,
    errors.ConflictError: HTTPStatus.CONFLICT,
    errors.AgentUnavailableError: HTTPStatus.CONFLICT,
    errors.TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.MediaTypeError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    errors.InvalidRequestError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.TooManyTurnsError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.HeadTooLargeError: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.TooManyConnectionsError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.OverloadedError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ShuttingDownError: HTTPStatus.SERVICE_UNAVAILABLE,
}
_OF_THE_FRAMEWORK = {
    HTTPStatus.NOT_FOUND: errors.NotFoundError("There is nothing at this path; /docs lists what there is."),
    HTTPStatus.METHOD_NOT_ALLOWED: errors.MethodNotAllowedError(),
    HTTPStatus.BAD_REQUEST: errors.MalformedError(),
}
OF_A_WORKER = _OF_THE_FRAMEWORK | {
    HTTPStatus.NOT_FOUND: errors.NotFoundError("This process plays turns; it answers /livez, /readyz and /metrics."),
    HTTPStatus.METHOD_NOT_ALLOWED: errors.MethodNotAllowedError("This path takes GET alone."),
}


class FieldProblem(BaseModel):
    """A field of the body, named by its JSON pointer, or a parameter that does not hold what it should."""

    pointer: str | None = Field(None, description="JSON pointer into the body; empty: the body as a whole.")
    place: Literal["path", "query", "header"] | None = Field(None, alias="in", description="Of a parameter.")
    parameter: str | None = Field(None, description="The parameter's name.")
    message: str


class Problem(BaseModel):
    """An error (RFC 9457). `code` is stable; `detail` is for people."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldProblem] | None = None


def status_of(error: errors.ServiceError) -> HTTPStatus:
    """Find the status of the nearest class in the table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def response_to(error: errors.ServiceError) -> JSONResponse:
    """Say an error to the client."""
    status = status_of(error)
    detail = error.message
    if error.code == errors.ServiceError.code:
        detail = "The service made a mistake; it is in its log."
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "code": error.code,
        "detail": detail,
        **error.extensions,
    }
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status.value, headers, media_type="application/problem+json")


def install(app: FastAPI, of_framework: Mapping[HTTPStatus, errors.ServiceError] = _OF_THE_FRAMEWORK) -> None:
    """Answer every error of the application and of the middleware added so far; `of_framework` are its framework's."""

    @app.exception_handler(errors.ServiceError)
    async def service_error(_request: Request, error: errors.ServiceError) -> JSONResponse:
        return response_to(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return response_to(_as_service_error(error))

    @app.exception_handler(HTTPException)
    async def found_by_framework(request: Request, error: HTTPException) -> JSONResponse:
        response = response_to(of_framework.get(HTTPStatus(error.status_code), errors.ServiceError()))
        if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(_methods_of(app, request.scope))
        return response

    app.add_middleware(_Defects)


class _Defects:
    """Answers an unexpected exception; Starlette's own handler raises it again, and the connection closes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception:
            if has_begun or scope["type"] != "http":
                raise  # the server logs it, and closes the connection: the answer stays half
            log.exception("a request met a defect of this service")
            await response_to(errors.ServiceError())(scope, receive, send)


def _methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods that a path takes. The framework's own answer names those of its first route alone."""
    asked = ({**scope, "method": method} for method in METHODS)
    return [one["method"] for one in asked if any(route.matches(one)[0] is Match.FULL for route in app.routes)]


def _as_service_error(error: RequestValidationError) -> errors.ServiceError:
    problems: list[dict[str, object]] = []
    sentences = []
    for problem in error.errors()[:MOST_PROBLEMS]:
        if problem["type"] == "json_invalid":
            return errors.MalformedError(f"The body is no JSON: {problem.get('ctx', {}).get('error', 'syntax error')}.")
        place, *path = problem["loc"]
        path = [part for part in path if part not in TAGS]
        message = str(problem["msg"]).removeprefix("Value error, ")
        if place == "body":
            pointer = "".join(f"/{_escaped(part)}" for part in path)
            problems.append({"pointer": pointer, "message": message})
            sentences.append(f"{pointer or 'body'}: {message}")
        else:
            name = ".".join(map(str, path))
            problems.append({"in": place, "parameter": name, "message": message})
            sentences.append(f"{place} {name}: {message}")
    return errors.InvalidRequestError("; ".join(sentences[:5]), errors=problems)


def _escaped(part: object) -> str:
    """Give a part of a JSON pointer (RFC 6901), cut where it is the client's own and long."""
    return str(part)[:MOST_POINTER_CHARS].replace("~", "~0").replace("/", "~1")
