"""Steps, images, files and variables of a conversation as members of a document (docs/export.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from pydantic_core import to_json

from smolsessions.agents.memory.memory_edits import without_gaps
from smolsessions.agents.memory.step_bytes import StepTooLargeError, pack_data, unpack_data
from smolsessions.agents.memory.step_data import Data, StepDecoder
from smolsessions.agents.run.managed_memory import MEMORY, steps_in
from smolsessions.agents.transfer.document_media import DocumentMedia, export_files, export_images
from smolsessions.agents.transfer.step_models import IMAGE_FIELDS, OUTPUT_MEDIA, read_step, step_data
from smolsessions.agents.transfer.variables import ImportTarget, ReadCode, export_variables, import_variables
from smolsessions.agents.values.json_forms import json_flaw, json_form, utf8_text
from smolsessions.core.documents import parse_document
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.events import StepError
from smolsessions.core.memories import DocumentContent, ExportedMemory, ImportedMemory, PackedStep
from smolsessions.core.records import AgentName
from smolsessions.core.times import time_text

MAX_STEPS = 100_000
_NOT_EXPORTED = frozenset({"labels", "attributes", "step"})
_VALUES = frozenset({"arguments", "action_output", "content", "model_output"})
"""Members that hold any value: JSON, or bytes."""


def export(
    steps: Sequence[bytes],
    attachments: dict[str, bytes],
    variables: dict[str, bytes],
    stored_classes: tuple[type, ...],
    read_code: ReadCode,
) -> ExportedMemory:
    """Return steps, variables, and the images and files that they name, as JSON data.

    Empty bytes stand for a destroyed step, so that distances between entries are those of the document.
    """
    entries = without_gaps([unpack_data(step) if step else None for step in steps])
    remembered: dict[str, list[Data]] = {}
    attachments = dict(attachments)
    for piece in sorted(variables):
        path, _, name = piece.partition(":")
        for step, of_step in steps_in({name: variables[piece]}) if name.startswith(MEMORY) else ():
            remembered.setdefault(path, []).append(unpack_data(step))
            attachments |= of_step
    holding = [*entries, *chain.from_iterable(remembered.values())]
    holding += [entry["step"] for entry in entries if entry.get("step")]
    shown = {name for step in holding for member in (*IMAGE_FIELDS, "task_files") for name in step.get(member) or ()}
    shown |= {step[member] for step in holding for member in OUTPUT_MEDIA if step.get(member)}
    held = {name: attachments[name] for name in sorted(shown)}
    files = export_files(held.values())
    values, missing, of_variables = export_variables(variables, read_code)
    images = export_images({name: data for name, data in held.items() if name not in files})
    decoder = StepDecoder(attachments, stored_classes)
    documents = (_document_of(entry, decoder) for entry in entries)
    for path, of_path in remembered.items():
        values[path]["memory"] = [_document_of(entry, decoder) for entry in of_path]
    return ExportedMemory(documents, images, values, missing, files | export_files(of_variables.values()))


def _document_of(data: Data, decoder: StepDecoder) -> dict[str, Any]:
    """Return a step as JSON. Its `labels` point to texts and data that replace values without exact JSON."""
    labels = set(data["labels"])

    def portable(member: Any, pointer: str, name: object) -> Any:
        if type(member) is str:
            return utf8_text(member)
        if type(member) is bytes:
            value = decoder.value(member)
            if json_flaw(value):
                labels.add(pointer)
            return json_form(value)
        if name in _VALUES:
            return member
        if isinstance(member, list):
            return [portable(one, f"{pointer}/{at}", at) for at, one in enumerate(member)]
        if isinstance(member, dict):
            return {key: portable(one, f"{pointer}/{key}", key) for key, one in member.items()}
        return member

    document = {name: data[name] for name in data if name not in _NOT_EXPORTED}
    if timing := document.get("timing"):
        document["timing"] = {name: None if seconds is None else time_text(seconds) for name, seconds in timing.items()}
    if error := document.get("error"):
        document["error"] = asdict(StepError(**error).failure)
    try:  # most steps are JSON: to copy them all would take a fifth of an export
        is_json = to_json(document) == to_json(document, bytes_mode="hex")
    except ValueError:  # half a character
        is_json = False
    if not is_json:
        document = {name: portable(member, f"/{name}", name) for name, member in document.items()}
    if "step" in data:
        document["step"] = data["step"] and _document_of(data["step"], decoder)
    document["labels"] = sorted(labels)
    return document


def read_document(
    document: Any,
    agent: AgentName | None,
    default: AgentName,
    targets: Mapping[AgentName, Mapping[str, ImportTarget]],
    max_pixels: int,
) -> DocumentContent:
    """Read a decoded document as `AgentCatalog.read_document` does. `targets` are those of each agent."""
    parsed, members = parse_document(document)
    agent = parsed.agent if agent is None else agent
    places = targets.get(default if agent is None else agent)
    memory = ImportedMemory(()) if places is None else import_document(members, places, max_pixels)
    return parsed.content(agent, memory)


def import_document(data: dict[str, Any], places: Mapping[str, ImportTarget], max_pixels: int) -> ImportedMemory:
    """Read the memory of a parsed document. Raises `InvalidRequestError` with a pointer to the first fault."""
    media = DocumentMedia(data.get("images", {}), data.get("files", {}), max_pixels)
    entries = data.get("steps")
    if not isinstance(entries, list):
        raise InvalidRequestError.at("/steps", "is no list of steps")
    if len(entries) > MAX_STEPS:
        raise InvalidRequestError.at("/steps", f"has more than {MAX_STEPS} steps")
    packed: list[PackedStep] = []
    archived, hidden = set[int](), set[int]()
    turn = 0
    for index, entry in enumerate(entries):
        pointer = f"/steps/{index}"
        step = read_step(entry, pointer)
        if step.turn < turn:
            raise InvalidRequestError.at(f"{pointer}/turn", "is less than that of the step before it")
        turn = step.turn
        if step.archived:
            archived.add(index)
        if step.hidden:
            hidden.add(index)
        members, attachments = step_data(step, pointer, media)
        try:
            packed.append(pack_data(members, turn, attachments))
        except StepTooLargeError:
            raise InvalidRequestError.at(pointer, "is larger than a step may be") from None
    pieces = import_variables(data.get("variables", {}), places, media)
    media.check_all_are_used()
    return ImportedMemory(tuple(packed), frozenset(archived), frozenset(hidden), pieces)
