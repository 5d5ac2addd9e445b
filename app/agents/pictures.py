"""Images ⇄ bytes, pixel by pixel: as PNG where it knows the mode, raw otherwise."""

from __future__ import annotations

import io
import json

import PIL.Image

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_RAW = b"raw image\n"


def image_to_bytes(image: PIL.Image.Image) -> bytes:
    """Give the image's bytes; equal images give equal bytes."""
    if image.mode in _PNG_MODES:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()
    palette = image.getpalette("RGB") if image.mode == "PA" else None
    header = json.dumps([image.mode, *image.size, palette]).encode()
    return _RAW + header + b"\n" + image.tobytes()


def image_from_bytes(data: bytes) -> PIL.Image.Image:
    """Make the image again."""
    if not data.startswith(_RAW):
        image: PIL.Image.Image = PIL.Image.open(io.BytesIO(data), formats=("PNG",))
        image.load()
        return image
    header, _, pixels = data.removeprefix(_RAW).partition(b"\n")
    mode, width, height, palette = json.loads(header)
    image = PIL.Image.frombytes(mode, (width, height), pixels)
    if palette:
        image.putpalette(palette, "RGB")
    return image
