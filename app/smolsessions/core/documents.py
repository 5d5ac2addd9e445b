"""Conversation as one document for export and import (docs/export.md)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from smolsessions.core import records
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import (
    MAX_PROBLEMS,
    bounded,
    decode_base64,
    derived_from,
    invalid_request,
    json_pointer,
    storable,
)
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import (
    ConversationRecord,
    DocumentContent,
    ExportedMemory,
    ImportedConversation,
    ImportedMemory,
)
from smolsessions.core.policies import Policy, policy_data
from smolsessions.core.records import AgentName, Items, Outcome, Turn
from smolsessions.core.times import seconds_of, time_text

Part = TypeVar("Part", bound=BaseModel)

FORMAT, VERSION = "smolsessions/conversation", 1
SMALL_BYTES = 1024 * 1024
"""A larger document is read in a process of its own."""
MAX_TURNS = 10_000
MAX_MEMBERS = 50  # of an object that a model describes
MAX_VALUES = 1_000_000  # in one member: to read or write them holds the interpreter lock for some 50 ms
MAX_ROLLBACKS = 1000
"""A list of turns looks at all rollbacks for each turn."""
_READ_BY_AGENTS = frozenset({"steps", "images", "files", "variables"})
_TURN, _OUTCOME = TypeAdapter(Turn), TypeAdapter(Outcome)
_NO_REF = records.Ref(records.LOCAL, "")
_OF_TURN = {"message", "agent", "timing", "options", "attempts", "images", "files", "additional_args"}
_TIMES = ("submitted_at", "started_at", "finished_at", "waits_since", "at")
_STRICT = ConfigDict(extra="forbid", strict=True)


@derived_from(Outcome, state="outcome", steps="step_count")
class TurnDocument(BaseModel):
    """A turn that is over, with its times as Unix seconds."""

    model_config = _STRICT

    turn: int = Field(ge=1, le=2**31 - 1)
    message: str
    agent: records.AgentVersion
    timing: records.Timing
    options: records.TurnOptions = records.TurnOptions()
    attempts: int = Field(1, ge=0)
    additional_args: dict[str, Any] = {}
    output_images: Items[StepImage] = ()
    output_files: Items[StepFile] = ()


class ConversationDocument(BaseModel):
    """Document of a conversation, without the members that the agents read."""

    model_config = _STRICT

    format: str
    version: Literal[1]
    id: str | None = None
    agent: records.AgentName | None = Field(None, max_length=64)
    title: str | None = Field(None, min_length=1, max_length=200)
    metadata: dict[str, Any] = {}
    policy: Policy | None = None
    client_tools: Annotated[Items[records.ClientTool], Field(max_length=64)] = ()
    approve: Annotated[Items[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=50)] = ()
    turns: Annotated[Items[TurnDocument], Field(max_length=MAX_TURNS)] = ()
    rollbacks: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(max_length=MAX_ROLLBACKS, fail_fast=True)
    ] = []
    workspace: dict[str, Any] = {}
    not_exported: Annotated[list[dict[str, str]], Field(fail_fast=True)] = []

    def content(self, agent: AgentName | None, memory: ImportedMemory) -> DocumentContent:
        """Return all of it, for a conversation with this agent and memory. Raises `InvalidRequestError`."""
        last = max((step.turn for step in memory.steps), default=0)
        if last > len(self.turns):
            raise InvalidRequestError.at("/turns", f"there are steps of turn {last}, and it is not among these")
        takes_title = self.turns and "title" not in self.model_fields_set
        fields = records.ConversationFields(
            self.metadata,
            self.policy,
            title=records.title_of(self.turns[0].message) if takes_title else self.title,
            approve=self.approve,
            client_tools=self.client_tools,
        )
        rollbacks = tuple(records.Rollback(after, to) for after, to in self.rollbacks)
        files = {path: decode_base64(data, json_pointer("workspace", path)) for path, data in self.workspace.items()}
        return DocumentContent(agent, fields, ImportedConversation(self._encoded_turns(), rollbacks, memory), files)

    def _encoded_turns(self) -> tuple[bytes, ...]:
        turns = []
        for document in self.turns:
            members = vars(document).copy()
            of_turn = {name: members.pop(name) for name in _OF_TURN}
            number, images, files = (members.pop(name) for name in ("turn", "output_images", "output_files"))
            members |= {"state": members.pop("outcome"), "steps": members.pop("step_count")}
            outcome = Outcome(**members, images=images, files=files)
            turns.append(encode_turn(Turn(_NO_REF, number, outcome=outcome, **of_turn)))
        return tuple(turns)


def encode_turn(turn: Turn) -> bytes:
    """Encode a turn as the store keeps it: JSON without the fields that are known from its place."""
    return _TURN.serializer.to_json(turn, exclude={"ref", "number", "rolled_back"}, exclude_defaults=True)


def encode_document(record: ConversationRecord, portable: ExportedMemory, files: dict[str, bytes]) -> bytes:
    """Return an exported conversation as a document. Turns and steps become JSON one by one, which saves memory."""
    conversation = record.conversation

    def turns() -> Iterator[dict[str, Any]]:
        for turn in record.turns:
            of_turn = _TURN.serializer.to_python(turn, include=_OF_TURN)
            outcome = _OUTCOME.serializer.to_python(turn.outcome or Outcome("cancelled"))
            media = {kind: of_turn.pop(kind) for kind in ("images", "files")}
            media |= {f"output_{kind}": outcome.pop(kind) for kind in ("images", "files")}
            outcome |= {"outcome": outcome.pop("state"), "step_count": outcome.pop("steps")}
            media = {name: found for name, found in media.items() if found}
            shown = {"turn": turn.number, **outcome, **of_turn, **media}
            _convert_times(shown, turn.number, time_text)
            yield shown

    document = {
        "format": FORMAT,
        "version": VERSION,
        "id": conversation.ref.id,
        "agent": conversation.agent,
        "title": conversation.title,
        "metadata": conversation.metadata,
        "policy": None if conversation.policy is None else policy_data(conversation.policy),
        **({"approve": conversation.approve} if conversation.approve else {}),
        **({"client_tools": conversation.client_tools} if conversation.client_tools else {}),
        "turns": turns(),
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


def parse_document(document: Any) -> tuple[ConversationDocument, dict[str, Any]]:
    """Read the outer part of a document, and return the rest for the agents. Raises `InvalidRequestError`."""
    kind = document.get("format") if isinstance(document, dict) else None
    if kind != FORMAT:
        raise InvalidRequestError.at("/format", f"is {kind!r:.80}; this release reads {FORMAT!r}")
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise InvalidRequestError.at("/version", f"is not {VERSION}, the one that this release reads")
    outer = {name: value for name, value in document.items() if name not in _READ_BY_AGENTS}
    turns = outer.pop("turns", [])
    if not isinstance(turns, list) or len(turns) > MAX_TURNS:
        raise InvalidRequestError.at("/turns", f"is no list of at most {MAX_TURNS} turns")
    listed = outer.get("not_exported")
    for place, each in enumerate(listed if isinstance(listed, list) else ()):
        _check_member_count(f"/not_exported/{place}", each)
    problems: list[Any] = []
    parsed = _read_part(ConversationDocument, outer, [], problems)
    # One by one: a call for all would hold the interpreter lock, and so the event loop, for long.
    found = []
    for place, turn in enumerate(turns):
        _convert_times(turn, place, seconds_of)
        found.append(_read_part(TurnDocument, turn, ["turns", place], problems))
    if problems or not parsed:
        raise invalid_request(problems)
    parsed.turns = tuple(turn for turn in found if turn)
    for place, turn in enumerate(parsed.turns):
        if turn.turn != place + 1:
            raise InvalidRequestError.at(f"/turns/{place}/turn", f"is not {place + 1}; turns are numbered 1, 2, 3 …")
    last = -1
    for place, (after, to) in enumerate(parsed.rollbacks):
        if not max(0, last + 1) <= after <= len(parsed.turns):
            raise InvalidRequestError.at(f"/rollbacks/{place}/0", "is no turn, or not after that of the one before it")
        if not 0 <= to <= after:
            raise InvalidRequestError.at(f"/rollbacks/{place}/1", f"is not from 0 to {after}")
        last = after
    bounded(parsed.metadata)
    members = {name: value for name, value in document.items() if name in _READ_BY_AGENTS}
    return parsed, {"steps": [], **members}


def _read_part(model: type[Part], data: Any, path: list[str | int], problems: list[Any]) -> Part | None:
    """Validate a part of a document. Returns None and adds to `problems` if it is invalid."""
    if len(problems) >= MAX_PROBLEMS:
        return None
    if not isinstance(data, dict):
        raise InvalidRequestError.at(json_pointer(*path), "is no object")
    _check_member_count(json_pointer(*path), data)
    for name, value in data.items():
        try:
            storable(name)
            storable(value)
        except ValueError as error:
            raise InvalidRequestError.at(json_pointer(*path, name), str(error)) from None
    text = to_json(data)
    if len(text) > 2 * MAX_VALUES:  # a shorter one cannot hold as many
        for name, value in data.items():
            _check_value_count(json_pointer(*path, name), value)
    try:
        # As JSON, because pydantic makes no records of dictionaries in its strict mode.
        return model.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        problems += [{**problem, "loc": ("body", *path, *problem["loc"])} for problem in found]
    return None


def _check_value_count(pointer: str, value: Any) -> None:
    found, left = [value], MAX_VALUES
    while found:
        each = found.pop()
        if isinstance(each, list | dict):
            left -= len(each)
            if left < 0:
                raise InvalidRequestError.at(pointer, f"holds more than {MAX_VALUES} values")
            found += each.values() if isinstance(each, dict) else each


def _check_member_count(pointer: str, data: Any) -> None:
    # Pydantic would collect an error of 1 KB for each unknown member. A validator of the model cannot check this: in
    # its strict mode pydantic makes no tuples of the lists that a validator has seen.
    if isinstance(data, dict) and len(data) > MAX_MEMBERS:
        raise InvalidRequestError.at(pointer, "has far too many members")


def _convert_times(turn: Any, place: int, convert: Callable[[Any], Any]) -> None:
    """Convert the times of a turn. Raises `InvalidRequestError` for one that cannot be converted."""
    members = turn if isinstance(turn, dict) else {}
    calls = members.get("tool_calls")
    holders: list[tuple[list[object], Any]] = [(["timing"], members.get("timing"))]
    for number, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
        holders.append((["tool_calls", number, "approval"], call.get("approval") if isinstance(call, dict) else None))
    for path, holder in holders:
        for name in _TIMES if isinstance(holder, dict) else ():
            if holder.get(name) is not None:
                try:
                    holder[name] = convert(holder[name])
                except ValueError as error:
                    raise InvalidRequestError.at(json_pointer("turns", place, *path, name), str(error)) from None
