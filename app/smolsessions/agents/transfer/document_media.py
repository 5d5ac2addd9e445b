"""Images and files of a document: their bytes by hash, which steps and variables name."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from smolsessions.agents.transfer.document_models import Strict, checked
from smolsessions.agents.values.images import FORMATS, image_header, is_canonical
from smolsessions.core.attachments import Audio, File, decode_file, encode_file
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import decode_base64, json_pointer
from smolsessions.core.media import IMAGE_NAME_DIGITS, image_name

MAX_IMAGES_FACTOR = 4
"""Pixels of all images in a document, as a multiple of the limit for one step."""
_IMAGE_NAME = re.compile("[0-9a-f]{32}")
_BROKEN_IMAGE = f"is no whole image of {', '.join(FORMATS)}"


class _ImageIn(Strict):
    type: str
    data: str


class _FileIn(Strict):
    kind: Literal["file", "audio"]
    name: str
    media_type: str
    rate: int | None = None
    data: str


def export_images(stored: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    return {
        name: {"type": image_header(data)[0], "data": base64.b64encode(data).decode()} for name, data in stored.items()
    }


def export_files(stored: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """Return stored files as JSON data, by the hash of their stored form. Images are left out."""
    files = {}
    for data in stored:
        if file := decode_file(data):
            kind = {"kind": "audio", "rate": file.rate} if isinstance(file, Audio) else {"kind": "file"}
            content = base64.b64encode(file.data).decode()
            files[image_name(data)] = {**kind, "name": file.name, "media_type": file.media_type, "data": content}
    return files


class DocumentMedia:
    """Images and files of a document. Each is checked once, and must be named by a step or a variable."""

    def __init__(self, images: Any, files: Any, max_pixels: int) -> None:
        """Read the members `images` and `files`. `max_pixels` bounds the images of one step together."""
        for name, member in (("images", images), ("files", files)):
            if not isinstance(member, dict):
                raise InvalidRequestError.at(f"/{name}", "is no object")
        self._max_pixels = max_pixels
        self._images: dict[str, bytes] = {}
        self._pixels: dict[str, int] = {}
        left = max_pixels * MAX_IMAGES_FACTOR
        for name, member in images.items():
            if not _IMAGE_NAME.fullmatch(str(name)):
                raise _image_error(name, "is no name of an image: 32 digits of a hash")
            pointer = json_pointer("images", name)
            image = checked(_ImageIn, member, pointer)
            self._images[name] = data = decode_base64(image.data, pointer)
            if image_name(data) != name:
                digits = f"the first {IMAGE_NAME_DIGITS} digits of the data's SHA-256"
                raise _image_error(name, f"is not of this name, {digits}")
            try:
                media_type, width, height = image_header(data)
            except Exception:  # noqa: BLE001 - decoders meet hostile bytes and fail in many ways
                raise _image_error(name, _BROKEN_IMAGE) from None
            if media_type != image.type:
                raise _image_error(name, f"is not {media_type}, which the image is", "type")
            self._pixels[name] = width * height
            left -= self._pixels[name]
            if left < 0 or self._pixels[name] > max_pixels:
                reason = f"has more than {max_pixels} pixels, or all images more than {MAX_IMAGES_FACTOR} times that"
                raise _image_error(name, reason)
            try:
                is_whole = is_canonical(self._images[name])
            except Exception:  # noqa: BLE001 - as above
                is_whole = False
            if not is_whole:
                raise _image_error(name, _BROKEN_IMAGE)
        self._files: dict[str, File] = {}
        self._encoded: dict[str, bytes] = {}  # once, though a thousand steps may name it
        for name, member in files.items():
            pointer = json_pointer("files", name)
            found = checked(_FileIn, member, pointer)
            parts = decode_base64(found.data, f"{pointer}/data"), found.media_type, found.name
            try:
                file = Audio(*parts, found.rate) if found.kind == "audio" else File(*parts)
            except ValueError as error:
                raise InvalidRequestError.at(pointer, str(error)) from None
            self._encoded[name] = encode_file(file)
            if image_name(self._encoded[name]) != name:
                raise InvalidRequestError.at(pointer, "is not of this name, a hash of its kind, name, type and data")
            self._files[name] = file
        self._unused_images, self._unused_files = dict.fromkeys(images), dict.fromkeys(files)

    def images(self, pointer: str, names: Mapping[str, str]) -> dict[str, bytes]:
        """Return the images of the step at `pointer` by their names. `names` are by their pointers in the step."""
        for place, name in names.items():
            if name not in self._images:
                raise InvalidRequestError.at(pointer + place, "names an image that is not in /images")
            self._unused_images.pop(name, None)
        if sum(self._pixels[name] for name in set(names.values())) > self._max_pixels:
            raise InvalidRequestError.at(pointer, f"shows more than {self._max_pixels} pixels")
        return {name: self._images[name] for name in names.values()}

    def files(self, pointer: str, names: Mapping[str, str]) -> dict[str, bytes]:
        """Return the files of the step at `pointer`, as `images` does."""
        for place, name in names.items():
            self.file(name, pointer + place)
        return {name: self._encoded[name] for name in names.values()}

    def file(self, name: str, pointer: str) -> File:
        if name not in self._files:
            raise InvalidRequestError.at(pointer, "names a file that is not in /files")
        self._unused_files.pop(name, None)
        return self._files[name]

    def check_all_are_used(self) -> None:
        for name in self._unused_images:
            raise _image_error(name, "is shown by no step")
        for name in self._unused_files:
            raise InvalidRequestError.at(json_pointer("files", name), "belongs to no step and no variable")


def _image_error(name: str, message: str, *member: str) -> InvalidRequestError:
    return InvalidRequestError.at(json_pointer("images", name, *member), message)
