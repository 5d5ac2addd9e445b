"""Stored data of a release, kept as a file: conversations of every kind, and the service's answers about them.

`python -m tests.support.old_data tests/data/format-N.json.gz` plays them on the code of its checkout and writes the
file, once for each released format. `tests.store.test_old_data` reads the files for ever, and continues their
conversations. The agents and the scripts that are played here must therefore not change.

`format-1-memory.json.gz` is a second file of format 1. The format grew without a new number: issue 7 added the data of
`play_memory`, which the code that wrote the first file did not know.
"""

import base64
import gzip
import hashlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import noters, remembering
from tests.support import service as services
from tests.support.service import Service
from tests.support.waiting import wait_until

Raw = Any  # redis-py annotates the answers of both its clients at once
Json = dict[str, Any]
Turn = tuple[list[Json], Json]  # the script, and the other members of the request

MEMORY_FILE = "-memory"
AGENTS = {"AGENTS": f"{services.AGENTS},{noters.AGENTS},plain=tests.support.remembering:make_plain"}
TTL_S = 24 * 60 * 60
RED = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR42mP4z8AAQQxwFgBB0gX7b/EWxwAAAABJRU5ErkJggg=="  # 3 by 2
ECHO: Json = {"call": [["echo", {"text": "你好, мир ü 👩‍👩‍👧"}]]}
LED = json.dumps([{"call": [["echo", {"text": "deep"}]]}, {"say": "led"}])
ONCE = "the-key-of-the-fixture"
DEMO = ["Note that the door code is 1234.", "What is 12 * 7?", "What did I ask first?", "What is 1 / 0?"]
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
    "reset": (
        "scripted",
        [([{"say": "forgotten"}], {}), ([ECHO, {"say": "remembered"}], {"reset": True})],
    ),
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
LONG_S = 10 * 365 * 24 * 60 * 60
LAST: list[Json] = [{"name": "keep_last_n_steps", "n": 1}]
FOUR: list[Json] = [{"name": "prune_old_observations", "keep_last_n": 1, "max_length": 5}, *LAST]
AFTER_600: Json = {"name": "summarize", "after_tokens": 600}
SEEN: list[Turn] = [
    ([{"call": [["picture", {}]]}, ECHO, {"say": "one"}], {"images": [RED]}),
    ([ECHO, {"say": "two"}], {}),
]
LENGTHY: Turn = ([{"call": [["echo", {"text": "long " * 100}]]}, {"say": "done"}], {})
MEMORY: dict[str, tuple[str, list[Turn]]] = {
    "notes": (
        "noter",
        [
            ([{"call": [["note_write", {"text": "ключ 1"}]]}, ECHO, {"say": "noted"}], {}),
            ([{"call": [["note_write", {"text": "ключ 2", "replaces": 1}]]}, {"say": "replaced"}], {}),
        ],
    ),
    "summed": ("plain", [LENGTHY] * 3),
    "archived": ("scripted", SEEN),
    "destroyed": ("scripted", SEEN),
    "back": ("scripted", [*SEEN, ([{"say": "three"}], {})]),
    "variables": (
        "code",
        [
            ([{"code": "x = {'ü': 1}\nfinal_answer(x)"}], {}),
            ([{"code": "x = 2\nfinal_answer(x)"}], {}),
            ([{"code": "x = 3\nfinal_answer(x)"}], {}),
        ],
    ),
}
DEMOS = {"demo": "demo", "demo-code": "demo-code"}
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

    def write(self, path: Path) -> None:
        data = json.dumps(vars(self), ensure_ascii=False, sort_keys=True).encode()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(data, 9, mtime=0))

    def take(self, raw: Raw) -> None:
        """Read all keys of a store."""
        for name in sorted(raw.keys("*")):
            kind = raw.type(name).decode()
            expires = raw.ttl(name) >= 0
            self.keys[name.decode()] = [kind, expires, _packed(READ[kind](raw, name))]

    def put(self, raw: Raw) -> None:
        """Write all keys into a store. A time to live starts anew."""
        for name, (kind, expires, value) in self.keys.items():
            WRITE[kind](raw, name, _unpacked(value))
            if expires:
                raw.expire(name, TTL_S)


READ: dict[str, Any] = {
    "string": lambda raw, name: raw.get(name),
    "list": lambda raw, name: raw.lrange(name, 0, -1),
    "hash": lambda raw, name: [part for item in raw.hgetall(name).items() for part in item],
    "set": lambda raw, name: sorted(raw.smembers(name)),
    "zset": lambda raw, name: [
        part for one, at in raw.zrange(name, 0, -1, withscores=True) for part in (one, b"%d" % at)
    ],
}
WRITE: dict[str, Any] = {
    "string": lambda raw, name, value: raw.set(name, value),
    "list": lambda raw, name, value: raw.rpush(name, *value),
    "hash": lambda raw, name, value: raw.hset(name, items=value),
    "set": lambda raw, name, value: raw.sadd(name, *value),
    "zset": lambda raw, name, value: raw.zadd(name, {one: int(at) for one, at in zip(*[iter(value)] * 2, strict=True)}),
}


def play(service: Service, name: str, conversation: str) -> Json:
    """Play a conversation. Return its last turn."""
    agent, turns = TALKS[name]
    turn: Json = {}
    for script, more in turns:
        turn = service.play(*script, agent=agent, conversation_id=conversation, **more)
    return turn


def play_all(service: Service) -> None:
    """Play everything that is worth keeping."""
    for name in TALKS:
        play_as_new(service, name)
    for name, agent in DEMOS.items():
        service.post("/conversations", id=name, agent=agent).raise_for_status()
        for text in DEMO:
            service.post("/turn", message=text, agent=agent, conversation_id=name).raise_for_status()
    service.client.patch("/conversations/tools", json={"metadata": METADATA}).raise_for_status()
    once(service).raise_for_status()
    service.post("/conversations", id="empty", agent="scripted", metadata=METADATA).raise_for_status()
    service.post("/conversations", id="deleted", agent="scripted").raise_for_status()
    play_stopped(service)
    play_handed_over(service)
    service.client.delete("/conversations/deleted").raise_for_status()


def play_memory(service: Service) -> None:
    """Play the features of issue 7: notes, terms, summaries, prunes, rollbacks, forks, imports, a time to live."""
    for name, (agent, turns) in MEMORY.items():
        more = {"policy": FOUR, "ttl_s": LONG_S} if name == "notes" else {}
        service.post("/conversations", id=name, agent=agent, **more).raise_for_status()
        for script, body in turns:
            service.play(*script, agent=agent, conversation_id=name, **body)
    service.client.patch("/conversations/summed", json={"policy": AFTER_600}).raise_for_status()
    service.play({"say": "summed up"}, agent="plain", conversation_id="summed")
    for name, destroy in (("archived", False), ("destroyed", True)):
        service.post(f"/conversations/{name}/prune", policy=LAST, destroy=destroy).raise_for_status()
    for name in ("back", "variables"):
        service.post(f"/conversations/{name}/rollback", turn=1).raise_for_status()
    service.play({"say": "after it"}, agent="scripted", conversation_id="back")
    for name in ("variables", "archived"):
        service.post(f"/conversations/{name}/fork", metadata={"fork": name}).raise_for_status()
    document = service.get("/conversations/variables/export")
    service.client.post("/conversations/import?id=imported", json=document).raise_for_status()


def play_as_new(service: Service, name: str, conversation: str = "") -> Json:
    service.post("/conversations", id=conversation or name, agent=TALKS[name][0]).raise_for_status()
    return play(service, name, conversation or name)


def once(service: Service) -> Any:
    """Post the turn that has an Idempotency-Key."""
    body = {"agent": "scripted", "message": json.dumps([ECHO, {"say": "once"}])}
    return service.client.post("/turn", json=body, headers={"Idempotency-Key": ONCE})


def play_stopped(service: Service) -> None:
    """Play a turn that is cancelled after its first step, and a turn behind it."""
    script = json.dumps([ECHO, {"endless": "on and on ", "pace_s": 0.01}])
    body = {"agent": "streamed", "message": script, "conversation_id": "stopped"}
    service.post("/conversations", id="stopped", agent="streamed").raise_for_status()
    service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).raise_for_status()
    wait_until(lambda: service.get("/conversations/stopped/steps")["items"])
    service.client.post("/conversations/stopped/turns/1/cancel").raise_for_status()
    assert over(service, "stopped", 1)["status"] == "cancelled"
    service.play({"say": "after it"}, agent="streamed", conversation_id="stopped")


def play_handed_over(service: Service) -> None:
    """Play one turn on two processes in succession. Its log is not packed."""
    slow = {"call": [["compute", {"seconds": 1.5}]]}
    body = {"agent": "scripted", "message": json.dumps([slow, ECHO, {"say": "twice"}]), "conversation_id": "handed"}
    service.post("/conversations", id="handed", agent="scripted").raise_for_status()
    service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).raise_for_status()
    wait_until(lambda: service.get("/conversations/handed/turns/1")["status"] != "queued")
    service.process.send_signal(signal.SIGTERM)
    service.stop()
    service.start()
    turn = over(service, "handed", 1)
    assert (turn["status"], turn["attempts"]) == ("finished", 2), turn


def over(service: Service, conversation: str, number: int) -> Json:
    at = f"/conversations/{conversation}/turns/{number}"
    wait_until(lambda: service.get(at)["status"] not in {"queued", "running"})
    return service.get(at)


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
            for more in ("messages", "export"):
                ask(f"{where}/{more}")
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


def _packed(value: Any) -> Any:
    return [_packed(one) for one in value] if isinstance(value, list) else base64.b85encode(value).decode()


def _unpacked(value: Any) -> Any:
    return [_unpacked(one) for one in value] if isinstance(value, list) else base64.b85decode(value)


def main(path: Path) -> None:
    from smolsessions.store.seal import new_key  # noqa: PLC0415 - the tests that read need no service's code
    from tests.support.store_server import running_store  # noqa: PLC0415

    key = new_key()
    with tempfile.TemporaryDirectory() as folder, running_store(Path(folder) / "store") as server:
        settings = server.settings | {"SEAL_KEYS": key}
        memory = MEMORY_FILE in path.name
        with Service(Path(folder) / "service", settings | AGENTS, {remembering.FOLDER: folder}) as service:
            (play_memory if memory else play_all)(service)
            data = OldData(key, say_all(service, memory=memory))
        with server.client() as raw:
            data.take(raw)
    data.write(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
