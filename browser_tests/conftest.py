"""Fixtures: a service with agents that talk, a browser, and pages whose errors are recorded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from browser_tests import talker
from browser_tests.browser import ARGUMENTS, PROFILE
from tests.support import approvals
from tests.support.debian import path_or_skip
from tests.support.service import PATIENCE_S, Service
from tests.support.service_logs import pytest_runtest_makereport, pytest_runtest_setup

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup"]

WAIT_MS = 1000 * PATIENCE_S
SETTINGS = {"LEASE_S": "10", "DRAIN_S": "1"}  # a loaded machine loses shorter leases
WAITING = {"mailer", "code-reader", "office", "poster"}  # agents of the shared service whose turns wait for a person


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = path_or_skip("chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        expect.set_options(timeout=WAIT_MS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def profile(browser: Browser) -> Iterator[BrowserContext]:
    """Yield a browser profile for all tests. It keeps the scripts of the page."""
    with browser.new_context(**PROFILE) as context:
        context.set_default_timeout(WAIT_MS)
        yield context


@pytest.fixture(scope="session")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    assert browser
    folder = tmp_path_factory.mktemp("service")
    agents = ",".join([talker.AGENTS, *(each for each in approvals.AGENTS.split(",") if each.split("=")[0] in WAITING)])
    settings = SETTINGS | {"AGENTS": agents}
    with Service(folder, settings, {approvals.OUTBOX: str(folder / "outbox")}) as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Yield a file that a model waits for."""
    path = tmp_path / "go"
    yield path
    path.touch()


@pytest.fixture
def sins() -> list[str]:
    """Return the errors of pages: of scripts and console, and requests to other hosts. Tests remove their own."""
    return []


@pytest.fixture(scope="session")
def tab(profile: BrowserContext) -> Page:
    """Return the tab that tests use one after another: a new one takes a second to start."""
    return profile.new_page()


@pytest.fixture
def opened(browser: Browser, tab: Page, sins: list[str]) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens a page, in a new browser profile if it has options. At the end no page has errors."""
    contexts: list[BrowserContext] = []
    pages: list[Page] = []
    watch = _Watch(sins, pages)

    def open_page(service: Service, path: str = "/", *, is_alone: bool = False, **options: object) -> Page:
        watch.own = service.url
        if is_alone or options:
            context = browser.new_context(**{**PROFILE, **options})
            contexts.append(context)
            context.set_default_timeout(WAIT_MS)
            context.on("page", watch.add)
            page = context.new_page()
        elif tab in pages:
            page = tab.context.new_page()
        else:
            if not tab.url.startswith(watch.own):
                tab.goto("about:blank")  # the page of another test's service may still send requests
            watch.add(page := tab)
        is_there = page.url.partition("#")[0] == f"{watch.own}{path}".partition("#")[0]
        page.goto(watch.own + path)
        if is_there:
            page.reload()  # the address differed in its fragment alone
        return page

    tab.context.on("page", watch.add)
    yield open_page
    tab.context.remove_listener("page", watch.add)
    watch.remove(tab)
    tab.unroute_all()
    for page in pages:
        if page is not tab:
            page.close()
    for context in contexts:
        context.close()
    assert not sins


@pytest.fixture
def page(opened: Callable[..., Page], service: Service) -> Page:
    return opened(service)


@pytest.fixture(scope="module")
def opened_once(profile: BrowserContext, service: Service) -> Iterator[Page]:
    """Yield a page for tests that only call its modules."""
    page = profile.new_page()
    page.goto(service.url)
    yield page
    page.close()


class _Watch:
    def __init__(self, sins: list[str], pages: list[Page]) -> None:
        self.own = ""
        self._sins = sins
        self._pages = pages
        self._heard: dict[str, Callable[[Any], None]] = {
            "request": self._requested,
            "console": self._said,
            "pageerror": lambda error: sins.append(f"error: {error}"),
            "dialog": self._opened,
        }

    def add(self, page: Page) -> None:
        self._pages.append(page)
        for event, listener in self._heard.items():
            page.on(event, listener)  # type: ignore[call-overload]

    def remove(self, page: Page) -> None:
        if page in self._pages:
            for event, listener in self._heard.items():
                page.remove_listener(event, listener)

    def _requested(self, request: Request) -> None:
        place = urlsplit(request.url)
        if place.scheme not in {"blob", "data"} and place.netloc != urlsplit(self.own).netloc:
            self._sins.append(f"request to {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._sins.append(f"console: {message.text}")

    def _opened(self, dialog: Dialog) -> None:
        self._sins.append(f"dialog: {dialog.message}")
        dialog.dismiss()
