"""JSON Schema of agents.toml, which the package ships for editors, and its reference as Markdown."""

from __future__ import annotations

import json

from pydantic import BaseModel

from smolsessions.agent_options import WorkspaceOptions
from smolsessions.agents.config.schema import AgentsFile, AgentTable, McpTable, ModelOptions, ModelTable

FILE = "agents.schema.json"
_TABLES: dict[str, type[BaseModel]] = {
    "[models.NAME]": ModelTable,
    "options of a model": ModelOptions,
    "[agents.NAME]": AgentTable,
    "workspace of an agent": WorkspaceOptions,
    "[mcp.NAME]": McpTable,
}


def schema_text() -> str:
    schema = AgentsFile.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agents.toml of smolsessions"}
    return json.dumps(head, indent=1, ensure_ascii=False) + "\n"


def keys_reference() -> str:
    """Return a Markdown table of the keys of each table."""
    parts = []
    for title, table in _TABLES.items():
        rows = []
        for name in sorted(table.model_fields, key=lambda key: key not in table.__annotations__):  # inherited ones last
            field = table.model_fields[name]
            default = field.get_default(call_default_factory=True)
            shown = f"`{json.dumps(default)}`" if isinstance(default, str | int | float) else ""
            rows.append(f"| `{name}` | {shown} | {field.description or ''} |")
        parts.append("\n".join([f"### {title}", "| key | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)
