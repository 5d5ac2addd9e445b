"""Token counts of model calls, with the details that smolagents leaves in the provider's own answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Self

from smolagents.monitoring import TokenUsage
from smolagents.utils import Retrying

from smolsessions.agents.run.failures import attribute
from smolsessions.agents.run.model_connections import current_call
from smolsessions.core.records import Usage

MAX_COUNT = 2**53 - 1  # the largest whole number that every JSON reader keeps
_PLAIN = {"input_tokens", "output_tokens"}
DETAILS = ("cached_input_tokens", "cache_write_tokens", "reasoning_tokens")
_PATHS = (
    ("prompt_tokens_details.cached_tokens", "cache_read_input_tokens", "cacheReadInputTokens"),
    ("cache_creation_input_tokens", "prompt_tokens_details.cache_creation_tokens", "cacheWriteInputTokens"),
    ("completion_tokens_details.reasoning_tokens",),
)
"""Names of each detail: those of OpenAI, of LiteLLM for Anthropic, and of Bedrock."""


@dataclass
class DetailedUsage(TokenUsage):  # type: ignore[misc, unused-ignore]
    """Count with details. None: the provider did not report it."""

    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


def with_details(usage: TokenUsage | None, reported: Any) -> TokenUsage | None:
    """Add the details of a provider's own report, an object or a dict, to a count of smolagents."""
    if usage is None or reported is None:
        return usage
    found = [next((count for path in paths if (count := _count(reported, path)) is not None), None) for paths in _PATHS]
    if type(reported).__module__.startswith("litellm"):
        found = [count or None for count in found]  # it reports 0 of what the provider does not
    if all(count is None for count in found):
        return usage
    read = usage.input_tokens
    if _part(reported, "inputTokens") is not None:  # Bedrock counts tokens of its cache apart
        read += (found[0] or 0) + (found[1] or 0)
    return DetailedUsage(read, usage.output_tokens, *found)


def reported_usage(answer: Any) -> Any:
    """Return the count in a provider's answer, or in an event of its stream."""
    return _part(answer, "usage")


def details_of(usage: TokenUsage) -> dict[str, int]:
    """Return the details that the provider reported. A callback may have changed them."""
    if not isinstance(usage, DetailedUsage):
        return {}
    return {name: count for name in DETAILS if _is_count(count := getattr(usage, name))}


def usage_of_data(data: dict[str, Any] | None) -> TokenUsage | None:
    if not data:
        return None
    return TokenUsage(**data) if data.keys() == _PLAIN else DetailedUsage(**data)


def total_usage(used: Sequence[TokenUsage]) -> Usage:
    """Sum counts. A detail that none of them has stays None."""
    read = sum([_whole(each.input_tokens) for each in used])
    written = sum([_whole(each.output_tokens) for each in used])
    details = [details_of(each) for each in used if isinstance(each, DetailedUsage)]
    names = dict.fromkeys(name for each in details for name in each) if details else ()
    return Usage(read, written, **{name: sum(each.get(name, 0) for each in details) for name in names})


def note_reports(request: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method through which smolagents' models send all requests: the call in progress gets the count.

    smolagents keeps two numbers of it, and of a stream it does not hand the events on.
    """

    def noted(retryer: Retrying, create: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = request(retryer, create, *args, **options)
        call = current_call()
        if call is None:
            return answer
        if options.get("stream"):
            return _NotedStream(answer)
        call.usage = reported_usage(answer)
        return answer

    return noted


class _NotedStream:
    """Stream of a provider's client. Each count in it goes to the model call in progress."""

    def __init__(self, events: Any) -> None:
        self._events = events
        self._iterator = iter(events)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        event = next(self._iterator)
        if (usage := reported_usage(event)) is not None and (call := current_call()):
            call.usage = usage
        return event

    def __enter__(self) -> Self:
        self._events.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._events.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)


def _part(holder: Any, name: str) -> Any:
    return holder.get(name) if type(holder) is dict else attribute(holder, name)  # Hugging Face's are empty dicts, too


def _count(reported: Any, path: str) -> int | None:
    for name in path.split("."):
        reported = _part(reported, name)
    return reported if _is_count(reported) else None


def _whole(count: float) -> int:
    """Return a count of an author's model as records keep it. One that is negative or no number is 0."""
    try:
        return min(max(0, floor(count)), MAX_COUNT)
    except (TypeError, ValueError, OverflowError):
        return 0


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT
