"""Files of a document: their bytes by hash, which steps and variables name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Literal

from smolsessions.agents.transfer.document_models import Strict, checked
from smolsessions.agents.values.json_forms import json_pointer
from smolsessions.core.attachments import Audio, File, decode_file, encode_file
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.media import image_name


class _FileIn(Strict):
    kind: Literal["file", "audio"]
    name: str
    media_type: str
    rate: int | None = None
    data: str


def export_files(stored: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """Return stored files as JSON data, by the hash of their stored form. Images are left out."""
    return {image_name(data): _file_json(file) for data in stored if (file := decode_file(data))}


def _file_json(file: File) -> dict[str, Any]:
    kind = {"kind": "audio", "rate": file.rate} if isinstance(file, Audio) else {"kind": "file"}
    return {**kind, "name": file.name, "media_type": file.media_type, "data": base64.b64encode(file.data).decode()}


class DocumentFiles:
    """Files of a document, each checked once."""

    def __init__(self, files: Any) -> None:
        """Read the member `files`."""
        if not isinstance(files, dict):
            raise InvalidRequestError.at("/files", "is no object")
        self._files = {name: _read_file(str(name), member) for name, member in files.items()}
        self._unused = dict.fromkeys(files)

    def get(self, name: str, pointer: str) -> File:
        """Return a file that the document names at `pointer`."""
        if name not in self._files:
            raise InvalidRequestError.at(pointer, "names a file that is not in /files")
        self._unused.pop(name, None)
        return self._files[name]

    def check_all_are_used(self) -> None:
        for name in self._unused:
            raise InvalidRequestError.at(json_pointer("/files", name), "belongs to no step and no variable")


def _read_file(name: str, member: Any) -> File:
    pointer = json_pointer("/files", name)
    found = checked(_FileIn, member, pointer)
    try:
        data = base64.b64decode(found.data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError.at(f"{pointer}/data", "is no base64") from None
    try:
        parts = data, found.media_type, found.name
        file = Audio(*parts, found.rate) if found.kind == "audio" else File(*parts)
    except ValueError as error:
        raise InvalidRequestError.at(pointer, str(error)) from None
    if image_name(encode_file(file)) != name:
        raise InvalidRequestError.at(pointer, "is not of this name, a hash of its kind, name, type and data")
    return file
