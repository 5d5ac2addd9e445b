"""One owner's slow turns leave threads for the others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.owners import ADA, BOB, owner_line, request_as
from tests.support.service import Service
from tests.support.waiting import Gate, wait_until

SLOW = 5


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Service]:
    keys = tmp_path / "keys"
    keys.write_text(owner_line("ada", ADA) + owner_line("bob", BOB))
    keys.chmod(0o600)
    with Service(tmp_path / "service", {"API_KEYS_FILE": str(keys), "THREADS": "4", "PARTITIONS": "2"}) as service:
        yield service


def submit(service: Service, key: str, text: str) -> dict[str, Any]:
    response = request_as(service, key, "POST", "/turn", {"message": text}, Prefer="respond-async")
    assert response.status_code == 202, response.text
    accepted: dict[str, Any] = response.json()
    return accepted


def test_slow_turns_of_one_owner_keep_no_other_waiting(shared: Service, gate: Gate) -> None:
    slow = json.dumps([gate.script, {"say": "slow"}])
    first = [submit(shared, ADA, slow) for _ in range(SLOW)]
    wait_until(lambda: statuses(shared, ADA, first).count("running") == 3)
    other = request_as(shared, BOB, "POST", "/turn", {"message": '[{"say": "quick"}]'})
    assert (other.status_code, other.json()["reply"]) == (200, "quick")
    assert statuses(shared, ADA, first).count("running") == 3
    gate.open()
    wait_until(lambda: statuses(shared, ADA, first) == ["finished"] * SLOW)
    gate.path.unlink()
    second = [submit(shared, ADA, slow) for _ in range(SLOW)]  # now one of two owners
    wait_until(lambda: statuses(shared, ADA, second).count("running") == 2)
    bob = [submit(shared, BOB, slow) for _ in range(2)]
    wait_until(lambda: statuses(shared, BOB, bob) == ["running"] * 2)
    assert statuses(shared, ADA, second).count("running") == 2
    gate.open()
    wait_until(lambda: statuses(shared, ADA, second) == ["finished"] * SLOW)


def statuses(service: Service, key: str, turns: list[dict[str, Any]]) -> list[str]:
    paths = [f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}" for turn in turns]
    return [request_as(service, key, "GET", path).json()["status"] for path in paths]
