"""Fixtures: a service with agents that talk, a browser, and pages whose errors are recorded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from browser_tests import talker
from browser_tests.browser import ARGUMENTS
from tests.support import approvals
from tests.support.debian import path_or_skip
from tests.support.service import Service
from tests.support.service_logs import pytest_runtest_makereport, pytest_runtest_setup

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup"]

WAIT_MS = 30_000  # patience with a loaded machine
WAITING = {"mailer", "code-reader", "office", "poster"}  # agents of the shared service whose turns wait for a person


@pytest.fixture(scope="session")
def chromium() -> str:
    return path_or_skip("chromium")


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        expect.set_options(timeout=WAIT_MS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def service(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a running service. Each test uses conversations of its own."""
    assert chromium
    folder = tmp_path_factory.mktemp("service")
    agents = ",".join([talker.AGENTS, *(each for each in approvals.AGENTS.split(",") if each.split("=")[0] in WAITING)])
    with Service(folder, {"AGENTS": agents}, {approvals.OUTBOX: str(folder / "outbox")}) as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return a file that a model waits for."""
    return tmp_path / "go"


@pytest.fixture
def sins() -> list[str]:
    """Return the errors of pages: of scripts and console, and requests to other hosts. Tests remove their own."""
    return []


@pytest.fixture
def opened(browser: Browser, sins: list[str]) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens a page in a new browser profile. At the end no page may have errors."""
    contexts: list[BrowserContext] = []

    def open_page(service: Service, path: str = "/", **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        context.on("page", lambda page: _watch(page, str(service.client.base_url), sins))
        page = context.new_page()
        page.goto(str(service.client.base_url).rstrip("/") + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not sins


@pytest.fixture(scope="module")
def opened_once(browser: Browser, service: Service) -> Iterator[Page]:
    """Yield a page for tests that only call its modules."""
    page = browser.new_page()
    page.goto(str(service.client.base_url))
    yield page
    page.close()


def _watch(page: Page, own: str, sins: list[str]) -> None:
    def requested(request: Request) -> None:
        place = urlsplit(request.url)
        if place.scheme not in {"blob", "data"} and place.netloc != urlsplit(own).netloc:
            sins.append(f"request to {request.url}")

    def said(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            sins.append(f"console: {message.text}")

    def opened(dialog: Dialog) -> None:
        sins.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", requested)
    page.on("console", said)
    page.on("pageerror", lambda error: sins.append(f"error: {error}"))
    page.on("dialog", opened)
