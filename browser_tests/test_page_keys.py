"""API keys: asked for, kept, forgotten."""

from pathlib import Path

from playwright.sync_api import expect

from browser_tests.conftest import SETTINGS
from browser_tests.reader import KEY, Open, answer, forgive, keys_file, png, say
from browser_tests.talker import AGENTS
from tests.support.service import Service


def test_a_key_is_asked_for_refused_taken_and_forgotten(opened: Open, tmp_path: Path, sins: list[str]) -> None:
    settings = SETTINGS | {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "API_KEYS_FILE": str(keys_file(tmp_path))}
    with Service(tmp_path / "service", settings, forked=False) as service:
        page = opened(service, is_alone=True)
        dialog = page.get_by_role("dialog", name="An API key is needed")
        expect(dialog.get_by_label("API key")).to_be_focused()
        page.keyboard.type("no such key")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("not known here")
        dialog.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#list-note")).to_have_text("Nothing yet. What you begin is listed here.")
        page.locator("#file").set_input_files(png("a.png", 50))
        say(page, [{"say": ["For you."]}])
        expect(answer(page)).to_have_text("For you.")
        expect(page.locator(".step > .pictures img")).to_have_js_property("naturalWidth", 50)  # fetched with the key
        page.reload()
        expect(answer(page)).to_have_text("For you.")
        other = page.context.new_page()  # tabs do not share a key
        other.goto(page.url)
        expect(other.get_by_role("dialog")).to_be_visible()
        other.get_by_label("API key", exact=True).fill(KEY)
        other.get_by_label("Remember it on this device").check()
        other.get_by_role("button", name="Go on").click()
        expect(answer(other)).to_have_text("For you.")
        third = page.context.new_page()
        third.goto(page.url)
        expect(answer(third)).to_have_text("For you.")
        third.get_by_role("button", name="Forget the API key").click()
        expect(third.get_by_role("dialog")).to_be_visible()
        third.get_by_role("button", name="Not now").click()
        expect(third.locator("#missing-text")).to_contain_text("An API key is needed")
        expect(third.locator("#list-note")).to_contain_text("An API key is needed")
        third.get_by_role("button", name="Try again").last.click()
        third.get_by_label("API key", exact=True).fill(KEY)
        third.keyboard.press("Enter")
        expect(answer(third)).to_have_text("For you.")
        expect(third.locator("#list .row")).to_have_count(1)
        page.context.close()
    forgive(sins, "401")
