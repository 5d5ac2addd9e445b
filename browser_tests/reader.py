"""Actions of a user on the page, and its visible content."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import PIL.Image
from playwright.sync_api import FilePayload, Locator, Page, Route, expect

from tests.support.service import write_private

Open = Callable[..., Page]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
NARROW_PX = 360
A_LINE_PX = 10
MOST_KEYS = 100
KEY = "a-key-of-the-tests"


def wait(gate: Path) -> dict[str, str]:
    return {"wait": str(gate)}


def message(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def say(page: Page, script: Sequence[dict[str, Any]], title: str = "") -> None:
    """Type a script, after words that become the title, and send it. Wait until the service has accepted it."""
    send(page, script, title)
    expect(message(page)).to_have_value("")


def send(page: Page, script: Sequence[dict[str, Any]], title: str = "") -> None:
    message(page).fill(f"{title} {json.dumps(script)}".strip())
    message(page).press("Enter")


def ended(page: Page, status: str = "finished", at: int = -1) -> None:
    expect(turn(page).nth(at)).to_have_attribute("data-status", status)


def conversation_of(page: Page) -> str:
    return f"/conversations/{page.url.rpartition('/')[2]}"


def choose(page: Page, agent: str) -> None:
    page.get_by_role("radio", name=agent, exact=True).check()


def act(row: Locator, name: str) -> None:
    row.hover()
    row.get_by_role("button").click()
    row.page.get_by_role("menuitem", name=name, exact=True).click()


def expired(finished: dict[str, Any], route: Route) -> None:
    """Answer a request for events as for a turn whose log has expired."""
    final = {"type": "turn.finished", "seq": 9, "attempt": 1, "result": finished}
    body = f"event: turn.finished\nid: 9\ndata: {json.dumps(final)}\n\n"
    route.fulfill(status=200, content_type="text/event-stream", body=body)


def turn(page: Page) -> Locator:
    return page.locator(".turn")


def answer(page: Page) -> Locator:
    return page.locator(".turn > .played > .answer")


def whole(place: Locator) -> str | None:
    return place.text_content()


def reach(page: Page, selector: str, key: str) -> None:
    """Press a key until an element has the focus, and check that the focus is visible."""
    for _ in range(MOST_KEYS):
        page.keyboard.press(key)
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            break
    found = page.locator(f"{selector}:focus")
    expect(found).to_have_count(1)
    assert found.evaluate(
        """(element) => [element, element.closest("label, form")].some((shown) => {
          if (!shown) return false;
          const { outlineStyle, outlineWidth, borderColor } = getComputedStyle(shown);
          const probe = Object.assign(document.createElement("i"), { className: "probe" });
          document.body.append(probe);
          probe.style.color = "var(--accent)";
          const accent = getComputedStyle(probe).color;
          probe.remove();
          return (outlineStyle === "solid" && parseFloat(outlineWidth) > 0) || borderColor === accent;
        })"""
    ), f"{selector} does not show that it has the focus"


def fits(page: Page) -> bool:
    widths: list[int] = page.evaluate(
        "[document.documentElement, document.body, document.getElementById('scroll')].map((part) => part.scrollWidth)"
    )
    return max(widths) <= NARROW_PX


def at_end(page: Page) -> bool:
    place: bool = page.locator("#scroll").evaluate("(at) => at.scrollHeight - at.scrollTop - at.clientHeight < 2")
    return place


def top(place: Locator) -> float:
    return float(place.evaluate("(at) => at.getBoundingClientRect().y"))


def png(name: str, width: int) -> FilePayload:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (width, 30), (200, 80, 20)).save(buffer, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": buffer.getvalue()}


def paste(page: Page, file: FilePayload) -> None:
    page.get_by_role("textbox", name="Message").evaluate(
        """(field, bytes) => {
          const clipboardData = new DataTransfer();
          clipboardData.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
          field.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        list(file["buffer"]),
    )


def keys_file(folder: Path) -> Path:
    return write_private(folder / "keys", f"reader {hashlib.sha256(KEY.encode()).hexdigest()}\n")


def forgive(sins: list[str], text: str, at_least: int = 1) -> None:
    """Remove the errors that the test itself caused. The console reports every error response."""
    caused = [sin for sin in sins if sin.startswith("console: ") and text in sin]
    assert len(caused) >= at_least
    for sin in caused:
        sins.remove(sin)


def computed(page: Page, program: str, argument: object = None) -> tuple[Any, float]:
    """Run a program on the page. Return its result and its processor time, which a loaded machine does not change."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def taken_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    before_s = taken_s()
    result = page.evaluate(program, argument)
    spent_s = taken_s() - before_s
    session.detach()
    return result, spent_s


def try_liveness(page: Page) -> Locator:
    """Make the call GET /livez on the page of the docs. Return its part of the page."""
    call = page.locator("#operations-health-getLiveness")
    call.get_by_role("button", name="GET /livez Return 200 while the process runs").click()
    call.get_by_role("button", name="Try it out").click()
    call.get_by_role("button", name="Execute").click()
    expect(call.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    return call
