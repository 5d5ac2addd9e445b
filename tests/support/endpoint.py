"""Model provider on raw sockets, which reports the begin and end of connections, and agents that use it.

The conversation's message selects the answer. `prefill` sends nothing, and `headers` sends headers alone. `silent`
sends a first piece and nothing more. `endless` sends a piece every 10 ms for ever. `slow` sends a whole answer late.
`counted` sends a piece with its usage and then breaks the connection. `overflow` sends a piece and llama.cpp's error.
`null` and `empty` send a tool call beside that content. Any other message is answered whole.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from smolagents import AzureOpenAIModel, InferenceClientModel, Model, OpenAIModel, ToolCallingAgent, tool

import smolsessions
from tests.support.waiting import PATIENCE_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PACE_S = 0.01
SLOW_S = 2.5
LATE_S = 0.02  # the end of a body comes a little after its last event, as it does from a real server
CONTENTS = {"null": None, "empty": ""}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
KEY = "none"


class Endpoint:
    """One provider. `connections` counts those that were opened, `calls` the requests that were read."""

    def __init__(self) -> None:
        self.connections = self.calls = self.open_calls = 0
        self.bodies: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return "http://{}:{}/v1".format(*self._listener.getsockname())

    def wait(self, condition: Callable[["Endpoint"], bool], within_s: float) -> bool:
        """Wait until a condition on the counts holds."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), within_s)

    def serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self._count(connections=1)
                threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _count(self, **more: int) -> None:
        with self._changed:
            for name, by in more.items():
                setattr(self, name, getattr(self, name) + by)
            self._changed.notify_all()

    def _answer_all(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader, suppress(OSError):
            while body := _request(reader):
                self.bodies.append(body)
                self._count(calls=1, open_calls=1)
                try:
                    self._answer(connection, body)
                finally:
                    self._count(open_calls=-1)

    def _answer(self, connection: socket.socket, body: dict[str, Any]) -> None:
        mode = _mode(body["messages"])
        if mode == "prefill":
            _until_closed(connection)
        if mode == "slow":
            _pause(connection, SLOW_S)
        if not body.get("stream"):
            _send_whole(connection, mode)
            return
        self._stream(connection, mode)

    def _stream(self, connection: socket.socket, mode: str) -> None:
        connection.sendall(HEAD)
        if mode == "headers":
            _until_closed(connection)
        if mode in CONTENTS:
            _send_stream(connection, CONTENTS[mode], "lookup", {"word": mode})
            return
        _send(connection, _delta({"role": "assistant", "content": "a piece "}))
        if mode == "counted":
            _send(connection, {**_delta({"content": "more"}), "usage": USAGE})
            raise ConnectionResetError
        if mode == "overflow":
            error = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
            _send(connection, {"error": error})
            raise ConnectionResetError
        if mode == "silent":
            _until_closed(connection)
        connection.settimeout(PACE_S)
        while mode == "endless":
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return
            _send(connection, _delta({"content": "and on "}))
        _send_stream(connection, None, "final_answer", {"answer": "done"})


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    provider = Endpoint()
    threading.Thread(target=provider.serve, daemon=True).start()
    try:
        yield provider
    finally:
        provider.close()


@tool
def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: a word
    """
    return f"about {word}"


def make_openai(*, base: str = "ENDPOINT_URL", **client: Any) -> ToolCallingAgent:
    """Make an agent whose client repeats no call by itself. `base` names the variable of the address."""
    options = {"max_retries": 0} | client
    return _agent(OpenAIModel("m", api_base=os.environ[base], api_key=KEY, retry=False, client_kwargs=options))


def make_openai_httpx() -> ToolCallingAgent:
    """Make an agent whose client uses httpx instead of httpx2."""
    return make_openai(http_client=httpx.Client())


def make_twice() -> ToolCallingAgent:
    """Make an agent whose client repeats failed calls by itself."""
    return make_openai(max_retries=2)


def make_encrypted() -> ToolCallingAgent:
    """Make an agent whose provider takes connections and never answers the TLS handshake."""
    return make_openai(base="SILENT_URL")


def make_encrypted_httpx() -> ToolCallingAgent:
    return make_openai(base="SILENT_URL", http_client=httpx.Client(timeout=600))


def make_streaming() -> ToolCallingAgent:
    """Make an agent whose author asks smolagents to stream."""
    agent = make_openai()
    agent.stream_outputs = True
    return agent


def make_retried() -> ToolCallingAgent:
    return smolsessions.options(make_openai(), model_retries=1)


def make_eager() -> ToolCallingAgent:
    return smolsessions.options(make_openai(), model_retries="often")  # type: ignore[arg-type]  # wrong


def make_openai_whole() -> ToolCallingAgent:
    """Make an agent whose model has no stream method."""

    class Whole(OpenAIModel):
        generate_stream = property()  # `hasattr` is false

    return _agent(Whole("m", api_base=_url(), api_key=KEY, retry=False, client_kwargs={"max_retries": 0}))


def make_delegating() -> ToolCallingAgent:
    """Make an agent whose model wraps another one, as one that logs or routes does."""

    class Delegating:
        def __init__(self, model: Model) -> None:
            self.wrapped = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["wrapped"], name)

    agent = make_openai()
    wrapping: Any = Delegating(agent.model)
    agent.model = wrapping
    return agent


def make_azure() -> ToolCallingAgent:
    base, options = _url().removesuffix("/v1"), {"max_retries": 0}
    model = AzureOpenAIModel(
        "m", azure_endpoint=base, api_key=KEY, api_version="2024-10-21", retry=False, client_kwargs=options
    )
    return _agent(model)


def make_inference() -> ToolCallingAgent:
    none: Any = None  # an address instead of a name, which its type does not foresee
    return _agent(InferenceClientModel(model_id=none, base_url=_url(), token=KEY, retry=False, timeout=600))


NAMES = "openai openai_whole delegating openai_httpx azure inference streaming retried twice".split()
AGENTS = ",".join(f"{name.replace('_', '-')}=tests.support.endpoint:make_{name}" for name in NAMES)


def _agent(model: Model) -> ToolCallingAgent:
    return ToolCallingAgent(tools=[lookup], model=model, max_steps=3)


def _url() -> str:
    return os.environ["ENDPOINT_URL"]


def _request(reader: Any) -> dict[str, Any] | None:
    length = 0
    while (line := reader.readline()) not in {b"\r\n", b""}:
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return json.loads(reader.read(length)) if length else None


def _mode(messages: list[dict[str, Any]]) -> str:
    """Return the last word of the newest task. Tool results have the user's role, too."""
    texts = [_text(message["content"]) for message in messages if message["role"] == "user"]
    newest = texts[-1]
    return "answer" if "Observation" in newest else newest.split()[-1]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _until_closed(connection: socket.socket) -> None:
    connection.settimeout(2 * PATIENCE_S)
    connection.recv(1)
    raise ConnectionResetError


def _delta(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _send(connection: socket.socket, data: dict[str, Any]) -> None:
    text = f"data: {json.dumps(data)}\n\n".encode()
    connection.sendall(b"%x\r\n%b\r\n" % (len(text), text))


def _send_stream(connection: socket.socket, content: str | None, name: str, arguments: dict[str, Any]) -> None:
    call = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"index": 0, "id": "c1", "type": "function", "function": call}]
    _send(connection, _delta({"role": "assistant", "content": content, "tool_calls": calls}))
    _send(connection, _delta({}, finish_reason="tool_calls"))
    _send(connection, {**_delta({}), "choices": [], "usage": USAGE})
    connection.sendall(b"e\r\ndata: [DONE]\n\n\r\n")
    _pause(connection, LATE_S)
    connection.sendall(b"0\r\n\r\n")


def _pause(connection: socket.socket, seconds: float) -> None:
    connection.settimeout(seconds)
    with suppress(TimeoutError):
        connection.recv(1, socket.MSG_PEEK)
    connection.settimeout(None)


def _send_whole(connection: socket.socket, mode: str) -> None:
    name, arguments = ("lookup", {"word": mode}) if mode in CONTENTS else ("final_answer", {"answer": "done"})
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": CONTENTS.get(mode), "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    text = json.dumps(answer).encode()
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
    )
