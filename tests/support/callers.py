"""Turns of two tenants, Ada and Bob, whose API keys have claims."""

import json
from pathlib import Path
from typing import Any

from tests.support.owners import ADA, BOB, SECOND, owner_line, request_as
from tests.support.service import Service, write_private
from tests.support.tenants import AGENTS

PRO, FREE, OTHER = {"plan": "pro", "seats": [1, {"two": 2}]}, {"plan": "free"}, {"plan": "none", "seats": [3]}
ASK, MADE = {"call": [["whose", {}]]}, {"call": [["made", {}]]}


def keys_file(folder: Path, *, ada: dict[str, Any] = PRO) -> str:
    """Write the keys of Ada, with these claims, and of Bob. Ada's second key has other claims."""
    keys = (("ada", ADA, ada), ("bob", BOB, FREE), ("ada", SECOND, OTHER))
    lines = [f"{owner_line(owner, key).strip()} {json.dumps(claims)}\n" for owner, key, claims in keys]
    return str(write_private(folder / "keys", "".join(lines)))


def tenants_of(folder: Path, **settings: str) -> Service:
    """Return a service for these tenants, which is not started yet."""
    known = {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "API_KEYS_FILE": keys_file(folder)}
    return Service(folder / "service", known | settings)


def play(service: Service, key: str, *script: dict[str, Any], agent: str = "tenant", **body: Any) -> dict[str, Any]:
    body = {"agent": agent, "message": json.dumps(script)} | body
    response = request_as(service, key, "POST", "/turn", body)
    assert response.status_code == 200, response.text
    turn: dict[str, Any] = response.json()
    assert turn["status"] == "finished", turn
    return turn


def observed(service: Service, key: str, turn: dict[str, Any]) -> list[str]:
    """Return the observations of a conversation's steps."""
    path = f"/conversations/{turn['conversation_id']}/steps?limit=100&type=action"
    items = request_as(service, key, "GET", path).json()["items"]
    return [str(step["observations"]) for step in items]


def told(turn: dict[str, Any], owner: str, claims: dict[str, Any], **metadata: Any) -> str:
    return json.dumps([owner, turn["conversation_id"], claims, metadata], sort_keys=True)


def number_of(service: Service, turn: dict[str, Any], key: str = ADA) -> str:
    """Return the number of the agent that played `MADE` as the last step but one."""
    return observed(service, key, turn)[-2].split()[-1]
