"""Errors as the libraries of clients read them, by dialect. The others read problem details (RFC 9457)."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_BAD_REQUEST, _DEFECT, _BUSY = 400, 500, 409


def openai_error(problem: dict[str, Any], headers: dict[str, str]) -> JSONResponse:
    """Return a problem as OpenAI's libraries read it, so that they raise the right exception."""
    status = problem["status"]
    first = (problem.get("errors") or [{}])[0]
    place = str(first.get("pointer") or first.get("parameter") or "")
    kind = _TYPES.get(status, "server_error" if status >= _DEFECT else _TYPES[_BAD_REQUEST])
    error = {"message": problem["detail"], "type": kind, "param": place.lstrip("/") or None, "code": problem["code"]}
    if status == _BUSY:  # a second try would be refused as well
        headers["x-should-retry"] = "false"
    return JSONResponse({"error": error}, status, headers)
