"""Gallery of the page: each state at three widths in both themes. `make screenshots` writes it.

python -m browser_tests.gallery [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from browser_tests.browser import ARGUMENTS, find
from browser_tests.reader import choose, say
from browser_tests.talker import AGENTS
from browser_tests.test_page_markdown import REPORT
from tests.support.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

FOLDER = Path(__file__).parent.parent / "docs" / "gallery"
WIDTHS = {"phone": 360, "laptop": 1280, "wide": 1920}
NEVER = {"wait": "/nonexistent"}


def begin(_page: Page) -> None:
    """Show the choice of agents."""


def answer(page: Page) -> None:
    say(page, [{"think": ["I look."], "call": [["echo", {"text": "a"}]]}, {"say": [REPORT]}], "A report")
    page.locator(".turn[data-status=finished]").wait_for()


def failed(page: Page) -> None:
    say(page, [{"call": [["fail", {"reason": "no luck"}]]}, {"raise": "out of order"}], "A failure")
    page.locator(".turn[data-status=failed]").wait_for()


def running(page: Page) -> None:
    say(page, [{"say": ["It **begins** ", NEVER]}], "A running turn")
    page.locator(".answer strong").wait_for()
    say(page, [{"say": ["Next."]}], "A queued turn")
    page.locator(".turn[data-status=queued]").wait_for()
    page.get_by_role("button", name="Options").click()


def stopped(page: Page) -> None:
    running(page)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator(".turn[data-status=cancelled]").wait_for()


def code(page: Page) -> None:
    choose(page, "coder")
    block = "Thought: I count.\n<code>\ntotal = [1, 2, 3]\nprint(echo(text='hi'))\n</code>"
    say(page, [{"write": [block]}, {"write": ["<code>\nfinal_answer('Done: **3**')\n</code>"]}], "Some code")
    page.locator(".turn[data-status=finished]").wait_for()
    page.locator(".step summary").first.click()


def keys(page: Page) -> None:
    page.get_by_role("button", name="Keys").evaluate("(button) => button.click()")


def agent(page: Page) -> None:
    page.get_by_role("button", name="Details of coder").click()
    page.locator(".tool").first.wait_for()


STATES: list[Callable[[Page], None]] = [begin, answer, failed, running, stopped, code, keys, agent]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        Service(Path(data), {"AGENTS": AGENTS}) as service,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=find()[0], args=ARGUMENTS)
        for state in STATES:
            for size, width in WIDTHS.items():
                for scheme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                    page.goto(str(service.client.base_url))
                    page.locator("input[name=agent]").first.wait_for()
                    state(page)
                    page.screenshot(path=folder / f"{state.__name__}-{size}-{scheme}.png", animations="disabled")
                    page.close()
        browser.close()


if __name__ == "__main__":
    main()
