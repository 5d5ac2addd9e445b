"""Reference pages: their generated parts are as the code is."""

from __future__ import annotations

from tools import reference


def test_the_generated_parts_of_pages_are_current() -> None:
    for page, name, text in reference.parts():
        assert page.read_text("utf-8") == reference.fill(page, name, text), "run `make refresh`"
