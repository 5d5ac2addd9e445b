"""Failures of a run as clients see them: a stable code and a fixed sentence.

The text of an exception can hold keys, prompts and addresses, so it is never shown. Providers' exceptions are
recognised by statuses, codes and class names, without an import of their libraries.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from smolagents import Model
from smolagents.utils import AgentGenerationError

from smolsessions.core.errors import ServiceError
from smolsessions.core.records import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator


class TurnStopped(BaseException):
    """Leaves a run that is to stop. If an author's code catches it, the next call raises it again."""


class ReplayDivergedError(TurnStopped):
    """A replay requests a call that is not in the journal, while the journal still holds results of tools."""


_SENTENCES = {
    "model_error": "The model gave no usable answer ({name}).",
    "provider_failed": "The model's provider failed ({name}); try again.",
    "provider_unreachable": "The connection to the model's provider failed ({name}); try again.",
    "model_unsupported_input": "The model cannot read a part of this conversation, such as an image ({name}).",
    "model_timeout": "The model did not answer in time ({name}).",
    "model_auth": "The model's provider refuses the credentials of this service ({name}); its operator must mend them.",
    "rate_limited": "The model's provider takes no more requests of this service for now ({name}).",
    "context_overflow": "The conversation is longer than the model can read ({name}); prune it or start another one.",
    "agent_error": "The agent's own code failed ({name}).",
}
_OVERFLOW_TEXT = re.compile(
    r"context[ _-](length|window|size|limit)|(prompt|input) is too long|too many tokens|maximum number of tokens",
    re.IGNORECASE,
)
_IMAGE_TEXT = re.compile(r"image", re.IGNORECASE)
_NO_IMAGES_TEXT = re.compile(
    r"(not|n't) support\w* (\w+ )?(image|vision)|images? (\w+ )?(is|are) not support", re.IGNORECASE
)
_REFUSED = {400, 404, 415, 422}
_CODES = {"provider_failed": "model_error", "provider_unreachable": "model_error"}
_BROKEN_NAME = re.compile(r"Connect|TransportError|ProtocolError|ChunkedEncoding|IncompleteRead|JSONDecode")
_HTTP_STATUS = re.compile(r"[1-5][0-9]{2}")
_SWALLOWED_PREFIX = "Error in generating final LLM output: "

FINAL_ANSWER_FAILED = Failure("model_error", "The model gave no usable answer after the last step.", retryable=True)
"""Failure of an answer that `is_swallowed_failure`. Only the exception's text is left, so its kind is unknown."""


def classify(error: BaseException) -> Failure:
    """Return the failure behind an exception that left `agent.run`. Never `internal`: that code is the host's own.

    The exception needs its traceback. It shows whether a model or a callback raised it, because smolagents does not
    wrap a model's exception in a planning step.
    """
    if isinstance(error, ServiceError):
        return Failure(error.code, error.message)
    if not (isinstance(error, AgentGenerationError) or _passed_a_model(error)):
        return _failure("agent_error", error)
    for link in _causes(error):
        if verdict := _recognise(link):
            kind, retryable = verdict
            return _failure(kind, link, retryable=retryable)
    return _failure("model_error", next(_causes(error), error))


def is_transient(error: BaseException) -> bool:
    """True if a retry may succeed: the provider failed, was unreachable, or timed out."""
    kind, _ = next(filter(None, map(_recognise, _causes(error))), ("", False))
    return kind in {"provider_failed", "provider_unreachable", "model_timeout"}


def error_marks(error: BaseException) -> dict[str, int | str]:
    """Return status and code of a provider's exception, by which `classify` recognises it after a replay."""
    status, code = _status(error), _code(error)
    marks: dict[str, int | str] = {"status_code": status} if status else {}
    return marks | {"code": code} if isinstance(code, str | int) else marks


def is_swallowed_failure(output: object) -> bool:
    """True if an answer forced at `max_steps` is the text of the model's exception, which smolagents caught.

    A model could write the same text. Call this only if the run ended as `max_steps_error`.
    """
    match output:
        case [{"type": "text", "text": str(text)}]:
            return text.startswith(_SWALLOWED_PREFIX)
    return False


def _failure(kind: str, error: BaseException, *, retryable: bool = False) -> Failure:
    status = _status(error)
    name = f"{type(error).__name__}, HTTP {status}" if status else type(error).__name__
    return Failure(_CODES.get(kind, kind), _SENTENCES[kind].format(name=name), retryable)


def _passed_a_model(error: BaseException) -> bool:
    return any(
        frame.f_code.co_name in {"generate", "generate_stream"} and isinstance(frame.f_locals.get("self"), Model)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of causes, without smolagents' wrapper: its text repeats the text of its cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        inner = link.__cause__ if link.__suppress_context__ else link.__context__
        if not isinstance(link, AgentGenerationError) or inner is None:
            yield link
        link = inner


def _recognise(error: BaseException) -> tuple[str, bool] | None:
    """Return the key of a sentence, and whether a retry may help. None for an unknown exception."""
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    text = " ".join(argument for argument in error.args if isinstance(argument, str))
    status, code = _status(error), _code(error)
    is_overflow = code == "context_length_exceeded" or "ContextWindow" in names or _OVERFLOW_TEXT.search(text)
    is_refused_image = (status in _REFUSED and _IMAGE_TEXT.search(text)) or _NO_IMAGES_TEXT.search(text)
    is_limit = status == HTTPStatus.TOO_MANY_REQUESTS or "RateLimit" in names or code == "rate_limit_exceeded"
    is_broken = status >= HTTPStatus.INTERNAL_SERVER_ERROR or _BROKEN_NAME.search(names)
    rules = (
        ("model_auth", False, status in {401, 403} or "Authentication" in names or code == "invalid_api_key"),
        ("rate_limited", code != "insufficient_quota", is_limit),  # waiting does not restore a used-up quota
        ("context_overflow", False, is_overflow),
        ("model_unsupported_input", False, is_refused_image),
        ("model_timeout", True, status in {408, 504} or "Timeout" in names),
        ("provider_failed" if status else "provider_unreachable", True, is_broken),
    )
    return next(((kind, retryable) for kind, retryable, applies in rules if applies), None)


def _status(error: BaseException) -> int:
    """Return the HTTP status of an exception, or 0. Some providers send it as the code of a streamed event."""
    response = _attribute(error, "response")
    held = (_attribute(error, "status_code"), _attribute(response, "status_code"), _code(error))
    numbers = (str(value) for value in held if isinstance(value, str | int))
    return next((int(number) for number in numbers if _HTTP_STATUS.fullmatch(number)), 0)


def _code(error: BaseException) -> object:
    """Return the provider's code: on the exception, in its body, or in the body's `error`."""
    body = _attribute(error, "body")
    inner = body.get("error") if isinstance(body, dict) else None
    held = [holder.get("code") for holder in (body, inner) if isinstance(holder, dict)]
    return next((value for value in (_attribute(error, "code"), *held) if isinstance(value, str | int)), None)


def _attribute(holder: object, name: str) -> Any:
    """Read an attribute of a foreign class. Its properties may raise, as some of httpx do."""
    with contextlib.suppress(Exception):
        return getattr(holder, name, None)
    return None
