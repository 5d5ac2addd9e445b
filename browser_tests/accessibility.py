"""Rules of accessibility, checked by axe-core from npm (tools/node)."""

from functools import cache

import pytest
from playwright.sync_api import Page

from tools.node_programs import NoNodeError, programs

RUN = """() => axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(" | ")}`))"""


def breaches(page: Page) -> list[str]:
    """Return each rule that the page breaks, with the elements that break it."""
    page.evaluate(_axe())
    found: list[str] = page.evaluate(RUN)
    return found


@cache
def _axe() -> str:
    try:
        return (programs().parent / "axe-core" / "axe.min.js").read_text()
    except NoNodeError as error:
        pytest.skip(f"axe-core is not installed: {error}")
