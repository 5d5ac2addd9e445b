"""The page below a prefix, and the pictures of its states."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser_tests.accessibility import CONTRAST, breaches
from browser_tests.conftest import SETTINGS
from browser_tests.gallery import DOCS, SHOWN, WIDTHS, resize, service, state
from browser_tests.reader import answer, say, try_liveness
from browser_tests.states import INSPECTED, STATES
from browser_tests.talker import AGENTS
from tests.support.proxy import proxy
from tests.support.service import Service
from tests.support.tiers import mostly_deep

PREFIX = "/team/agents"


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """Yield a service below a prefix, and its address without a proxy."""
    folder = tmp_path_factory.mktemp("prefixed")
    with Service(folder, SETTINGS | {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "ROOT_PATH": PREFIX}) as service:
        yield service, service.url


@pytest.mark.parametrize("strips", mostly_deep([True, False], fast=[False]))
def test_all_works_below_a_prefix(opened: Callable[..., Page], prefixed: tuple[Service, str], *, strips: bool) -> None:
    service, address_inside = prefixed
    with proxy(address_inside, PREFIX, strips=strips) as address:
        service.client.base_url = address
        page = opened(service)
        say(page, [{"call": [["picture", {"width": 40}]]}, {"say": ["image.png"]}], title="Draw")
        drawn = page.locator(".answer-pictures img")
        expect(drawn).to_be_visible()
        page.reload()
        expect(drawn).to_be_visible()
        expect(answer(page)).to_contain_text("image 40x120")
        call = try_liveness(opened(service, "/docs"))
        expect(call.locator(".request-url")).to_contain_text(f"{PREFIX}/livez")


FAST = ["answer", "plan", "running", "edited", "list", "compose", "inspector-memory"]
OVERFLOWING = """() => [document.documentElement, document.body, ...document.querySelectorAll(
  "#scroll, #side, #inspector, .inspector-panel, .foot, dialog[open]")].filter(
  (part) => part.checkVisibility() && part.scrollWidth > Math.max(part.clientWidth, 1)).map(({ id }) => id)"""


def test_the_gallery_shows_its_pictures() -> None:
    shown = set(re.findall(r"images/(gallery/\S+?)\)", (DOCS.parent / "gallery.md").read_text()))
    assert shown == {f"gallery/{path.name}" for path in (DOCS / "gallery").iterdir()}
    assert shown == {f"gallery/{name}-{look}.png" for name, looks in SHOWN.items() for look in looks}
    assert SHOWN.keys() <= STATES.keys()


@pytest.fixture(scope="module")
def shop(profile: BrowserContext) -> Iterator[Service]:
    assert profile
    with service() as running:
        yield running


@pytest.mark.parametrize("name", mostly_deep(STATES, fast=FAST))
def test_a_state_is_complete_and_readable(profile: BrowserContext, shop: Service, name: str) -> None:
    with service() if name == "empty" else nullcontext(shop) as running, state(profile, running, name) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        assert breaches(page) == []
        resize(page, name, WIDTHS["small"], "dark")
        assert breaches(page, CONTRAST) == []
        assert page.evaluate(OVERFLOWING) == []
        assert not errors
        if name.startswith("inspector"):
            expect(page.get_by_role("tab")).to_have_text([*INSPECTED])
