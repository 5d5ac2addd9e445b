"""Images of a request, decoded and checked before anything is stored."""

from __future__ import annotations

import asyncio
import base64
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
        data = decode_base64(text, pointer, _DATA_URL, "image/…")
        broken = InvalidRequestError.at(pointer, f"is no whole image of {', '.join(_FORMATS)}")
        large = TooLargeError(f"{pointer}: the images have more than {max_pixels} pixels together; make them smaller.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images; the bound is ours
            try:
                image = PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
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
