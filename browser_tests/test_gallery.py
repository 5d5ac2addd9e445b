"""Every state of the gallery: it can be made, fits a small phone, is readable in both themes and accessible."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from browser_tests.accessibility import breaches
from browser_tests.gallery import DOCS, WIDTHS, context_of, resize, service, state
from browser_tests.reader import weak_texts
from browser_tests.states import INSPECTED, STATES
from tests.support.service import Service

OVERFLOWING = """() => [document.documentElement, document.body, ...document.querySelectorAll(
  "#scroll, #side, #inspector, .inspector-panel, .foot, dialog[open]")].filter(
  (part) => part.checkVisibility() && part.scrollWidth > Math.max(part.clientWidth, 1)).map(({ id }) => id)"""


def test_the_docs_show_each_state() -> None:
    shown = set(re.findall(r"images/(gallery/\S+?)\)", (DOCS.parent / "gallery.md").read_text()))
    assert shown == {f"gallery/{path.name}" for path in (DOCS / "gallery").iterdir()}
    assert shown >= {f"gallery/{name}-laptop-light.png" for name in STATES}


@pytest.fixture(scope="module")
def shop(chromium: str) -> Iterator[Service]:
    assert chromium
    with service() as running:
        yield running


@pytest.fixture(scope="module")
def profile(browser: Browser) -> Iterator[BrowserContext]:
    with context_of(browser) as context:
        yield context


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_complete_and_readable(profile: BrowserContext, shop: Service, name: str) -> None:
    with state(profile, shop, name) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        assert weak_texts(page) == []
        assert breaches(page) == []
        resize(page, name, WIDTHS["small"], "dark")
        assert weak_texts(page) == []
        assert page.evaluate(OVERFLOWING) == []
        assert not errors
        if name.startswith("inspector"):
            expect(page.get_by_role("tab")).to_have_text([*INSPECTED])
