"""Requests of a waiting turn for a person's decision, and the answers to them."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Base64Bytes

from smolsessions.core.frozen import record
from smolsessions.core.media import ShownPart

RequestKind = Literal["approval", "question", "result"]
Decision = Literal["approve", "reject", "result"]
ApprovalDecision = Literal["approved", "rejected", "edited", "expired"]


@record
class InputRequest:
    """One request: for a decision, an answer to a question, or the result of a client's tool. Times are Unix seconds.

    Its id names conversation, turn and call. `arguments` are those of the call, as JSON, with `parameters` for their
    JSON Schema, and `output_schema` for that of the result. `media` are the images and files
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
    output_schema: dict[str, Any] | None = None


@record
class Answerer:
    """Author of an answer: the owner, and the first digits of the SHA-256 of the API key (None: without a key)."""

    owner: str
    key: str | None = None


@record
class Answer:
    """An answer to one request. `arguments` replace those of the call. `at` is in Unix seconds.

    With the decision `result` the client ran its tool: `result` is JSON, with `images` and `files` as stored beside it,
    or `error` is the client's reason.
    """

    request_id: str
    decision: Decision = "approve"
    arguments: dict[str, Any] | None = None
    reason: str | None = None
    text: str | None = None
    by: Answerer | None = None
    at: float = 0.0
    result: Any = None
    error: str | None = None
    images: tuple[Base64Bytes, ...] = ()
    files: tuple[Base64Bytes, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the decision or result, to tell a repeated answer from another one."""
        content: list[Any] = [self.decision, self.arguments, self.reason, self.text]
        if self.decision == "result":
            media = [hashlib.sha256(data).hexdigest() for data in (*self.images, *self.files)]
            content += [self.result, self.error, media]
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
