"""Failures of a run as clients see them: a stable code and a fixed sentence.

The text of an exception can hold keys, prompts and addresses, so it is never shown. Providers' exceptions are
recognised by statuses, codes and class names, without an import of their libraries.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from smolagents import Model
from smolagents.utils import AgentGenerationError

from smolsessions.core.errors import ServiceError
from smolsessions.core.records import Failure


class TurnStopped(BaseException):
    """Leaves a run that is to stop. If an author's code catches it, the next call raises it again."""


class TurnSuspended(TurnStopped):
    """Leaves a run that waits for a person. It goes on as a replay after the answer."""


class ReplayDivergedError(TurnStopped):
    """A replay requests a call that is not in the journal, while the journal still holds results of tools."""


_KINDS = {
    "model_error": Failure("model_error", "The model gave no usable answer ({name})."),
    "failed": Failure("model_error", "The model's provider failed ({name}); try again.", retryable=True),
    "broken_off": Failure("model_error", "The model's provider broke its answer off ({name}); try again.", True),
    "unreachable": Failure("model_unreachable", "The model's provider was not reached ({name}); try again.", True),
    "unreadable": Failure(
        "model_unsupported_input", "The model cannot read a part of this conversation, such as an image ({name})."
    ),
    "timeout": Failure("model_timeout", "The model did not answer in time ({name}).", True),
    "auth": Failure(
        "model_auth",
        "The model's provider refuses the credentials of this service ({name}); its operator must fix them.",
    ),
    "limited": Failure(
        "rate_limited", "The model's provider takes no more requests of this service for now ({name}).", True
    ),
    "quota_spent": Failure(
        "rate_limited",
        "The quota of this service at the model's provider is used up ({name}); its operator must fix it.",
    ),
    "overflow": Failure(
        "context_overflow",
        "The conversation is longer than the model can read ({name}). Roll it back to the turn before a long message, "
        "or set a memory policy such as token_budget.",
    ),
    "agent_error": Failure("agent_error", "The agent's own code failed ({name})."),
}
_OVERFLOW_TEXT = re.compile(
    r"context[ _-](length|window|size|limit)|(prompt|input) is too long|too many tokens|maximum number of tokens|"
    r"max_new_tokens` must be <=",
    re.IGNORECASE,
)
_IMAGE_TEXT = re.compile(r"image", re.IGNORECASE)
_NO_IMAGES_TEXT = re.compile(
    r"(not|n't) support\w* (\w+ )?(image|vision)|images? (\w+ )?(is|are) not support|missing data required for image",
    re.IGNORECASE,
)
_REFUSED = {400, 404, 415, 422}
_AUTH_NAME = re.compile(r"Authentication|Credentials")
_BROKEN_OFF_NAME = re.compile(
    r"IncompleteAnswer|IncompleteRead|ReadError|ProtocolError|ChunkedEncoding|ConnectionClosed|JSONDecode"
)
_UNREACHABLE_NAME = re.compile(r"Connect|TransportError")
_STREAM_NAMES = {"MidStreamFallbackError", "UnknownError", "APIError"}
"""Errors of LiteLLM, Hugging Face and OpenAI for one that the provider sent within a stream."""
_QUOTA_TEXT = re.compile(
    r"insufficient_quota|exceeded your current quota|insufficient balance|credit balance is too low", re.IGNORECASE
)
_MARK = "smolsessions_kind"
"""Attribute of an exception that was read from the journal."""
_HTTP_STATUS = re.compile(r"[1-5][0-9]{2}")
_SWALLOWED_PREFIX = "Error in generating final LLM output: "

FINAL_ANSWER_FAILED = Failure("model_error", "The model gave no usable answer after the last step.", retryable=True)
"""Failure of an answer that `is_swallowed_failure`. Only the exception's text is left, so its kind is unknown."""

OUTPUT_INVALID = Failure(
    "output_invalid", "The agent ran out of steps before its answer had the form of output_schema.", retryable=True
)


def classify(error: BaseException) -> Failure:
    """Return the failure behind an exception that left `agent.run`. Never `internal`: that code is the host's own.

    The exception needs its traceback. It shows whether a model or a callback raised it, because smolagents does not
    wrap a model's exception in a planning step.
    """
    if isinstance(error, ServiceError):
        return Failure(error.code, error.message)
    passed_a_model = isinstance(error, AgentGenerationError) or any(
        frame.f_code.co_name in {"generate", "generate_stream"} and isinstance(frame.f_locals.get("self"), Model)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return classify_call(error) if passed_a_model else _failure("agent_error", error)


def classify_call(error: BaseException) -> Failure:
    """Return the failure of a model call. Another try may help if it is retryable."""
    return _failure(*_kind_of(error))


def error_marks(error: BaseException) -> dict[str, int | str]:
    """Return kind, status and code of a provider's exception, by which `classify` recognises it after a replay."""
    kind, link = _kind_of(error)
    marks: dict[str, int | str] = {} if kind == "model_error" else {_MARK: kind}
    status, code = _status(link), _code(link)
    if status:
        marks["status_code"] = status
    return marks | {"code": code} if isinstance(code, str | int) else marks


def is_swallowed_failure(output: object) -> bool:
    """True if an answer forced at `max_steps` is the text of the model's exception, which smolagents caught.

    A model could write the same text. Call this only if the run ended as `max_steps_error`.
    """
    match output:
        case [{"type": "text", "text": str(text)}]:
            return text.startswith(_SWALLOWED_PREFIX)
    return False


def _failure(kind: str, error: BaseException) -> Failure:
    status = _status(error)
    name = f"{type(error).__name__}, HTTP {status}" if status else type(error).__name__
    failure = _KINDS[kind]
    return replace(failure, message=failure.message.format(name=name))


def _kind_of(error: BaseException) -> tuple[str, BaseException]:
    """Return the kind of a model's failure, and the exception that shows it."""
    found = [(kind, link) for link in causes(error) if (kind := _recognise(link))]
    if not found:
        return "model_error", next(causes(error), error)
    kind, link = found[0]
    deeper: tuple[str, ...] = ()
    if kind == "unreachable":  # OpenAI's client says so of an answer that broke off, too
        deeper = ("broken_off",)
    if kind == "failed" and type(link).__module__.startswith("litellm"):
        # LiteLLM gives the status 500 to a refused connection, and to a timeout or an end within a stream.
        deeper = ("timeout", "broken_off", "unreachable")
    return next((each for wanted in deeper for each in found if each[0] == wanted), found[0])


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of causes, without smolagents' wrapper: its text repeats the text of its cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        inner = link.__cause__ if link.__suppress_context__ else link.__context__
        if not isinstance(link, AgentGenerationError) or inner is None:
            yield link
        link = inner


def _recognise(error: BaseException) -> str | None:
    """Return the kind of an exception. None for an unknown one."""
    if isinstance(mark := attribute(error, _MARK), str) and mark in _KINDS:
        return mark
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    text = " ".join(argument for argument in error.args if isinstance(argument, str))
    status, code = _status(error), _code(error)

    def shows_quota() -> bool:
        # Hugging Face shows the code only in the response's text, which some clients read when it is asked for.
        return bool(_QUOTA_TEXT.search(f"{text}{attribute(attribute(error, 'response'), 'text')}"))

    is_overflow = code == "context_length_exceeded" or "ContextWindow" in names or _OVERFLOW_TEXT.search(text)
    is_refused_image = (status in _REFUSED and _IMAGE_TEXT.search(text)) or _NO_IMAGES_TEXT.search(text)
    is_limit = status == HTTPStatus.TOO_MANY_REQUESTS or "RateLimit" in names or code == "rate_limit_exceeded"
    is_quota = (
        status == HTTPStatus.PAYMENT_REQUIRED
        or "ServiceQuotaExceeded" in names
        or ((is_limit or status in _REFUSED) and (code == "insufficient_quota" or shows_quota()))
    )
    is_auth = status in {401, 403} or code == "invalid_api_key" or _AUTH_NAME.search(names)
    is_streamed = type(error).__name__ in _STREAM_NAMES or "unexpected response from Ollama" in text
    rules = (
        ("auth", is_auth),
        # Waiting does not restore a used-up quota.
        ("quota_spent", is_quota),
        ("limited", is_limit),
        ("overflow", is_overflow),
        ("unreadable", is_refused_image),
        ("timeout", status in {408, 504} or "Timeout" in names),
        ("failed", status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.FAILED_DEPENDENCY or is_streamed),
        ("broken_off", _BROKEN_OFF_NAME.search(names)),
        ("unreachable", _UNREACHABLE_NAME.search(names)),
    )
    return next((kind for kind, applies in rules if applies), None)


def _status(error: BaseException) -> int:
    """Return the HTTP status of an exception, or 0. Some providers send it as the code of a streamed event."""
    response = attribute(error, "response")
    of_aws = _member(response, "ResponseMetadata", "HTTPStatusCode")
    held = (attribute(error, "status_code"), attribute(response, "status_code"), of_aws, _code(error))
    numbers = (str(value) for value in held if isinstance(value, str | int))
    return next((int(number) for number in numbers if _HTTP_STATUS.fullmatch(number)), 0)


def _code(error: BaseException) -> object:
    """Return the provider's code: on the exception, in its body, or in the body's `error`."""
    body = attribute(error, "body")
    response = attribute(error, "response")
    held = (
        attribute(error, "code"),
        _member(body, "code"),
        _member(body, "error", "code"),
        _member(response, "Error", "Code"),
    )
    return next((value for value in held if isinstance(value, str | int)), None)


def _member(holder: object, *names: str) -> object:
    for name in names:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder


def attribute(holder: object, name: str) -> Any:
    """Read an attribute of a foreign class. Its properties may raise, as some of httpx do."""
    with contextlib.suppress(Exception, SystemExit):  # of foreign code
        return getattr(holder, name, None)
    return None
