"""Fold of a turn's events into chunks of Chat Completions, and into a whole completion."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic_core import to_json

from smolsessions.core.events import (
    Logged,
    MessageDelta,
    MessageRestarted,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnWaiting,
)
from smolsessions.core.records import Turn, Usage
from smolsessions.core.requests import InputRequest
from smolsessions.web.dialects.gateway import Fold, StreamCutError, sse_data
from smolsessions.web.dialects.words import failure_of, question_words, short


class ChatFold(Fold):
    """Fold of a turn's events, after number `after`, into chunks of a completion."""

    def __init__(self, turn: Turn, after: int, *, streams: bool, wants_usage: bool) -> None:
        self._after = after
        # A preview that is not accepted would stand before the answer, which has to be JSON if it has a schema.
        self._shows_previews = streams and turn.options.output_schema is None
        self._wants_usage = wants_usage
        self._head = {
            "id": f"chatcmpl-{turn.ref.id}-{turn.number}",
            "object": "chat.completion.chunk",
            "created": int(turn.timing.submitted_at),
            "model": turn.agent.name,
        }
        self._has_begun = False
        self._answers_of: str | None = None  # the model call whose answer is being sent
        self._said: list[str] = []  # pieces of the answer that is being sent
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._reason = "stop"
        self._usage: dict[str, Any] | None = None
        self._failed: Turn | None = None

    @property
    def text(self) -> str:
        """Answer so far, as a client has it."""
        return "".join(self._content)

    def frames(self, logged: Logged, *, waits: bool) -> Iterable[bytes]:
        if logged.seq <= self._after:
            return
        event = logged.event
        if not self._has_begun:
            self._has_begun = True
            yield self._chunk({"role": "assistant", "content": ""})
        if isinstance(event, TurnEnded):
            yield from self._end(event.result)
        elif isinstance(event, TurnWaiting):
            if waits:
                yield from self._wait(event.requests)
        elif isinstance(event, MessageRestarted):
            if event.call_id == self._answers_of and self._said:
                raise StreamCutError
        elif isinstance(event, MessageDelta) and event.channel == "answer" and event.where.parent_call_id is None:
            if not self._shows_previews:
                return
            if event.call_id != self._answers_of and self._said:
                yield self._say("\n\n")
                self._said.clear()
            self._answers_of = event.call_id
            self._said.append(event.text)
            yield self._say(event.text)
        else:
            yield from self._progress(event)

    def _progress(self, event: Any) -> Iterable[bytes]:
        """Show thoughts, plans and calls of tools as the model's reasoning."""
        text = ""
        if isinstance(event, MessageDelta) and event.channel in {"thought", "plan", "code"}:
            text = event.text
        elif isinstance(event, ToolCalled) and not event.internal:
            text = f"\n\n{event.name}({short(to_json(event.arguments).decode())})\n"
        elif isinstance(event, ToolReturned) and not event.internal:
            text = f"= {short(event.result or event.error or '')}\n\n"
        if text:
            self._thoughts.append(text)
            yield self._chunk({"reasoning_content": text})

    def _wait(self, requests: Iterable[InputRequest]) -> Iterable[bytes]:
        """End the completion with calls of the client's tools, and with questions to the user in words."""
        calls = [each for each in requests if each.kind == "result"]
        for place, each in enumerate(calls):
            function = {"name": each.tool, "arguments": to_json(each.arguments).decode()}
            call = {"id": each.request_id, "type": "function", "function": function}
            self._calls.append(call)
            yield self._chunk({"tool_calls": [{"index": place, **call}]})
        for each in requests:
            if each.kind != "result":
                yield self._say(question_words(each))
        yield from self._finish("tool_calls" if calls else "stop", None)

    def _end(self, turn: Turn) -> Iterable[bytes]:
        assert turn.outcome, "a turn that ended has an outcome"
        if turn.outcome.status == "failed":
            self.is_complete, self._failed = True, turn
            yield sse_data({"error": _error_of(turn)})
            return
        reply, said = turn.outcome.reply or "", "".join(self._said)
        rest = reply[len(said) :] if reply.startswith(said) else f"\n\n{reply}"
        if rest:
            yield self._say(rest)
        for url in self.media.values():
            if url.startswith("data:image/"):
                yield self._chunk({"images": [{"type": "image_url", "image_url": {"url": url}}]})
        yield from self._finish("stop", turn.outcome.usage)

    def _finish(self, reason: str, usage: Usage | None) -> Iterable[bytes]:
        self._reason = reason
        self._usage = usage_of(usage) if usage else None
        self.is_complete = True
        yield sse_data({**self._head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if self._wants_usage and self._usage:
            yield sse_data({**self._head, "choices": [], "usage": self._usage})
        yield b"data: [DONE]\n\n"

    def _say(self, text: str) -> bytes:
        self._content.append(text)
        return self._chunk({"content": text})

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return sse_data({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def answer(self) -> Response:
        """Return the whole completion."""
        if self._failed:
            return JSONResponse({"error": _error_of(self._failed)}, 500, {"x-should-retry": "false"})
        whole = completion(self._head["model"], self._head["id"], self.text, self._reason)
        message = whole["choices"][0]["message"]
        if self._calls:
            message["tool_calls"] = self._calls
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        images = [url for url in self.media.values() if url.startswith("data:image/")]
        if images:
            message["images"] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
        return JSONResponse({**whole, "created": self._head["created"], "usage": self._usage})


def completion(model: Any, own_id: Any, text: str, reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {"id": own_id, "object": "chat.completion", "created": int(time.time()), "model": model, "choices": [choice]}


def usage_of(usage: Usage) -> dict[str, Any]:
    both = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    cached, reasoning = usage.cached_input_tokens or 0, usage.reasoning_tokens or 0
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    details["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return {**both, "total_tokens": usage.input_tokens + usage.output_tokens, **details}


def _error_of(turn: Turn) -> dict[str, Any]:
    code, message = failure_of(turn)
    return {"message": message, "type": "server_error", "param": None, "code": code}
