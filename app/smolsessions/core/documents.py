"""Conversation as one document for export and import (docs/export.md)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from smolsessions.core.document_format import FORMAT, MEMORY_FORMAT, VERSION
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.metadata import storable
from smolsessions.core.policies import TAGS, Rules, policy_data
from smolsessions.core.records import (
    IMAGE_NAME_DIGITS,
    AgentName,
    AgentVersion,
    Failure,
    LeftOut,
    Outcome,
    Owner,
    Ref,
    Rollback,
    RunState,
    StepImage,
    Timing,
    ToolCall,
    Turn,
    TurnOptions,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smolsessions.core.policies import Policy
    from smolsessions.core.records import ConversationRecord, ExportedMemory

MAX_PROBLEMS = 20
FORMATS = (FORMAT, MEMORY_FORMAT)
SOMEBODY = Ref(Owner(""), "")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Agent(_Part):
    name: str
    kind: str
    smolagents: str


class _Call(_Part):
    call_id: str
    name: str
    arguments: JsonValue
    agent: str
    step_id: str
    internal: bool
    ok: bool
    duration_ms: float
    repeated: bool = False


class _Usage(_Part):
    input_tokens: int = 0
    output_tokens: int = 0


class _LeftOut(_Part):
    steps: int
    shortened: int
    characters: int
    tokens: int


class _Failure(_Part):
    code: str
    message: str
    retryable: bool = False


class _Timing(_Part):
    submitted_at: float = Field(ge=0, le=1e11)
    started_at: float | None = Field(None, ge=0, le=1e11)
    finished_at: float | None = Field(None, ge=0, le=1e11)


class _Options(_Part):
    max_steps: int | None = Field(None, ge=1)
    reset: bool = False
    deadline_s: float | None = Field(None, gt=0)


class _Image(_Part):
    name: str = Field(pattern=f"^[0-9a-f]{{{IMAGE_NAME_DIGITS}}}$")
    width: int = Field(ge=1)
    height: int = Field(ge=1)


class TurnDocument(_Part):
    """A turn that is over. Times are Unix seconds."""

    turn: int = Field(ge=1, le=2**31)
    status: Literal["finished", "failed", "cancelled"]
    agent: _Agent
    message: str
    reply: str | None = None
    output: JsonValue = None
    state: RunState | None = None
    steps: int = Field(0, ge=0)
    tool_calls: list[_Call] = []
    usage: _Usage = _Usage()
    timing: _Timing
    options: _Options = _Options()
    attempts: int = Field(1, ge=0)
    dropped_variables: list[str] = []
    left_out: _LeftOut | None = None
    error: _Failure | None = None
    images: list[_Image] = []
    output_images: list[_Image] = []


class _Envelope(_Part):
    """Members that the service reads. The agents read steps, images and variables."""

    format: Literal["smolsessions/conversation"]
    version: Literal[1]
    id: str | None = None
    agent: str | None = Field(None, max_length=64)
    metadata: dict[str, JsonValue] = {}
    policy: Rules | None = None
    turns: list[TurnDocument] = []
    rollbacks: list[Annotated[list[int], Field(min_length=2, max_length=2)]] = []
    steps: Any = []
    images: Any = {}
    variables: Any = {}
    not_exported: list[dict[str, str]] = []


class _Memory(_Part):
    """Document with the memory of a smolagents agent."""

    format: Literal["smolagents/memory"]
    agent: str | None = Field(None, max_length=64)
    metadata: dict[str, JsonValue] = {}
    policy: Rules | None = None
    steps: Any


_ENVELOPE, _MEMORY = TypeAdapter(_Envelope), TypeAdapter(_Memory)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """Document with its outer part validated. The agents read `memory`."""

    agent: AgentName | None
    metadata: dict[str, Any]
    policy: Policy | None
    turns: tuple[TurnDocument, ...] | None
    """None for a document with steps only."""
    jumps: tuple[Rollback, ...]
    memory: dict[str, Any]


def document_of(record: ConversationRecord, portable: ExportedMemory) -> dict[str, Any]:
    """Return an exported conversation as a document."""
    conversation = record.conversation
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": conversation.ref.id,
        "agent": conversation.agent,
        "metadata": conversation.metadata,
        "policy": None if conversation.policy is None else policy_data(conversation.policy),
        "turns": [_turn_document(turn) for turn in record.turns],
        "rollbacks": [[jump.after, jump.to] for jump in record.jumps],
        "steps": [
            {"turn": step.turn, "hidden": step.hidden, "archived": step.archived or step.rolled_back, **data}
            for step, data in zip(record.steps, portable.steps, strict=True)
        ],
        "images": portable.images,
        "variables": portable.variables,
        "not_exported": list(portable.not_exported),
    }


def parse_document(document: Any) -> ParsedDocument:
    """Read the outer part of a document. Raises `InvalidRequestError`."""
    kind = document.get("format") if isinstance(document, dict) else None
    if kind not in FORMATS:
        raise InvalidRequestError.at("/format", f"is {kind!r:.80}; this release reads {FORMAT!r} and {MEMORY_FORMAT!r}")
    if kind == FORMAT and (type(document.get("version")) is not int or document["version"] != VERSION):
        raise InvalidRequestError.at("/version", f"is not {VERSION}, the one that this release reads")
    try:
        parsed: Any = (_ENVELOPE if kind == FORMAT else _MEMORY).validate_python(document)
    except ValidationError as error:
        raise _invalid(error) from None
    for name in ("metadata", "turns", "policy"):
        try:
            storable(document.get(name))
        except ValueError as error:
            raise InvalidRequestError.at(f"/{name}", str(error)) from None
    memory = {"format": kind, "steps": parsed.steps}
    if kind == FORMAT:
        memory |= {"version": VERSION, "images": parsed.images, "variables": parsed.variables}
        _check_numbers(parsed.turns)
        _check_rollbacks(parsed.rollbacks, len(parsed.turns))
    return ParsedDocument(
        agent=None if parsed.agent is None else AgentName(parsed.agent),
        metadata=parsed.metadata,
        policy=None if parsed.policy is None else tuple(parsed.policy),
        turns=tuple(parsed.turns) if kind == FORMAT else None,
        jumps=tuple(Rollback(*pair) for pair in parsed.rollbacks) if kind == FORMAT else (),
        memory=memory,
    )


def imported_turns(parsed: ParsedDocument, version: AgentVersion, last: int, now: float) -> list[Turn]:
    """Return the records of a document's turns, or bare turns of its tasks if it has none.

    `last` is the number of the last turn with a step. `now` is the time of the import.
    """
    if parsed.turns is None:
        return [
            Turn(SOMEBODY, number, version, task, TurnOptions(), Timing(now, now, now), outcome=outcome)
            for number, (task, outcome) in enumerate(_tasks_in(parsed.memory["steps"]), 1)
        ]
    if last > len(parsed.turns):
        raise InvalidRequestError.at("/turns", f"there are steps of turn {last}, and it is not among these")
    return [_turn(document) for document in parsed.turns]


def _tasks_in(steps: Iterable[dict[str, Any]]) -> Iterable[tuple[str, Outcome]]:
    """Yield each task in smolagents' steps, with its finished outcome and final answer if it has one."""
    task, outcome = None, Outcome("finished")
    for step in steps:
        if task is None and "system_prompt" not in step and "task" not in step:
            task = ""  # steps before the first task are a turn, too
        if "task" in step:
            if task is not None:
                yield task, outcome
            task, outcome = str(step["task"]), Outcome("finished")
        elif "step_number" in step:
            outcome = replace(outcome, steps=outcome.steps + 1)
            if step.get("is_final_answer"):
                output = step.get("action_output")
                output = step.get("observations") if output is None else output  # as a call of final_answer leaves it
                reply = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
                outcome = replace(outcome, reply=reply, output=output, state="success")
    if task is not None:
        yield task, outcome


def _check_numbers(turns: Iterable[TurnDocument]) -> None:
    for place, turn in enumerate(turns):
        if turn.turn != place + 1:
            raise InvalidRequestError.at(f"/turns/{place}/turn", f"is not {place + 1}; turns are numbered 1, 2, 3 …")


def _check_rollbacks(rollbacks: Iterable[list[int]], turns: int) -> None:
    last = -1
    for place, (after, to) in enumerate(rollbacks):
        if not max(0, last + 1) <= after <= turns:
            raise InvalidRequestError.at(f"/rollbacks/{place}/0", "is no turn, or not after that of the one before it")
        if not 0 <= to <= after:
            raise InvalidRequestError.at(f"/rollbacks/{place}/1", f"is not from 0 to {after}")
        last = after


def _turn_document(turn: Turn) -> dict[str, Any]:
    outcome = turn.outcome or Outcome("cancelled")
    fields = {name: getattr(outcome, name) for name in ("reply", "output", "state", "steps")}
    parts: dict[str, Any] = {
        "agent": turn.agent,
        "usage": outcome.usage,
        "timing": turn.timing,
        "options": turn.options,
        "left_out": outcome.left_out,
        "error": outcome.error,
    }
    return {
        "turn": turn.number,
        "status": outcome.status,
        "message": turn.message,
        **fields,
        **{name: None if part is None else asdict(part) for name, part in parts.items()},
        "tool_calls": [asdict(call) for call in outcome.tool_calls],
        "attempts": turn.attempts,
        "dropped_variables": list(outcome.dropped_variables),
        **_images_document(turn.images, outcome.images),
    }


def _images_document(given: Iterable[StepImage], answered: Iterable[StepImage]) -> dict[str, Any]:
    """Return the members of a turn with images. Releases that know of none read all other turns."""
    lists = {"images": [asdict(image) for image in given], "output_images": [asdict(image) for image in answered]}
    return {name: images for name, images in lists.items() if images}


def _turn(document: TurnDocument) -> Turn:
    outcome = Outcome(
        document.status,
        reply=document.reply,
        output=document.output,
        state=document.state,
        steps=document.steps,
        tool_calls=tuple(ToolCall(**call.model_dump()) for call in document.tool_calls),
        usage=Usage(**document.usage.model_dump()),
        error=Failure(**document.error.model_dump()) if document.error else None,
        dropped_variables=tuple(document.dropped_variables),
        left_out=LeftOut(**document.left_out.model_dump()) if document.left_out else None,
        images=tuple(StepImage(**image.model_dump()) for image in document.output_images),
    )
    return Turn(
        SOMEBODY,
        document.turn,
        AgentVersion(AgentName(document.agent.name), document.agent.kind, document.agent.smolagents),
        document.message,
        TurnOptions(**document.options.model_dump()),
        Timing(**document.timing.model_dump()),
        attempts=document.attempts,
        outcome=outcome,
        images=tuple(StepImage(**image.model_dump()) for image in document.images),
    )


def _invalid(error: ValidationError) -> InvalidRequestError:
    problems = [
        {
            "pointer": "".join(f"/{part}" for part in problem["loc"] if part not in TAGS),
            "message": str(problem["msg"]).removeprefix("Value error, "),
        }
        for problem in error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
    ]
    sentence = "; ".join(f"{problem['pointer'] or 'body'}: {problem['message']}" for problem in problems[:5])
    return InvalidRequestError(sentence, errors=problems)
