"""Encode and decode images of steps: uploads unchanged, others as PNG."""

from __future__ import annotations

import hashlib
import io
import threading
import warnings
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, cast

import PIL.Image
import PIL.ImageFile

from smolsessions.core.media import StepImage

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_SOURCE = "smolsessions_source"
_NAME = "smolsessions_name"
_DECODERS = threading.BoundedSemaphore(2)  # images decoded at a time
_lazy_kinds: dict[type, type] = {}


class LazyImage(PIL.ImageFile.ImageFile):
    """Mixin for Pillow's image classes: an image of a step that holds its file until its pixels are needed.

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
        except BaseException:  # also `MemoryError`: the next load needs the file
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
        """Hold the file instead of the pixels, unless the pixels have changed."""
        source: tuple[bytes, bytes | None] | None = self.info.get(_SOURCE)
        if self.undecoded is not None or source is None or source[1] != _pixels(self):
            return
        fresh = image_from_bytes(source[0])
        fresh.info |= {name: value for name, value in self.info.items() if name != _SOURCE}
        vars(self).clear()
        vars(self).update(vars(fresh))

    def __deepcopy__(self, memo: dict[int, Any]) -> PIL.Image.Image:
        if self.undecoded is None:
            image: PIL.Image.Image = object.__new__(type(self))
            image.__setstate__(deepcopy(self.__getstate__(), memo))
            return image
        copied = image_from_bytes(self.undecoded)
        copied.info |= self.info
        copied.is_copy = True
        return copied


def png_image(image: PIL.Image.Image) -> PIL.Image.Image:
    """Return an image in a mode that PNG has. The others lose what their colours hold beyond RGB and 8 bits."""
    if image.mode in _PNG_MODES:
        return image
    if image.mode == "La":
        return image.convert("LA")
    if image.mode.startswith("I"):
        return image.convert("I").convert("I;16")  # Pillow's direct way cuts to 8 bits
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def image_to_bytes(image: PIL.Image.Image) -> bytes:
    """Encode an image. Equal images have equal bytes."""
    source: tuple[bytes, bytes | None] | None = image.info.get(_SOURCE)
    if source and (source[1] is None or source[1] == _pixels(image)):
        return source[0]
    buffer = io.BytesIO()
    png_image(image).save(buffer, "PNG")
    return buffer.getvalue()


def image_from_bytes(data: bytes) -> LazyImage:
    """Decode an image. It keeps its file until its pixels change, because a photo as PNG is ten times as large."""
    image: Any = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    kind = type(image)
    made = _lazy_kinds.get(kind) or type(kind.__name__, (LazyImage, kind), {"__module__": kind.__module__})
    image.__class__ = _lazy_kinds.setdefault(kind, made)  # two threads may make it
    image.undecoded = data
    image.info[_SOURCE] = (data, None)
    return cast("LazyImage", image)


def image_header(data: bytes) -> tuple[str, int, int]:
    """Return an image's media type, width and height without decoding its pixels. Raises if it is no image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of large images, which the caller bounds
        image = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    return PIL.Image.MIME[image.format or ""], image.width, image.height


def is_canonical(data: bytes) -> bool:
    """True if the image decodes and is encoded as the same bytes. Raises if it is no image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = image_from_bytes(data)
        image.load()
        return image_to_bytes(image) == data


def name_image(image: PIL.Image.Image, name: str) -> None:
    image.info[_NAME] = name


def stored_images(images: Iterable[PIL.Image.Image] | None) -> tuple[StepImage, ...]:
    """Return the names and sizes of the images that have a name in the store."""
    if not images:
        return ()
    return tuple(StepImage(image.info[_NAME], image.width, image.height) for image in images if _NAME in image.info)


def _pixels(image: PIL.Image.Image) -> bytes:
    """Return a hash of all that is seen of an image: a palette or a size may change while its bytes do not."""
    pixels = hashlib.blake2b(image.tobytes(), digest_size=16)
    pixels.update(repr((image.mode, image.size, image.info.get("transparency"))).encode())
    if image.mode in {"P", "PA"}:
        pixels.update(bytes(image.getpalette(None) or ()))
    return pixels.digest()
