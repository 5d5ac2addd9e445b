"""The inspector: the next prompt, memory, variables, timeline, and ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from browser_tests.reader import choose, say, turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.support.service import Service

    Open = Callable[..., Page]


def test_the_inspector_shows_and_changes_the_memory(opened: Open, service: Service) -> None:
    page = opened(service)
    choose(page, "coder")
    block = "<code>\ntotal = [1, 2]\nprint(echo(text='hi'))\n</code>"
    say(page, [{"write": [block]}, {"write": ["<code>\nfinal_answer('done')\n</code>"]}])
    expect(turn(page)).to_have_attribute("data-status", "finished")
    page.get_by_role("button", name="Inspector", exact=True).click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text("The next prompt as the model gets it")
    page.get_by_role("tab", name="Variables").click()
    expect(panel.locator(".variable code")).to_have_text("total")
    page.get_by_role("tab", name="Timeline").click()
    expect(panel.locator(".bar-tool")).to_have_count(2)
    page.get_by_role("tab", name="Memory").click()
    page.locator("#policy").select_option("keep_last_n_steps")
    page.get_by_label("n", exact=True).fill("1")
    expect(panel.locator(".estimate")).to_contain_text("1 step left out")
    page.get_by_role("button", name="Use this policy").click()
    expect(panel.locator(".estimate")).to_contain_text("holds from the next turn")
    here = page.url.rpartition("/")[2]
    assert service.get(f"/conversations/{here}")["policy"] == [{"name": "keep_last_n_steps", "n": 1}]
    page.get_by_role("tab", name="Share").click()
    with page.expect_download() as found:
        page.get_by_role("button", name="Export").click()
    page.locator("#import-file").set_input_files(found.value.path())
    expect(page).not_to_have_url(f"{service.client.base_url}#/c/{here}")
    expect(turn(page)).to_have_count(1)
