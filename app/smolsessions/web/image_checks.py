"""Images of a request: decoded and looked at before anything is stored."""

from __future__ import annotations

import base64
import binascii
import io
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import PIL.Image

from smolsessions.core.errors import InvalidRequestError, TooLargeError
from smolsessions.core.records import StepImage, image_name

_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
DECODER = ThreadPoolExecutor(1, "images")
"""The thread of `read_images`. One bounds the memory, and requests that wait for it hold no thread that others need."""


def read_images(images: list[str], max_pixels: int) -> tuple[tuple[bytes, ...], tuple[StepImage, ...]]:
    """Return the images' bytes, and their names and sizes. An image that is not accepted is an error that names it."""
    found, sizes, pixels = [], [], 0
    for index, image in enumerate(images):
        data, size, more = _read(image, f"/images/{index}", max_pixels, pixels)
        found.append(data)
        sizes.append(StepImage(image_name(data), *size))
        pixels += more  # the bound is on all together: each is decoded, and kept in memory while the turn runs
    return tuple(found), tuple(sizes)


def _read(text: str, pointer: str, max_pixels: int, before: int) -> tuple[bytes, tuple[int, int], int]:
    match = _DATA_URL.match(text)
    try:
        data = base64.b64decode(text[match.end() :] if match else text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError.at(pointer, "is neither base64 nor a data:image/…;base64, URL") from None
    broken = InvalidRequestError.at(pointer, f"is no whole image of {', '.join(_FORMATS)}")
    too_large = TooLargeError(f"{pointer}: the images have more than {max_pixels} pixels together; make them smaller.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of large images; the bound is ours
        try:
            image = PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
        except PIL.Image.DecompressionBombError:
            raise too_large from None
        except Exception:  # noqa: BLE001 - decoders meet hostile bytes and fail in many ways
            raise broken from None
        pixels, size = _weighed(image), image.size
        if before + pixels > max_pixels:
            raise too_large
        try:
            with image:
                image.draft("RGB", (1, 1))  # a JPEG is read whole and kept small
                image.load()
        except Exception:  # noqa: BLE001 - see above
            raise broken from None
    return data, size, pixels


def _weighed(image: PIL.Image.Image) -> int:
    """Return an image's pixels, twice where decoding takes more memory than they do."""
    is_heavy = image.format == "WEBP" or "progressive" in image.info
    return image.width * image.height * (2 if is_heavy else 1)
