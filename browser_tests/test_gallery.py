"""Every state of the gallery: it can be made, fits a small phone, is readable in both themes and accessible."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, expect

from browser_tests.accessibility import CONTRAST, breaches
from browser_tests.gallery import DOCS, WIDTHS, resize, service, state
from browser_tests.states import INSPECTED, STATES
from tests.support.service import Service
from tests.support.tiers import mostly_deep

FAST = ["answer", "plan", "running", "edited", "list", "compose", "inspector-memory"]
OVERFLOWING = """() => [document.documentElement, document.body, ...document.querySelectorAll(
  "#scroll, #side, #inspector, .inspector-panel, .foot, dialog[open]")].filter(
  (part) => part.checkVisibility() && part.scrollWidth > Math.max(part.clientWidth, 1)).map(({ id }) => id)"""


def test_the_docs_show_each_state() -> None:
    shown = set(re.findall(r"images/(gallery/\S+?)\)", (DOCS.parent / "gallery.md").read_text()))
    assert shown == {f"gallery/{path.name}" for path in (DOCS / "gallery").iterdir()}
    assert shown >= {f"gallery/{name}-laptop-light.png" for name in STATES}


@pytest.fixture(scope="module")
def shop(profile: BrowserContext) -> Iterator[Service]:
    assert profile
    with service() as running:
        yield running


@pytest.mark.parametrize("name", mostly_deep(STATES, fast=FAST))
def test_a_state_is_complete_and_readable(profile: BrowserContext, shop: Service, name: str) -> None:
    with state(profile, shop, name) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        assert breaches(page) == []
        resize(page, name, WIDTHS["small"], "dark")
        assert breaches(page, CONTRAST) == []
        assert page.evaluate(OVERFLOWING) == []
        assert not errors
        if name.startswith("inspector"):
            expect(page.get_by_role("tab")).to_have_text([*INSPECTED])
