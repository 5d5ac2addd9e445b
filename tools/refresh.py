"""Writes the files that are generated from the code: `openapi.yaml`, the settings table in README.md, the errors."""

from __future__ import annotations

from pathlib import Path

from smolsessions.settings import settings_table
from smolsessions.web.app import schema_yaml
from smolsessions.web.error_codes import errors_reference

START, END = "<!-- settings -->\n", "<!-- /settings -->"


def main() -> None:
    root = Path(__file__).parent.parent
    (root / "openapi.yaml").write_text(schema_yaml(), "utf-8")
    (root / "docs" / "reference" / "errors.md").write_text(errors_reference(), "utf-8")
    readme = root / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{START}{settings_table()}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
