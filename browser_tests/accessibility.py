"""Rules of accessibility, checked by axe-core from npm (tools/node)."""

from functools import cache

from playwright.sync_api import Page

from tests.support.debian import npm_packages

CONTRAST = ["color-contrast"]
RUN = """(rules) => axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) }).then(
  ({ violations }) => violations.map(({ id, nodes }) =>
    `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(" | ")}`))"""


def breaches(page: Page, rules: list[str] | None = None) -> list[str]:
    """Return each rule that the page breaks, with the elements that break it. Without `rules` it checks all of them."""
    page.evaluate(_axe())
    found: list[str] = page.evaluate(RUN, rules)
    return found


@cache
def _axe() -> str:
    return (npm_packages() / "axe-core" / "axe.min.js").read_text()
