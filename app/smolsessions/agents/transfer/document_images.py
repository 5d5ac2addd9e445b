"""Images of a document ⇄ images of its steps: whole, of the name that they say, and not more than fit in memory."""

from __future__ import annotations

import base64
import binascii
import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import PIL.Image

from smolsessions.agents.values.images import FORMATS, RAW, image_from_bytes, image_to_bytes, open_header, placeholder
from smolsessions.agents.values.json_forms import json_pointer
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.image_names import NAME_DIGITS, image_name

if TYPE_CHECKING:
    from collections.abc import Mapping

RAW_TYPE = "image/x-smolsessions-raw"
TIMES_IN_ALL = 4
"""As many pixels as a request's images may have, this often, is what those of a document may have."""
_MOST_HEADER_BYTES = 16 * 1024
_BROKEN = f"is no whole image of {', '.join(FORMATS)}, nor a raw one of this service"


def image_as_json(data: bytes) -> dict[str, str]:
    """Give a stored image as a member of the document's `images`."""
    return {"type": _looked_at(data)[0], "data": base64.b64encode(data).decode()}


@dataclass(frozen=True)
class _Found:
    data: bytes
    pixels: int


class Images:
    """The images of a document, each read once, whatever shows it; the steps are packed with stand-ins."""

    def __init__(self, images: Mapping[str, tuple[str, str]], max_pixels: int) -> None:
        """Take media types and base64 by name. `max_pixels` bounds the images of one step together."""
        self._max_pixels = max_pixels
        self._found: dict[str, _Found] = {}
        self._unused = dict.fromkeys(images)
        left = max_pixels * TIMES_IN_ALL
        for name, (kind, text) in images.items():
            found = self._found[name] = _found(name, kind, text)
            left -= found.pixels
            if left < 0 or found.pixels > max_pixels:
                raise _error(
                    name, f"has more than {max_pixels} pixels, or all images more than {TIMES_IN_ALL} times that"
                )
            _check(name, found.data)

    def of_step(self, pointer: str, names: Mapping[str, str]) -> list[PIL.Image.Image]:
        """Give the images of the step at `pointer`; the names are by their pointers in the step."""
        for place, name in names.items():
            if name not in self._found:
                raise InvalidRequestError.at(pointer + place, "names an image that is not in /images")
            self._unused.pop(name, None)
        distinct = {name: self._found[name] for name in names.values()}
        if sum(found.pixels for found in distinct.values()) > self._max_pixels:
            raise InvalidRequestError.at(pointer, f"shows more than {self._max_pixels} pixels")
        images = {name: placeholder(found.data, name) for name, found in distinct.items()}
        return [images[name] for name in names.values()]

    def check_all_are_used(self) -> None:
        for name in self._unused:
            raise _error(name, "is shown by no step")


def _found(name: str, kind: str, text: str) -> _Found:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _error(name, "is no base64") from None
    if image_name(data) != name:
        raise _error(name, f"is not of this name, which is the first {NAME_DIGITS} digits of the data's SHA-256")
    try:
        found, pixels = _looked_at(data)
    except Exception:  # noqa: BLE001 - decoders meet hostile bytes and fail in many ways
        raise _error(name, _BROKEN) from None
    if found != kind:
        raise InvalidRequestError.at(json_pointer("/images", name, "type"), f"is not {found}, which the image is")
    return _Found(data, pixels)


def _looked_at(data: bytes) -> tuple[str, int]:
    """Give an image's media type and how many pixels it says that it has."""
    if not data.startswith(RAW):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images; the bound is ours
            image = open_header(data)
        return PIL.Image.MIME[image.format or ""], image.width * image.height
    header = data[len(RAW) : len(RAW) + _MOST_HEADER_BYTES].partition(b"\n")[0]
    _mode, width, height, _palette = json.loads(header)
    if type(width) is not int or type(height) is not int or min(width, height) < 1:
        raise ValueError("no size")
    return RAW_TYPE, width * height


def _check(name: str, data: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = image_from_bytes(data)
            image.load()
            is_as_stored = image_to_bytes(image) == data
    except Exception:  # noqa: BLE001 - see above
        raise _error(name, _BROKEN) from None
    if not is_as_stored:
        raise _error(name, _BROKEN)


def _error(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError.at(json_pointer("/images", name), message)
