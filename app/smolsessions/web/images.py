"""Images of a request, decoded and checked before anything is stored."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import PIL.Image

from smolsessions.core.errors import InvalidRequestError, TooLargeError
from smolsessions.core.media import StepImage, image_name

_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
# One thread bounds the memory. Requests that wait for it hold no thread that others need.
THREAD = ThreadPoolExecutor(1, "images")


async def read_images(images: list[str], max_pixels: int) -> tuple[tuple[bytes, ...], tuple[StepImage, ...]]:
    """Return the images' bytes, and their names and sizes. The error names an image that is refused.

    Pillow releases the interpreter lock while it decodes.
    """
    if not images:
        return (), ()
    return await asyncio.get_running_loop().run_in_executor(THREAD, _read_all, images, max_pixels)


def _read_all(images: list[str], max_pixels: int) -> tuple[tuple[bytes, ...], tuple[StepImage, ...]]:
    found, sizes, left = [], [], max_pixels  # all images of a turn are in memory together, so they share the bound
    for index, text in enumerate(images):
        pointer = f"/images/{index}"
        match = _DATA_URL.match(text)
        try:
            data = base64.b64decode(text[match.end() :] if match else text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequestError.at(pointer, "is neither base64 nor a data:image/…;base64, URL") from None
        width, height, pixels = _decode(data, pointer, left, max_pixels)
        left -= pixels
        found.append(data)
        sizes.append(StepImage(image_name(data), width, height))
    return tuple(found), tuple(sizes)


def _decode(data: bytes, pointer: str, left: int, max_pixels: int) -> tuple[int, int, int]:
    """Return width, height and pixels. Pixels count twice if decoding takes more memory than they do."""
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
        width, height = image.size
        is_heavy = image.format == "WEBP" or "progressive" in image.info
        pixels = width * height * (2 if is_heavy else 1)
        if pixels > left:
            raise too_large
        try:
            with image:
                image.draft("RGB", (1, 1))  # a JPEG is read whole and kept small
                image.load()
        except Exception:  # noqa: BLE001 - see above
            raise broken from None
    return width, height, pixels
