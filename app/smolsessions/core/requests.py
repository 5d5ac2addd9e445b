"""Requests of a waiting turn for a person's decision, and the answers to them."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from smolsessions.core.frozen import record
from smolsessions.core.media import ShownPart

RequestKind = Literal["approval", "question"]
Decision = Literal["approve", "reject"]
ApprovalDecision = Literal["approved", "rejected", "edited", "expired"]


@record
class InputRequest:
    """One request. Its id names conversation, turn and call. Times are Unix seconds.

    `arguments` are those of the call, as JSON, and `parameters` their JSON Schema. `media` are the images and files
    among them, for which the JSON has labels. `replaces` is the request for the same call that came before, with other
    arguments.
    """

    request_id: str
    kind: RequestKind
    call_id: str
    tool: str
    agent: str
    step_id: str
    asked_at: float
    expires_at: float
    arguments: Any = None
    parameters: dict[str, Any] | None = None
    question: str | None = None
    choices: tuple[str, ...] | None = None
    replaces: str | None = None
    media: tuple[ShownPart, ...] = ()


@record
class Answerer:
    """Author of an answer: the owner, and the first digits of the SHA-256 of the API key (None: without a key)."""

    owner: str
    key: str | None = None


@record
class Answer:
    """A person's answer to one request. `arguments` replace those of the call. `at` is in Unix seconds."""

    request_id: str
    decision: Decision = "approve"
    arguments: dict[str, Any] | None = None
    reason: str | None = None
    text: str | None = None
    by: Answerer | None = None
    at: float = 0.0

    @property
    def digest(self) -> str:
        """Hash of what the person decided, to tell a repeated answer from another one."""
        content = [self.decision, self.arguments, self.reason, self.text]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@record
class Answered:
    """A request that was answered: the answer's digest, and the number of its event `input.answered`."""

    request_id: str
    digest: str
    seq: int


@record
class Approval:
    """Decision on a call: who decided and when, in Unix seconds. A wait that expired has no `by`."""

    decision: ApprovalDecision
    at: float
    by: Answerer | None = None
    reason: str | None = None


def answer_key(request_id: str) -> str:
    return f"answer:{request_id}"
