"""Steps, images, files and variables of a conversation as members of a document (docs/export.md)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from smolsessions.agents.memory.memory_edits import without_gaps
from smolsessions.agents.memory.steps import StepTooLargeError, pack, pack_plain, unpack_as
from smolsessions.agents.transfer.document_files import DocumentFiles, export_files
from smolsessions.agents.transfer.document_models import Strict, checked
from smolsessions.agents.transfer.plain_documents import PlainIn, decode_plain, encode_plain
from smolsessions.agents.transfer.smolagents_memory import read_memory_step
from smolsessions.agents.transfer.step_models import IMAGE_FIELDS, EditIn, StepIn, encode_step, made_step, read_step
from smolsessions.agents.transfer.variables import ImportTarget, ReadCode, export_variables, import_variables
from smolsessions.agents.values.images import FORMATS, image_from_bytes, image_header, is_canonical, placeholder
from smolsessions.agents.values.json_forms import json_pointer
from smolsessions.core.documents import MEMORY_FORMAT
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.media import IMAGE_NAME_DIGITS, image_name
from smolsessions.core.memories import ExportedMemory, ImportedMemory, PackedStep

if TYPE_CHECKING:
    import PIL.Image

MAX_STEPS = 100_000
MAX_EDITED_ENTRIES = 5_000_000  # a rebuilt session walks through all entries that edits name
MAX_IMAGES_FACTOR = 4
"""Pixels of all images in a document, as a multiple of the limit for one step."""
_IMAGE_NAME = re.compile("[0-9a-f]{32}")
_BROKEN_IMAGE = f"is no whole image of {', '.join(FORMATS)}, nor a raw one of this service"


class _ImageIn(Strict):
    type: str
    data: str


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
    opened = [
        unpack_as(lambda plain: plain, step, attachments, stored_classes, image_from_bytes) if step else None
        for step in steps
    ]
    documents: Iterable[dict[str, Any]] = (
        encode_plain(step) if isinstance(step, str | tuple) else encode_step(step) for step in without_gaps(opened)
    )
    images, files = {}, dict[str, bytes]()
    if attachments:
        documents = tuple(documents)
        images = {name: _image_json(attachments[name]) for name in _shown_images(documents)}
        files = {name: attachments[name] for name in _held_files(documents)}
    values, missing, of_variables = export_variables(variables, read_code)
    stored = export_files((files | of_variables).values())
    return ExportedMemory(documents, images, values, missing, stored)


def _shown_images(documents: Sequence[dict[str, Any]]) -> list[str]:
    holding = [*documents, *(step["step"] for step in documents if step.get("step"))]
    shown = {name for step in holding for member in IMAGE_FIELDS for name in step.get(member) or ()}
    return sorted(shown | {step["action_output_image"] for step in holding if step.get("action_output_image")})


def _held_files(documents: Sequence[dict[str, Any]]) -> set[str]:
    holding = [*documents, *(step["step"] for step in documents if step.get("step"))]
    held = {name for step in holding for name in step.get("task_files") or ()}
    return held | {step["action_output_file"] for step in holding if step.get("action_output_file")}


def import_document(data: dict[str, Any], places: Mapping[str, ImportTarget], max_pixels: int) -> ImportedMemory:
    """Read the memory of a parsed document. Raises `InvalidRequestError` with a pointer to the first fault."""
    for name in data.keys() & {"files", "images", "variables"} if data["format"] == MEMORY_FORMAT else ():
        raise InvalidRequestError.at(f"/{name}", "is no member of this format")
    media = DocumentMedia(DocumentImages(data.get("images", {}), max_pixels), DocumentFiles(data.get("files", {})))
    steps: list[PackedStep] = []
    named = 0
    archived, hidden = set[int](), set[int]()
    for pointer, step in _read_steps(data):
        if step.archived:
            archived.add(len(steps))
        if step.hidden:
            hidden.add(len(steps))
        steps.append(_packed(step, pointer, media))
        named += step.places if isinstance(step, EditIn) else 0
        if named > MAX_EDITED_ENTRIES:
            raise InvalidRequestError.at(
                pointer, f"is one of edits that name more than {MAX_EDITED_ENTRIES} entries together"
            )
    pieces = import_variables(data.get("variables", {}), places, media.files)
    media.images.check_all_are_used()
    media.files.check_all_are_used()
    return ImportedMemory(tuple(steps), frozenset(archived), frozenset(hidden), pieces)


def _read_steps(data: dict[str, Any]) -> Iterator[tuple[str, StepIn | PlainIn]]:
    """Yield the steps with their pointers."""
    steps, turn = data.get("steps"), 0
    if not isinstance(steps, list):
        raise InvalidRequestError.at("/steps", "is no list of steps")
    if len(steps) > MAX_STEPS:
        raise InvalidRequestError.at("/steps", f"has more than {MAX_STEPS} steps")
    for index, one in enumerate(steps):
        pointer = f"/steps/{index}"
        step: StepIn | PlainIn | None
        if data["format"] == MEMORY_FORMAT:
            step = read_memory_step(one, pointer, turn)
        else:
            step = decode_plain(one) or read_step(one, pointer)
        if step is None:
            continue
        if step.turn < turn:
            raise InvalidRequestError.at(f"{pointer}/turn", "is less than that of the step before it")
        turn = step.turn
        yield pointer, step


def _image_json(data: bytes) -> dict[str, str]:
    return {"type": image_header(data)[0], "data": base64.b64encode(data).decode()}


@dataclass(frozen=True)
class _Image:
    data: bytes
    pixels: int


class DocumentMedia(NamedTuple):
    """Images and files of a document."""

    images: DocumentImages
    files: DocumentFiles


class DocumentImages:
    """Images of a document. Each is decoded and checked once. Steps hold placeholders of them."""

    def __init__(self, images: Any, max_pixels: int) -> None:
        """Read the member `images`. `max_pixels` bounds the images of one step together."""
        if not isinstance(images, dict):
            raise InvalidRequestError.at("/images", "is no object")
        self._max_pixels = max_pixels
        self._images: dict[str, _Image] = {}
        self._unused = dict.fromkeys(images)
        left = max_pixels * MAX_IMAGES_FACTOR
        for name, member in images.items():
            image = self._images[name] = _read_image(name, member)
            left -= image.pixels
            if left < 0 or image.pixels > max_pixels:
                reason = f"has more than {max_pixels} pixels, or all images more than {MAX_IMAGES_FACTOR} times that"
                raise _image_error(name, reason)
            _check_image(name, image.data)

    def of_step(self, pointer: str, names: Mapping[str, str]) -> dict[str, PIL.Image.Image]:
        """Return the images of the step at `pointer` by their names. `names` are by their pointers in the step."""
        if not names:
            return {}
        for place, name in names.items():
            if name not in self._images:
                raise InvalidRequestError.at(pointer + place, "names an image that is not in /images")
            self._unused.pop(name, None)
        distinct = {name: self._images[name] for name in names.values()}
        if sum(image.pixels for image in distinct.values()) > self._max_pixels:
            raise InvalidRequestError.at(pointer, f"shows more than {self._max_pixels} pixels")
        return {name: placeholder(image.data) for name, image in distinct.items()}

    def check_all_are_used(self) -> None:
        for name in self._unused:
            raise _image_error(name, "is shown by no step")


def _read_image(name: str, member: Any) -> _Image:
    if not _IMAGE_NAME.fullmatch(str(name)):
        raise _image_error(name, "is no name of an image: 32 digits of a hash")
    image = checked(_ImageIn, member, json_pointer("/images", name))
    try:
        data = base64.b64decode(image.data, validate=True)
    except (binascii.Error, ValueError):
        raise _image_error(name, "is no base64") from None
    if image_name(data) != name:
        raise _image_error(
            name, f"is not of this name, which is the first {IMAGE_NAME_DIGITS} digits of the data's SHA-256"
        )
    try:
        media_type, width, height = image_header(data)
    except Exception:  # noqa: BLE001 - decoders meet hostile bytes and fail in many ways
        raise _image_error(name, _BROKEN_IMAGE) from None
    if media_type != image.type:
        raise _image_error(name, f"is not {media_type}, which the image is", "type")
    return _Image(data, width * height)


def _check_image(name: str, data: bytes) -> None:
    try:
        is_whole = is_canonical(data)
    except Exception:  # noqa: BLE001 - see above
        is_whole = False
    if not is_whole:
        raise _image_error(name, _BROKEN_IMAGE)


def _image_error(name: str, message: str, *member: str) -> InvalidRequestError:
    return InvalidRequestError.at(json_pointer("/images", name, *member), message)


def _packed(step: StepIn | PlainIn, pointer: str, media: DocumentMedia) -> PackedStep:
    try:
        if isinstance(step, PlainIn):
            return pack_plain(step.plain, step.turn)
        return pack(made_step(step, pointer, media), step.turn, is_data=True)
    except StepTooLargeError:
        raise InvalidRequestError.at(pointer, "is larger than a step may be") from None
