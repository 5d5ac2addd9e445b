"""Images and files of a request, decoded and checked before anything is stored, and headers of served files."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import PIL.Image

from smolsessions.core.attachments import Audio, File, described, encode_file, is_text, name_flaw, name_of
from smolsessions.core.errors import InvalidRequestError, TooLargeError
from smolsessions.core.media import StepFile, StepImage, image_name
from smolsessions.wire.requests import AnswerIn, FileIn, TurnRequest

_IMAGE_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
# One thread bounds the memory. Requests that wait for it hold no thread that others need.
_THREAD = ThreadPoolExecutor(1, "images")
TEXTS = ("text/plain", "text/csv", "text/markdown", "text/tab-separated-values", "application/json")
_SOUNDS: dict[str, Callable[[bytes], object]] = {
    "audio/wav": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WAVE",
    "audio/mpeg": lambda data: data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1:2] >= b"\xe0"),
    "audio/mp4": lambda data: data[4:8] == b"ftyp",
    "audio/ogg": lambda data: data[:4] == b"OggS",
    "audio/flac": lambda data: data[:4] == b"fLaC",
    "audio/webm": lambda data: data[:4] == b"\x1aE\xdf\xa3",
}
PDF = "application/pdf"
ACCEPTED = (*TEXTS, PDF, *_SOUNDS)
_SHOWN = frozenset({*ACCEPTED, "image/png", "image/jpeg", "image/gif", "image/webp", "application/zip"})
"""Types under which files are served. Others could run in a browser, or be taken for something that does."""
_ALIASES = {"audio/x-wav": "audio/wav", "audio/wave": "audio/wav", "audio/mp3": "audio/mpeg"}
_DATA_URL = re.compile(r"data:([a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,80})(?:;charset=utf-8)?;base64,", re.IGNORECASE)
_CHARSET = re.compile(r"; *charset=utf-8$", re.IGNORECASE)
_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,10}$")
_RATE = slice(24, 28)  # in the head of a WAV file


async def read_media(
    sent: TurnRequest | AnswerIn, max_pixels: int, max_bytes: int, arguments: Collection[str] = (), at: str = ""
) -> tuple[tuple[bytes, ...], tuple[StepImage, ...], tuple[bytes, ...], tuple[StepFile, ...]]:
    """Return a request's images, then its files, as bytes and records. `arguments` names other variables."""
    if not sent.images and not sent.files:
        return (), (), (), ()
    return await asyncio.get_running_loop().run_in_executor(
        _THREAD, lambda: (*read_images(sent.images, max_pixels, at), *read_files(sent.files, max_bytes, arguments, at))
    )


def read_images(images: list[str], max_pixels: int, at: str) -> tuple[tuple[bytes, ...], tuple[StepImage, ...]]:
    found, sizes, left = [], [], max_pixels  # all images of a turn are in memory together, so they share the bound
    for index, text in enumerate(images):
        pointer = f"{at}/images/{index}"
        data = decode_base64(text, pointer, _IMAGE_URL, "image/…")
        broken = InvalidRequestError.at(pointer, f"is no whole image of {', '.join(_IMAGE_FORMATS)}")
        large = TooLargeError(f"{pointer}: the images have more than {max_pixels} pixels together; make them smaller.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images; the bound is ours
            try:
                image = PIL.Image.open(io.BytesIO(data), formats=_IMAGE_FORMATS)
            except PIL.Image.DecompressionBombError:
                raise large from None
            except Exception:  # noqa: BLE001 - decoders meet hostile bytes and fail in many ways
                raise broken from None
            width, height = image.size
            # Some take twice the memory of their pixels while they are decoded.
            left -= width * height * (2 if image.format == "WEBP" or "progressive" in image.info else 1)
            if left < 0:
                raise large
            try:
                with image:
                    image.draft("RGB", (1, 1))  # a JPEG is read whole and kept small
                    image.load()
            except Exception:  # noqa: BLE001 - see above
                raise broken from None
        found.append(data)
        sizes.append(StepImage(image_name(data), width, height))
    return tuple(found), tuple(sizes)


def decode_base64(text: str, pointer: str, url: re.Pattern[str], kind: str) -> bytes:
    """Return the bytes of base64 or of a data: URL. Raises `InvalidRequestError`."""
    match = url.match(text)
    try:
        return base64.b64decode(text[match.end() :] if match else text, validate=True)
    except ValueError:
        raise InvalidRequestError.at(pointer, f"is neither base64 nor a data:{kind};base64, URL") from None


def read_files(
    files: Sequence[FileIn], max_bytes: int, arguments: Collection[str], at: str
) -> tuple[tuple[bytes, ...], tuple[StepFile, ...]]:
    if sum(len(file.data) for file in files) * 3 // 4 > max_bytes + 1000:  # before anything is decoded
        raise _too_large(max_bytes)
    found, records, names, left = [], [], set(arguments), max_bytes
    for index, sent in enumerate(files):
        file = _read(sent, f"{at}/files/{index}")
        left -= len(file.data)
        if left < 0:
            raise _too_large(max_bytes)
        if file.name in names:
            raise InvalidRequestError.at(f"{at}/files/{index}/name", "is that of another file or additional argument")
        names.add(file.name)
        stored = encode_file(file)
        found.append(stored)
        records.append(described(file, stored))
    return tuple(found), tuple(records)


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(f"The files have more than {max_bytes} bytes together (SMOLSESSIONS_MAX_FILE_BYTES).")


def _read(sent: FileIn, pointer: str) -> File:
    name = unicodedata.normalize("NFC", sent.name)
    flaw = name_flaw(name) or (None if _EXTENSION.search(name) else "has no extension; write it as report.csv")
    if flaw:
        raise InvalidRequestError.at(f"{pointer}/name", flaw)
    kind = _CHARSET.sub("", sent.media_type).lower()
    kind = _ALIASES.get(kind, kind)
    if kind not in ACCEPTED:
        raise InvalidRequestError.at(f"{pointer}/media_type", f"is none of {', '.join(ACCEPTED)}")
    data = decode_base64(sent.data, f"{pointer}/data", _DATA_URL, "…")
    flaw = None
    if is_text(kind):
        try:
            flaw = "holds a zero byte, which no text does" if "\0" in data.decode() else None
        except UnicodeDecodeError:
            flaw = "is no text in UTF-8"
    elif not (data.startswith(b"%PDF-") if kind == PDF else _SOUNDS[kind](data)):
        flaw = f"does not begin as {kind} does"
    if flaw:
        raise InvalidRequestError.at(f"{pointer}/data", flaw)
    if kind in _SOUNDS:
        rate = int.from_bytes(data[_RATE], "little") if kind == "audio/wav" and data[12:16] == b"fmt " else None
        return Audio(data, kind, name, rate or None)
    return File(data, kind, name)


def served(file: File) -> tuple[str, dict[str, str]]:
    """Return media type and headers under which a file is served."""
    kind = file.media_type if file.media_type in _SHOWN else "application/octet-stream"
    return kind, {**download_headers(name_of(file)), "Cache-Control": "private, max-age=31536000, immutable"}


def download_headers(name: str) -> dict[str, str]:
    """Return headers by which a browser saves a file, and neither shows nor runs it."""
    plain = "".join(char if char.isascii() and char not in '%;"' else "_" for char in name)
    return {
        "Cache-Control": "no-store",
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
