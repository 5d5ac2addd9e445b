"""JSON Schema of agents.toml, which the package ships for editors, and its reference as Markdown."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from smolsessions.agents.config.schema import AgentsFile, AgentTable, McpTable, ModelOptions, ModelTable, WorkspaceTable

FILE = "agents.schema.json"
_TABLES: dict[str, type[BaseModel]] = {
    "[models.NAME]": ModelTable,
    "options of a model": ModelOptions,
    "[agents.NAME]": AgentTable,
    "workspace of an agent": WorkspaceTable,
    "[mcp.NAME]": McpTable,
}


def schema_text() -> str:
    """Return the schema as text."""
    schema = AgentsFile.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agents.toml of smolsessions"}
    return json.dumps(head, indent=1, ensure_ascii=False) + "\n"


def keys_reference() -> str:
    """Return a Markdown table of the keys of each table."""
    parts = []
    for title, table in _TABLES.items():
        rows = [
            f"| `{name}` | {_default(field.get_default(call_default_factory=True))} | {field.description or ''} |"
            for name, field in table.model_fields.items()
        ]
        parts.append("\n".join([f"### {title}", "| key | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _default(value: Any) -> str:
    if value is None or value in ((), {}) or isinstance(value, BaseModel) or not isinstance(value, str | int | float):
        return ""
    return f"`{json.dumps(value)}`"
