"""Errors as `application/problem+json`, with one table from error to status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from smolsessions.core import errors
from smolsessions.core.json_data import invalid_request
from smolsessions.core.request_id import request_id
from smolsessions.web.links import link
from smolsessions.wire.conversations import Conversation
from smolsessions.wire.problems import Problem

METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")

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
    errors.PreconditionFailedError: HTTPStatus.PRECONDITION_FAILED,
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
_OF_FRAMEWORK: dict[HTTPStatus, Callable[[], errors.ServiceError]] = {
    HTTPStatus.NOT_FOUND: lambda: errors.NotFoundError(f"Nothing is at this path; {link('/docs')} lists all paths."),
    HTTPStatus.METHOD_NOT_ALLOWED: lambda: errors.MethodNotAllowedError(
        f"This path does not take this method; {link('/docs')} lists what it takes."
    ),
    HTTPStatus.BAD_REQUEST: errors.MalformedError,
}
_WORKER_PATHS = "This process runs turns; it answers /livez, /readyz and /metrics."
OF_A_WORKER = _OF_FRAMEWORK | {
    HTTPStatus.NOT_FOUND: partial(errors.NotFoundError, _WORKER_PATHS),
    HTTPStatus.METHOD_NOT_ALLOWED: partial(errors.MethodNotAllowedError, "This path takes only GET."),
}


_MEANINGS = {
    400: "The request is malformed: its body is not JSON in UTF-8 or ends too early, or its Host is missing or wrong.",
    401: "An API key is needed.",
    403: "The Host is not a name of this machine, or the request comes from a page of another site.",
    404: "No such object exists, or it belongs to another owner.",
    409: "It conflicts with the state: a turn is running (see `on_busy`), the id is taken, or the agent differs.",
    412: "The conversation has changed: its ETag is not in `If-Match`.",
    413: "The request is too large.",
    415: "The body is not `application/json`.",
    422: "A field is invalid. `errors` names it.",
    429: "Too many turns wait in this conversation. Retry after `Retry-After`.",
    500: "The service failed.",
    503: "The store does not answer, too many turns wait, or this process is shutting down. Retry after `Retry-After`.",
}


_HEADERS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
WRITE = (404, 409, 413, 415, 422)


def responses(model: type[BaseModel] | None, *codes: int, status: int = 200) -> dict[int | str, Any]:
    """Describe a route's answer, if it has a model, and its errors."""
    return open_responses(model, 400, *codes, 401, 500, 503, status=status)


def open_responses(model: type[BaseModel] | None, *codes: int, status: int = 200) -> dict[int | str, Any]:
    """Describe a route that needs no API key."""
    described: dict[int | str, Any] = {}
    if model:
        described[status] = {"model": model, "description": first_sentence(model)}
    names = ["Location"] if status == HTTPStatus.CREATED else []
    if model is Conversation:
        names.append("ETag")
    if names:
        described[status]["headers"] = headers(*names)
    return {**described, **{code: {"description": _MEANINGS[code]} for code in sorted({*codes, 400, 403, 500})}}


def headers(*names: str) -> dict[str, Any]:
    """Describe headers of an answer."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def first_sentence(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").partition("\n")[0]


def name_of(status: int | str) -> str:
    """Return the name of a status in the OpenAPI document: `NotFound`."""
    return HTTPStatus(int(status)).phrase.title().replace(" ", "")


def is_error(status: int | str) -> bool:
    return int(status) >= HTTPStatus.BAD_REQUEST


def described() -> dict[str, Any]:
    """Return the answers of errors for the OpenAPI document."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        name_of(code): {"description": text, "headers": headers(*_HEADERS.get(code, ())), "content": content}
        for code, text in _MEANINGS.items()
    }


def schemas() -> dict[str, Any]:
    """Return the schemas of errors for the OpenAPI document."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**problem.pop("$defs"), "Problem": problem}


def status_of(error: errors.ServiceError) -> HTTPStatus:
    """Return the status of the nearest class in the table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def response_to(error: errors.ServiceError) -> JSONResponse:
    status = status_of(error)
    detail = error.message
    if error.code == errors.ServiceError.code:
        detail = "The service failed; its log has the cause."
    body: dict[str, Any] = {
        "type": link(f"/docs/errors/{error.code}"),
        "title": status.phrase,
        "status": status.value,
        "code": error.code,
        "detail": detail,
        **error.extensions,
    }
    if own := request_id.get():
        body["instance"] = own
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status.value, headers, media_type="application/problem+json")


def install(app: FastAPI, of_framework: Mapping[HTTPStatus, Callable[[], errors.ServiceError]] = _OF_FRAMEWORK) -> None:
    """Answer the errors of routes and of the framework (`of_framework`)."""

    @app.exception_handler(errors.ServiceError)
    async def service_error(_request: Request, error: errors.ServiceError) -> JSONResponse:
        return response_to(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        for problem in error.errors():
            if problem["type"] == "json_invalid":
                cause = problem.get("ctx", {}).get("error", "syntax error")
                return response_to(errors.MalformedError(f"The body is not JSON: {cause}."))
        body = getattr(request.scope.get("route"), "body_field", None)
        members = getattr(body and body.field_info.annotation, "model_fields", {})
        return response_to(invalid_request(error.errors(), members))

    @app.exception_handler(HTTPException)
    async def found_by_framework(request: Request, error: HTTPException) -> JSONResponse:
        cause = error.__cause__
        if isinstance(cause, RecursionError):
            return response_to(errors.MalformedError("The body has too many levels; send fewer."))
        if isinstance(cause, ValueError) and "integer string conversion" in str(cause):
            return response_to(errors.MalformedError("The body holds a number of too many digits; send it as a text."))
        response = response_to(of_framework.get(HTTPStatus(error.status_code), errors.ServiceError)())
        if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # The framework's own answer names the methods of the path's first route alone.
            asked = ({**request.scope, "method": method} for method in METHODS)
            allowed = [one["method"] for one in asked if any(each.matches(one)[0] is Match.FULL for each in app.routes)]
            response.headers["Allow"] = ", ".join(allowed)
        return response
