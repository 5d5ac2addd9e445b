"""Tasks of A2A as JSON: their statuses, messages and artifacts, from records of turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from smolsessions.core.records import Turn, TurnStatus
from smolsessions.core.requests import InputRequest
from smolsessions.core.times import time_text
from smolsessions.web.dialects.gateway import split_data_url
from smolsessions.web.dialects.places import place_of
from smolsessions.web.dialects.words import question_words

STATES: Mapping[TurnStatus, str] = {
    "queued": "TASK_STATE_SUBMITTED",
    "running": "TASK_STATE_WORKING",
    "waiting": "TASK_STATE_INPUT_REQUIRED",
    "finished": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
}

Json = dict[str, Any]


def ids_of(turn: Turn) -> Json:
    """Return the ids of the task that a turn is, and of its context, the conversation."""
    return {"taskId": str(place_of(turn)), "contextId": turn.ref.id}


def task_of(turn: Turn, status: Json, parts: list[Json], history_length: int | None = None) -> Json:
    """Return a task. `parts` are those of its artifact so far. Its history is the message of the user."""
    found: Json = {"id": ids_of(turn)["taskId"], "contextId": turn.ref.id, "status": status}
    if parts:
        found["artifacts"] = [artifact(turn, parts)]
    if history_length != 0:
        found["history"] = [{**message(turn, "user", turn.message), "role": "ROLE_USER"}]
    return found


def stored_task(turn: Turn, media: Mapping[str, str] | None, history_length: int | None) -> Json:
    """Return a task as the record of its turn has it. Without `media` it has no artifacts."""
    parts = [] if media is None else answer_parts(turn, media)
    return task_of(turn, status_of(turn), parts, history_length)


def artifact(turn: Turn, parts: list[Json]) -> Json:
    return {"artifactId": f"{place_of(turn)}:answer", "parts": parts}


def message(turn: Turn, own_id: int | str, text: str, **metadata: Any) -> Json:
    """Return a message of the agent. `own_id` is unique in the turn, and the same on each replay."""
    named = {"messageId": f"{place_of(turn)}:{own_id}", **ids_of(turn), "role": "ROLE_AGENT"}
    return {**named, "parts": [{"text": text}], **({"metadata": metadata} if metadata else {})}


def status_in(status: TurnStatus, at: float | None = None, said: Json | None = None) -> Json:
    """Return a status. `at` is in Unix seconds."""
    found: Json = {"state": STATES[status], **({"message": said} if said else {})}
    return found if at is None else {**found, "timestamp": time_text(at, "milliseconds")}


def status_of(turn: Turn) -> Json:
    """Return the status of a turn as its record has it."""
    if turn.status == "waiting":
        return asking(turn, turn.requests)
    failure = turn.outcome.error if turn.outcome else None
    said = message(turn, "end", failure.message, code=failure.code) if failure else None
    return status_in(turn.status, changed_at(turn), said)


def changed_at(turn: Turn) -> float:
    """Return the time of the status of a turn, in Unix seconds."""
    if turn.status == "waiting":
        return turn.requests[0].asked_at
    return turn.timing.finished_at or turn.timing.started_at or turn.timing.submitted_at


def asking(turn: Turn, requests: Iterable[InputRequest]) -> Json:
    """Return the status of a turn that waits for a person, and asks in words."""
    asked = list(requests)
    words = message(turn, f"ask:{asked[0].call_id}", "\n".join(map(question_words, asked)))
    return status_in("waiting", asked[0].asked_at, words)


def answer_parts(turn: Turn, media: Mapping[str, str]) -> list[Json]:
    """Return the answer of a turn: its text, its JSON, its images and files. `media` are data: URLs by name."""
    outcome = turn.outcome
    if outcome is None or outcome.status != "finished":
        return []
    parts: list[Json] = [] if outcome.reply is None else [{"text": outcome.reply}]
    if isinstance(outcome.output, dict | list) and not media:
        parts.append({"data": outcome.output, "mediaType": "application/json"})
    names = {file.name: file.file_name for file in outcome.files}
    for name, url in media.items():
        kind, encoded = split_data_url(url)
        parts.append({"raw": encoded, "mediaType": kind, "filename": names.get(name, name)})
    return parts
