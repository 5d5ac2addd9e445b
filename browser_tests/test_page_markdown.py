"""Markdown in answers: its forms, its streaming, and hostile texts."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser_tests.reader import Open, answer, computed, ended, say, wait
from tests.support.data import data
from tests.support.service import Service
from tests.support.tiers import mostly_deep
from tools.vendor import changed

MOST_S = 5
MARKUP = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'><b>not bold</b>"
REPORT = data("report.md.txt").rstrip("\n")
DRAW = """(texts) => import("/page/text.js").then(({ Text }) => texts.map(([text, pieces, paced]) => {
  const target = document.createElement("div");
  const drawing = new Text(target);
  const draw = async () => {
    for (const [index, piece] of pieces.entries()) {
      drawing.push(piece);
      if (paced && index % 5 === 0) await new Promise(requestAnimationFrame);
    }
    drawing.finish();
    while (target.querySelector(".math:not(.open, :has(.katex))")) await new Promise(requestAnimationFrame);
    return drawing.raw === text ? target.innerHTML : "raw differs";
  };
  return draw();
})).then((all) => Promise.all(all))"""


def test_vendored_libraries_are_as_they_were_published() -> None:
    assert changed() == []


def test_markdown_has_its_forms(opened: Open, service: Service) -> None:
    page = opened(service, permissions=["clipboard-read", "clipboard-write"])
    assert not page.evaluate("globalThis.katex")
    say(page, [{"say": [REPORT + "\n\n$\\vec{x}$"]}])
    ended(page)
    place = answer(page)
    expect(place.locator("h2")).to_have_text("Report")
    expect(place.locator("strong")).to_have_text("strong")
    expect(place.locator("em")).to_have_text("light")
    expect(place.locator("ul ul li")).to_have_text("inner")
    expect(place.locator("td[align=right]")).to_have_text("330000")
    expect(place.locator("blockquote")).to_have_text("quoted")
    expect(place.locator("pre .hljs-keyword").first).to_have_text("def")
    expect(place.locator(".code-bar > span")).to_have_text("Python")
    place.get_by_role("button", name="Copy the code").click()
    expect(place.locator(".copy-code")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == 'def f(x):\n    return "1"  # why\n'
    expect(place.locator(".math annotation")).to_have_text(
        ["e^{i\\pi} + 1 = 0", "a_1 \\cdot b_2", "x_1 = *y* \\\\ - z", "\\vec{x}"]
    )
    expect(place.locator(".katex svg")).to_have_attribute("style", re.compile("width"))  # the policy refuses markup's
    page.wait_for_function("[...document.fonts].some(({ family, status }) => family + status === 'KaTeX_Mathloaded')")
    expect(place.locator(".task.done")).to_have_text("done")
    expect(place.locator(".task:not(.done)")).to_have_text("open")
    expect(place).not_to_contain_text("end_plan")
    for link in place.locator("a").all():
        assert link.get_attribute("rel") == "noopener noreferrer"
        assert link.get_attribute("target") == "_blank"
    assert [link.get_attribute("href") for link in place.locator("a").all()] == [
        "https://example.org/a",
        "https://example.org/b",
    ]


def test_text_from_right_to_left_has_its_direction(page: Page) -> None:
    say(page, [{"say": ["שלום **עולם** hello\n\n1. אחת\n2. שתיים\n\nHello שלום"]}], title="مرحبا")
    ended(page)
    for selector in ("p:first-child", "ol", "li:first-child"):
        expect(answer(page).locator(selector)).to_have_css("direction", "rtl")
    expect(answer(page).locator("p:last-child")).to_have_css("direction", "ltr")
    expect(page.locator(".said-text")).to_have_css("unicode-bidi", "plaintext")


def test_text_in_pieces_looks_like_text_at_once(opened_once: Page) -> None:
    texts = [
        REPORT,
        "para\n#hash\n# head\npara\n-\n- item\n\n- more\n1. one\n\n   two\n\n2. three",
        "```\nfence\n``` \nafter ```inline``` x\n````md\n```\ninner\n```\n````\nlast",
        "```js never closed\nx = `1`\n``",
        "[a] and [b]\n\ntext\n\n[a]: https://example.org/a\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\nafter\n\n$$\nopen",
        "2 < 3 <end_code> <|im_end|> <end_\nx <en",
    ]
    whole = opened_once.evaluate(DRAW, [[text, [text], False] for text in texts])
    assert "raw differs" not in whole
    assert opened_once.evaluate(DRAW, [[text, [*text], True] for text in texts]) == whole


def test_a_block_that_is_complete_is_not_rendered_again(page: Page, gate: Path) -> None:
    end = gate.with_name("end")
    code = "\n\n```python\ndef f():\n    return "
    say(page, [{"say": ["First.\n\n- one\n- two", wait(gate), "\n- three\n\nLast." + code, wait(end), "1"]}])
    expect(answer(page).locator("li")).to_have_count(2)
    page.evaluate("document.querySelectorAll('.answer p, .answer li').forEach((each) => (each.isKept = true))")
    gate.touch()
    expect(answer(page).locator(".hljs-keyword")).to_have_text(["def", "return"])  # while it is written
    end.touch()
    ended(page)
    kept = "[...document.querySelectorAll('.answer p, .answer li')].map((each) => Boolean(each.isKept))"
    assert page.evaluate(kept) == [True, True, True, False, False]


def test_markup_stays_text_wherever_it_comes_from(page: Page) -> None:
    script: list[Any] = [{"think": [MARKUP], "call": [["echo", {"text": MARKUP}]]}, {"say": [MARKUP[:20], MARKUP[20:]]}]
    say(page, script)
    expect(answer(page)).to_have_text(MARKUP)
    page.locator(".step summary").first.click()
    expect(page.locator(".part-thought .text")).to_have_text(MARKUP)
    expect(page.locator(".call .result pre")).to_have_text(MARKUP)
    assert page.locator("#turns script, #turns img, #turns b, #list img").count() == 0
    page.reload()
    expect(answer(page)).to_have_text(MARKUP)
    assert page.evaluate("window.ran") is None


def test_hostile_links_and_images_are_shown_and_load_nothing(page: Page) -> None:
    text = (
        "[a](javascript:window.ran=1) [b](data:text/html,x) [c](JaVaScRiPt&#58;window.ran=2) "
        "<javascript:window.ran=3>\n\n"
        "![pixel](https://evil.example/p.png) ![](data:image/png;base64,AA==) [d](//evil.example) [e](#/c/x)\n\n"
        '```"><img src=x onerror=window.ran=4>\nx\n```\n\n[f](https://ok.example \'a" onclick="window.ran=5\')'
        "$\\includegraphics{https://evil.example/p.png} \\href{javascript:window.ran=6}{x}$"
    )
    say(page, [{"say": [text]}])
    ended(page)
    links = answer(page).locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["https://evil.example/p.png", "https://ok.example"]
    expect(links.first).to_have_text("pixel")
    expect(answer(page)).to_contain_text("[a](javascript:window.ran=1)")
    expect(answer(page).locator(".katex")).to_have_text(re.compile("includegraphics"))
    assert answer(page).locator("img, [onclick], [onerror], [style]:not(.katex *)").count() == 0
    assert page.evaluate("window.ran") is None


HOSTILE = {
    "quotes": ">" * 5000 + " deep",
    "lists": "- " * 5000 + "deep",
    "brackets": "[" * 50_000 + "deep",
    "some brackets": "[" * 100 + "deep",
    "emphasis": "*a **b " * 10_000 + "deep",
    "math": "\\(" * 20_000 + "deep",
    "dollars": "$a " * 50_000 + "deep",
    "ticks": "a " + "`" * 50_000 + " deep",
    "marks": "<end_" * 20_000 + "deep",
    "lines": "a\n" * 20_000 + "deep",
    "table": "| a |\n|---|\n" + "| b |\n" * 5000 + "deep",
    "long": "x" * 500_000 + "deep",
    "formulas": "$\\def\\a#1{#1#1}" + "\\a{" * 7 + "x" * 1500 + "}" * 7 + "$ $x$ deep",
}


@pytest.mark.parametrize("form", mostly_deep(HOSTILE, fast=["quotes", "brackets", "some brackets", "long", "formulas"]))
def test_hostile_nesting_is_shown_within_a_bounded_time(opened_once: Page, form: str) -> None:
    shown, spent_s = computed(
        opened_once,
        """async (text) => {
          const { Text } = await import("/page/text.js");
          const target = document.createElement("div");
          new Text(target).replace(text);
          while (text.includes("$x$") && !target.querySelector(".katex")) await new Promise(requestAnimationFrame);
          return target.textContent;
        }""",
        HOSTILE[form],
    )
    assert 0 < spent_s < MOST_S
    assert "deep" in shown
