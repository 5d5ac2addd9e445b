"""Turns that are killed while they are blocked at one of their calls, or cancelled, and the checks afterwards."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from redis import Redis
from smolagents import LogLevel, MultiStepAgent, ToolCallingAgent
from smolagents.agents import ToolOutput
from smolagents.memory import ActionStep, FinalAnswerStep, ToolCall
from smolagents.monitoring import Timing

from tests.support import agents
from tests.support.ledgers import AGENTS, CODELESS, Ledger
from tests.support.service import Service, wait_until
from tests.support.stopwatch import Stopwatch
from tests.support.store_server import PARTITION, Raw
from tests.support.streaming import Event, Frame, Stream, check_numbers, log_of, place, posting, watching
from tests.support.turns import DONE, cancel, submit_turn, wait_for_end

Script = list[Event]

SETTINGS = {"AGENTS": AGENTS, "THREADS": "64", "DEMO_AGENTS": "0"}
WITHOUT_CODE = SETTINGS | {"AGENTS": CODELESS}  # no server of processes for code, which starts slowly


def note_call(ledger: str, *words: str) -> Event:
    """Call `note` for each word, side by side."""
    return {"call": [["note", {"what": word, "ledger": ledger}] for word in words]}


@dataclass
class KilledTurn:
    ledger: Ledger
    agent: str
    script: Script
    body: Event = field(default_factory=dict)
    watched: bool = False
    turn: Event = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Calls that had begun when the process was killed."""
    ends: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> list[str]:
        return list((Counter(self.calls) - Counter(self.ends)).elements())

    def watch(self, service: Service) -> None:
        with suppress(httpx2.TransportError), posting(service, *self.script, agent=self.agent, **self.body) as stream:
            for frame in stream:
                self.turn = self.turn or frame.data
                self.frames.append(frame)

    def read_on(self, service: Service) -> None:
        with watching(service, self.turn, self.frames[-1].id) as stream:
            self.frames += stream.rest()

    def stands(self, service: Service) -> bool:
        """Return whether the turn is blocked at its call, and the journal holds every call that ended before."""
        address = service.settings.get("REDIS_URL", f"unix://{service.folder / 'data' / 'store.sock'}")
        with Redis.from_url(address) as raw:
            return self.stands_in(raw)

    def stands_in(self, raw: Raw) -> bool:
        if not (self.ledger.stands and self.turn):
            return False
        journal = raw.hgetall(f"{PARTITION}:journal:local/{self.turn['conversation_id']}:{self.turn['turn']}")
        kinds = (b"tool:", b"model:", b"check:")
        kept = [name for name, effect in journal.items() if effect and name.startswith(kinds)]
        return len(kept) >= len(self.ledger.ends)  # more if a call was refused: it is not in the ledger


def kill_and_resume(service: Service, killed_turns: list[KilledTurn]) -> None:
    """Play turns until each is blocked at its call. Kill their process, and let the next one play them to the end."""
    with ThreadPoolExecutor(len(killed_turns)) as pool:
        reading = [pool.submit(each.watch, service) for each in killed_turns if each.watched]
        for each in killed_turns:
            if not each.watched:
                submit_killed_turn(service, each)
        kill_when_blocked(service, killed_turns)
        for future in reading:
            future.result()
        service.start()
        for future in [pool.submit(each.read_on, service) for each in killed_turns if each.watched]:
            future.result()
    for each in killed_turns:
        each.turn = wait_for_end(service, each.turn)
        if not each.watched:
            each.frames = log_of(service, each.turn)


def kill_when_blocked(service: Service, killed_turns: list[KilledTurn]) -> None:
    """Kill the process of turns as soon as they are blocked, and release them."""
    left = list(killed_turns)

    def all_stand() -> bool:
        """Check all again: calls beside the blocked one continue for a while. Those of earlier kills never end."""
        left[:] = [
            each
            for each in killed_turns
            if not each.stands(service) or len(each.ledger.calls) - len(each.ledger.ends) != len(each.in_flight) + 1
        ]
        return not left

    def stopped_while_all_stand() -> bool:
        """Stop the process before the last check, so that no call is made between the check and the kill."""
        if not all_stand():
            return False
        service.process.send_signal(signal.SIGSTOP)
        if all_stand():
            return True
        service.process.send_signal(signal.SIGCONT)
        return False

    with suppress(AssertionError):
        wait_until(stopped_while_all_stand)
    assert not left, [(each.agent, each.ledger.calls, each.ledger.ends) for each in left]
    for each in killed_turns:
        each.calls, each.ends = each.ledger.calls, each.ledger.ends
    service.kill()
    for each in killed_turns:
        each.ledger.go()


def calls_of(factory: Callable[[], MultiStepAgent], script: Script, ledger: Ledger) -> tuple[MultiStepAgent, list[str]]:
    """Run a bare agent. Return it with its calls."""
    before = len(ledger.calls)
    agent = factory()
    agent.run(json.dumps(script), reset=False)
    return agent, ledger.calls[before:]


def plain(value: Any, ledger: Ledger) -> Any:
    """Return data in a form that is equal for every ledger, without the fields that differ between runs."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True).replace(str(ledger.path), "LEDGER")
    return json.loads(
        text, object_hook=lambda item: {k: v for k, v in item.items() if k not in {"duration_ms", "created_at"}}
    )


def spoken(frames: list[Frame]) -> dict[tuple[Any, ...], str]:
    """Return the final text of every model call, as readers see it."""
    texts: dict[tuple[Any, ...], str] = {}
    for frame in frames:
        event = frame.data
        if event["type"] == "message.restarted":
            texts = {place: text for place, text in texts.items() if place[0] != event["call_id"]}
        elif event["type"] == "message.delta":
            where = (event["call_id"], event["channel"], event.get("index"))
            texts[where] = texts.get(where, "") + event["text"]
    return texts


def named(frames: list[Frame]) -> Counter[tuple[str, str]]:
    names = {"step.started": "step_id", "step.finished": "step_id", "tool.call": "call_id", "tool.result": "call_id"}
    return Counter((frame.event, frame.data[names[frame.event]]) for frame in frames if frame.event in names)


def check_log(frames: list[Frame], whole: list[Frame], attempts: int = 2) -> None:
    """Check the log of a turn that was taken over. `whole` is the log of an uninterrupted turn."""
    check_numbers(frames)
    started = [frame.data["attempt"] for frame in frames if frame.event == "turn.started"]
    assert started == list(range(1, attempts + 1))
    told_by = [frame.data["attempt"] for frame in frames]
    assert told_by == sorted(told_by)
    assert named(frames) == named(whole)


def make_killed_turn(
    folder: Path, *at: int, agent: str = "teller", script: Script | None = None, **body: object
) -> KilledTurn:
    """Make a turn that notes two things, and blocks at its calls of these numbers."""
    ledger = Ledger.at(folder / "turn.ledger", *at)
    path = str(ledger.path)
    return KilledTurn(ledger, agent, script or [note_call(path, "a"), note_call(path, "b"), DONE], body)


def submit_killed_turn(service: Service, it: KilledTurn) -> None:
    it.turn = submit_turn(service, *it.script, agent=it.agent, **it.body)


UNHEEDED = "a thread ignores a request to stop"


def cancel_and_check(
    service: Service,
    stream: Stream,
    answer: httpx2.Response | None = None,
    within_s: float | None = None,
    *,
    heeds: bool = True,
) -> Event:
    """Stop the turn of a stream, read to its end, check the conditions of every stopped turn, and return the turn.

    A turn whose thread `heeds` the stop ends without that thread being given up.
    """
    unheeded = service.log().count(UNHEEDED)
    with ExitStack() as stack:
        watch = stack.enter_context(Stopwatch()) if within_s else None
        answer = answer or cancel(service, stream.seen[0].data)
        assert answer.status_code in {200, 202}, answer.text
        stream.rest()
    if watch and within_s:
        assert watch.s < within_s
    else:
        assert service.log().count(UNHEEDED) == unheeded + (not heeds)
    final = stream.seen[-1]
    turn: Event = final.data["result"]
    assert (final.event, turn["status"], turn["error"], turn["reply"]) == ("turn.cancelled", "cancelled", None, None)
    check_numbers(stream.seen)
    assert turn == service.get(place(turn))
    assert_steps_stored(service, turn, stream)
    return turn


def assert_steps_stored(service: Service, turn: Event, stream: Stream) -> None:
    """Check that the stored steps are exactly those that were shown as finished."""
    shown = [f.data for f in stream.seen if f.event == "step.finished" and f.data["parent_call_id"] is None]
    kept = [step for step in service.steps(turn) if step["turn"] == turn["turn"] and step["type"] != "task"]
    assert len(kept) == len(shown) == turn["step_count"]
    assert [step["type"] for step in kept] == [event["kind"] for event in shown]
    assert [step.get("observations") for step in kept] == [event["observations"] for event in shown]
    assert [frame.raw for frame in log_of(service, turn)] == [frame.raw for frame in stream.seen]


def assert_goes_on(service: Service, turn: Event) -> None:
    """Play the next turn, and check that it leaves the steps of this one unchanged."""
    before = service.steps(turn)
    following = service.follow_up(turn, DONE)
    assert (following["status"], following["reply"], following["turn"]) == ("finished", "done", turn["turn"] + 1)
    assert service.steps(turn)[: len(before)] == before


class Workflow(ToolCallingAgent):  # type: ignore[misc, unused-ignore]
    """Calls tools in a loop of its own. A step is in the memory before its output is yielded."""

    def _run_stream(self, task: str, max_steps: int, images: Any = None) -> Any:  # noqa: ARG002
        for number, entry in enumerate(json.loads(task), 1):
            for name, arguments in entry.get("call", ()):
                output = str(self.tools[name](**arguments))
                self.memory.steps.append(ActionStep(step_number=number, timing=Timing(0.0, 1.0), observations=output))
                yield ToolOutput(
                    "call",
                    output,
                    is_final_answer=False,
                    observation=output,
                    tool_call=ToolCall(name, arguments, "call"),
                )
        yield FinalAnswerStep("done")


def make_workflow() -> Workflow:
    return Workflow(tools=agents.TOOLS, model=agents.ScriptedModel(), verbosity_level=LogLevel.OFF)
