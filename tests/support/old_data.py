"""Stored data of earlier releases, kept as files: conversations of every kind, and the service's answers about them.

The code of each release wrote its file once, with a script that stood here until commit d597a18. A new format needs a
new file, written with that script. `format-1-memory.json.gz` has notes, summaries, rollbacks and forks in format 1.
The agents and the scripts that are played here must not change.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import rememberers
from tests.support import service as services
from tests.support.service import Service

Raw = Any  # redis-py annotates the answers of both its clients at once
Json = dict[str, Any]
Turn = tuple[list[Json], Json]  # the script, and the other members of the request

AGENTS = {"AGENTS": f"{services.AGENTS},{rememberers.NOTERS},plain=tests.support.remembering:make_plain"}
TTL_S = 24 * 60 * 60
RED = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR42mP4z8AAQQxwFgBB0gX7b/EWxwAAAABJRU5ErkJggg=="  # 3 by 2
ECHO: Json = {"call": [["echo", {"text": "你好, мир ü 👩‍👩‍👧"}]]}
LED = json.dumps([{"call": [["echo", {"text": "deep"}]]}, {"say": "led"}])
ONCE = "the-key-of-the-fixture"
FIRST_DEMO = "Note that the door code is 1234."
CODE = "import datetime\nx = {'ü': [1, 2.5, None]}\nday = make(what='date')\ndef twice(n):\n    return 2 * n\nprint(x)"
TALKS: dict[str, tuple[str, list[Turn]]] = {
    "tools": (
        "scripted",
        [
            ([ECHO, {"call": [["echo", {"text": "a"}], ["make", {"what": "decimal"}]]}, {"say": "Готово."}], {}),
            ([{"call": [["fail", {"reason": "kaputt"}]]}, {"text": "no call"}, {"say": "recovered"}], {}),
            ([{"call": [["picture", {}]]}, {"say": "seen"}], {"images": [RED], "additional_args": {"città": "Forlì"}}),
            ([ECHO], {"max_steps": 2}),
            ([ECHO, {"raise": "kaputt"}], {}),
        ],
    ),
    "reset": ("scripted", [([{"say": "forgotten"}], {}), ([ECHO, {"say": "remembered"}], {"reset": True})]),
    "code": (
        "code",
        [
            ([{"code": CODE}, {"code": "undefined_name"}, {"code": "final_answer({'n': twice(21)})"}], {}),
            ([{"code": "y = twice(x['ü'][0])\nfinal_answer(make(what='decimal'))"}], {"metadata": {"of": "y"}}),
        ],
    ),
    "carried": ("carrier", [([{"code": "m = make(what='money')\nfinal_answer(m)"}], {})]),
    "plans": ("planner", [([ECHO, {"say": "planned"}], {}), ([{"say": "planned again"}], {})]),
    "family": ("family", [([{"call": [["lead", {"task": LED}]]}, {"say": "managed"}], {})]),
    "checks": ("checked", [([{"say": "no full stop"}, {"say": "a full stop."}], {})]),
}
LAST: list[Json] = [{"name": "keep_last_n_steps", "n": 1}]
MEMORY = {  # agents of the conversations of `format-1-memory.json.gz`
    "notes": "noter",
    "summed": "plain",
    "archived": "scripted",
    "destroyed": "scripted",
    "back": "scripted",
    "variables": "code",
}
METADATA = {"пользователь": {"name": "Ada ✓", "tags": ["a", 1, None]}}


@dataclass
class OldData:
    """Keys of a store, the key that they were sealed with, and the service's answers about them."""

    seal_key: str
    said: Json
    keys: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path) -> "OldData":
        return cls(**json.loads(gzip.decompress(path.read_bytes())))

    def put(self, raw: Raw) -> None:
        """Write all keys into a store. A time to live starts anew."""
        for name, (kind, expires, value) in self.keys.items():
            WRITE[kind](raw, name, _unpacked(value))
            if expires:
                raw.expire(name, TTL_S)


WRITE: dict[str, Any] = {
    "string": lambda raw, name, value: raw.set(name, value),
    "list": lambda raw, name, value: raw.rpush(name, *value),
    "hash": lambda raw, name, value: raw.hset(name, items=value),
    "set": lambda raw, name, value: raw.sadd(name, *value),
    "zset": lambda raw, name, value: raw.zadd(name, {one: int(at) for one, at in zip(*[iter(value)] * 2, strict=True)}),
}


def play_as_new(service: Service, name: str, conversation: str = "") -> Json:
    agent, turns = TALKS[name]
    turn: Json = {}
    service.post("/conversations", id=conversation or name, agent=agent).raise_for_status()
    for script, more in turns:
        turn = service.play(*script, agent=agent, conversation_id=conversation or name, **more)
    return turn


def once(service: Service) -> Any:
    body = {"agent": "scripted", "message": json.dumps([ECHO, {"say": "once"}])}
    return service.client.post("/turn", json=body, headers={"Idempotency-Key": ONCE})


def say_all(service: Service, *, memory: bool = False) -> Json:
    """Return all answers of a service about its conversations by path. Images are represented by their hashes."""
    said: Json = {}

    def ask(path: str, **query: Any) -> Json:
        said[path] = service.get(path, **query)
        return dict(said[path])

    for item in ask("/conversations", limit=100, sort="created")["items"]:
        where = f"/conversations/{item['id']}"
        ask(where)
        if memory:
            said[f"{where}/messages"] = service.get(f"{where}/prompt")
            ask(f"{where}/export")
            said[f"{where}/steps?archived"] = service.get(f"{where}/steps", limit=100, archived="true")
        for step in ask(f"{where}/steps", limit=100)["items"]:
            for image in step.get("images", ()):
                said[image["url"]] = hashlib.sha256(service.client.get(image["url"]).content).hexdigest()
        for turn in ask(f"{where}/turns", limit=100)["items"]:
            here = f"{where}/turns/{turn['turn']}"
            ask(here, include_internal_tools=True)
            said[f"{here}/events"] = list(events(service.client.get(f"{here}/events").text))
    return said


def events(stream: str) -> Iterator[Json]:
    for line in stream.splitlines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _unpacked(value: Any) -> Any:
    return [_unpacked(one) for one in value] if isinstance(value, list) else base64.b85decode(value)
