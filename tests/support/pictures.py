"""Small PNG images as base64."""

import base64
import io

import PIL.Image


def pixel() -> str:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (1, 1), "red").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def png(colour: str) -> str:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (6, 5), colour).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
