"""Reference pages: their generated parts are as the code is, and their tables name all that the code has."""

from __future__ import annotations

import re

from smolsessions.options import OptionValues
from tools import reference


def test_the_generated_parts_of_pages_are_current() -> None:
    for page, name, text in reference.parts():
        assert page.read_text("utf-8") == reference.fill(page, name, text), "run `make refresh`"


def test_the_table_of_options_names_all() -> None:
    _, _, options = (reference.DOCS / "factories.md").read_text("utf-8").partition("\n## Options\n")
    assert set(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == set(OptionValues.__annotations__)
