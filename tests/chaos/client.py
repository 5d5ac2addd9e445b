"""Clients that submit turns to any process and follow them to their end, even if the process crashes."""

import asyncio
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.chaos.fleet import Fleet
from tests.chaos.plans import Plan, Planned

FINAL = {"turn.finished", "turn.failed", "turn.cancelled"}
STREAM = {"Accept": "text/event-stream"}
ANSWER_S = 30
SILENCE_S = 1.5  # after which a reader looks for another process
PAUSE_S = 0.05
SETTLED_S = 1.0  # a turn still missing this long after its process died was not accepted
TURN_S = 150
LOG_S = 5
WAYS = {"respond-async": 6, "wait=10": 2, "stream": 2}  # ways to submit a turn, with their weights
LONGEST_THOUGHT_S = 1.5  # of a person before an answer
TWICE = 0.3  # probability that answers are sent twice
GOES_AWAY = 0.02  # probability that a reader disconnects after an event
Event = dict[str, Any]


@dataclass
class Said:
    """An accepted turn with the events that its reader saw, each with its arrival time."""

    place: str
    planned: Planned
    plan: Plan
    seen: list[tuple[float, Event]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    answer: Event | None = None
    """Answer to a caller that waited for the end, if it arrived."""
    turn: Event = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.planned.key

    @property
    def body(self) -> Event:
        enqueued = {"on_busy": "enqueue"} if self.plan.eager else {}
        return {"message": self.planned.message} | enqueued | self.planned.body

    @property
    def headers(self) -> dict[str, str]:
        return {"Idempotency-Key": self.place} if self.plan.keyed else {}

    @property
    def last_seq(self) -> int:
        return int(self.seen[-1][1]["seq"]) if self.seen else 0

    @property
    def over(self) -> bool:
        return bool(self.seen) and self.seen[-1][1]["type"] in FINAL


@dataclass
class Talk:
    plan: Plan
    name: str
    said: list[Said] = field(default_factory=list)
    steps: list[Event] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"/conversations/{self.name}"


@dataclass
class Clients:
    """All clients of a round. They know the addresses of the processes, and not their health."""

    fleet: Fleet
    draw: random.Random
    http: httpx2.AsyncClient
    counts: Counter[str] = field(default_factory=Counter)
    persons: set[asyncio.Task[None]] = field(default_factory=set)

    async def hold(self, talk: Talk) -> None:
        """Play the turns of a conversation in order. An eager talk sends one while the turns before it run or wait."""
        try:
            await self._make(talk)
            async with asyncio.TaskGroup() as readers:
                for planned in talk.plan.turns:
                    await self._hand_in(talk, planned)
                    reader = readers.create_task(self._follow(talk.said[-1]))
                    if not talk.plan.eager:
                        await reader
        except* TimeoutError:
            talk.complaints.append(f"{talk.name}: a turn did not end within {TURN_S} s")

    async def survey(self, talk: Talk) -> None:
        """Read all that is kept of a conversation's turns, and their logs."""
        for said in talk.said:
            said.turn = await self._get(f"{said.place}?include_internal_tools=true")
            await self._read_log(said)
        cursor = ""
        while cursor is not None:
            page = await self._get(f"{talk.place}/steps?limit=100{cursor and f'&cursor={cursor}'}")
            talk.steps += page["items"]
            cursor = page["next_cursor"]

    async def _read_log(self, said: Said) -> None:
        """Read a turn's final log. The log of an unfinished turn has no end, so a timeout bounds the read."""
        with suppress(TimeoutError, httpx2.TransportError):
            async with (
                asyncio.timeout(LOG_S),
                self.http.stream("GET", f"{self._url()}{said.place}/events", headers=STREAM) as response,
            ):
                async for event in _events(response):
                    said.log.append(event)

    async def _make(self, talk: Talk) -> None:
        async with asyncio.timeout(TURN_S):
            while True:
                body = {"id": talk.name, "agent": talk.plan.agent}
                response = await self._ask("POST", "/conversations", body)
                if response is not None and response.status_code in {201, 409}:
                    return
                await asyncio.sleep(PAUSE_S)

    async def _hand_in(self, talk: Talk, planned: Planned) -> None:
        """Post a turn until it is accepted. If the outcome of a post is unknown, look for the turn first."""
        said = Said(f"{talk.place}/turns/{planned.number}", planned, talk.plan)
        (way,) = self.draw.choices([*WAYS], [*WAYS.values()])
        async with asyncio.timeout(TURN_S):
            while not await (self._post_and_read(talk, said) if way == "stream" else self._post(talk, said, way)):
                self.counts["posted again"] += 1
                if not talk.plan.keyed and await self._is_there(talk, planned.number):
                    break
        talk.said.append(said)

    async def _post(self, talk: Talk, said: Said, prefer: str) -> bool:
        """Return whether a turn is known to be accepted. A caller that waits for its end may get it at once."""
        response = await self._ask("POST", f"{talk.place}/turns", said.body, {"Prefer": prefer} | said.headers)
        if response is None:
            return False
        if response.status_code == 200:
            said.answer = response.json()
        return self._is_accepted(said, response)

    async def _post_and_read(self, talk: Talk, said: Said) -> bool:
        is_accepted = False
        with suppress(httpx2.TransportError):
            async with self.http.stream(
                "POST", f"{self._url()}{talk.place}/turns", json=said.body, headers=STREAM | said.headers
            ) as response:
                is_accepted = self._is_accepted(said, response)
                if is_accepted:
                    await self._read(response, said)
        return is_accepted

    def _is_accepted(self, said: Said, response: httpx2.Response) -> bool:
        is_accepted = response.status_code in {200, 202}
        if not is_accepted and response.status_code not in {409, 503}:
            said.complaints.append(f"{said.place} is answered {response.status_code}")
        if is_accepted and (where := response.headers.get("Location")) != said.place:
            said.complaints.append(f"{said.place} was accepted as {where}")
        return is_accepted

    async def _is_there(self, talk: Talk, number: int) -> bool:
        """Return whether a turn was accepted, once no request for it can be in flight."""
        since: float | None = None
        while True:
            response = await self._ask("GET", talk.place)
            if response is not None and response.status_code == 200:
                if response.json()["turn_count"] >= number:
                    return True
                since = since or time.monotonic()
                if time.monotonic() - since > SETTLED_S:
                    return False
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, said: Said) -> None:
        timeout = httpx2.Timeout(ANSWER_S, read=SILENCE_S)
        async with asyncio.timeout(TURN_S):
            while not said.over:
                headers = STREAM | ({"Last-Event-ID": str(said.last_seq)} if said.seen else {})
                url = f"{self._url()}{said.place}/events"
                with suppress(httpx2.TransportError):
                    async with self.http.stream("GET", url, headers=headers, timeout=timeout) as response:
                        if response.status_code != 503:
                            await self._read(response, said)
                self.counts["connections of readers"] += 1
                await asyncio.sleep(PAUSE_S)

    async def _read(self, response: httpx2.Response, said: Said) -> None:
        if response.status_code != 200:
            said.complaints.append(f"{said.place}: events are answered {response.status_code} after {said.last_seq}")
            return
        async for event in _events(response):
            if event["seq"] != said.last_seq + 1:
                said.complaints.append(f"{said.place}: after event {said.last_seq} came {event['seq']}")
            said.seen.append((time.time(), event))
            if event["type"] == "turn.waiting":
                self._think(said, event["requests"])
            if said.over or self.draw.random() < GOES_AWAY:
                return

    def _think(self, said: Said, requests: list[Event]) -> None:
        """Answer requests later, in one batch or in two, in any order, some of them twice."""
        answers = [answer_to(request) for request in requests]
        self.draw.shuffle(answers)
        cut = self.draw.randint(0, len(answers))
        batches = [batch for batch in (answers[:cut], answers[cut:]) if batch]
        for batch in [*batches, *(batches if self.draw.random() < TWICE else ())]:
            person = asyncio.create_task(self._answer(said, batch, self.draw.random() * LONGEST_THOUGHT_S))
            self.persons.add(person)
            person.add_done_callback(self.persons.discard)

    async def _answer(self, said: Said, batch: list[Event], thought_s: float) -> None:
        """Send answers until one process takes them. A second answer that is the same is no mistake."""
        await asyncio.sleep(thought_s)
        end = time.monotonic() + TURN_S
        while time.monotonic() < end:
            headers = {"Prefer": "respond-async"}
            response = await self._ask("POST", f"{said.place}/answers", {"answers": batch}, headers)
            if response is not None and response.status_code in {200, 202}:
                self.counts["answers"] += len(batch)
                return
            if response is not None and response.status_code != 503:
                said.complaints.append(f"{said.place}: its answers are answered {response.status_code} {response.text}")
                return
            await asyncio.sleep(PAUSE_S)
        said.complaints.append(f"{said.place}: its answers are not taken")

    async def _get(self, path: str) -> Any:
        response = await self.http.get(f"{self._url()}{path}")
        assert response.status_code == 200, f"{path}: {response.text}"
        return response.json()

    async def _ask(
        self, method: str, path: str, body: Event | None = None, headers: dict[str, str] | None = None
    ) -> httpx2.Response | None:
        """Return the answer, or None if the process went away meanwhile."""
        with suppress(httpx2.TransportError):
            return await self.http.request(method, f"{self._url()}{path}", json=body, headers=headers)
        await asyncio.sleep(PAUSE_S)
        return None

    def _url(self) -> str:
        urls = self.fleet.urls
        return self.draw.choice(urls) if urls else "http://127.0.0.1:9"


def answer_to(request: Event) -> Event:
    name = {"request_id": request["request_id"]}
    if request["kind"] == "question":
        return name | {"decision": "approve", "text": f"answer to {request['question']}"}
    key = request["arguments"]["key"]
    if request["kind"] == "result":
        return name | ({"error": f"no {key}"} if zlib.crc32(key.encode()) % 4 == 0 else {"result": {"fetched": key}})
    match zlib.crc32(key.encode()) % 4:
        case 0:
            return name | {"decision": "reject", "reason": f"no {key}"}
        case 1:
            return name | {"decision": "approve", "arguments": {"key": key, "token": "changed"}}
    return name | {"decision": "approve"}


async def _events(response: httpx2.Response) -> AsyncIterator[Event]:
    rest = b""
    async for chunk in response.aiter_raw():
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            if not block.startswith(b":"):
                kind, number, data = (line.partition(": ")[2] for line in block.decode().split("\n"))
                event: Event = json.loads(data)
                assert (kind, int(number)) == (event["type"], event["seq"]), block
                yield event


@asynccontextmanager
async def clients_of(fleet: Fleet, draw: random.Random) -> AsyncIterator[Clients]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=50)
    async with httpx2.AsyncClient(timeout=ANSWER_S, limits=limits) as http:
        clients = Clients(fleet, draw, http)
        yield clients
        await asyncio.gather(*clients.persons)
