"""MCP servers on standard streams that lie: `python -m tests.support.hostile_mcp KIND`."""

import base64
import io
import json
import os
import sys
import time
from typing import Any

import PIL.Image

DEEP: dict[str, Any] = {"type": "object"}
for _ in range(60):
    DEEP = {"type": "object", "properties": {"inner": DEEP}}
LOOP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
WIDE = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/L0"}},
    "$defs": {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 10} for n in range(30)},
}
FAT_PAGES = 9
PLAIN = {"type": "object", "properties": {}}
NAMES = ["", "a b", "a\x1b[2J", *"1st a-b a_b class print __import__ final_answer ü ../../etc".split(), "x" * 300]
SCHEMAS = {
    "deep": DEEP,
    "loop": LOOP,
    "wide": WIDE,
    "net": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
    "file": {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "odd": {"type": "object", "properties": {"self": {"type": "wizard"}, "class": True, "a b": {"enum": [1, None]}}},
    "required": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
    "long": {"type": "object", "properties": {"a": {"type": "string", "enum": ["x" * 100_000]}}},
}


def tool(name: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "A \x1b[31mtool\x07.", "inputSchema": schema or PLAIN, **more}


def page(kind: str, number: int) -> Any:
    more = {"nextCursor": f"page {number}"}
    pages: dict[str, Any] = {
        "endless": {"tools": [], **more},
        "many": {"tools": [tool(f"t{number}_{place}") for place in range(100)], **more},
        "names": {"tools": [tool(name) for name in NAMES]},
        "schemas": {"tools": [tool("good"), *(tool(name, schema) for name, schema in SCHEMAS.items())]},
        "huge": {"tools": [tool("t", None, title="x" * (20_000_000 if kind == "huge" else 1))]},
        "fat": {
            "tools": [tool(f"t{number}", None, title="x" * (4_000_000 if kind == "fat" else 1))],
            **(more if number < FAT_PAGES else {}),
        },
        "odd": {"tools": "all of them"},
        "verbose": {"tools": [tool("fail")]},
        "parts": {"tools": [tool("parts"), tool("bombs")]},
    }
    return pages[kind]


def answer(kind: str, request: dict[str, Any], number: int) -> Any:
    match request["method"]:
        case "initialize":
            about = {"name": "hostile", "version": "1"}
            version = request["params"]["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return page(kind, number)
        case "tools/call" if request["params"]["name"] == "parts":
            return {"content": [{"type": "text", "text": "a"}] * 300_000}
        case "tools/call" if request["params"]["name"] == "bombs":
            png = io.BytesIO()
            PIL.Image.new("1", (5000, 5000)).save(png, "PNG")
            data = base64.b64encode(png.getvalue()).decode()
            return {"content": [{"type": "image", "mimeType": "image/png", "data": data}] * 40}
        case "tools/call":
            return {"content": [{"type": "text", "text": "called " + json.dumps(request["params"]["arguments"])}]}
    return None


def main(kind: str) -> None:
    if kind == "silent":
        time.sleep(600)
    sys.stdout.write("a line of noise\n")
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        result = answer(kind, request, number)
        error = {"code": -32601, "message": "no such method"}
        if kind == "verbose" and request["method"] == "tools/call":
            result, error = None, {"code": -32602, "message": f"{os.environ['API_KEY']}: " + "no " * 1_000_000}
        reply |= {"error": error} if result is None else {"result": result}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
