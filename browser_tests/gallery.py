"""Gallery of the page: each state at four widths in both themes. `make screenshots` writes it.

python -m browser_tests.gallery [--docs] [--only STATE,…] [FOLDER]

--docs also writes the pictures of docs/gallery.md and of the README.
"""

import argparse
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import PIL.Image
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from browser_tests.browser import ARGUMENTS
from browser_tests.shop import AGENTS
from browser_tests.states import STATES, Desk
from tests.support.debian import find
from tests.support.service import Service

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "screenshots"
DOCS = ROOT / "docs" / "images"
HEIGHT_PX = 900
NARROW_PX = 760
WIDTHS = {"small": 320, "phone": 360, "laptop": 1280, "wide": 1920}
THEMES = ("light", "dark")
SHOWN = {  # by docs/gallery.md
    "answer": ["laptop-light", "phone-light"],
    "plan": ["laptop-light"],
    "code": ["laptop-light"],
    "files": ["laptop-light"],
    "running": ["laptop-light"],
    "approval": ["laptop-light"],
    "question": ["laptop-light"],
    "inspector-prompt": ["laptop-light"],
    "inspector-memory": ["laptop-light"],
}
FRONT = "plan"  # the picture of the README


@contextmanager
def service() -> Iterator[Service]:
    """Yield a service with the agents of the shop and no conversation."""
    with tempfile.TemporaryDirectory() as data:
        settings = {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "LEASE_S": "10", "DRAIN_S": "1"}
        with Service(Path(data), settings) as running:
            yield running


@contextmanager
def state(context: BrowserContext, running: Service, name: str) -> Iterator[Page]:
    desk = Desk(running, context.new_page())
    try:
        if name != "empty":
            desk.furnish()
        STATES[name](desk)
        yield desk.page
    finally:
        desk.page.close()
        desk.end()


def resize(page: Page, name: str, width: int, theme: str) -> None:
    """Show a state at another width. On a narrow page the list is a drawer, which its states open."""
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": HEIGHT_PX})
    page.mouse.move(0, 0)
    menu = page.get_by_role("button", name="Conversations", exact=True)
    if name in {"list", "undo"} and width < NARROW_PX and menu.get_attribute("aria-expanded") == "false":
        menu.click()
    if page.locator(".request").count():
        page.locator(".request").first.evaluate("(card) => card.scrollIntoView()")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--only", default=",".join(STATES))
    given = parser.parse_args()
    for folder in (given.folder, *([DOCS / "gallery"] if given.docs else ())):
        folder.mkdir(parents=True, exist_ok=True)
    with service() as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find("chromium")[0], args=ARGUMENTS)
        expect.set_options(timeout=30_000)
        context = browser.new_context(viewport={"width": WIDTHS["laptop"], "height": HEIGHT_PX})
        for name in given.only.split(","):
            with state(context, running, name) as page:
                for size, theme in product(WIDTHS, THEMES):
                    resize(page, name, WIDTHS[size], theme)
                    png = page.screenshot(animations="disabled", caret="hide")
                    (given.folder / f"{name}-{size}-{theme}.png").write_bytes(png)
                    if given.docs and f"{size}-{theme}" in SHOWN.get(name, ()):
                        image = PIL.Image.open(io.BytesIO(png)).convert("RGB")
                        image = image.quantize(method=PIL.Image.Quantize.FASTOCTREE)
                        image.save(DOCS / "gallery" / f"{name}-{size}-{theme}.png", optimize=True)
                        if (name, size, theme) == (FRONT, "laptop", "light"):
                            image.save(DOCS / "page.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
