"""A model's message ⇄ bytes, as the journal keeps it; and a model's error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

from smolsessions.agents.run.effects import Effect, error_of, raised
from smolsessions.agents.run.failures import error_marks
from smolsessions.agents.values import CodecError, dumps
from smolsessions.core.records import Usage

if TYPE_CHECKING:
    from smolagents.models import ChatMessageToolCall as Call

MODEL_KEY = "model:"
"""How the journal's keys of model calls begin."""


def encode_message(message: ChatMessage) -> tuple[Effect, ChatMessage]:
    """Keep a message, and give it as it comes back: without the provider's own object."""
    usage = message.token_usage
    calls = [_call_parts(call) for call in message.tool_calls] if message.tool_calls is not None else None
    fields = {
        "role": str(getattr(message.role, "value", message.role)),
        "content": message.content,
        "calls": calls,
        "usage": [usage.input_tokens, usage.output_tokens] if usage else None,
    }
    try:
        data = to_json(fields)
        if from_json(data) == fields:  # so it is the same as if it were made again
            message.raw = None
            return Effect(data, "json"), message
    except ValueError:  # half a character, or what is no JSON
        pass
    try:
        effect = Effect(dumps(fields))
    except CodecError:
        return Effect(), message
    return effect, decode_message(effect)


def encode_error(error: Exception) -> Effect:
    """Keep an error with what tells its kind."""
    marks = {name: str(value).encode() for name, value in error_marks(error).items()}
    return replace(raised(error), kept=marks)


def decode_message(effect: Effect) -> ChatMessage:
    """Give the message, or raise the error."""
    if effect.raised:
        error: Any = error_of(*effect.raised)
        for name, value in effect.kept.items():
            setattr(error, name, value.decode())
        raise error
    return _message(effect.outcome(()))


def usage_of(data: bytes) -> Usage:
    """Return the tokens of a journaled model call; none of one that failed."""
    effect = Effect.from_bytes(data)
    if effect.raised or effect.is_opaque:
        return Usage()
    usage = decode_message(effect).token_usage
    return Usage(usage.input_tokens, usage.output_tokens) if usage else Usage()


def _message(fields: dict[str, Any]) -> ChatMessage:
    usage = TokenUsage(*fields["usage"]) if fields["usage"] else None
    calls = [_call(*parts) for parts in fields["calls"]] if fields["calls"] is not None else None
    return ChatMessage(MessageRole(fields["role"]), fields["content"], calls, token_usage=usage)


def _call_parts(call: Call) -> list[Any]:
    function = call.function
    return [function.name, function.arguments, function.description, call.id, call.type]


def _call(name: str, arguments: Any, description: str | None, call_id: str, kind: str) -> Call:
    function = ChatMessageToolCallFunction(name=name, arguments=arguments, description=description)
    return ChatMessageToolCall(function=function, id=call_id, type=kind)
