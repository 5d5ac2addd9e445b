"""Turns that wait for a person, and the person's answers, through HTTP."""

import json
from pathlib import Path
from typing import Any

import httpx2

from tests.support.approvals import AGENTS, OUTBOX
from tests.support.service import Service, json_of, wait_until
from tests.support.streaming import Event, place
from tests.support.turns import submit_turn

APPROVE: Event = {"decision": "approve"}
REJECT: Event = {"decision": "reject"}


def asking_service(folder: Path, **settings: str) -> Service:
    """Return a service with the agents that ask, which is not started yet. Its e-mails are the file `outbox`."""
    known = {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "THREADS": "8"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outbox").touch()
    return Service(folder / "service", known | settings, {OUTBOX: str(folder / "outbox")})


def sent(service: Service) -> list[str]:
    return Path(service.environment[OUTBOX]).read_text().splitlines()


def mail(to: str, text: str = "hi") -> list[Any]:
    return ["send_email", {"to": to, "text": text}]


def ask(service: Service, *script: Event, agent: str = "mailer", **body: Any) -> Event:
    response = service.post("/turn", agent=agent, message=json.dumps(script), **body)
    assert response.status_code == 202, response.text
    turn: Event = response.json()
    assert turn["status"] == "waiting", turn
    return turn


def answering(service: Service, turn: Event, *answers: Event, **headers: str) -> httpx2.Response:
    """Send answers. One without `request_id` answers the request at its place."""
    ids = [{"request_id": request["request_id"]} for request in turn["requests"]] + [{}] * len(answers)
    named = [{**name, **each} for name, each in zip(ids, answers, strict=False)]
    return service.client.post(place(turn, "/answers"), json={"answers": named}, headers=headers)


def answer(service: Service, turn: Event, *answers: Event, status: int = 200) -> Event:
    return json_of(answering(service, turn, *answers), status)


def read(service: Service, turn: Event) -> Event:
    return service.get(place(turn))


def wait_for_requests(service: Service, turn: Event, count: int = 1) -> Event:
    wait_until(lambda: len(read(service, turn)["requests"]) == count)
    return read(service, turn)


def submit_asking(service: Service, *script: Event, agent: str = "mailer", count: int = 1, **body: Any) -> Event:
    return wait_for_requests(service, submit_turn(service, *script, agent=agent, **body), count)


def decisions(turn: Event) -> list[tuple[str, str | None]]:
    return [(call["name"], call["approval"] and call["approval"]["decision"]) for call in turn["tool_calls"]]


def observed(service: Service, turn: Event) -> list[str]:
    """Return what the agent's model has seen of its calls."""
    return [str(step["observations"]) for step in service.steps(turn) if step["type"] == "action"]
