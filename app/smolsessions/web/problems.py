"""Errors as `application/problem+json`, with one table from error to status, and a page for each code."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from smolsessions.core import errors
from smolsessions.core.json_data import invalid_request
from smolsessions.core.request_id import request_id
from smolsessions.web.links import link
from smolsessions.wire.conversations import Conversation
from smolsessions.wire.problems import Problem

ErrorForm = Callable[[dict[str, Any], dict[str, str]], JSONResponse]
"""Makes a dialect's answer from the members and the headers of a problem."""
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
    405: "The path does not take this method. `Allow` lists those that it takes.",
    408: "The request did not come in time.",
    409: "It conflicts with the state: a turn is running (see `on_busy`), the id is taken, or the agent differs.",
    412: "The conversation has changed: its ETag is not in `If-Match`.",
    413: "The request is too large.",
    415: "The body is not `application/json`.",
    422: "A field is invalid. `errors` names it.",
    429: "Too many turns wait in this conversation. Retry after `Retry-After`.",
    431: "The request's head is too large.",
    500: "The service failed.",
    503: "The store does not answer, too many turns wait, or this process is shutting down. Retry after `Retry-After`.",
}


_HEADERS = {401: ("WWW-Authenticate",), 405: ("Allow",), 429: ("Retry-After",), 503: ("Retry-After",)}
WRITE = (404, 409, 413, 415, 422)
_OF_ANY = (400, 403, 405, 408, 431, 500)


def responses(model: type[BaseModel] | None, *codes: int, status: int = 200) -> dict[int | str, Any]:
    """Describe a route's answer, if it has a model, and its errors."""
    return open_responses(model, *codes, 401, 503, status=status)


def open_responses(model: type[BaseModel] | None, *codes: int, status: int = 200) -> dict[int | str, Any]:
    """Describe a route that needs no API key."""
    described: dict[int | str, Any] = {}
    if model:
        described[status] = {"model": model, "description": (model.__doc__ or "").partition("\n")[0]}
    names = ["Location"] if status == HTTPStatus.CREATED else []
    if model is Conversation:
        names.append("ETag")
    if names:
        described[status]["headers"] = headers(*names)
    return {**described, **{code: {"description": _MEANINGS[code]} for code in sorted({*codes, *_OF_ANY})}}


def headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def name_of(status: int | str) -> str:
    """Return the name of a status in the OpenAPI document: `NotFound`."""
    return HTTPStatus(int(status)).phrase.title().replace(" ", "")


def is_error(status: int | str) -> bool:
    return int(status) >= HTTPStatus.BAD_REQUEST


def described() -> dict[str, Any]:
    """Return the answers of errors for the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        name_of(code): {
            "description": text,
            "headers": headers(*_HEADERS.get(code, ())),
            "content": {"application/problem+json": {"schema": schema}},
        }
        for code, text in _MEANINGS.items()
    }


def schemas() -> dict[str, Any]:
    """Return the schemas of errors for the OpenAPI document."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**problem.pop("$defs"), "Problem": problem}


def status_of(error: errors.ServiceError) -> HTTPStatus:
    """Return the status of the nearest class in the table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def response_to(error: errors.ServiceError, scope: Scope | None = None) -> JSONResponse:
    """Return the answer to a request with an error, in the form of the dialect whose path `scope` has."""
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
    forms: Mapping[str, ErrorForm] = getattr(scope["app"].state, "error_forms", {}) if scope else {}
    if scope and (form := forms.get(scope["path"].removeprefix("/").partition("/")[0])):
        return form(body, headers)
    return JSONResponse(body, status.value, headers, media_type="application/problem+json")


def install(app: FastAPI, of_framework: Mapping[HTTPStatus, Callable[[], errors.ServiceError]] = _OF_FRAMEWORK) -> None:
    """Answer the errors of routes and of the framework (`of_framework`)."""

    @app.exception_handler(errors.ServiceError)
    async def service_error(request: Request, error: errors.ServiceError) -> JSONResponse:
        return response_to(error, request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        for problem in error.errors():
            if problem["type"] == "json_invalid":
                cause = problem.get("ctx", {}).get("error", "syntax error").removesuffix(" at")
                sentence = f"The body is not JSON: {cause} at character {problem['loc'][-1]}."
                return response_to(errors.MalformedError(sentence), request.scope)
        body = getattr(request.scope.get("route"), "body_field", None)
        members = getattr(body and body.field_info.annotation, "model_fields", {})
        return response_to(invalid_request(error.errors(), members), request.scope)

    @app.exception_handler(HTTPException)
    async def found_by_framework(request: Request, error: HTTPException) -> JSONResponse:
        cause = error.__cause__
        if isinstance(cause, RecursionError):
            return response_to(errors.MalformedError("The body has too many levels; send fewer."), request.scope)
        if isinstance(cause, ValueError) and "integer string conversion" in str(cause):
            sentence = "The body holds a number of too many digits; send it as a text."
            return response_to(errors.MalformedError(sentence), request.scope)
        response = response_to(of_framework.get(HTTPStatus(error.status_code), errors.ServiceError)(), request.scope)
        if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # The framework's own answer names the methods of the path's first route alone.
            asked = ({**request.scope, "method": method} for method in METHODS)
            allowed = [one["method"] for one in asked if any(each.matches(one)[0] is Match.FULL for each in app.routes)]
            response.headers["Allow"] = ", ".join(allowed)
        return response


def serve_error_pages(app: FastAPI, headers: Mapping[str, str]) -> None:
    """Serve a page for each code. Needs no API key."""

    @app.get("/docs/errors/{code}", include_in_schema=False)
    async def error_page(code: str) -> HTMLResponse:
        answer, failure = errors.codes_of_answers().get(code), (errors.FAILURES | errors.STEP_FAILURES).get(code)
        if not answer and not failure:
            raise errors.NotFoundError("No error has this code; docs/reference/errors.md lists all.")
        of_answer = [f"Status {status_of(answer()).value}. {answer().message}"] if answer else []
        sentences = [
            *of_answer,
            *([f"Of a {'turn' if code in errors.FAILURES else 'step'}: {failure}"] if failure else []),
        ]
        text = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
        return HTMLResponse(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{code}</title><h1>{code}</h1>{text}</html>',
            headers=dict(headers),
        )
