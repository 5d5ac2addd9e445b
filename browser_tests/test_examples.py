"""The example page, served from another origin than the service."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.support.service import PLAIN, ROOT, Service


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


def test_the_page_of_events_follows_a_turn(browser: Browser, tmp_path: Path) -> None:
    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(ROOT / "examples")))
    threading.Thread(target=files.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{files.server_address[1]}"
    with Service(tmp_path, PLAIN | {"CORS_ORIGINS": origin}) as service, browser.new_page() as page:
        page.goto(f"{origin}/events.html?service={str(service.client.base_url).rstrip('/')}")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("pre")).to_contain_text("calls calculator")
        expect(page.locator("pre")).to_contain_text("turn.finished: 12 * 7 = 84.")
    files.shutdown()
    files.server_close()
