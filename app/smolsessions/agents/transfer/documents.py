"""The steps, images and variables of a conversation ⇄ the members of a document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from smolagents.memory import TaskStep

from smolsessions.agents.memory.memory_edits import without_gaps
from smolsessions.agents.memory.steps import StepTooLargeError, pack, unpack
from smolsessions.agents.transfer.document_images import Images, image_as_json
from smolsessions.agents.transfer.document_models import Strict, checked
from smolsessions.agents.transfer.smolagents_memory import read_memory_step
from smolsessions.agents.transfer.step_decoding import EditIn, made, read_step
from smolsessions.agents.transfer.step_encoding import written
from smolsessions.agents.transfer.variables import export_variables, import_variables
from smolsessions.agents.values.images import open_header
from smolsessions.agents.values.json_forms import json_pointer
from smolsessions.core.document_format import FORMAT, MEMORY_FORMAT, VERSION
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.records import ExportedMemory, ImportedMemory, PackedStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smolsessions.agents.memory.steps import Step
    from smolsessions.agents.transfer.variables import ImportTarget, ReadCode

MOST_STEPS = 100_000
MOST_PLACES = 5_000_000  # that edits name: a session that is built anew goes through all of them
_IMAGE_NAME = re.compile("[0-9a-f]{32}")
_IMAGES = ("task_images", "observations_images")


class _ImageIn(Strict):
    type: str
    data: str


def export(
    steps: Sequence[bytes],
    attachments: dict[str, bytes],
    variables: dict[str, bytes],
    carries: tuple[type, ...],
    read_code: ReadCode,
) -> ExportedMemory:
    """Give what these hold as JSON data; of the attachments those that a step shows.

    Empty bytes stand for a step that is destroyed: the distances between entries are those of the document.
    """
    opened = [unpack(step, attachments, carries, open_header) if step else None for step in steps]
    documents = tuple(written(step) for step in without_gaps(opened) if step is not None)
    holding = [*documents, *(step["step"] for step in documents if step.get("step"))]
    shown = {name for step in holding for member in _IMAGES for name in step.get(member) or ()}
    shown |= {step["action_output_image"] for step in holding if step.get("action_output_image")}
    values, missing = export_variables(variables, read_code)
    return ExportedMemory(
        documents, {name: image_as_json(attachments[name]) for name in sorted(shown)}, values, missing
    )


def import_document(data: Any, places: Mapping[str, ImportTarget], max_pixels: int) -> ImportedMemory:
    """Make steps and pieces of a document's members. Raises `InvalidRequestError` at what is wrong with it."""
    if not isinstance(data, dict):
        raise InvalidRequestError.at("", "is no object")
    if data.get("format") == MEMORY_FORMAT:
        return ImportedMemory(_take_in_memory(data))
    if data.get("format") != FORMAT:
        raise InvalidRequestError.at("/format", f"is neither {FORMAT} nor {MEMORY_FORMAT}")
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise InvalidRequestError.at("/version", f"is none that this service reads: that is {VERSION}")
    _check_members(data, {"format", "version", "steps", "images", "variables"})
    images = _read_images(data.get("images", {}), max_pixels)
    steps: list[PackedStep] = []
    named = 0
    marks: dict[str, set[int]] = {"archived": set(), "hidden": set()}
    for index, one in enumerate(_steps_of(data)):
        pointer = f"/steps/{index}"
        step = read_step(one, pointer)
        if steps and step.turn < steps[-1].turn:
            raise InvalidRequestError.at(f"{pointer}/turn", "is less than that of the step before it")
        steps.append(_packed(made(step, pointer, images), step.turn, pointer))
        named += step.places if isinstance(step, EditIn) else 0
        if named > MOST_PLACES:
            raise InvalidRequestError.at(pointer, f"is one of edits that name more than {MOST_PLACES} entries together")
        for mark in marks:
            marks[mark] |= {index} if getattr(step, mark) else set()
    images.check_all_are_used()
    pieces = import_variables(data.get("variables", {}), places)
    return ImportedMemory(tuple(steps), frozenset(marks["archived"]), frozenset(marks["hidden"]), pieces)


def _take_in_memory(data: dict[str, Any]) -> tuple[PackedStep, ...]:
    _check_members(data, {"format", "steps"})
    steps: list[PackedStep] = []
    turn = 0
    for index, one in enumerate(_steps_of(data)):
        pointer = f"/steps/{index}"
        step = read_memory_step(one, pointer)
        if step is None:
            continue
        turn += isinstance(step, TaskStep) or not turn
        steps.append(_packed(step, turn, pointer))
    return tuple(steps)


def _check_members(data: dict[str, Any], known: set[str]) -> None:
    for name in data:
        if name not in known:
            raise InvalidRequestError.at(json_pointer("", name), "is no member of this format")


def _steps_of(data: dict[str, Any]) -> list[Any]:
    steps = data.get("steps")
    if not isinstance(steps, list):
        raise InvalidRequestError.at("/steps", "is no list of steps")
    if len(steps) > MOST_STEPS:
        raise InvalidRequestError.at("/steps", f"has more than {MOST_STEPS} steps")
    return steps


def _read_images(data: Any, max_pixels: int) -> Images:
    if not isinstance(data, dict):
        raise InvalidRequestError.at("/images", "is no object")
    found: dict[str, tuple[str, str]] = {}
    for name, one in data.items():
        pointer = json_pointer("/images", name)
        if not _IMAGE_NAME.fullmatch(str(name)):
            raise InvalidRequestError.at(pointer, "is no name of an image: 32 digits of a hash")
        image = checked(_ImageIn, one, pointer)
        found[name] = image.type, image.data
    return Images(found, max_pixels)


def _packed(step: Step, turn: int, pointer: str) -> PackedStep:
    try:
        return pack(step, turn, is_data=True)
    except StepTooLargeError:
        raise InvalidRequestError.at(pointer, "is larger than a step may be") from None
