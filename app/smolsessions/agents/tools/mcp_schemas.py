"""Tools of an MCP server as smolagents needs them: Python names, and JSON Schemas without references, all bounded.

A server is foreign. A tool whose schema is larger than the bounds is left out, and references into the net are not
followed.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import smolagents

from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from mcp_types import Tool

MAX_DEPTH = 32
MAX_NODES = 5000
MAX_BYTES = 64 * 1024
MAX_DESCRIPTION_CHARS = 8000
MAX_NAME_CHARS = 64
ANYTHING = ["string", "number", "integer", "boolean", "array", "object"]
_TYPES = frozenset([*ANYTHING, "null"])
_RESERVED = frozenset({"self", "sanitize_inputs_outputs"})
"""Names of parameters of smolagents' `Tool.__call__`."""
_BRANCHES = ("anyOf", "oneOf")
_REFERENCES = frozenset({"$ref", "$defs", "definitions"})
_DATA = frozenset({"enum", "const", "default", "examples"})
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, or that turn a text around."""
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})


class SchemaError(ValueError):
    """A schema is no object, or larger than the bounds."""


@contextmanager
def shown_to_models(pointer: str) -> Iterator[None]:
    """Raise `InvalidRequestError` at this pointer for a schema of a caller that no model can be shown."""
    try:
        yield
    except (SchemaError, RecursionError) as error:
        reason = error if isinstance(error, SchemaError) else "has too many levels"
        raise InvalidRequestError.at(pointer, f"cannot be shown to a model: it {reason}") from None


@dataclass(frozen=True)
class ListedTool:
    """A tool as its server or client describes it, in the form that smolagents needs."""

    name: str
    """A Python name, unique in its list."""
    remote_name: str
    description: str
    inputs: dict[str, dict[str, Any]]
    output_schema: dict[str, Any] | None
    remote_inputs: dict[str, str] = field(default_factory=dict)
    """Names of the server's parameters by the names in `inputs`."""
    refuses_null: frozenset[str] = frozenset()
    """Optional parameters for which null means that they are absent."""
    is_unsafe_to_repeat: bool = False

    def remote_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by the names that the server or client knows."""
        given = {**dict(zip(self.inputs, args, strict=False)), **kwargs}
        return {
            self.remote_inputs.get(name, name): value
            for name, value in given.items()
            if not (value is None and name in self.refuses_null)
        }


class ToolOfSchema(smolagents.Tool):
    """A tool that JSON Schemas describe. It has no state. Subclasses declare `forward`."""

    skip_forward_signature_validation = True
    name = "tool_of_schema"
    description = ""
    inputs: dict[str, Any] = {}  # noqa: RUF012 - smolagents' own form
    output_type = "any"

    def __init__(self, listed: ListedTool, name: str) -> None:
        self.name = name
        self.description = listed.description
        self.inputs = listed.inputs
        self.output_type = "object" if listed.output_schema else "any"
        self.output_schema = listed.output_schema
        self.listed = listed
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True


def listed_tools(tools: Iterable[Tool]) -> tuple[list[ListedTool], list[str]]:
    """Return the tools in the order of their names, and the names of those whose schemas are too large."""
    found: list[ListedTool] = []
    left_out: list[str] = []
    taken: set[str] = set()
    for tool in sorted(tools, key=lambda each: each.name):
        try:
            about = tool.description or tool.title or ""
            listed = adapted(tool.name, about, tool.input_schema, tool.output_schema, taken)
        except (SchemaError, RecursionError):
            left_out.append(utf8_text(tool.name[:MAX_NAME_CHARS]))
        else:
            taken.add(listed.name)
            hints = tool.annotations
            is_unsafe = bool(hints and hints.destructive_hint and not hints.idempotent_hint)
            found.append(replace(listed, is_unsafe_to_repeat=is_unsafe))
    return found, left_out


def tools_digest(tools: Iterable[Tool]) -> str:
    """Hash a list of tools. The order does not matter."""
    parts = [
        [tool.name, tool.description, tool.input_schema, tool.output_schema]
        for tool in sorted(tools, key=lambda each: each.name)
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def python_name(name: str, taken: Collection[str], most_chars: int = MAX_NAME_CHARS) -> str:
    """Return a Python name that is like this one, and not taken."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain in _RESERVED:
        plain = f"_{plain}" if plain[0].isdigit() else f"{plain}_"
    if len(plain) > most_chars:
        plain = f"{plain[: most_chars - 9]}_{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"
    number, unique = 1, plain
    while unique in taken:
        number += 1
        unique = f"{plain[: most_chars - 4]}_{number}"
    return unique


def adapted(name: str, description: str, input_schema: Any, output_schema: Any, taken: Collection[str]) -> ListedTool:
    """Return a tool of these JSON Schemas in the form that smolagents needs. Raises `SchemaError`."""
    schema = resolved(input_schema)
    if not isinstance(schema, dict):
        raise SchemaError("is no object")
    own_name = python_name(name, taken)
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise SchemaError("properties is no object")
    required = {name for name in schema.get("required") or () if isinstance(name, str)}
    inputs: dict[str, dict[str, Any]] = {}
    remote_inputs: dict[str, str] = {}
    refuses_null = set()
    for remote_name, value in properties.items():
        parameter, is_required = python_name(remote_name, inputs), remote_name in required
        found = dict(value) if isinstance(value, dict) else {}
        types = _types_of(found)
        named = [kind for kind in types if kind != "null"] or [*ANYTHING]
        for branch in _BRANCHES:
            branches = found.pop(branch, None)
            if not isinstance(branches, list):
                continue
            others = [each for each in branches if not (isinstance(each, dict) and each.get("type") == "null")]
            if len(others) == 1 and isinstance(others[0], dict):  # most often: a value or null
                found = {**others[0], **{key: part for key, part in found.items() if key != "type"}}
            else:  # smolagents would keep the types alone
                found["allOf"] = [*found.get("allOf", ()), {branch: branches}]
        found["description"] = _bounded(str(found.get("description") or found.get("title") or ""))
        if is_required and "null" in types:
            named.append("null")
        found["type"] = named[0] if len(named) == 1 else named
        found.pop("nullable", None)
        if not is_required:
            found["nullable"] = True
            if "null" not in types:
                refuses_null.add(parameter)
        inputs[parameter], remote_inputs[parameter] = found, remote_name
    output = resolved(output_schema) if output_schema else None
    if len(json.dumps([inputs, output])) > MAX_BYTES:
        raise SchemaError("is larger than 64 KiB")
    return ListedTool(own_name, name, _bounded(description), inputs, output, remote_inputs, frozenset(refuses_null))


def resolved(schema: Any) -> Any:
    """Return a copy of a schema with those that it refers to in their places. Raises `SchemaError`."""
    return _Resolver(schema).resolve(schema)


def _types_of(schema: dict[str, Any]) -> list[str]:
    """Return the JSON types that a schema may accept, in a fixed order."""
    types: set[str] = set()
    kind = schema.get("type")
    types.update(each for each in (kind if isinstance(kind, list) else [kind]) if each in _TYPES)
    if not types:
        for name in _BRANCHES:
            for branch in schema.get(name) or ():
                types.update(_types_of(branch) if isinstance(branch, dict) else ANYTHING)
    if not types:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        kinds = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
        types.update(kinds.get(type(value), "object") for value in values)
    if schema.get("nullable") is True:
        types.add("null")
    if not types:
        types.update(ANYTHING)
    if "number" in types and len(types) > 1:
        types.add("integer")  # smolagents compares the names of types
    return [each for each in (*ANYTHING, "null") if each in types]


def _bounded(text: str) -> str:
    text = _CONTROLS.sub(" ", utf8_text(text))
    return text if len(text) <= MAX_DESCRIPTION_CHARS else f"{text[:MAX_DESCRIPTION_CHARS]}…"


class _Resolver:
    """Copies a schema and puts the schemas that it refers to in their places."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._nodes = 0

    def resolve(self, schema: Any, opened: tuple[str, ...] = (), depth: int = 0) -> Any:
        """Raise `SchemaError` if the copy would be too large. A reference within itself becomes a plain object."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise SchemaError("is too large")
        if isinstance(schema, list):
            return [self.resolve(each, opened, depth + 1) for each in schema]
        if not isinstance(schema, dict):
            return schema if not isinstance(schema, str) else utf8_text(schema)
        found = {}
        for key, value in schema.items():
            name = utf8_text(key)
            if key in _DATA:
                found[name] = value
            elif key in _MAPS and isinstance(value, dict):  # its keys are names of parameters
                inner = {utf8_text(each): self.resolve(part, opened, depth + 2) for each, part in value.items()}
                found[name] = inner
            elif key not in _REFERENCES:
                found[name] = self.resolve(value, opened, depth + 1)
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return found
        if reference in opened:
            return {"type": "object", **found}
        target: Any = self._document if reference.startswith("#") else {}  # others would need the net
        for part in reference.removeprefix("#").split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, dict) else None
        target = target if isinstance(target, dict) else {}
        return {**self.resolve(target, (*opened, reference), depth + 1), **found}
