"""Writes the files that are generated from the code.

They are `openapi.yaml`, the settings table in README.md, the errors, and schema and reference of agents.toml.
"""

from __future__ import annotations

from pathlib import Path

from smolsessions.agents.config import json_schema
from smolsessions.settings import settings_table
from smolsessions.web.app import schema_yaml
from smolsessions.web.error_codes import errors_reference


def main() -> None:
    root = Path(__file__).parent.parent
    (root / "openapi.yaml").write_text(schema_yaml(), "utf-8")
    (root / "docs" / "reference" / "errors.md").write_text(errors_reference(), "utf-8")
    folder = root / "app" / "smolsessions" / "agents" / "config"
    (folder / json_schema.FILE).write_text(json_schema.schema_text(), "utf-8")
    _fill(root / "docs" / "agents.md", "keys", json_schema.keys_reference())
    _fill(root / "README.md", "settings", settings_table())


def _fill(page: Path, name: str, text: str) -> None:
    """Replace the part of a page between two marks."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = page.read_text("utf-8").partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}{text}\n{end}{after}", "utf-8")


if __name__ == "__main__":
    main()
