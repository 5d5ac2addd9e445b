"""The example page with CopilotKit: the agent paints the page by a tool of the page."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.debian import skip
from tests.support.http_server import served
from tests.support.service import ROOT, Service, wait_until

AGENTS = "plain=tests.support.approvals:make_plain,streamed=tests.support.streaming:make_streamed"
EXAMPLE = ROOT / "examples" / "copilotkit"


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_agent_paints_the_page(browser: Browser, tmp_path: Path) -> None:
    if not (npm := shutil.which("npm")):
        skip("this machine has no npm")
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "site"))
    subprocess.run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    subprocess.run([npm, "run", "build"], cwd=folder, check=True)
    settings = {"AGENTS": AGENTS, "DEMO_AGENTS": "0"}
    with (
        served(folder / "site") as origin,
        Service(tmp_path / "service", settings | {"CORS_ORIGINS": origin}) as service,
        browser.new_page() as page,
    ):
        page.goto(origin)
        ask(page, service, "plain", {"call": [["paint", {"colour": "teal"}]]}, {"say": "It is done."})
        expect(page.get_by_text("It is done.", exact=True)).to_be_visible()
        expect(page.locator("main")).to_have_css("background-color", "rgb(0, 128, 128)")
        ask(page, service, "streamed", {"endless": "on and on ", "pace_s": 0.02})
        expect(page.get_by_text("on and on on and")).to_be_visible()
        page.get_by_test_id("copilot-send-button").click()  # stops now
        wait_until(lambda: service.get("/conversations")["items"][0]["running_turn"] is None)


def ask(page: Page, service: Service, agent: str, *script: object) -> None:
    page.goto(f"{page.url.partition('?')[0]}?service={service.url}&agent={agent}")
    page.get_by_role("textbox").fill(json.dumps(script))
    page.keyboard.press("Enter")
