"""Images and files that steps hold and answers are made of."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any, cast

import PIL.Image
from smolagents.agent_types import AgentImage
from smolagents.memory import TaskStep

from smolsessions.agents.values.images import LazyImage, image_to_bytes, stored_images
from smolsessions.agents.values.json_forms import MEDIA, json_key, shown_form
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_NODES
from smolsessions.core.attachments import File, described, encode_file
from smolsessions.core.json_data import json_pointer
from smolsessions.core.media import ShownPart, StepFile, StepImage, image_name

MAX_OUTPUT_PARTS = 16  # images and files of an output
MAX_SEARCHED_NODES = 10_000  # of an output
MAX_SHOWN_BYTES = 32 * 1024 * 1024  # of images and files that a person is shown
_COLLECTIONS = frozenset({list, tuple, dict, set, frozenset})
_LISTED = frozenset({list, tuple, dict})
_FILES = "smolsessions_files"


def media_in(value: Any) -> tuple[PIL.Image.Image | File, ...]:
    """Return at most `MAX_OUTPUT_PARTS` images and files that an output is or holds in built-in collections."""
    kind = type(value)
    if kind is str or value is None:
        return ()
    found: dict[int, PIL.Image.Image | File] = {}
    for _, part in _placed(value, MAX_SEARCHED_NODES):
        found[id(part)] = part
        if len(found) == MAX_OUTPUT_PARTS:
            break
    return tuple(found.values())


def shown_media(arguments: Any) -> tuple[tuple[ShownPart, ...], dict[str, bytes]]:
    """Return the images and files among a call's arguments, for a person, and their bytes as stored, by name.

    Raises `ValueError` if they are too many or too large to be shown, or cannot be read, and if the JSON form of the
    arguments leaves parts out.
    """
    (is_whole, labels), shown, stored = shown_form(arguments), [], {}
    if not is_whole:
        raise ValueError(
            "parts that cannot be shown whole: without a JSON form, too many, too deep, or with two keys of one text"
        )
    for path, part in _placed(arguments, MAX_NODES, _LISTED):
        about: StepImage | StepFile
        try:
            if isinstance(part, File):
                data, content = encode_file(part), part.data
                about = described(part, data)
            else:
                data = content = image_to_bytes(part)
                about = StepImage(image_name(data), part.width, part.height)
        except Exception as error:  # Pillow fails in many ways
            raise ValueError("an image that cannot be read") from error
        stored[about.name] = data
        shown.append(ShownPart(json_pointer(*map(json_key, path)), hashlib.sha256(content).hexdigest(), about))
        if len(shown) > MAX_OUTPUT_PARTS or sum(map(len, stored.values())) > MAX_SHOWN_BYTES:
            raise ValueError(f"more than {MAX_OUTPUT_PARTS} images and files, or {MAX_SHOWN_BYTES >> 20} MiB of them")
    if len(shown) != labels:  # such as in a set, or in an object of the agent's own class
        raise ValueError("an image or a file that is neither an argument nor in a list or dict")
    return tuple(shown), stored


def _placed(
    value: Any, most_nodes: int, collections: Collection[type] = _COLLECTIONS
) -> Iterator[tuple[tuple[Any, ...], PIL.Image.Image | File]]:
    """Yield the images and files that a value is or holds in built-in collections, each with its keys from outside."""
    nodes: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    left = most_nodes
    while nodes and left > 0:
        (path, node), left = nodes.pop(), left - 1
        kind = type(node)
        if issubclass(kind, PIL.Image.Image):
            if raw := raw_image(node):
                yield path, raw
        elif issubclass(kind, File):
            yield path, node
        elif kind in collections and len(path) < MAX_DEPTH:
            parts = node.items() if kind is dict else enumerate(node)
            nodes += reversed([((*path, key), part) for key, part in itertools.islice(parts, left)])


def raw_image(image: PIL.Image.Image) -> PIL.Image.Image | None:
    """Return the image behind smolagents' own class, or None if it cannot be read."""
    if not isinstance(image, AgentImage):
        return image
    try:
        return cast("PIL.Image.Image | None", image.to_raw())
    except Exception:  # noqa: BLE001 - it may name a file that is not there, or hold a tensor of any shape
        return None


def stored_media(value: Any, attachments: Container[str]) -> tuple[tuple[StepImage, ...], tuple[StepFile, ...]]:
    """Return the records of the images and files in an output that are among the attachments of its step."""
    media = media_in(value)
    images = stored_images(one for one in media if not isinstance(one, File))
    files = stored_files(one for one in media if isinstance(one, File))
    kept = tuple(dict.fromkeys(image for image in images if image.name in attachments))
    return kept, tuple(file for file in files if file.name in attachments)


def drop_pixels(steps: Iterable[Any]) -> int:
    """Drop the decoded pixels of steps, and return the size of all their images and files.

    Images inside an output are left alone, since it may be large.
    """
    held: dict[int, int] = {}
    for step in steps:
        output = getattr(step, "action_output", None)
        images = [*(getattr(step, "task_images", None) or ()), *(getattr(step, "observations_images", None) or ())]
        if issubclass(type(output), PIL.Image.Image) and (raw := raw_image(cast("PIL.Image.Image", output))):
            images.append(raw)
        for image in images:
            if isinstance(image, LazyImage):
                image.drop_pixels()
            data = getattr(image, "undecoded", None)
            size = len(data) if data else 4 * getattr(image, "width", 0) * getattr(image, "height", 0)
            held[id(data or image)] = size
        held |= {id(file): len(file.data) for file in attached_files(step)}
        if isinstance(output, File):
            held[id(output)] = len(output.data)
    return sum(held.values())


def holds_media(step: Any) -> bool:
    """True if `drop_pixels` may find something in this step. `vars()` would give the step a dict that stays."""
    if issubclass(type(step), TaskStep):
        return bool(getattr(step, "task_images", None) or getattr(step, _FILES, None))
    shown = getattr(step, "observations_images", None)
    return bool(shown) or issubclass(type(getattr(step, "action_output", None)), MEDIA)


def stored_files(files: Iterable[File]) -> tuple[StepFile, ...]:
    return tuple(dict.fromkeys(described(file, encode_file(file)) for file in files))


def attach_files(step: Any, files: Sequence[File]) -> None:
    if files:
        setattr(step, _FILES, tuple(files))


def attached_files(step: Any) -> tuple[File, ...]:
    files = getattr(step, _FILES, ())
    return files if isinstance(files, tuple) else ()
