"""MCP server of the SDK, as a program: `python -m tests.support.mcp_server stdio|PORT`.

Each call of `noted` is a line in the file that the variable NOTES names. EXTRA adds a tool, HOSTILE odd ones.
"""

import asyncio
import base64
import io
import os
import sys
import time
from pathlib import Path
from typing import Literal

import PIL.Image
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

server = MCPServer("test", log_level="CRITICAL")


class Address(BaseModel):
    street: str
    zip: str | None = None


class Order(BaseModel):
    item: str
    count: int = 1
    address: Address
    parts: list["Order"] = []


class Weather(BaseModel):
    city: str
    degrees: float


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def greet(name: str, style: Literal["plain", "warm"] | None = None, ps: str | None = None) -> str:
    """Greet a person."""
    return f"{style} {name} {ps}"


@server.tool(name="read-file", structured_output=False)
def read_file(path: str) -> str:
    """Read a file."""
    return f"contents of {path}"


@server.tool(structured_output=False)
def order(order: Order) -> str:
    """Order something."""
    return f"{order.count} {order.item} to {order.address.street} {type(order.address).__name__}"


@server.tool()
def weather(city: str) -> Weather:
    """Look the weather up."""
    return Weather(city=city, degrees=21.5)


@server.tool(structured_output=False)
def picture(with_text: bool = False) -> CallToolResult:
    """Draw."""
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), "red").save(buffer, "PNG")
    image = ImageContent(data=base64.b64encode(buffer.getvalue()).decode(), mime_type="image/png")
    texts = [TextContent(text="a red picture")] if with_text else []
    return CallToolResult(content=[*texts, image])


@server.tool(structured_output=False)
def broken_picture() -> CallToolResult:
    """Draw badly."""
    return CallToolResult(content=[ImageContent(data="AAAA", mime_type="image/png")])


@server.tool(structured_output=False)
def sound() -> CallToolResult:
    """Sing."""
    return CallToolResult(content=[AudioContent(data=base64.b64encode(b"RIFF....").decode(), mime_type="audio/wav")])


@server.tool(structured_output=False)
def resources() -> CallToolResult:
    """Return resources."""
    text = TextResourceContents(uri="memo://a", text="memo text", mime_type="text/plain")
    link = ResourceLink(name="report", uri="memo://report", description="the report")
    return CallToolResult(content=[EmbeddedResource(resource=text), link])


@server.tool(structured_output=False)
def nothing() -> CallToolResult:
    """Return nothing."""
    return CallToolResult(content=[])


@server.tool(structured_output=False)
def fail(reason: str) -> str:
    """Fail."""
    raise ToolError(reason)


@server.tool(structured_output=False)
def show_secret(name: str, context: Context) -> str:
    """Repeat a secret."""
    headers = context.headers or {}
    return f"it is {os.environ.get(name) or headers.get(name.lower())}"


@server.tool(structured_output=False)
def log_secret(name: str) -> str:
    """Log a secret."""
    sys.stderr.write(f"using {os.environ.get(name)}\n")
    sys.stderr.flush()
    return "logged"


@server.tool(structured_output=False, annotations=ToolAnnotations(destructive_hint=True))
async def noted(text: str, wait_s: float = 0) -> str:
    """Note that it was called, then wait."""
    with Path(os.environ["NOTES"]).open("a") as file:  # noqa: ASYNC230 - one line
        file.write(f"{text} {os.getpid()}\n")
    await asyncio.sleep(wait_s)
    return f"noted {text}"


@server.tool(structured_output=False)
async def block(wait_s: float) -> str:
    """Block the whole server."""
    time.sleep(wait_s)  # noqa: ASYNC251 - that is its purpose
    return "free again"


@server.tool(structured_output=False)
def huge(mebibytes: int) -> str:
    """Return much."""
    return "x" * (mebibytes * 1024 * 1024)


@server.tool(structured_output=False)
async def end() -> str:
    os._exit(3)


if os.environ.get("EXTRA"):

    @server.tool()
    def extra() -> str:
        """Do more."""
        return "more"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
