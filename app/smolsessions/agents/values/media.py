"""Images and files that steps hold and answers are made of."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import PIL.Image
from smolagents.agent_types import AgentImage
from smolagents.memory import TaskStep

from smolsessions.agents.values.images import LazyImage, stored_images
from smolsessions.core.attachments import File, described, encode_file

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from smolsessions.core.records import StepFile, StepImage

MAX_OUTPUT_PARTS = 16  # images and files of an output
MAX_SEARCHED_NODES = 10_000  # of an output
_COLLECTIONS = frozenset({list, tuple, dict, set, frozenset})
_FILES = "smolsessions_files"
_MEDIA = (PIL.Image.Image, File)


def media_in(value: Any) -> tuple[PIL.Image.Image | File, ...]:
    """Return at most `MAX_OUTPUT_PARTS` images and files that an output is or holds in built-in collections."""
    kind = type(value)
    if kind is str or value is None:
        return ()
    found: dict[int, PIL.Image.Image | File] = {}
    nodes, left = [value], MAX_SEARCHED_NODES
    while nodes and left > 0 and len(found) < MAX_OUTPUT_PARTS:
        node, left = nodes.pop(), left - 1
        kind = type(node)
        if issubclass(kind, PIL.Image.Image):
            if raw := raw_image(node):
                found[id(raw)] = raw
        elif issubclass(kind, File):
            found[id(node)] = node
        elif kind in _COLLECTIONS:
            parts = node.values() if kind is dict else node
            nodes += reversed(list(itertools.islice(parts, left)))
    return tuple(found.values())


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
    images, files = described_media(media_in(value))
    kept = tuple(dict.fromkeys(image for image in images if image.name in attachments))
    return kept, tuple(file for file in files if file.name in attachments)


def described_media(media: Sequence[PIL.Image.Image | File]) -> tuple[tuple[StepImage, ...], tuple[StepFile, ...]]:
    """Return the records of images, as far as they are stored, and of files."""
    images = stored_images(one for one in media if not isinstance(one, File))
    return images, stored_files(one for one in media if isinstance(one, File))


def drop_pixels(steps: Iterable[Any]) -> int:
    """Drop the decoded pixels of steps, and return the size of all their images and files."""
    held: dict[int, int] = {}
    for step in steps:
        for image in _images_of(step):
            if isinstance(image, LazyImage):
                image.drop_pixels()
            data = getattr(image, "undecoded", None)
            held[id(data or image)] = (
                len(data) if data else 4 * getattr(image, "width", 0) * getattr(image, "height", 0)
            )
        held |= {id(file): len(file.data) for file in _files_of(step)}
    return sum(held.values())


def holds_media(step: Any) -> bool:
    """True if `drop_pixels` may find something in this step. `vars()` would give the step a dict that stays."""
    if issubclass(type(step), TaskStep):
        return bool(getattr(step, "task_images", None) or getattr(step, _FILES, None))
    shown = getattr(step, "observations_images", None)
    return bool(shown) or issubclass(type(getattr(step, "action_output", None)), _MEDIA)


def _images_of(step: Any) -> Iterable[PIL.Image.Image]:
    """Yield the images of a step, except those inside its output, which may be large."""
    yield from getattr(step, "task_images", None) or ()
    yield from getattr(step, "observations_images", None) or ()
    output = getattr(step, "action_output", None)
    if output is not None and issubclass(type(output), PIL.Image.Image) and (raw := raw_image(output)):
        yield raw


def _files_of(step: Any) -> Iterable[File]:
    yield from attached_files(step)
    output = getattr(step, "action_output", None)
    if issubclass(type(output), File):
        yield cast("File", output)


def stored_files(files: Iterable[File]) -> tuple[StepFile, ...]:
    """Return the records of files, without duplicates."""
    return tuple(dict.fromkeys(described(file, encode_file(file)) for file in files))


def attach_files(step: Any, files: Sequence[File]) -> None:
    """Let a task hold the files of its message."""
    if files:
        setattr(step, _FILES, tuple(files))


def attached_files(step: Any) -> tuple[File, ...]:
    """Return the files of a task's message."""
    files = getattr(step, _FILES, ())
    return files if isinstance(files, tuple) else ()
