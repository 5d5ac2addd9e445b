"""Conversations with every kind of turn in them, which tests fork and roll back."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import rememberers
from tests.support.service import Gate, Service, json_of, wait_until
from tests.support.streaming import Event
from tests.support.turns import DONE, ECHO, PROMPT, cancel, png, submit_turn, wait_for_end

SETTINGS = {"AGENTS": rememberers.AGENTS, "DEMO_AGENTS": "0", "THREADS": "16"}
KINDS = ["rememberer", "code-rememberer"]
FAILED, STOPPED = "failed", "stopped"


@dataclass
class History:
    """The turns of a conversation: each has a script, a body and a way to end."""

    agent: str
    folder: Path
    turns: list[tuple[list[Event], dict[str, Any], str]] = field(default_factory=list)

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def play(self, service: Service, conversation: str, first: int, last: int) -> None:
        for script, body, how in self.turns[first - 1 : last]:
            self._play(service, script, how, agent=self.agent, conversation_id=conversation, **body)

    def _play(self, service: Service, script: list[Event], how: str, **body: Any) -> None:
        if how != STOPPED:
            assert service.play(*script, **body)["status"] == (how or "finished")
            return
        waits = {"code": f"wait_for({str(self.gate)!r})"} if "code" in self.agent else Gate(self.gate).script
        for left in (self.gate, self.gate.with_name("gate.started")):
            left.unlink(missing_ok=True)
        turn = submit_turn(service, waits, DONE, **body)
        wait_until(self.gate.with_name("gate.started").exists)
        cancel(service, turn)
        assert wait_for_end(service, turn)["status"] == "cancelled"
        self.gate.touch()  # after the end: otherwise the step might finish before the stop arrives


def history_of(kind: str, folder: Path) -> History:

    def words(word: str) -> list[Event]:
        return [{"call": [["shelf", {"word": word}]]}, {"call": [["note_write", {"text": f"noted {word}"}]]}, DONE]

    def code(word: str) -> list[Event]:
        lines = f"words = {word!r}\nprint(shelf({word!r}), note_write({word!r}))"
        return [{"code": lines}, {"code": f"{word}_x = 1"}, DONE]

    does = code if kind == "code-rememberer" else words
    turns: list[tuple[list[Event], dict[str, Any], str]] = [
        (does("one"), {}, ""),
        (does("two"), {"images": [png("red")], "additional_args": {"who": "Ann"}}, ""),
        ([ECHO, {"raise": "no more"}], {}, FAILED),
        (does("three"), {"reset": True}, ""),
        ([ECHO, ECHO, DONE], {"max_steps": 1}, ""),
        ([DONE], {}, STOPPED),
        (does("four"), {"images": [png("blue")], "additional_args": {"who": "Bo", "age": 3}}, ""),
    ]
    return History(kind, folder, turns)


def probe(service: Service, conversation: str, kind: str) -> Any:
    """Return everything that a conversation's next turn sees: its prompt, its variables, its tools' state."""
    shelf: Event = {"call": [["shelf", {"word": "probe"}]]}
    names = ("words", "one_x", "two_x", "three_x", "four_x", "who", "age")
    look = [{"code": f"print({name})"} for name in names] + [{"code": "print(shelf('probe'), note_read())"}]
    script = look if kind == "code-rememberer" else [shelf, {"call": [["note_read", {}]]}]
    body = {"agent": kind, "conversation_id": conversation, "max_steps": 20}
    first = service.play(PROMPT, **body)
    second = service.play(*script, PROMPT, **body)
    assert second["status"] == "finished", second
    told = [step.get("observations") or step.get("error") for step in service.steps(second)[-len(script) - 1 : -1]]
    return first["reply"], told


def new_conversation(service: Service, kind: str) -> str:
    made: str = service.post("/conversations", agent=kind).json()["id"]
    return made


def fork(service: Service, conversation: str, **body: Any) -> dict[str, Any]:
    response = service.post(f"/conversations/{conversation}/fork", **body)
    made = json_of(response, 201)
    assert response.headers["location"] == f"/conversations/{made['id']}"
    return made


def roll_back(service: Service, conversation: str, turn: int) -> dict[str, Any]:
    return json_of(service.post(f"/conversations/{conversation}/rollback", turn=turn))


def step_counts(conversation: dict[str, Any]) -> dict[str, int]:
    return {kind: count for kind, count in conversation["step_counts"].items() if count}


def record_of(service: Service, conversation: str) -> tuple[Any, Any, Any]:
    where = f"/conversations/{conversation}"
    found = service.get(where)
    steps = service.get(f"{where}/steps", limit=100, archived="true")["items"]
    plain = json.dumps([steps, service.get(f"{where}/turns", limit=100)["items"]]).replace(conversation, "")
    return found["step_counts"], found["archived_steps"], json.loads(plain)


def assert_consistent(service: Service, name: str) -> None:
    """Check that a conversation's steps and turns agree, and that it accepts a next turn."""
    turns = {t["turn"]: t["rolled_back"] for t in service.get(f"/conversations/{name}/turns", limit=100)["items"]}
    steps = service.get(f"/conversations/{name}/steps", limit=100, archived="true")["items"]
    assert [step["rolled_back"] for step in steps] == [turns[step["turn"]] for step in steps]
    kept = [step["type"] for step in steps if not step["rolled_back"] and not step["archived"]]
    assert step_counts(service.get(f"/conversations/{name}")) == {kind: kept.count(kind) for kind in set(kept)}
    shown = [m for m in service.get(f"/conversations/{name}/prompt")["messages"] if "New task" in json.dumps(m)]
    assert len(shown) == kept.count("task")
    last = service.play(PROMPT, conversation_id=name)
    assert (last["status"], last["turn"]) == ("finished", len(turns) + 1)


def variable_x(service: Service, name: str, agent: str = "code") -> Any:
    return service.play({"code": "final_answer(x)"}, agent=agent, conversation_id=name)["output"]


def memory_of(turns: int) -> dict[str, Any]:
    """Return a document with a task for each turn."""
    turn = {
        "agent": {"name": "scripted", "kind": "ToolCallingAgent", "smolagents": "1.26.0"},
        "timing": {"submitted_at": "2026-11-28T09:30:00Z"},
        "status": "finished",
    }
    return {
        "format": "smolsessions/conversation",
        "version": 1,
        "agent": "scripted",
        "turns": [{"turn": number, "message": f"task {number}", **turn} for number in range(1, turns + 1)],
        "steps": [{"type": "task", "turn": number, "task": f"task {number}"} for number in range(1, turns + 1)],
    }
