"""The example chat with `useChat`: its component in a bundle of esbuild, and in the deep tier built by Next.js."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import Browser, Page, expect

from tests.support.answering import mail, sent
from tests.support.approvals import OUTBOX
from tests.support.debian import npm_packages, skip
from tests.support.http_server import served
from tests.support.service import ROOT, Service
from tests.support.tiers import mostly_deep
from tests.support.turns import SHOWN
from tests.topology.node import free_port

EXAMPLE = ROOT / "examples" / "nextjs-chat"
MAIN = """
import {createElement} from "react";
import {createRoot} from "react-dom/client";
import Chat from "./app/chat.jsx";
createRoot(document.querySelector("div")).render(createElement(Chat));
"""
INDEX = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="main.css">
<div></div><script src="main.js"></script>"""
AGENTS = "mailer=tests.support.approvals:make_mailer,streamed=tests.support.streaming:make_streamed"


@contextmanager
def bundled(folder: Path) -> Iterator[str]:
    packages = npm_packages()
    shutil.copytree(EXAMPLE / "app", folder / "app")
    (folder / "main.js").write_text(MAIN)
    options = "--bundle --jsx=automatic --outdir=site --log-level=warning".split()
    command = [str(packages / ".bin" / "esbuild"), "main.js", *options]
    subprocess.run(command, cwd=folder, env=os.environ | {"NODE_PATH": str(packages)}, check=True)
    (folder / "site" / "index.html").write_text(INDEX)
    with served(folder / "site") as origin:
        yield origin


@contextmanager
def built_by_next(folder: Path) -> Iterator[str]:
    if not (npm := shutil.which("npm")):
        skip("this machine has no npm")
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", ".next"))
    subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    node, _ = compute_driver_executable()
    next_js = [node, str(folder / "node_modules" / "next" / "dist" / "bin" / "next")]
    quiet = os.environ | {"NEXT_TELEMETRY_DISABLED": "1"}
    subprocess.run([*next_js, "build"], cwd=folder, env=quiet, check=True)
    port = str(free_port())
    with subprocess.Popen([*next_js, "start", "-H", "127.0.0.1", "-p", port], cwd=folder, env=quiet) as server:
        yield f"http://127.0.0.1:{port}"
        server.terminate()


@pytest.fixture(scope="module", params=mostly_deep([bundled, built_by_next], fast=[bundled]))
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with request.param(tmp_path_factory.mktemp("chat") / "example") as origin:
        yield origin


@pytest.fixture(scope="module")
def service(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    settings = {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "CORS_ORIGINS": origin, "PORT": str(free_port())}
    with Service(folder, settings, {OUTBOX: str(folder / "outbox")}) as service:
        yield service


@contextmanager
def chat(browser: Browser, origin: str, service: Service, agent: str, *script: object) -> Iterator[Page]:
    with browser.new_page(viewport={"width": 800, "height": 600}) as page:
        page.goto(f"{origin}/?service={service.url}&agent={agent}")
        send(page, *script)
        yield page


def send(page: Page, *script: object) -> None:
    page.get_by_label("Message").fill(json.dumps(script))
    page.get_by_role("button", name="Send").click()


def turn_of(page: Page, service: Service, number: int = 1) -> dict[str, object]:
    return service.get(f"/conversations/{page.url.partition('#')[2]}/turns/{number}")


@pytest.mark.timeout(300)
def test_a_chat_goes_on_after_a_reload_and_after_a_kill(
    browser: Browser, origin: str, service: Service, gate: Path
) -> None:
    held = {"stream": ["before ", {"gate": str(gate)}, "behind"]}
    with chat(browser, origin, service, "streamed", {"say": "first"}) as page:
        expect(page.locator("article")).to_have_text([json.dumps([{"say": "first"}]), "I call.first"])
        send(page, held, {"say": "last"})
        answer = page.locator("article").nth(3)
        expect(answer).to_contain_text("before")
        page.reload()
        expect(page.get_by_role("status")).to_have_text("streaming")
        expect(answer).to_contain_text("before")
        service.kill()
        expect(page.get_by_role("status")).to_have_text("reconnecting")
        gate.touch()
        service.start()
        expect(answer).to_contain_text("last")
        expect(page.get_by_role("status")).to_have_text("ready")
        assert str(answer.text_content()).startswith("before behind")
        assert (page.locator("article").count(), turn_of(page, service, 2)["attempts"]) == (4, 2)


def test_a_person_approves_and_answers_after_a_reload(browser: Browser, origin: str, service: Service) -> None:
    question = ["ask_user", {"question": "Which?", "choices": ["red", "blue"]}]
    script = [{"call": [mail("ann"), mail("bob")]}, {"call": [question]}, SHOWN]
    with chat(browser, origin, service, "mailer", *script) as page:
        expect(page.get_by_role("button", name="Approve")).to_have_count(2)
        page.reload()
        page.get_by_role("button", name="Approve").first.click()
        page.get_by_role("button", name="Reject").click()
        page.get_by_role("button", name="blue").click()
        expect(page.get_by_role("status")).to_have_text("ready")
        expect(page.locator("article").last).to_contain_text("sent to ann")
        expect(page.get_by_role("group", name="ask_user")).to_contain_text('→ "blue"')
        assert (page.locator("article").count(), sent(service)) == (2, ["ann: hi"])


def test_stop_ends_the_turn(browser: Browser, origin: str, service: Service) -> None:
    with chat(browser, origin, service, "streamed", {"endless": "on and on ", "pace_s": 0.02}) as page:
        expect(page.locator("article").last).to_contain_text("on and on on")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("status")).to_have_text("ready")
        assert turn_of(page, service)["status"] == "cancelled"
        send(page, {"say": "after"})
        expect(page.locator("article").last).to_contain_text("after")
