"""Files that callers, tools and agents exchange, and their stored form: a line of JSON before the bytes."""

from __future__ import annotations

import mimetypes
import re
import unicodedata
from dataclasses import dataclass

from pydantic_core import from_json, to_json

from smolsessions.core.media import StepFile, image_name

MAX_NAME_CHARS = 100
_MAGIC = b"smolsessions file\n"
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_REFUSED = frozenset('/\\:*?"<>|')
_EXTENSIONS = {"audio/wav": ".wav", "audio/mpeg": ".mp3", "text/csv": ".csv", "text/plain": ".txt"}
"""Those that the tables of operating systems lack, or name in several ways."""
_TEXTS = frozenset({"application/json"})


@dataclass(frozen=True, slots=True, repr=False)
class File:
    """File of a tool or an answer. It is kept with the conversation, and the model reads its label only."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str = ""
    """Name without folders, or empty."""

    def __post_init__(self) -> None:
        for member, kind in (("data", bytes), ("name", str)):
            if type(found := getattr(self, member)) is not kind:
                raise TypeError(f"{type(self).__name__} takes {member} as {kind.__name__}, not {type(found).__name__}")
        if not isinstance(self.media_type, str) or not _MEDIA_TYPE.fullmatch(self.media_type):
            raise ValueError("the media type is none; write it as text/csv, in lower case and without parameters")
        if self.name and (flaw := name_flaw(self.name)):
            raise ValueError(f"the name {flaw}")

    def __repr__(self) -> str:
        parts = [self.name, self.media_type, f"{len(self.data):,} bytes"]
        return f"[{type(self).__name__.lower()} {', '.join(filter(None, parts))}]"

    @property
    def text(self) -> str:
        """The content as text, without a byte order mark. Raises `UnicodeDecodeError` if it is no UTF-8."""
        return self.data.decode("utf-8-sig")


@dataclass(frozen=True, slots=True, repr=False)
class Audio(File):
    """Sound of a tool or an answer, as the bytes of an audio file. It needs no torch."""

    media_type: str = "audio/wav"
    rate: int | None = None
    """Samples a second, if they are known."""

    def __post_init__(self) -> None:
        File.__post_init__(self)
        if self.rate is not None and (type(self.rate) is not int or self.rate < 1):
            raise ValueError("the rate is no number of samples a second")


def name_flaw(name: str) -> str | None:
    if not name or len(name) > MAX_NAME_CHARS:
        return f"is empty or longer than {MAX_NAME_CHARS} characters"
    if not name.isprintable() or unicodedata.normalize("NFC", name) != name:
        return "holds characters that cannot be shown"
    if not _REFUSED.isdisjoint(name) or name[0] in ". " or name[-1] in ". ":
        return 'holds one of / \\ : * ? " < > |, or begins or ends with a dot or a blank'
    return None


def name_of(file: File) -> str:
    return file.name or type(file).__name__.lower() + extension_of(file.media_type)


def extension_of(media_type: str) -> str:
    return _EXTENSIONS.get(media_type) or mimetypes.guess_extension(media_type) or ".bin"


def is_text(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type in _TEXTS


def encode_file(file: File) -> bytes:
    """Encode a file for the store. Equal files have equal bytes."""
    rate = [file.rate] if isinstance(file, Audio) else []
    return _MAGIC + to_json([file.name, file.media_type, *rate]) + b"\n" + file.data


def decode_file(stored: bytes) -> File | None:
    """Decode a stored file. Returns None for an image."""
    if not stored.startswith(_MAGIC):
        return None
    header, _, data = stored[len(_MAGIC) :].partition(b"\n")
    name, media_type, *rate = from_json(header)
    return Audio(data, media_type, name, *rate) if rate else File(data, media_type, name)


def described(file: File, stored: bytes) -> StepFile:
    return StepFile(image_name(stored), name_of(file), file.media_type, len(file.data))
