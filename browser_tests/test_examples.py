"""The example pages, served from another origin than the service. The agent of CopilotKit paints its page."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.debian import skip
from tests.support.http_server import served
from tests.support.service import PLAIN, ROOT, Service, wait_until
from tests.topology.node import free_port


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with served(ROOT / "examples") as origin:
        yield origin


def test_the_page_of_events_follows_a_turn(browser: Browser, tmp_path: Path, origin: str) -> None:
    with Service(tmp_path, PLAIN | {"CORS_ORIGINS": origin}) as service, browser.new_page() as page:
        page.goto(f"{origin}/events.html?service={service.url}")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("pre")).to_contain_text("calls calculator")
        expect(page.locator("pre")).to_contain_text("turn.finished: 12 * 7 = 84.")


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_page_runs_a_tool_after_a_kill(browser: Browser, tmp_path: Path, origin: str, is_killed: bool) -> None:
    settings = {"AGENTS": "coder=tests.support.coders:make_coder", "DEMO_AGENTS": "0", "CORS_ORIGINS": origin}
    settings["PORT"] = str(free_port())
    block = {"code": "for n in range(5):\n    print(n, read_address(part='pathname'))"}
    with Service(tmp_path, settings) as service, browser.new_page() as page:
        address = service.url

        kills: list[str] = []

        def kill(route: Route) -> None:
            if route.request.method == "POST":
                service.kill()
                kills.append(route.request.url)
                service.start()
            route.continue_()

        if is_killed:
            page.route("**/answers", kill)
        page.goto(f"{origin}/browser_tool/?service={address}&agent=coder")
        page.get_by_role("textbox").fill(json.dumps([block, {"shown": True}]))
        page.get_by_role("button", name="Send").click()
        expect(page.locator("pre")).to_contain_text("turn.finished")
        said = str(page.locator("pre").text_content())
        assert said.count("runs read_address") == 5
        assert "".join(f"{n} /browser_tool/\\n" for n in range(5)) in said
        (conversation,) = service.get("/conversations")["items"]
        turn = service.get(f"/conversations/{conversation['id']}/turns/1")
        assert [(call["where"], call["repeated"]) for call in turn["tool_calls"]] == [("client", False)] * 5
        assert len(kills) == 5 * is_killed


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
