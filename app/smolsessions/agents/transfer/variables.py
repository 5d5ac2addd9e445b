"""Variables of a conversation as JSON, if JSON keeps them exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from smolagents import MultiStepAgent

from smolsessions.agent_options import options_of
from smolsessions.agents.memory.step_bytes import StepTooLargeError, pack_data
from smolsessions.agents.run import agent_state
from smolsessions.agents.run.instrumentation import code_runs_in
from smolsessions.agents.run.managed_memory import MEMORY, pieces_of
from smolsessions.agents.sandbox.interpreter import MAX_CHUNKS, MAX_NAME_CHARS
from smolsessions.agents.sandbox.json_export import NotJSON
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.sandbox.seeding import RANDOM_CHUNK
from smolsessions.agents.sandbox.variable_chunks import chunk_id, chunk_names, plain_chunk
from smolsessions.agents.sandbox.variables import INTERNAL_NAMES
from smolsessions.agents.transfer.document_media import DocumentMedia
from smolsessions.agents.transfer.document_models import Json, Strict, Text, checked
from smolsessions.agents.transfer.step_models import EditIn, read_step, step_data
from smolsessions.agents.values import CodecError, dumps, loads
from smolsessions.agents.values.json_forms import json_flaw, utf8_text
from smolsessions.core.attachments import File, encode_file
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import json_pointer
from smolsessions.core.media import image_name

ReadCode = Callable[[Mapping[str, bytes]], dict[str, Any]]

_MAX_NOT_EXPORTED = 10_000
MAX_REMEMBERED = 100_000
"""Steps in the memory of a managed agent."""


@dataclass(frozen=True)
class ImportTarget:
    """Variables that one agent can import: bytes of its code's variables (None: none), and tools with a state.

    `remembers`: it is a managed agent with a memory of its own.
    """

    max_bytes: int | None
    tools: frozenset[str]
    remembers: bool = False


def import_targets(agent: MultiStepAgent, path: str = "") -> dict[str, ImportTarget]:
    """Return the targets of an agent and of the agents that it manages, by their paths."""
    most = CodeLimits(**options_of(agent).code_limits).variables_bytes if code_runs_in(agent) == "child" else None
    tools = frozenset(name for name, tool in agent.tools.items() if agent_state.has_own_state(tool))
    targets = {path: ImportTarget(most, tools, bool(path) and options_of(agent).remembers)}
    for name, managed in agent.managed_agents.items():
        targets |= import_targets(managed, f"{path}/{name}" if path else name)
    return targets


def export_variables(
    chunks: Mapping[str, bytes], read_code: ReadCode
) -> tuple[dict[str, Any], tuple[dict[str, str], ...], dict[str, bytes]]:
    """Return the variables by agent, the variables without a JSON form, and the files among the variables by hash.

    An import marks those without a JSON form `lost` or `reset`.
    """
    exports: dict[str, _Export] = {}
    for chunk, data in chunks.items():
        path, _, rest = chunk.partition(":")
        exports.setdefault(path, _Export(path)).add(rest, data)
    pickled = {f"{path}:{name}": data for path, export in exports.items() for name, data in export.pickled.items()}
    for key, value in read_code(pickled).items():
        path, _, name = key.partition(":")
        exports[path].add_variable(name, value)
    variables = {path: exports[path].members() for path in sorted(exports)}
    missing = sorted((one for export in exports.values() for one in export.missing), key=lambda one: [*one.values()])
    files = {name: data for export in exports.values() for name, data in export.files.items()}
    return variables, tuple(missing[:_MAX_NOT_EXPORTED]), files


class _Export:
    def __init__(self, path: str) -> None:
        self._path = path
        self._values: dict[str, dict[str, Any]] = {"code": {}, "state": {}, "tools": {}, "files": {}}
        self._names: dict[str, set[str]] = {"lost": set(), "reported": set(), "reset": set()}
        self.pickled: dict[str, bytes] = {}
        self.missing: list[dict[str, str]] = []
        self.files: dict[str, bytes] = {}

    def add(self, rest: str, data: bytes) -> None:
        kind, _, name = rest.partition(":")
        if rest == agent_state.STATE:
            for member, value in loads(data).items():
                self._add_encoded("state", "state", member, value)
        elif rest in {agent_state.LOST, agent_state.PROCESS_ONLY, agent_state.REPORTED}:
            known = self._names["reported" if rest == agent_state.REPORTED else "lost"]
            known |= set(filter(_is_name, json.loads(data)))
        elif rest in {agent_state.LOGS, agent_state.VARIABLE + RANDOM_CHUNK} or rest.startswith(MEMORY):
            return
        elif f"{kind}:" == agent_state.VARIABLE:
            names = [each for each in chunk_names(name, data) if _is_name(each)]
            if len(names) == 1 and chunk_id((names[0],)) == name:
                self.pickled[names[0]] = data.partition(b"\n")[2]
                return
            for each in names or [name]:
                self._miss("variable", each, "shares an object with another variable, or is a function")
            self._names["lost"].update(names)
        elif f"{kind}:" == agent_state.RESET or not self._add_encoded("tools", "tool", name, data):
            self._names["reset"].add(name)

    def members(self) -> dict[str, Any]:
        lost = self._names["lost"] - self._values["code"].keys()
        values = {kind: dict(sorted(found.items())) for kind, found in self._values.items()}
        return values | {kind: sorted(found) for kind, found in (self._names | {"lost": lost}).items()}

    def add_variable(self, name: str, value: Any) -> None:
        if isinstance(value, NotJSON):
            self._miss("variable", name, value.reason)
            self._names["lost"].add(name)
        else:
            self._values["code"][name] = value

    def _add_encoded(self, member: str, kind: str, name: str, data: bytes) -> bool:
        if type(name) is not str or utf8_text(name) is not name:
            self._miss(kind, utf8_text(str(name)), "has a name that is no text of JSON")
            return False
        try:
            value = loads(data)
        except CodecError:
            self._miss(kind, name, "is or holds an instance of a class that the agent declares")
            return False
        if isinstance(value, File) and member == "state":
            stored = encode_file(value)
            self._values["files"][name] = image_name(stored)
            self.files[image_name(stored)] = stored
            return True
        if flaw := json_flaw(value):
            self._miss(kind, name, flaw)
            return False
        self._values[member][name] = value
        return True

    def _miss(self, kind: str, name: str, reason: str) -> None:
        self.missing.append({"agent": self._path, "kind": kind, "name": name, "reason": reason})


def _is_name(name: object) -> bool:
    return type(name) is str and name.isidentifier() and len(name) <= MAX_NAME_CHARS and name not in INTERNAL_NAMES


_Name = Annotated[Text, Field(max_length=MAX_NAME_CHARS)]
_Names = Annotated[list[_Name], Field(max_length=2 * MAX_CHUNKS, fail_fast=True)]
_Values = Annotated[dict[Text, Json], Field(max_length=MAX_CHUNKS)]


class VariablesIn(Strict):
    code: _Values = Field(default_factory=dict)
    state: _Values = Field(default_factory=dict)
    tools: _Values = Field(default_factory=dict)
    files: Annotated[dict[Text, str], Field(max_length=MAX_CHUNKS)] = Field(default_factory=dict)
    lost: _Names = Field(default_factory=list)
    reported: _Names = Field(default_factory=list)
    reset: _Names = Field(default_factory=list)
    memory: Annotated[list[Any], Field(max_length=MAX_REMEMBERED)] = Field(default_factory=list)


def import_variables(data: Any, targets: Mapping[str, ImportTarget], media: DocumentMedia) -> dict[str, bytes]:
    """Return stored chunks of imported variables. Raises `InvalidRequestError` if the agent cannot hold them."""
    if not isinstance(data, dict):
        raise InvalidRequestError.at("/variables", "is no object")
    chunks: dict[str, bytes] = {}
    for path, members in data.items():
        pointer = json_pointer("variables", path)
        if path not in targets:
            raise InvalidRequestError.at(pointer, "is the path of no agent here; the first one's is empty")
        found = checked(VariablesIn, members, pointer)
        chunks |= {f"{path}:{name}": chunk for name, chunk in _chunks_of(found, targets[path], pointer, media)}
        memory = _memory_of(found.memory, targets[path], f"{pointer}/memory", media)
        chunks |= {f"{path}:{name}": call for name, call in memory.items()}
        if path and found.reported:
            raise InvalidRequestError.at(f"{pointer}/reported", "belongs to the first agent, whose path is empty")
    return chunks


def _chunks_of(
    found: VariablesIn, target: ImportTarget, pointer: str, media: DocumentMedia
) -> Iterator[tuple[str, bytes]]:
    if target.max_bytes is None and found.code:
        raise InvalidRequestError.at(pointer, "has variables of code, and this agent keeps none")
    left = target.max_bytes or 0
    for name, value in found.code.items():
        if not _is_name(name):
            raise InvalidRequestError.at(json_pointer("code", name, under=pointer), "is no name that code could give")
        chunk = plain_chunk(name, value)
        left -= len(chunk.data)
        if left < 0:
            raise InvalidRequestError.at(f"{pointer}/code", f"is larger than the {target.max_bytes} bytes it may have")
        yield agent_state.VARIABLE + chunk.id, chunk.data
    for index, name in enumerate(found.lost):
        if not _is_name(name):
            raise InvalidRequestError.at(f"{pointer}/lost/{index}", "is no name that code could give")
    if found.lost:
        yield agent_state.LOST, json.dumps(sorted(set(found.lost))).encode()
    state = {name: _crossed(value, f"{pointer}/state", name) for name, value in found.state.items()}
    encoded: dict[str, bytes] = {}  # once, though a thousand names may have the file
    for name, of_file in found.files.items():
        file = media.file(of_file, json_pointer("files", name, under=pointer))
        state[name] = encoded[of_file] = encoded.get(of_file) or dumps(file)
    if state:
        yield agent_state.STATE, _crossed(state, pointer, "state")
    for name, value in found.tools.items():
        if name not in target.tools:
            place = json_pointer("tools", name, under=pointer)
            raise InvalidRequestError.at(place, "is the state of a tool that this agent does not have, or has none")
        yield agent_state.TOOL + name, _crossed(value, f"{pointer}/tools", name)
    for name in found.reset:
        yield agent_state.RESET + name, b"1"
    if found.reported:
        yield agent_state.REPORTED, json.dumps(sorted(set(found.reported))).encode()


def _memory_of(entries: list[Any], target: ImportTarget, pointer: str, media: DocumentMedia) -> dict[str, bytes]:
    if entries and not target.remembers:
        raise InvalidRequestError.at(pointer, "is a memory, and this agent keeps none between its calls")
    packed = []
    try:
        for index, entry in enumerate(entries):
            place = f"{pointer}/{index}"
            step = read_step({**entry, "turn": 1} if isinstance(entry, dict) else None, place)
            if isinstance(step, EditIn):
                raise InvalidRequestError.at(f"{place}/type", "is an edit, which this memory does not have")
            data, attachments = step_data(step, place, media)
            packed.append(pack_data(data, 0, attachments))
        return pieces_of(packed)
    except StepTooLargeError:
        raise InvalidRequestError.at(pointer, "has a step or a call that is larger than it may be") from None


def _crossed(value: Any, pointer: str, name: str) -> bytes:
    try:
        return dumps(value)
    except CodecError as error:
        raise InvalidRequestError.at(json_pointer(name, under=pointer), str(error)) from None
