"""Results of an MCP server's tools as Python values: text, data, images and audio."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import unquote, urlsplit

import PIL.Image
from mcp_types import CallToolResult

from smolsessions.agents.values.images import image_from_bytes
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.attachments import Audio, File, name_flaw

MAX_PIXELS = 50_000_000  # of all images of a result
MAX_ERROR_CHARS = 10_000


UNKNOWN = "it is not known whether the call had its effect, and it is not made again"


class ToolServerError(RuntimeError):
    """A tool of an MCP server failed, or its server did not answer. The model reads the text."""


def value_of(result: CallToolResult, *, is_structured: bool) -> Any:
    """Return the value of a result: one part as itself, several texts joined, others as a list.

    `is_structured` prefers the structured content, which its tool has declared. Raises `ToolServerError` for an error.
    """
    parts, pixels = [], MAX_PIXELS
    for content in result.content:
        match content.type:
            case "text":
                part: Any = utf8_text(content.text)
            case "image" | "audio":
                part = _medium(content.data, content.mime_type, pixels)
            case "resource_link":
                about = f": {content.description}" if content.description else ""
                part = utf8_text(f"[{content.name}, at {content.uri}{about}]")
            case _:
                resource: Any = content.resource
                kind = resource.mime_type or "application/octet-stream"
                is_text = hasattr(resource, "text")
                part = utf8_text(resource.text) if is_text else _medium(resource.blob, kind, pixels, str(resource.uri))
        parts.append(part)
        pixels -= part.width * part.height if isinstance(part, PIL.Image.Image) else 0
    if result.is_error:
        text = "\n".join(part for part in parts if isinstance(part, str)) or "the tool failed without a reason"
        raise ToolServerError(text[:MAX_ERROR_CHARS])
    if result.structured_content is not None and (is_structured or not parts):
        media = [part for part in parts if not isinstance(part, str)]
        return [result.structured_content, *media] if media else result.structured_content
    if not parts:
        return None
    if all(isinstance(part, str) for part in parts):
        return "\n".join(parts)
    return parts[0] if len(parts) == 1 else parts


def _medium(data: str, media_type: str, most_pixels: int, uri: str = "") -> Any:
    """Return an image, or a file whose name is the end of its address."""
    media_type = media_type.partition(";")[0].strip().lower()
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return utf8_text(f"[{uri or media_type}: no base64, so it cannot be read]")
    if media_type.startswith("image/"):
        return _image(decoded, most_pixels) or utf8_text(
            f"[an image of {media_type} that cannot be read, or is beyond {MAX_PIXELS} pixels of a result]"
        )
    name = unquote(urlsplit(uri).path).rpartition("/")[2]
    name = "" if name_flaw(name) else name
    kind = Audio if media_type.startswith("audio/") else File
    try:
        return kind(decoded, media_type, name)
    except ValueError:  # its media type is none
        return File(decoded, name=name)


def _image(data: bytes, most_pixels: int) -> PIL.Image.Image | None:
    try:
        image = image_from_bytes(data)
        if image.width * image.height > most_pixels:
            return None
        image.load()
    except Exception:  # noqa: BLE001 - Pillow raises many kinds
        return None
    image.drop_pixels()
    return image
