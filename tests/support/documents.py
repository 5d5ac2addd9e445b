"""Documents for the tests of export and import: made of steps and pieces, and read again."""

import atexit
import json
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_json
from smolagents.memory import MemoryStep

from smolsessions.agents.memory.step_bytes import pack, strip, unpack, unpack_data
from smolsessions.agents.memory.step_data import StepDecoder
from smolsessions.agents.memory.step_types import Step
from smolsessions.agents.memory.views import describe_step
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.json_export import VariableReader
from smolsessions.agents.transfer import documents
from smolsessions.agents.transfer.variables import ImportTarget
from smolsessions.core.documents import FORMAT, VERSION, parse_document
from smolsessions.core.json_data import read_json
from smolsessions.core.memories import ImportedMemory

MAX_PIXELS = 1_000_000
DATA = Path(__file__).parents[1] / "data"
REFUSED, PROGRAMS = (tomllib.loads((DATA / f"{name}.toml").read_text()) for name in ("refused", "programs"))
CODE = {"": ImportTarget(4_000_000, frozenset({"notes"}))}


class Exported(NamedTuple):
    """Exported memory whose steps can be read more than once."""

    steps: tuple[dict[str, Any], ...]
    images: dict[str, dict[str, str]]
    variables: dict[str, Any]
    not_exported: tuple[dict[str, str], ...]


@cache
def reader() -> VariableReader:
    """Return a reader of variables. Its processes end with the test process."""
    client = ForkClient([])
    atexit.register(client.close)
    return VariableReader(client)


def stored(steps: Sequence[MemoryStep], stored_classes: tuple[type, ...] = ()) -> tuple[list[bytes], dict[str, bytes]]:
    for step in steps:
        strip(step)
    packed = [pack(step, 1, stored_classes) for step in steps]
    return [step.data for step in packed], {name: data for step in packed for name, data in step.attachments.items()}


def exported(
    steps: Sequence[MemoryStep] = (), variables: dict[str, bytes] | None = None, stored_classes: tuple[type, ...] = ()
) -> Exported:
    data, attachments = stored(steps, stored_classes)
    return export(data, attachments, variables or {}, stored_classes)


def export(
    steps: Sequence[bytes],
    attachments: dict[str, bytes],
    variables: dict[str, bytes],
    stored_classes: tuple[type, ...] = (),
) -> Exported:
    portable = documents.export(steps, attachments, variables, stored_classes, reader().read)
    return Exported(tuple(portable.steps), portable.images, portable.variables, portable.not_exported)


def document_of(portable: Exported, **more: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "steps": [step | {"turn": 1} for step in portable.steps],
        "images": portable.images,
        "variables": portable.variables,
    } | more


def document(steps: Sequence[MemoryStep], **more: Any) -> dict[str, Any]:
    return document_of(exported(steps), **more)


def taken_in(document: Any, places: dict[str, ImportTarget] | None = None) -> ImportedMemory:
    return read_document(read_json(json.dumps(document, allow_nan=False).encode()), places)


def read_document(document: Any, places: dict[str, ImportTarget] | None = None) -> ImportedMemory:
    memory = parse_document(document)[1]
    return documents.import_document(memory, CODE if places is None else places, MAX_PIXELS)


def described(steps: Sequence[MemoryStep]) -> list[dict[str, Any]]:
    """Return the views of steps as a client sees them once they are stored."""
    packed = [pack(step, 1) for step in steps]
    views = [describe_step(unpack_data(one.data), StepDecoder(one.attachments)) for one in packed]
    return json.loads(to_json(views))  # type: ignore[no-any-return]  # a list, as it was


def steps_of(imported: ImportedMemory) -> list[Step]:
    return [unpack(step.data, step.attachments) for step in imported.steps]


def again(portable: Exported) -> Exported:
    imported = taken_in(document_of(portable))
    attachments = {name: data for step in imported.steps for name, data in step.attachments.items()}
    return export([step.data for step in imported.steps], attachments, imported.variables)


def shown(step: MemoryStep) -> list[Any]:
    """Return the messages of a step in both modes, with the pixels of images."""
    return [[(m.role, _parts(m.content)) for m in step.to_messages(summary_mode=mode)] for mode in (False, True)]


def _parts(content: Any) -> list[Any]:
    return [part["text"] if "text" in part else _seen(part["image"]) for part in content]


def _seen(image: Any) -> tuple[Any, ...]:
    return image.mode, image.size, image.tobytes(), image.getpalette()


def without_ms(text: str) -> str:
    """Return JSON without durations. A document has times to the microsecond."""
    return re.sub(r'("\w+_ms"): [^,}]+', r"\1: 0", text)
