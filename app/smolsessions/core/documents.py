"""Conversation as one document for export and import (docs/export.md)."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import derived_from, invalid_request, json_pointer, storable
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import ConversationRecord, ExportedMemory
from smolsessions.core.policies import Rules, policy_data
from smolsessions.core.records import AgentName, AgentVersion, Items, Outcome, Ref, Rollback, Timing, Turn, TurnOptions

FORMAT, VERSION = "smolsessions/conversation", 1
MEMORY_FORMAT = "smolagents/memory"
"""Format of a document with the result of `agent.memory.get_full_steps()`."""
MAX_TURNS = 10_000
MAX_MEMBERS = 50  # of an object that a model describes
MAX_ROLLBACKS = 1000
"""A list of turns looks at all rollbacks for each turn."""
_READ_BY_AGENTS = frozenset({"steps", "images", "files", "variables"})
_TURN, _OUTCOME = TypeAdapter(Turn), TypeAdapter(Outcome)
_OF_TURN = {"message", "agent", "timing", "options", "attempts", "images", "files", "additional_args"}


class MemoryDocument(BaseModel):
    """Document with the memory of a smolagents agent, without the members that the agents read."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    agent: AgentName | None = Field(None, max_length=64)
    title: str | None = Field(None, min_length=1, max_length=200)
    metadata: dict[str, Any] = {}
    policy: Rules | None = None
    approve: Annotated[Items[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=50)] = ()

    @property
    def rolled_back(self) -> tuple[Rollback, ...]:
        return ()

    @property
    def files(self) -> dict[str, bytes]:
        """The files of its workspace. Raises `InvalidRequestError`."""
        return {}


@derived_from(Outcome)
class TurnDocument(BaseModel):
    """A turn that is over. Times are Unix seconds."""

    model_config = MemoryDocument.model_config

    turn: int = Field(ge=1, le=2**31)
    message: str
    agent: AgentVersion
    timing: Timing
    options: TurnOptions = TurnOptions()
    attempts: int = Field(1, ge=0)
    additional_args: dict[str, Any] = {}
    output_images: Items[StepImage] = ()
    output_files: Items[StepFile] = ()


class ConversationDocument(MemoryDocument):
    """Document of a conversation, without the members that the agents read."""

    version: Literal[1]
    id: str | None = None
    turns: Annotated[Items[TurnDocument], Field(max_length=MAX_TURNS)] = ()
    rollbacks: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(max_length=MAX_ROLLBACKS, fail_fast=True)
    ] = []
    workspace: dict[str, str] = {}
    not_exported: Annotated[list[dict[str, str]], Field(fail_fast=True)] = []

    @property
    def files(self) -> dict[str, bytes]:
        files = {}
        for path, data in self.workspace.items():
            try:
                files[path] = b64decode(data, validate=True)
            except ValueError:
                raise InvalidRequestError.at(json_pointer(["workspace", path]), "is no base64") from None
        return files

    @property
    def rolled_back(self) -> tuple[Rollback, ...]:
        return tuple(Rollback(after, to) for after, to in self.rollbacks)


def encode_document(record: ConversationRecord, portable: ExportedMemory, files: dict[str, bytes]) -> bytes:
    """Return an exported conversation as a document. Turns and steps become JSON one by one, which saves memory."""
    conversation = record.conversation
    document = {
        "format": FORMAT,
        "version": VERSION,
        "id": conversation.ref.id,
        "agent": conversation.agent,
        "title": conversation.title,
        "metadata": conversation.metadata,
        "policy": None if conversation.policy is None else policy_data(conversation.policy),
        **({"approve": conversation.approve} if conversation.approve else {}),
        "turns": (_turn_document(turn) for turn in record.turns),
        "rollbacks": [[rollback.after, rollback.to] for rollback in record.rollbacks],
        "steps": (
            {"turn": step.turn, "hidden": step.hidden, "archived": step.archived or step.rolled_back, **data}
            for step, data in zip(record.steps, portable.steps, strict=True)
        ),
        "images": portable.images,
        "files": portable.files,
        "variables": portable.variables,
        **({"workspace": {path: b64encode(data).decode() for path, data in files.items()}} if files else {}),
        "not_exported": list(portable.not_exported),
    }
    return to_json(document)


def _turn_document(turn: Turn) -> dict[str, Any]:
    """Return a turn. It has no members for images and files that it does not have."""
    of_turn = _TURN.serializer.to_python(turn, include=_OF_TURN)
    outcome = _OUTCOME.serializer.to_python(turn.outcome or Outcome("cancelled"))
    media = {kind: of_turn.pop(kind) for kind in ("images", "files")}
    media |= {f"output_{kind}": outcome.pop(kind) for kind in ("images", "files")}
    return {"turn": turn.number, **outcome, **of_turn, **{name: found for name, found in media.items() if found}}


def parse_document(document: Any) -> tuple[MemoryDocument, dict[str, Any]]:
    """Read the outer part of a document, and return the rest for the agents. Raises `InvalidRequestError`."""
    kind = document.get("format") if isinstance(document, dict) else None
    if kind not in (FORMAT, MEMORY_FORMAT):
        raise InvalidRequestError.at("/format", f"is {kind!r:.80}; this release reads {FORMAT!r} and {MEMORY_FORMAT!r}")
    if kind == FORMAT and (type(document.get("version")) is not int or document["version"] != VERSION):
        raise InvalidRequestError.at("/version", f"is not {VERSION}, the one that this release reads")
    outer = {name: value for name, value in document.items() if name not in _READ_BY_AGENTS}
    _check_members(outer)
    for name, value in outer.items():
        try:
            storable(name)
            storable(value)
        except ValueError as error:
            raise InvalidRequestError.at(json_pointer([name]), str(error)) from None
    model = ConversationDocument if kind == FORMAT else MemoryDocument
    try:
        # As JSON, because pydantic makes no records of dictionaries in its strict mode.
        parsed = model.model_validate_json(to_json(outer))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise invalid_request([{**problem, "loc": ("body", *problem["loc"])} for problem in problems]) from None
    memory = {name: value for name, value in document.items() if name in _READ_BY_AGENTS}
    if not isinstance(parsed, ConversationDocument):
        return parsed, {"format": kind, **memory}
    _check_numbers(parsed)
    return parsed, {"format": kind, "version": VERSION, "steps": [], **memory}


def _check_members(outer: dict[str, Any]) -> None:
    """Refuse objects of very many members, and the first file without a text.

    Pydantic would collect an error of 1 KB for each member. A validator of the model cannot check this: in its strict
    mode pydantic makes no tuples of the lists that a validator has seen.
    """
    objects = [("", outer)]
    for name in ("turns", "not_exported"):
        found = outer.get(name)
        objects += [(f"/{name}/{place}", each) for place, each in enumerate(found if isinstance(found, list) else ())]
    for pointer, each in objects:
        if isinstance(each, dict) and len(each) > MAX_MEMBERS:
            raise InvalidRequestError.at(pointer, "has far too many members")
    files = outer.get("workspace")
    for path, data in files.items() if isinstance(files, dict) else ():
        if not isinstance(data, str):
            raise InvalidRequestError.at(json_pointer(["workspace", path]), "is no base64")


def imported_turns(
    ref: Ref, parsed: MemoryDocument, memory: dict[str, Any], version: AgentVersion, last: int
) -> list[Turn]:
    """Return the records of a document's turns, or bare turns of its tasks if it has none.

    `last` is the number of the last turn with a step.
    """
    if not isinstance(parsed, ConversationDocument):
        now = time.time()
        timing = Timing(now, now, now)
        turns = [
            Turn(ref, number, version, task, TurnOptions(), timing, outcome=outcome)
            for number, (task, outcome) in enumerate(_tasks_in(memory["steps"]), 1)
        ]
        if len(turns) > MAX_TURNS:
            raise InvalidRequestError.at("/steps", f"are of {len(turns)} turns; an import has at most {MAX_TURNS}")
        return turns
    if last > len(parsed.turns):
        raise InvalidRequestError.at("/turns", f"there are steps of turn {last}, and it is not among these")
    return [_turn(ref, document) for document in parsed.turns]


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


def _check_numbers(document: ConversationDocument) -> None:
    for place, turn in enumerate(document.turns):
        if turn.turn != place + 1:
            raise InvalidRequestError.at(f"/turns/{place}/turn", f"is not {place + 1}; turns are numbered 1, 2, 3 …")
    last = -1
    for place, (after, to) in enumerate(document.rollbacks):
        if not max(0, last + 1) <= after <= len(document.turns):
            raise InvalidRequestError.at(f"/rollbacks/{place}/0", "is no turn, or not after that of the one before it")
        if not 0 <= to <= after:
            raise InvalidRequestError.at(f"/rollbacks/{place}/1", f"is not from 0 to {after}")
        last = after


def _turn(ref: Ref, document: TurnDocument) -> Turn:
    told = vars(document).copy()
    of_turn = {name: told.pop(name) for name in _OF_TURN}
    number, images, files = (told.pop(name) for name in ("turn", "output_images", "output_files"))
    return Turn(ref, number, outcome=Outcome(**told, images=images, files=files), **of_turn)
