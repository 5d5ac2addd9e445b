"""Watched turns: readers of server-sent events, agents whose models stream, and tools that ignore stop requests.

A streamed model plays the scripts of `tests.support.agents`, in pieces of three characters, and knows two entries more:
    {"stream": [...]}     pieces as they are: "text", [index, "fragment of a call's arguments"], [index, "…", "tool"],
                          {"large": 1000}: a text of that length,
                          {"gate": "path"}: writes `started` beside that file and waits for the file
    {"endless": "text"}   the same piece again and again, until the turn is stopped
`pace_s` in an entry is the duration of each of its pieces. PYTEST_DONT_REWRITE.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2
import psutil
import pytest
from smolagents import CodeAgent, MultiStepAgent, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    agglomerate_stream_deltas,
    get_tool_json_schema,
)
from smolagents.monitoring import TokenUsage

from tests.support import agents
from tests.support.service import CODELESS, PATIENCE_S, Service, wait_until

EVENTS = {"Accept": "text/event-stream"}
FINAL = {"turn.finished", "turn.failed", "turn.cancelled"}
Event = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    event: str
    id: int
    data: Event
    raw: bytes


class Stream:
    """An answer of server-sent events. Iteration yields its frames, each within a time limit."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        #: of this end of the connection
        self.port: int = response.extensions["network_stream"].get_extra_info("client_addr")[1]
        self.raw = bytearray()
        self.seen: list[Frame] = []
        self._chunks = response.iter_raw()
        self._rest = b""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        end = time.monotonic() + PATIENCE_S
        while True:
            block, found, rest = self._rest.partition(b"\n\n")
            if found:
                self._rest = rest
                if not block.startswith(b":"):
                    self.seen.append(_frame(block))
                    return self.seen[-1]
                continue
            assert time.monotonic() < end, f"nothing after {self.seen[-1:]}"
            chunk = next(self._chunks)
            self._rest += chunk
            self.raw += chunk

    def until(self, kind: str, **members: Any) -> Event:
        """Read up to an event of a kind whose data holds these members. Return its data."""
        for frame in self:
            if frame.event == kind and frame.data.items() >= members.items():
                return frame.data
        raise AssertionError(f"no {kind} {members} in {[frame.event for frame in self.seen]}")

    def rest(self) -> list[Frame]:
        return list(self)


def _frame(block: bytes) -> Frame:
    lines = [line.partition(": ") for line in block.decode().split("\n")]
    assert [name for name, _, _ in lines] == ["event", "id", "data"], block
    event, number, data = (value for _, _, value in lines)
    return Frame(event, int(number), json.loads(data), block + b"\n\n")


@contextmanager
def posting(
    service: Service, *script: Event, agent: str = "streamed", query: Event | None = None, **body: Any
) -> Iterator[Stream]:
    asked = {"agent": agent, "message": json.dumps(script)} | body
    with service.client.stream("POST", "/turn", params=query, json=asked, headers=EVENTS) as response:
        assert response.status_code == 200, response.read()
        yield Stream(response)


@contextmanager
def watching(service: Service, turn: Event, last: int | str | None = None, **query: Any) -> Iterator[Stream]:
    headers = EVENTS | ({} if last is None else {"Last-Event-ID": str(last)})
    with service.client.stream("GET", place(turn, "/events"), params=query, headers=headers) as response:
        assert response.status_code == 200, response.read()
        yield Stream(response)


def log_of(service: Service, turn: Event, last: int | str | None = None, **query: Any) -> list[Frame]:
    with watching(service, turn, last, **query) as stream:
        return stream.rest()


def seen(service: Service, *script: Event, agent: str = "streamed", **body: Any) -> list[Event]:
    with posting(service, *script, agent=agent, **body) as stream:
        events = [frame.data for frame in stream]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events if event["type"] in FINAL] == [events[-1]["type"]]
    return events


def place(turn: Event, below: str = "") -> str:
    return f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}{below}"


def check_numbers(frames: list[Frame]) -> None:
    """Check that a turn's events are whole, in order, of one turn, and have one end."""
    assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame.event for frame in frames if frame.event in FINAL] == [frames[-1].event]
    first = frames[0].data
    for frame in frames:
        assert (frame.data["type"], frame.data["seq"]) == (frame.event, frame.id)
        assert (frame.data["conversation_id"], frame.data["turn"]) == (first["conversation_id"], first["turn"])


def effects(service: Service, turn: Event, **query: Any) -> list[Event]:
    found: list[Event] = service.get(place(turn, "/effects"), **query)["items"]
    return found


def spoken(events: list[Event], channel: str, **members: Any) -> str:
    pieces = [event for event in events if event["type"] == "message.delta" and event["channel"] == channel]
    return "".join(event["text"] for event in pieces if event.items() >= members.items())


def gone(service: Service, port: int) -> bool:
    """Return whether the service has closed the connection from a port."""
    held = psutil.Process(service.process.pid).net_connections("tcp")
    return port not in [connection.raddr.port for connection in held if connection.raddr]


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """Yield two services on one store. Only the first one knows the tests' agents, so it plays their turns."""
    from tests.support.store_server import running_store  # noqa: PLC0415 - the service imports this module and has no use for it

    folder = tmp_path_factory.mktemp("replicas")
    with running_store(folder / "store") as server, ExitStack() as stack:
        yield (
            stack.enter_context(Service(folder / "a", server.settings)),
            stack.enter_context(Service(folder / "b", server.settings | {"AGENTS": ""})),
        )


class StreamedModel(agents.ScriptedModel):
    """Plays scripts piece by piece. Without a stream it returns the same message at once."""

    def generate(self, messages: list[ChatMessage], *args: Any, **options: Any) -> ChatMessage:
        message = agglomerate_stream_deltas([*self.generate_stream(messages, *args, **options)])
        message.content, message.tool_calls = message.content or None, message.tool_calls or None
        return message

    def generate_stream(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Tool] | None = None,
        **options: Any,
    ) -> Iterator[ChatMessageStreamDelta]:
        entry = {} if stop_sequences in (None, ["<end_plan>"]) else entry_of(messages)
        pieces: Iterable[Any]
        match entry:
            case {"stream": list(given)}:
                pieces = given
            case {"endless": str(text)}:
                pieces = itertools.repeat(text)
            case {"prompt": True}:
                asked = [stop_sequences, response_format, [get_tool_json_schema(t) for t in tools_to_call_from or ()]]
                digest = agents.digest(messages) + hashlib.sha256(json.dumps(asked).encode()).hexdigest()
                pieces = _answer(digest, tools_to_call_from, structured=response_format is not None)
            case _:
                message = super().generate(messages, stop_sequences, response_format, tools_to_call_from, **options)
                pieces = _cut(message)
        end = time.monotonic() + 2 * PATIENCE_S
        for piece in pieces:
            if time.monotonic() > end:
                raise TimeoutError("nobody stopped it")
            if isinstance(piece, dict) and "gate" in piece:
                agents.wait_for(piece["gate"])
                continue
            time.sleep(entry.get("pace_s", 0))
            yield delta(piece, len(messages))
        yield ChatMessageStreamDelta(token_usage=TokenUsage(input_tokens=10, output_tokens=5))


def entry_of(messages: list[ChatMessage]) -> Event:
    task, done = agents.place_in(messages)
    script = agents.script_of(task)
    return script[min(done, len(script) - 1)]


def _answer(text: str, tools: list[Tool] | None, *, structured: bool) -> list[Any]:
    if tools:
        return [[0, json.dumps({"answer": text}), "final_answer"]]
    code = f"final_answer({text!r})"
    return [json.dumps({"thought": "T", "code": code})] if structured else [f"<code>\n{code}\n</code>"]


def _cut(message: ChatMessage) -> list[Any]:
    pieces: list[Any] = _in_threes(str(message.content or ""))
    for index, call in enumerate(message.tool_calls or ()):
        pieces += [[index, "", call.function.name]]
        pieces += [[index, piece] for piece in _in_threes(json.dumps(call.function.arguments))]
    return pieces


def _in_threes(text: str) -> list[str]:
    return [text[start : start + 3] for start in range(0, len(text), 3)]


def delta(piece: str | list[Any] | Event, place: int) -> ChatMessageStreamDelta:
    if isinstance(piece, dict):
        piece = "x" * int(piece["large"])
    if isinstance(piece, str):
        return ChatMessageStreamDelta(content=piece)
    index, arguments, *name = piece
    function = ChatMessageToolCallFunction(name=name[0] if name else "", arguments=arguments)
    call = ChatMessageToolCallStreamDelta(
        index=index, id=f"call_{place}_{index}" if name else None, type="function", function=function
    )
    return ChatMessageStreamDelta(tool_calls=[call])


class Nagging(Tool):  # type: ignore[misc, unused-ignore]
    """A user's tool that calls another tool of its agent again and again, and ignores every exception."""

    name = "nag"
    description = "Calls echo a number of times."
    inputs = {"times": {"type": "integer", "description": "how often"}}  # noqa: RUF012 - smolagents' way
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.agent: MultiStepAgent | None = None

    def forward(self, times: int) -> str:
        assert self.agent
        for _ in range(times):
            with suppress(BaseException):  # that is what such tools do
                self.agent.tools["echo"](text="again")
            time.sleep(0.001)
        return "nagged"


class CarefulAnswer(Tool):  # type: ignore[misc, unused-ignore]
    """A user's `final_answer` that takes its arguments in another order."""

    name = "final_answer"
    description = "Answers, with sources."
    inputs = {  # noqa: RUF012 - smolagents' way
        "sources": {"type": "array", "description": "where it is from"},
        "answer": {"type": "string", "description": "the answer"},
    }
    output_type = "string"

    def forward(self, sources: list[str], answer: str) -> str:  # noqa: ARG002 - they are for the model's conscience
        return answer


def make_streamed(*, tools: tuple[Tool, ...] = (), **options: Any) -> ToolCallingAgent:
    nagging, own = Nagging(), agents.script_templates("toolcalling_agent.yaml")
    defaults = {"tools": [*tools, *agents.TOOLS, nagging], "model": StreamedModel(), "prompt_templates": own}
    nagging.agent = agent = agents.make_scripted(**(defaults | options))
    return agent


def make_streamed_code(file: str = "code_agent.yaml", **options: Any) -> CodeAgent:
    return agents.make_code(model=StreamedModel(), prompt_templates=agents.script_templates(file), **options)


def make_structured() -> CodeAgent:
    return make_streamed_code("structured_code_agent.yaml", use_structured_outputs_internally=True)


def make_streamed_planner() -> ToolCallingAgent:
    return make_streamed(planning_interval=2)


def make_family() -> ToolCallingAgent:
    helper = make_streamed(name="helper", description="Helps.")
    lead = make_streamed(name="lead", description="Leads a helper.", managed_agents=[helper])
    return make_streamed(managed_agents=[lead, make_streamed_code(name="coder", description="Codes.")])


def make_code_family() -> CodeAgent:
    helper = make_streamed(name="helper", description="Helps.", planning_interval=1)
    return make_streamed_code(managed_agents=[helper])


def make_careful() -> ToolCallingAgent:
    return make_streamed(tools=(CarefulAnswer(),))  # type: ignore[no-untyped-call, unused-ignore]


PAUSE_S = 0.1
STEP = {"type": "step.finished", "parent_call_id": None, "kind": "action"}


@contextmanager
def two_services(folder: Path, settings: dict[str, str]) -> Iterator[tuple[Service, Service]]:
    with Service(folder / "a", CODELESS | settings) as one, Service(folder / "b", CODELESS | settings) as other:
        yield one, other


def until_all_answer(services: Sequence[Service]) -> None:
    for service in services:
        wait_until(lambda service=service: service.client.get("/conversations").status_code == 200)  # type: ignore[misc]


@dataclass
class Patient:
    """One turn. `services` are tried in turn. `agent` and `body` are sent with the message."""

    services: Sequence[Service]
    script: list[Event]
    agent: str = "streamed"
    body: Event = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    refusals: int = 0
    breaks: int = 0
    """How often its stream ended before the turn did."""

    @property
    def turn(self) -> Event:
        return self.frames[0].data

    @property
    def result(self) -> Event:
        found: Event = self.frames[-1].data["result"]
        return found

    @property
    def is_over(self) -> bool:
        return bool(self.frames) and self.frames[-1].event in FINAL

    def play(self) -> "Patient":
        key = os.urandom(8).hex()
        end = time.monotonic() + PATIENCE_S
        number = 0
        while not self.is_over:
            assert time.monotonic() < end, f"{self.refusals} refusals, {self.breaks} breaks, {self.frames[-3:]}"
            service = self.services[number % len(self.services)]
            number += 1
            before = len(self.frames)
            with suppress(httpx2.TransportError):
                self._read(service, key)
            if not self.is_over:
                self.breaks += len(self.frames) > before
                time.sleep(PAUSE_S)
        return self

    def check(self, service: Service) -> None:
        """Check that the turn ended once, that the events seen are kept, and that the steps shown are stored."""
        turn = service.get(place(self.turn))
        assert self.result == turn
        kept = log_of(service, turn)
        check_numbers(kept)
        assert [frame.data for frame in self.frames] == [frame.data for frame in kept]
        shown = [frame.data for frame in self.frames if frame.data.items() >= STEP.items()]
        steps = [step for step in service.steps(turn) if step["turn"] == turn["turn"] and step["type"] == "action"]
        assert [step["observations"] for step in steps] == [event["observations"] for event in shown]
        assert turn["step_count"] == len(steps)

    def _read(self, service: Service, key: str) -> None:
        asked = {"agent": self.agent, "message": json.dumps(self.script)} | self.body
        if self.frames:
            headers = EVENTS | {"Last-Event-ID": str(self.frames[-1].id)}
            way = service.client.stream("GET", place(self.turn, "/events"), headers=headers)
        else:
            way = service.client.stream("POST", "/turn", json=asked, headers=EVENTS | {"Idempotency-Key": key})
        with way as response:
            if response.status_code == 503:
                assert int(response.headers["retry-after"]) > 0
                self.refusals += 1
                return
            assert response.status_code == 200, response.read()
            for frame in Stream(response):
                assert frame.id == len(self.frames) + 1, (frame.id, len(self.frames))
                self.frames.append(frame)


@contextmanager
def playing(patients: Sequence[Patient]) -> Iterator[list[Future[Patient]]]:
    with ThreadPoolExecutor(len(patients)) as pool:
        found = [pool.submit(patient.play) for patient in patients]
        yield found
        for future in found:
            future.result()
