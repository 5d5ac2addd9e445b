"""Clients: they hand turns in to any process and follow them to their end, whatever becomes of the process."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.fleet import Fleet
    from tests.chaos.plans import Plan, Planned

FINAL = {"turn.finished", "turn.failed", "turn.cancelled"}
STREAM = {"Accept": "text/event-stream"}
ANSWER_S = 30
SILENCE_S = 1.5  # after which a reader looks for another process
PAUSE_S = 0.05
SETTLED_S = 1.0  # a turn that is not there so long after its process died will not come any more
TURN_S = 150
LOG_S = 5
WAYS = {"respond-async": 6, "wait=10": 2, "stream": 2}  # how turns are handed in, and how often
GOES_AWAY = 0.02  # how probable it is that a reader goes away after an event
Event = dict[str, Any]


@dataclass
class Said:
    """A turn that was accepted, and what its reader saw of it, each event with the time at which it came."""

    place: str
    planned: Planned
    plan: Plan
    seen: list[tuple[float, Event]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    answer: Event | None = None
    """What a caller got who waited for the end, if he got it."""
    turn: Event = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.planned.key

    @property
    def body(self) -> Event:
        enqueued = {"on_busy": "enqueue"} if self.plan.eager else {}
        return {"message": self.planned.message} | self.planned.body | enqueued

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
    """A conversation that is being held."""

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
    """All clients of a round. They know the addresses of the processes and nothing of their health."""

    fleet: Fleet
    draw: random.Random
    http: httpx2.AsyncClient
    counts: Counter[str] = field(default_factory=Counter)

    async def hold(self, talk: Talk) -> None:
        """Hold a conversation, one turn after the other."""
        try:
            await self._make(talk)
            if talk.plan.eager:
                for planned in talk.plan.turns:
                    await self._hand_in(talk, planned)
                for said in talk.said:
                    await self._follow(said)
            for planned in talk.plan.turns[len(talk.said) :]:
                await self._hand_in(talk, planned)
                await self._follow(talk.said[-1])
        except TimeoutError:
            talk.complaints.append(f"{talk.name}: a turn did not end within {TURN_S} s")

    async def survey(self, talk: Talk) -> None:
        """Read all that is kept of a conversation."""
        for said in talk.said:
            said.turn = await self._get(f"{said.place}?include_internal_tools=true")
            await self._read_log(said)
        cursor = ""
        while cursor is not None:
            page = await self._get(f"{talk.place}/steps?limit=100{cursor and f'&cursor={cursor}'}")
            talk.steps += page["items"]
            cursor = page["next_cursor"]

    async def _read_log(self, said: Said) -> None:
        """Read a log as it is in the end; that of a turn which is not over never ends by itself."""
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
        """Post a turn until it is accepted; where nobody knows whether it was, it is looked for first."""
        said = Said(f"{talk.place}/turns/{planned.number}", planned, talk.plan)
        (way,) = self.draw.choices([*WAYS], [*WAYS.values()])
        async with asyncio.timeout(TURN_S):
            while not await (self._post_and_read(talk, said) if way == "stream" else self._post(talk, said, way)):
                self.counts["posted again"] += 1
                if not talk.plan.keyed and await self._is_there(talk, planned.number):
                    break
        talk.said.append(said)

    async def _post(self, talk: Talk, said: Said, prefer: str) -> bool:
        """Tell whether a turn is known to be accepted; whoever waits for its end may get it at once."""
        response = await self._ask("POST", f"{talk.place}/turns", said.body, {"Prefer": prefer} | said.headers)
        if response is None:
            return False
        if response.status_code == 200:
            said.answer = response.json()
        return self._is_accepted(said, response)

    async def _post_and_read(self, talk: Talk, said: Said) -> bool:
        """Do the same and read its events from the answer, as long as that lasts."""
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
        """Tell whether a turn was accepted, once nothing can be on its way any more."""
        since: float | None = None
        while True:
            response = await self._ask("GET", talk.place)
            if response is not None and response.status_code == 200:
                if response.json()["turns"] >= number:
                    return True
                since = since or time.monotonic()
                if time.monotonic() - since > SETTLED_S:
                    return False
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, said: Said) -> None:
        """Read a turn's events to the final one, from one process after the other."""
        async with asyncio.timeout(TURN_S):
            await self._follow_patiently(said)

    async def _follow_patiently(self, said: Said) -> None:
        while not said.over:
            headers = STREAM | ({"Last-Event-ID": str(said.last_seq)} if said.seen else {})
            timeout = httpx2.Timeout(ANSWER_S, read=SILENCE_S)
            with suppress(httpx2.TransportError):
                async with self.http.stream(
                    "GET", f"{self._url()}{said.place}/events", headers=headers, timeout=timeout
                ) as response:
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
            if said.over or self.draw.random() < GOES_AWAY:
                return

    async def _get(self, path: str) -> Any:
        response = await self.http.get(f"{self._url()}{path}")
        assert response.status_code == 200, f"{path}: {response.text}"
        return response.json()

    async def _ask(
        self, method: str, path: str, body: Event | None = None, headers: dict[str, str] | None = None
    ) -> httpx2.Response | None:
        """Give the answer, or nothing where the process went away meanwhile."""
        with suppress(httpx2.TransportError):
            return await self.http.request(method, f"{self._url()}{path}", json=body, headers=headers)
        await asyncio.sleep(PAUSE_S)
        return None

    def _url(self) -> str:
        urls = self.fleet.urls
        return self.draw.choice(urls) if urls else "http://127.0.0.1:9"


async def _events(response: httpx2.Response) -> AsyncIterator[Event]:
    """Give the events of a stream; what is cut in the middle of one is not given."""
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
        yield Clients(fleet, draw, http)
