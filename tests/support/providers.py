"""Model providers on loopback: a server that speaks the protocols of OpenAI, Azure, Ollama, Anthropic and Bedrock.

The path of a request selects its protocol. Each `Answer` is scripted, and serves one request. Error bodies have the
shapes that the providers document.

PYTEST_DONT_REWRITE: other processes import this, too.
"""

import json
import re
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

KEY = "sk-provider-5d8e1f90c2"
PIECES = "an ", "answer"
USAGE = (3, 2)
Fault = Literal["", "silent", "stall", "cut", "abort", "error", "html"]


@dataclass(frozen=True)
class Answer:
    """One scripted answer: text, or the call of a tool.

    With a `status` it is an error with this JSON body. Faults: `silent` sends nothing, `stall` begins a stream and
    falls silent, `cut` ends it early, `abort` breaks the connection in it, `error` sends the protocol's error in it,
    `html` is the page of a proxy.
    """

    pieces: tuple[str, ...] = PIECES
    call: tuple[str, dict[str, Any]] | None = None
    status: int = 0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault = ""


@dataclass(frozen=True)
class Request:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    raw: bytes
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Provider(ThreadingHTTPServer):
    """The server. A request beyond the script gets the status 418."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: deque[Answer] = deque()
        self.requests: list[Request] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def play(self, *answers: Answer) -> None:
        """Replace the script, and forget earlier requests."""
        self.script, self.requests = deque(answers), []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client leaves."""


@contextmanager
def provider() -> Iterator[Provider]:
    server = Provider()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"])) or b"{}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.path, headers, raw, time.monotonic()))
        answer = self.server.script.popleft() if self.server.script else Answer(status=418, body={"error": "no script"})
        protocol = next(each for pattern, each in PROTOCOLS if re.search(pattern, self.path))
        if answer.fault == "silent":
            self._wait_until_left()
        elif answer.fault == "html":
            self._send(200, "text/html", b"<html>Welcome</html>")
        elif answer.status:
            self._send(answer.status, "application/json", json.dumps(answer.body).encode(), answer.headers)
        elif protocol.is_stream(self.path, json.loads(raw)):
            self._stream(protocol, answer)
        else:
            whole = json.dumps(protocol.whole(answer)).encode()
            self._send(200, "application/json", whole[: len(whole) // 2] if answer.fault == "abort" else whole)

    def _send(self, status: int, kind: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, protocol: "Protocol", answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", protocol.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        begin, end = protocol.stream(answer)
        for each in [*begin, *(() if answer.fault else end), *([protocol.error] if answer.fault == "error" else ())]:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(each), each))
            self.wfile.flush()
        if answer.fault == "stall":
            self._wait_until_left()
        elif answer.fault == "abort":
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _wait_until_left(self) -> None:
        self.close_connection = True
        self.connection.settimeout(0.05)
        while not self.server.ended.is_set():
            with suppress(TimeoutError):
                if not self.connection.recv(1):
                    return


@dataclass(frozen=True)
class Protocol:
    """Forms of an answer. `stream` returns the events of its text, and those of its end."""

    whole: Callable[[Answer], Any]
    stream: Callable[[Answer], tuple[list[bytes], list[bytes]]]
    error: bytes
    content_type: str = "text/event-stream"
    is_stream: Callable[[str, Any], bool] = lambda _, body: bool(body.get("stream"))


def _openai_whole(answer: Answer) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": None if answer.call else "".join(answer.pieces)}
    if answer.call:
        message["tool_calls"] = [_openai_call(answer.call)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.call else "stop"}
    about = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return about | {"choices": [choice], "usage": _openai_usage()}


def _openai_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    deltas: list[Any] = [{"tool_calls": [{"index": 0, **_openai_call(answer.call)}]}] if answer.call else []
    deltas = deltas or [{"content": piece} for piece in answer.pieces]
    end = _openai_event({}, finish_reason="tool_calls" if answer.call else "stop")
    about = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    usage = _sse(about | {"usage": _openai_usage()})
    return [_openai_event(delta) for delta in deltas], [end, usage, b"data: [DONE]\n\n"]


def _openai_event(delta: Any, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish_reason}
    return _sse({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def _openai_call(call: tuple[str, Any]) -> Any:
    return {"id": "c1", "type": "function", "function": {"name": call[0], "arguments": json.dumps(call[1])}}


def _openai_usage() -> Any:
    return {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}


def _anthropic_whole(answer: Answer) -> Any:
    usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1]}
    block: Any = {"type": "text", "text": "".join(answer.pieces)}
    if answer.call:
        block = {"type": "tool_use", "id": "c1", "name": answer.call[0], "input": answer.call[1]}
    about = {"id": "x", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    return about | {"content": [block], "stop_reason": "tool_use" if answer.call else "end_turn", "usage": usage}


def _anthropic_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    message = _anthropic_whole(answer) | {"content": [], "stop_reason": None}
    block: Any = {"type": "text", "text": ""}
    deltas: list[Any] = [{"type": "text_delta", "text": piece} for piece in answer.pieces]
    if answer.call:
        block = {"type": "tool_use", "id": "c1", "name": answer.call[0], "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(answer.call[1])}]
    events: list[Any] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
    ]
    reason = {"stop_reason": "tool_use" if answer.call else "end_turn", "stop_sequence": None}
    end: list[Any] = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": {"output_tokens": USAGE[1]}},
        {"type": "message_stop"},
    ]
    return [_sse(each, each["type"]) for each in events], [_sse(each, each["type"]) for each in end]


def _ollama_whole(answer: Answer) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": "" if answer.call else "".join(answer.pieces)}
    if answer.call:
        message["tool_calls"] = [{"function": {"name": answer.call[0], "arguments": answer.call[1]}}]
    return _ollama(message) | {
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": USAGE[0],
        "eval_count": USAGE[1],
    }


def _ollama_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    whole = _ollama_whole(answer)
    begin = [_ollama({"role": "assistant", "content": piece}) for piece in answer.pieces]
    if answer.call:
        begin = [_ollama(whole["message"])]
    return [_line(each) for each in begin], [_line(whole | {"message": {"role": "assistant", "content": ""}})]


def _ollama(message: Any) -> Any:
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def _bedrock_whole(answer: Answer) -> Any:
    message = {"role": "assistant", "content": [{"text": "".join(answer.pieces)}]}
    usage = {"inputTokens": USAGE[0], "outputTokens": USAGE[1], "totalTokens": sum(USAGE)}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}


def _bedrock_stream(answer: Answer) -> tuple[list[bytes], list[bytes]]:
    usage = {"inputTokens": USAGE[0], "outputTokens": USAGE[1], "totalTokens": sum(USAGE)}
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
