"""Model providers on loopback: a server that speaks the protocols of OpenAI, Azure, Ollama, Anthropic and Bedrock.

The path of a request selects its protocol. Each `Answer` is scripted, and serves one request. Error bodies have the
shapes that the providers document. PYTEST_DONT_REWRITE.
"""

import json
import re
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.http_server import Handler, Server

KEY = "sk-provider-5d8e1f90c2"
PIECES = "an ", "answer"
USAGE = (3, 2)
PACE_S = 0.01
LATE_S = 0.02  # the end of a body comes a little after its last event, as it does from a real server
SLOW_S = 2.5
Fault = Literal["", "silent", "stall", "slow", "endless", "counted", "cut", "abort", "error", "html"]
Call = tuple[str, Any]


@dataclass(frozen=True)
class Answer:
    """One scripted answer: text, or calls of tools with the members of `beside`.

    With a `status` it is an error with this JSON body. Faults: `silent` sends nothing, `slow` waits before all of it,
    `stall` begins a stream and falls silent, `endless` goes on for ever, `cut` ends it early, `abort` breaks the
    connection in it, `counted` does so after the usage, `error` sends the protocol's error in it, or `body`, `html` is
    the page of a proxy. Arguments of a call that are a text are sent as they are. `usage` is reported beside the
    protocol's own counts.
    """

    pieces: tuple[str, ...] = PIECES
    calls: tuple[Call, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)
    status: int = 0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault = ""
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    raw: bytes
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def key(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def text(self) -> str:
        return json.dumps(self.body["messages"])


class Provider(Server):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.script: deque[Answer] = deque()
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self.connections = self.calls = self.open_calls = 0
        self._changed = threading.Condition()

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        super().__exit__()

    def play(self, *answers: Answer) -> None:
        self.script, self.requests = deque(answers), []

    def next_answer(self, _request: Request) -> Answer:
        return self.script.popleft() if self.script else Answer(status=418, body={"error": "no script"})

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.count(connections=1)
        return super().verify_request(request, client_address)

    def count(self, **more: int) -> None:
        with self._changed:
            for name, by in more.items():
                setattr(self, name, getattr(self, name) + by)
            self._changed.notify_all()

    def wait(self, condition: Callable[[Any], bool], within_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), within_s)


class _Handler(Handler):
    server: Provider

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, self.body() or b"{}", time.monotonic())
        self.server.requests.append(request)
        answer = self.server.next_answer(request)
        self.server.count(calls=1, open_calls=1)
        try:
            self._play(request, answer)
        finally:
            self.server.count(open_calls=-1)

    def _play(self, request: Request, answer: Answer) -> None:
        protocol = next(each for pattern, each in PROTOCOLS if re.search(pattern, self.path))
        if answer.fault == "silent":
            self._wait_until_left()
            return
        if answer.fault == "slow":
            self.server.ended.wait(SLOW_S)
        if answer.fault == "html":
            self.answer(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
        elif answer.status:
            self.answer(answer.status, json.dumps(answer.body).encode(), {**JSON, **answer.headers})
        elif protocol.is_stream(self.path, request.body):
            self._stream(protocol, answer)
        else:
            whole = json.dumps(protocol.whole(answer)).encode()
            self.answer(200, whole[: len(whole) // 2] if answer.fault == "abort" else whole, JSON)

    def _stream(self, protocol: "Protocol", answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", protocol.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        begin, end = protocol.stream(answer)
        error = _sse({"error": answer.body}) if answer.body else protocol.error
        last = {"": end, "slow": end, "counted": end[1:2], "error": [error]}.get(answer.fault, [])
        for each in [*begin, *last]:
            self._send(each)
        while answer.fault == "endless" and not self._has_left(PACE_S):
            self._send(begin[-1])
        if answer.fault == "stall":
            self._wait_until_left()
        elif answer.fault in {"abort", "counted", "endless"}:
            self.close_connection = True
        else:
            self.server.ended.wait(LATE_S)
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _wait_until_left(self) -> None:
        self.close_connection = True
        while not self.server.ended.is_set() and not self._has_left(0.05):
            pass

    def _has_left(self, within_s: float) -> bool:
        self.connection.settimeout(within_s)
        with suppress(TimeoutError):
            return not self.connection.recv(1)
        return self.server.ended.is_set()


@dataclass(frozen=True)
class Protocol:
    whole: Callable[[Answer], Any]
    stream: Callable[[Answer], tuple[list[bytes], list[bytes]]]
    error: bytes
    content_type: str = "text/event-stream"
    is_stream: Callable[[str, Any], bool] = lambda _, body: bool(body.get("stream"))


def _openai_whole(answer: Answer) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": None if answer.calls else "".join(answer.pieces)}
    if answer.calls:
        message |= {"tool_calls": _openai_calls(answer), **answer.beside}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.calls else "stop"}
    about = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return about | {"choices": [choice], "usage": _openai_usage(answer)}


def _openai_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    calls = [{"index": index, **call} for index, call in enumerate(_openai_calls(answer))]
    deltas: list[Any] = [{"tool_calls": calls, **answer.beside}] if calls else []
    deltas = deltas or [{"content": piece} for piece in answer.pieces]
    end = _openai_event({}, finish_reason="tool_calls" if calls else "stop")
    about = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    usage = _sse(about | {"usage": _openai_usage(answer)})
    return [_openai_event(delta) for delta in deltas], [end, usage, b"data: [DONE]\n\n"]


def _openai_event(delta: Any, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish_reason}
    return _sse({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def _openai_calls(answer: Answer) -> list[Any]:
    calls = [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in answer.calls]
    return [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls, 1)
    ]


def _openai_usage(answer: Answer) -> Any:
    return {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE), **answer.usage}


def _anthropic_whole(answer: Answer) -> Any:
    usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1], **answer.usage}
    block: Any = {"type": "text", "text": "".join(answer.pieces)}
    for name, arguments in answer.calls:
        block = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
    about = {"id": "x", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    return about | {"content": [block], "stop_reason": "tool_use" if answer.calls else "end_turn", "usage": usage}


def _anthropic_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    message = _anthropic_whole(answer) | {"content": [], "stop_reason": None}
    block: Any = {"type": "text", "text": ""}
    deltas: list[Any] = [{"type": "text_delta", "text": piece} for piece in answer.pieces]
    for name, arguments in answer.calls:
        block = {"type": "tool_use", "id": "c1", "name": name, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(arguments)}]
    events: list[Any] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
    ]
    reason = {"stop_reason": "tool_use" if answer.calls else "end_turn", "stop_sequence": None}
    end: list[Any] = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": {"output_tokens": USAGE[1]}},
        {"type": "message_stop"},
    ]
    return [_sse(each, each["type"]) for each in events], [_sse(each, each["type"]) for each in end]


def _ollama_whole(answer: Answer) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": "" if answer.calls else "".join(answer.pieces)}
    if answer.calls:
        message["tool_calls"] = [{"function": {"name": name, "arguments": given}} for name, given in answer.calls]
    usage = {"prompt_eval_count": USAGE[0], "eval_count": USAGE[1]}
    return _ollama(message) | {"done": True, "done_reason": "stop"} | usage


def _ollama_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    whole = _ollama_whole(answer)
    begin = [_ollama({"role": "assistant", "content": piece}) for piece in answer.pieces]
    if answer.calls:
        begin = [_ollama(whole["message"])]
    return [_line(each) for each in begin], [_line(whole | {"message": {"role": "assistant", "content": ""}})]


def _ollama(message: Any) -> Any:
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def _bedrock_whole(answer: Answer) -> Any:
    message = {"role": "assistant", "content": [{"text": "".join(answer.pieces)}]}
    usage = {"inputTokens": USAGE[0], "outputTokens": USAGE[1], "totalTokens": sum(USAGE), **answer.usage}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}


def _bedrock_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    usage = {"inputTokens": USAGE[0], "outputTokens": USAGE[1], "totalTokens": sum(USAGE), **answer.usage}
    begin = [
        _frame("messageStart", {"role": "assistant"}),
        *(_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in answer.pieces),
    ]
    end = [
        _frame("contentBlockStop", {"contentBlockIndex": 0}),
        _frame("messageStop", {"stopReason": "end_turn"}),
        _frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
    ]
    return begin, end


def _frame(kind: str, payload: Any, message_type: str = "event") -> bytes:
    """Return a message of AWS's event stream: lengths, headers and payload, each part with its CRC."""
    type_name = ":exception-type" if message_type == "exception" else ":event-type"
    named = {type_name: kind, ":content-type": "application/json", ":message-type": message_type}
    headers = b"".join(
        struct.pack(f"!B{len(name)}sBH{len(value)}s", len(name), name.encode(), 7, len(value), value.encode())
        for name, value in named.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", len(headers) + len(body) + 16, len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack("!I", zlib.crc32(message))


def _sse(data: Any, event: str = "") -> bytes:
    return (f"event: {event}\n" if event else "").encode() + f"data: {json.dumps(data)}\n\n".encode()


def _line(data: Any) -> bytes:
    return json.dumps(data).encode() + b"\n"


def used(read: int, written: int, **details: int) -> dict[str, int | None]:
    """Return the `usage` of a turn or step. A detail that is not named was not reported."""
    nothing = dict.fromkeys(("cached_input_tokens", "cache_write_tokens", "reasoning_tokens"))
    return {"input_tokens": read, "output_tokens": written, **nothing, **details}


JSON = {"Content-Type": "application/json"}
_OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": f"Overloaded {KEY}"}}
PROTOCOLS: tuple[tuple[str, Protocol], ...] = (
    ("/chat/completions", Protocol(_openai_whole, _openai_stream, _sse({"error": {"message": f"overloaded {KEY}"}}))),
    ("/v1/messages", Protocol(_anthropic_whole, _anthropic_stream, _sse(_OVERLOADED, "error"))),
    ("/api/chat", Protocol(_ollama_whole, _ollama_stream, _line({"error": f"broken {KEY}"}), "application/x-ndjson")),
    (
        "/converse",
        Protocol(
            _bedrock_whole,
            _bedrock_stream,
            _frame("modelStreamErrorException", {"message": f"broken {KEY}"}, "exception"),
            "application/vnd.amazon.eventstream",
            lambda path, _: path.endswith("-stream"),
        ),
    ),
)
