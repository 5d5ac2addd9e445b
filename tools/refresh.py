"""Writes the files that are generated from the code.

They are `openapi.yaml`, parts of the docs' reference (tools/reference.py), and the schema of agents.toml.
"""

from __future__ import annotations

from pathlib import Path

from smolsessions.agents.config import schema
from smolsessions.web.app import schema_yaml
from tools import reference


def main() -> None:
    root = Path(__file__).parent.parent
    (root / "openapi.yaml").write_text(schema_yaml(), "utf-8")
    folder = root / "app" / "smolsessions" / "agents" / "config"
    (folder / schema.FILE).write_text(schema.schema_text(), "utf-8")
    for page, name, text in reference.parts():
        page.write_text(reference.fill(page, name, text), "utf-8")


if __name__ == "__main__":
    main()
