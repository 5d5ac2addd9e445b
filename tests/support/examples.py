"""Examples of `openapi.yaml`: requests and answers of a real service, with stable ids, times and durations.

`python -m tests.support.examples` records them again.
"""

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from smolsessions.core.errors import HeadTooLargeError, RequestTimeoutError
from smolsessions.web.problems import response_to
from tests.support.openapi import description
from tests.support.service import ROOT, Service, write_private
from tests.support.turns import pixel

FILE = ROOT / "app" / "smolsessions" / "web" / "examples.json"
QUESTION = "What is 12 * 7?"
SETTINGS = {
    "AGENTS": "demo=smolsessions.agents.demo.agents:make_demo,slow=tests.support.streaming:make_streamed,"
    "fickle=tests.support.agents:make_fickle",
    "DEMO_AGENTS": "0",
    "MAX_TURNS_BEHIND": "1",
    "DRAIN_S": "2",
}
WORDS = {"StreamedModel": "openai", "slow": "writer"}
ENDLESS = json.dumps([{"endless": "on and on ", "pace_s": 0.01}])
MERGE = {"Content-Type": "application/merge-patch+json"}
STABLE = {
    "instance": "4f1d0c6ab27e93d5",
    "next_cursor": "jqImoIM2Mg",
    "seq": 12,
    "size_bytes": 128,
    "characters": 2048,
    "tokens": 512,
    "smolagents": "1.26.0",
    "fingerprint": "8d1f6a0c37be94e2",
}
START = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)")
AFTER_MS = {"asked_at": 640.0, "updated_at": 848.6}  # of a request, and of the end of a turn without a wait
QUEUED_MS, RAN_MS, WAITED_MS = 2.4, 846.2, 41_500.0  # of a turn
MODEL_MS, CALL_MS, STEP_MS = 391.2, 8.4, 405.1


class Recorder:
    """Sends requests, and keeps the first of each operation and status with its answer."""

    def __init__(self, service: Service) -> None:
        self.client = service.client
        self.requests: dict[str, Any] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.problems: dict[str, Any] = {}
        paths = description()["paths"]
        self._operations = [
            (method, re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operation["operationId"])
            for path, methods in sorted(paths.items(), key=lambda path: path[0].count("{"))
            for method, operation in methods.items()
        ]

    def send(self, method: str, path: str, body: Any = None, **more: Any) -> httpx2.Response:
        asked = {} if body is None else {"json": body}
        response = self.client.request(method, path, **asked, **more)
        route = path.partition("?")[0]
        name = next((name for verb, at, name in self._operations if verb == method.lower() and at.fullmatch(route)), "")
        status = str(response.status_code)
        kind = response.headers.get("content-type", "").partition(";")[0]
        if kind == "application/problem+json":
            self.problems.setdefault(status, stable(response.json()))
        elif name:
            if body is not None:
                self.requests.setdefault(name, stable(body))
            data = _data(kind, response)
            if data is not None:
                self.answers.setdefault(name, {}).setdefault(f"{status} {kind}", data)
        return response


def _data(kind: str, response: httpx2.Response) -> Any:
    if kind == "application/json":
        return stable(response.json())
    if kind == "text/event-stream":
        lines = [line for line in response.text.splitlines() if line.startswith("data:")]
        return stable(json.loads(lines[-1][5:]))
    if kind == "text/plain":
        return "".join(line + "\n" for line in response.text.splitlines()[:2])
    return None


def stable(value: Any, name: str = "") -> Any:
    """Replace ids, times and durations, which differ from run to run."""
    if isinstance(value, dict):
        same = {key: stable(each, key) for key, each in value.items()}
        return same | _stable_times(same) | _stable_timing(same)
    if isinstance(value, list):
        return [stable(each, name) for each in value]
    if value is None or isinstance(value, bool):
        return value
    return STABLE[name] if name in STABLE else _stable_word(value)


def _stable_times(shown: dict[str, Any]) -> dict[str, Any]:
    """Replace times of an object and the duration of a call or step."""
    same: dict[str, Any] = {
        name: _moment(shown[name], AFTER_MS.get(name, 0.0)) for name in shown if name.endswith("_at")
    }
    if shown.get("turn_count") == 0:
        same["updated_at"] = same["created_at"]
    if shown.get("expires_at"):
        begun, days = ("asked_at", 7) if "asked_at" in shown else ("updated_at", 1)
        same["expires_at"] = _moment(shown["expires_at"], AFTER_MS[begun] + days * 86_400_000)
    if shown.get("duration_ms") is not None:
        same["duration_ms"] = MODEL_MS if shown.get("kind") == "model" else CALL_MS if "call_id" in shown else STEP_MS
    return same


def _stable_timing(shown: dict[str, Any]) -> dict[str, Any]:
    """Replace the times of a turn so that its durations are their differences."""
    if "submitted_at" not in shown:
        return {}
    waited_ms = WAITED_MS if shown["waited_ms"] else 0.0
    ended = shown["finished_at"] is not None
    return {
        "started_at": _moment(shown["started_at"], QUEUED_MS),
        "finished_at": _moment(shown["finished_at"], QUEUED_MS + RAN_MS + waited_ms),
        "queued_ms": QUEUED_MS if shown["started_at"] else None,
        "duration_ms": RAN_MS if ended else None,
        "waited_ms": waited_ms,
    }


def _moment(text: str | None, after_ms: float) -> str | None:
    """Return a moment after the start of the examples in place of one of the service. It has milliseconds, too."""
    if text is None or not MOMENT.fullmatch(text):
        return text
    return (START + timedelta(milliseconds=after_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stable_word(value: float | str) -> float | str:
    if isinstance(value, str):
        if value == ENDLESS:
            return "Write a long story about tea."
        value = WORDS.get(value, value)
        value = MOMENT.sub(lambda found: _moment(found[0], 0.0) or "", value)
        value = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{32}\b", "0" * 31 + "1", value)
        value = re.sub(r"^[0-9a-f]{24}$", "0" * 23 + "1", value)
        return re.sub(r"^\d{16}$", "1795410728824845", value)
    return value


def record(folder: Path) -> dict[str, Any]:
    with Service(folder, settings=SETTINGS) as service:
        recorder = Recorder(service)
        _play(recorder)
        _refuse(recorder)
        _stop(recorder, service)
    agents = recorder.answers["listAgents"]["200 application/json"]["items"]
    agents[:] = [each for each in agents if each["name"] == "demo"]  # the others are agents of tests
    keys = write_private(folder / "keys", f"ada {'0' * 64}\n")
    with Service(folder / "keyed", settings=SETTINGS | {"API_KEYS_FILE": str(keys)}) as service:
        locked = Recorder(service)
        locked.send("GET", "/agents")
    problems = recorder.problems | locked.problems
    for error in (RequestTimeoutError(), HeadTooLargeError()):  # of a connection, which no client here makes
        answer = json.loads(bytes(response_to(error).body))
        problems[str(answer["status"])] = answer | {"instance": STABLE["instance"]}
    problems = dict(sorted(problems.items()))
    return {"requests": recorder.requests, "answers": recorder.answers, "problems": problems}


def _play(recorder: Recorder) -> None:
    send = recorder.send
    send("POST", "/conversations", {"id": "tea", "agent": "demo", "metadata": {"customer": "ada"}})
    send("POST", "/turn", {"message": QUESTION, "conversation_id": "tea"})
    send("POST", "/turn", {"message": QUESTION, "conversation_id": "tea"}, headers={"Accept": "text/event-stream"})
    at = "/conversations/tea"
    send("POST", f"{at}/turns", {"message": "How many words has this picture?", "images": [pixel()]})
    send("POST", f"{at}/turns", {"message": QUESTION}, headers={"Accept": "text/event-stream"})
    for path in ("", "/turns?limit=1", "/turns/1", "/turns/1/events", "/prompt", "/variables", "/workspace/files"):
        send("GET", f"{at}{path}")
    steps = send("GET", f"{at}/steps").json()["items"]
    send("GET", next(step["images"][0]["url"] for step in steps if step.get("images")))
    send("POST", f"{at}/turns/1/cancel")
    send("PATCH", at, {"metadata": {"customer": None, "topic": "sums"}, "ttl_s": 86400.0}, headers=MERGE)
    send("POST", f"{at}/prune", {"policy": {"name": "keep_last_n_steps", "n": 3}, "dry_run": True})
    send("POST", f"{at}/fork", {"turn": 1})
    send("POST", f"{at}/rollback", {"turn": 1})
    send("GET", "/conversations?limit=1")
    send("POST", "/conversations", {"id": "small", "agent": "demo"})
    send("POST", "/imports?id=copy", send("GET", "/conversations/small/export").json())
    send("DELETE", at)
    _answer(send)
    for path in ("/agents", "/agents/demo", "/livez", "/readyz", "/metrics"):
        send("GET", path)
    busy = {"message": ENDLESS, "agent": "slow", "on_busy": "enqueue"}
    later = {"headers": {"Prefer": "respond-async"}}
    send("POST", "/conversations", {"id": "long", "agent": "slow"})
    send("POST", "/turn", {**busy, "conversation_id": "long"}, **later)
    for _ in range(2):
        send("POST", "/conversations/long/turns", busy, **later)
    send("POST", "/conversations/long/turns/2/cancel", **later)
    send("POST", "/conversations/long/turns/1/cancel", **later)


def _answer(send: Callable[..., httpx2.Response]) -> None:
    """Answer a turn that waits for two approvals: one by one, and again for the stream."""
    send("POST", "/conversations", {"id": "sums", "agent": "demo"})
    asked = {"message": "What is 12 * 7 and what is 3 + 4?", "approve": ["calculator"]}
    waiting = send("POST", "/conversations/sums/turns", asked).json()
    for request in waiting["requests"]:
        answers = {"answers": [{"request_id": request["request_id"], "decision": "approve"}]}
        send("POST", "/conversations/sums/turns/1/answers", answers)
        send("GET", "/conversations/sums/turns/1/effects")
    send("POST", "/conversations/sums/turns/1/answers", answers, headers={"Accept": "text/event-stream"})


def _refuse(recorder: Recorder) -> None:
    send = recorder.send
    json_type = {"Content-Type": "application/json"}
    send("POST", "/turn", headers=json_type, content=b"{")
    send("POST", "/turn", headers={"Content-Type": "text/plain"}, content=b"hello")
    send("PUT", "/turn", {})
    send("PATCH", "/conversations/small", {"title": "Tea"}, headers=MERGE | {"If-Match": '"old"'})
    send("GET", "/agents", headers={"Host": "example.org"})
    send("GET", "/conversations/nothing")
    send("POST", "/conversations", {"id": "small"})
    send("POST", "/turn", {"message": QUESTION, "max_steps": 0})
    send("POST", "/turn", headers=json_type, content=b"[" + b" " * (21 << 20) + b"]")
    send("POST", "/conversations", {"id": "fickle", "agent": "fickle"})
    send("GET", "/conversations/fickle/prompt")


def _stop(recorder: Recorder, service: Service) -> None:
    """Read the answer of a process that shuts down while a turn runs."""
    recorder.send("POST", "/turn", {"message": ENDLESS, "agent": "slow"}, headers={"Prefer": "respond-async"})
    os.kill(service.process.pid, signal.SIGTERM)
    end = time.monotonic() + 60
    while "503" not in recorder.problems and time.monotonic() < end:
        recorder.send("GET", "/readyz")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(json.dumps(record(Path(folder)), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
