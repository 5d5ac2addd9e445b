"""Images ⇄ bytes, pixel by pixel: a caller's as they came, others as PNG where it knows the mode, raw otherwise."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import threading
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

import PIL.Image
import PIL.ImageFile
from smolagents.agent_types import AgentImage

from smolsessions.core.image_names import image_name
from smolsessions.core.records import StepImage

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
MOST_OUTPUT_IMAGES = 16
MOST_NODES = 10_000  # of an output that is searched for images
RAW = b"raw image\n"
_COLLECTIONS = frozenset({list, tuple, dict, set, frozenset})
_SOURCE = "smolsessions_source"
_NAME = "smolsessions_name"
_NAMED = "smolsessions_named"
_DECODERS = threading.BoundedSemaphore(2)  # images of a step that are decoded at a time
_undecoded: dict[type, type] = {}


class LazyImage(PIL.ImageFile.ImageFile):
    """Mixin for a class of Pillow's: a picture file of a step, which holds its bytes until its pixels are needed.

    smolagents copies and saves the images of a message for each model call. Neither leaves pixels behind.
    """

    undecoded: bytes | None = None
    is_copy = False

    def load(self) -> Any:
        data, self.undecoded = self.undecoded, None
        if data is None:
            return super().load()
        try:
            with _DECODERS:
                pixels = super().load()
                self.info[_SOURCE] = (data, _pixels(self))
        except BaseException:
            self.undecoded = data
            raise
        return pixels

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None:  # noqa: A002 - Pillow's name
        if self.undecoded is None:
            super().save(fp, format, **params)
            return
        with _DECODERS:
            image: PIL.Image.Image = PIL.Image.open(io.BytesIO(self.undecoded), formats=FORMATS)
            image.info |= self.info
            if self.is_copy and image.palette:
                image = deepcopy(image)  # which may change a palette
            image.save(fp, format, **params)

    def draft(self, mode: str | None, size: tuple[int, int] | None) -> Any:
        self.load()
        return super().draft(mode, size)

    def seek(self, frame: int) -> None:
        self.load()
        super().seek(frame)

    def drop_pixels(self) -> None:
        """Hold the bytes again, unless somebody has painted on the pixels."""
        source: tuple[bytes, bytes | None] | None = self.info.get(_SOURCE)
        if self.undecoded is not None or source is None or source[1] != _pixels(self):
            return
        fresh = _open(source[0])
        fresh.info |= {name: value for name, value in self.info.items() if name != _SOURCE}
        vars(self).clear()
        vars(self).update(vars(fresh))

    def __deepcopy__(self, memo: dict[int, Any]) -> PIL.Image.Image:
        if self.undecoded is None:
            image: PIL.Image.Image = object.__new__(type(self))
            image.__setstate__(deepcopy(self.__getstate__(), memo))
            return image
        copied = _open(self.undecoded)
        copied.info |= self.info
        copied.is_copy = True
        return copied


def drop_pixels(steps: Iterable[Any]) -> int:
    """Let steps hold their images as bytes, and return the size of all their images."""
    held: dict[int, int] = {}
    for step in steps:
        for image in _held_by(step):
            if isinstance(image, LazyImage):
                image.drop_pixels()
            data = getattr(image, "undecoded", None)
            held[id(data or image)] = (
                len(data) if data else 4 * getattr(image, "width", 0) * getattr(image, "height", 0)
            )
    return sum(held.values())


def _held_by(step: Any) -> Iterable[PIL.Image.Image]:
    """Return the images of a step, without those inside of its output, which may be large."""
    yield from getattr(step, "task_images", None) or ()
    yield from getattr(step, "observations_images", None) or ()
    output = getattr(step, "action_output", None)
    if output is not None and issubclass(type(output), PIL.Image.Image) and (raw := _raw(output)):
        yield raw


def is_undecoded(kind: type) -> bool:
    """Tell whether this is the class of an image that `image_from_bytes` made."""
    return any(kind is one for one in _undecoded.values())


def image_to_bytes(image: PIL.Image.Image) -> bytes:
    """Give the image's bytes; equal images give equal bytes."""
    source: tuple[bytes, bytes | None] | None = image.info.get(_SOURCE)
    if source and (source[1] is None or source[1] == _pixels(image)):
        return source[0]
    if image.mode in _PNG_MODES:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()
    palette = image.getpalette("RGB") if image.mode == "PA" else None
    header = json.dumps([image.mode, *image.size, palette]).encode()
    return RAW + header + b"\n" + image.tobytes()


def image_from_bytes(data: bytes) -> PIL.Image.Image:
    """Make the image; it remembers its bytes, as long as nobody paints on it: a photo as PNG is ten times as large."""
    if not data.startswith(RAW):
        return _open(data)
    header, _, pixels = data.removeprefix(RAW).partition(b"\n")
    mode, width, height, palette = json.loads(header)
    image = PIL.Image.frombytes(mode, (width, height), pixels)
    if palette:
        image.putpalette(palette, "RGB")
    return image


def _open(data: bytes) -> LazyImage:
    image: Any = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    kind = type(image)
    made = _undecoded.get(kind) or type(kind.__name__, (LazyImage, kind), {"__module__": kind.__module__})
    image.__class__ = _undecoded.setdefault(kind, made)  # two threads may make it
    image.undecoded = data
    image.info[_SOURCE] = (data, None)
    return cast("LazyImage", image)


def open_header(data: bytes) -> PIL.Image.Image:
    """Give the image without reading its pixels, where its file tells the size without them."""
    return image_from_bytes(data) if data.startswith(RAW) else PIL.Image.open(io.BytesIO(data), formats=FORMATS)


def placeholder(data: bytes, name: str) -> PIL.Image.Image:
    """Give a tiny image that is stored as these bytes, which are of this name and known to be an image."""
    image = PIL.Image.new("1", (1, 1))
    image.info |= {_SOURCE: (data, _pixels(image)), _NAMED: (data, name)}
    return image


def stored_name(image: PIL.Image.Image, data: bytes) -> str:
    """Give the name of what `image_to_bytes` gave; that of its own bytes is made once."""
    known: tuple[bytes, str] | None = image.info.get(_NAMED)
    if known and known[0] is data:
        return known[1]
    name = image_name(data)
    source: tuple[bytes, bytes] | None = image.info.get(_SOURCE)
    if source and source[0] is data:
        image.info[_NAMED] = (data, name)
    return name


def name_image(image: PIL.Image.Image, name: str) -> None:
    """Note under which name the store has the image."""
    image.info[_NAME] = name


def stored_images(images: Iterable[PIL.Image.Image] | None) -> tuple[StepImage, ...]:
    """Give the names and sizes of those images that a step was packed or unpacked with."""
    return tuple(
        StepImage(image.info[_NAME], image.width, image.height) for image in images or () if _NAME in image.info
    )


def images_in(value: Any) -> tuple[PIL.Image.Image, ...]:
    """Return the images that an output is, or holds in built-in collections; at most `MOST_OUTPUT_IMAGES`."""
    kind = type(value)
    if kind is str or value is None:
        return ()
    found: dict[int, PIL.Image.Image] = {}
    nodes, left = [value], MOST_NODES
    while nodes and left > 0 and len(found) < MOST_OUTPUT_IMAGES:
        node, left = nodes.pop(), left - 1
        if issubclass(type(node), PIL.Image.Image):
            if raw := _raw(node):
                found[id(raw)] = raw
        elif type(node) in _COLLECTIONS:
            parts = node.values() if type(node) is dict else node
            nodes += reversed(list(itertools.islice(parts, left)))
    return tuple(found.values())


def _raw(image: PIL.Image.Image) -> PIL.Image.Image | None:
    """Return the image behind smolagents' own class, or None if it cannot be read."""
    if not isinstance(image, AgentImage):
        return image
    try:
        return cast("PIL.Image.Image | None", image.to_raw())
    except Exception:  # noqa: BLE001 - it may name a file that is not there, or hold a tensor of any shape
        return None


def output_images(value: Any, attachments: Container[str]) -> tuple[StepImage, ...]:
    """Return the names and sizes of the images in an output that are among the attachments of its step."""
    images = (image for image in stored_images(images_in(value)) if image.name in attachments)
    return tuple(dict.fromkeys(images))


def browser_image(data: bytes) -> tuple[str, bytes]:
    """Give an image's media type and bytes as a browser takes it: as stored, or as PNG where only we read that."""
    if data.startswith(RAW):
        buffer = io.BytesIO()
        image_from_bytes(data).convert("RGBA").save(buffer, "PNG")
        return "image/png", buffer.getvalue()
    kind = PIL.Image.open(io.BytesIO(data), formats=FORMATS).get_format_mimetype()
    assert kind, "it was read by its format before it was stored"
    return kind, data


def _pixels(image: PIL.Image.Image) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
