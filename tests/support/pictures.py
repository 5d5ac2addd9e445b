"""Small PNG images as base64."""

import base64
import io

import PIL.Image


def pixel() -> str:
    return png("red", (1, 1))


def png(colour: str, size: tuple[int, int] = (6, 5)) -> str:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", size, colour).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
