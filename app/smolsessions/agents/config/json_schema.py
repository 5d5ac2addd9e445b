"""JSON Schema of agents.toml, which the package ships for editors."""

from __future__ import annotations

import json

from smolsessions.agents.config.schema import AgentsFile

FILE = "agents.schema.json"


def schema_text() -> str:
    schema = AgentsFile.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agents.toml of smolsessions"}
    return json.dumps(head, indent=1, ensure_ascii=False) + "\n"
