"""Patient client, which repeats a refused request under the same key, and resumes a broken stream."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.support.service import CODELESS, PATIENCE_S, Service, wait_until
from tests.support.streaming import EVENTS, FINAL, Event, Frame, Stream, check_numbers, log_of, place

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
