"""The list of conversations, and their past turns."""

import json
import re
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from browser_tests.reader import (
    A_LINE_PX,
    Open,
    act,
    answer,
    at_end,
    conversation_of,
    ended,
    expired,
    forgive,
    say,
    top,
    turn,
    wait,
)
from tests.support.service import Service, wait_until

LAID_OUT = """() => [...document.querySelectorAll(".turn .answer")].filter(
  (part) => part.checkVisibility({ contentVisibilityAuto: true })).length"""


def long_conversation(service: Service, turns: int) -> str:
    said = service.play({"say": ["Once."]}, agent="talker")
    export = service.get(f"/conversations/{said['conversation_id']}/export")
    (one,), steps = export["turns"], export["steps"]
    numbers = range(1, turns + 1)
    export["turns"] = [one | {"turn": number, "reply": f"Answer {number}.\n\n" * 5} for number in numbers]
    export["steps"] = [step | {"turn": number} for number in numbers for step in steps]
    made = service.post("/imports", **{name: part for name, part in export.items() if name != "id"})
    assert made.status_code == HTTPStatus.CREATED
    return str(made.json()["id"])


def test_conversations_are_listed_reopened_and_deleted(page: Page, service: Service) -> None:
    say(page, [{"say": ["The first answer."]}], title="The first of all")
    expect(answer(page)).to_have_text("The first answer.")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("radio").first).to_be_visible()
    say(page, [{"say": ["The second answer."]}], title="Another one")
    expect(answer(page)).to_have_text("The second answer.")
    titles = page.locator("#list .row-title")
    expect(titles.nth(0)).to_contain_text("Another one")
    expect(titles.nth(1)).to_contain_text("The first of all")
    page.get_by_role("link", name="The first of all").click()
    expect(answer(page)).to_have_text("The first answer.")
    expect(page.locator("#title")).to_contain_text("The first of all")
    first = page.locator("#list .row", has_text="The first of all")
    act(first, "Delete")
    expect(page.locator("#welcome")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("link", name="The first of all").click()
    expect(answer(page)).to_have_text("The first answer.")
    here = conversation_of(page)
    act(first, "Delete")
    expect(page.get_by_role("link", name="The first of all")).to_have_count(0)
    page.reload()  # it is deleted when the page is left
    wait_until(lambda: service.client.get(here).status_code == HTTPStatus.NOT_FOUND)
    page.reload()
    expect(page.get_by_role("link", name="Another one")).to_be_visible()
    expect(page.get_by_role("link", name="The first of all")).to_have_count(0)


def test_conversations_are_searched_filtered_and_renamed(opened: Open, service: Service) -> None:
    beyond_title = "." * 80
    script = '[{"say": ["It is <b>in</b> the attic."]}]'
    service.post("/turn", agent="picky", message=f"Needle in hay {beyond_title} {script}")
    for number in range(3):
        service.post("/turn", agent="talker", message=f'Hay {number} [{{"say": ["One."]}}]')
    page = opened(service)
    rows = page.locator("#list .row")
    page.get_by_role("searchbox").fill("THE ATTIC")
    expect(rows).to_have_count(1)
    expect(rows.locator(".row-match")).to_contain_text("It is <b>in</b> the attic.")
    expect(rows.locator("mark")).to_have_text("the attic")
    expect(rows.locator(".row-about")).to_contain_text("turn 1")
    page.get_by_role("searchbox").fill("no such text")
    expect(page.locator("#list-note")).to_have_text("No conversations found.")
    page.get_by_role("searchbox").fill("hay")
    page.locator("#filter summary").click()
    page.locator("#filter-agent").select_option("picky")
    expect(rows).to_have_count(1)
    page.locator("#filter summary").click()
    expect(page.locator("#filter summary")).to_have_text("Filter · picky")
    page.get_by_role("button", name="Show all").click()
    expect(rows).to_have_count(4)
    expect(page.locator("#filter summary")).to_have_text("Filter")
    page.get_by_role("searchbox").fill("needle")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="Needle in hay").click()
    changes: list[str | None] = []
    page.on("request", lambda request: changes.append(request.post_data) if request.method == "PATCH" else None)
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("Left")
    page.keyboard.press("Escape")
    expect(page.locator("#title")).to_contain_text("Needle in hay")
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("Found")
    page.keyboard.press("Enter")
    expect(page.locator("#title")).to_have_text("Found")
    expect(rows.locator(".row-title")).to_have_text("Found")
    for title, key, shown in (("Left", "Escape", "Found"), ("Found again", "Enter", "Found again")):
        act(rows, "Rename")
        page.get_by_role("textbox", name="New title").fill(title)
        page.keyboard.press(key)
        expect(rows.locator(".row-title")).to_have_text(shown)
        expect(page.locator("#title")).to_have_text(shown)
    page.reload()
    expect(page.locator("#title")).to_have_text("Found again")
    assert changes == ['{"title":"Found"}', '{"title":"Found again"}']


def test_changes_from_elsewhere_are_shown(opened: Open, service: Service, sins: list[str]) -> None:
    said = service.play({"say": ["One."]}, agent="talker")
    page = opened(service, is_alone=True)
    page.clock.install()  # from the next load on
    page.goto(f"{service.client.base_url}#/c/{said['conversation_id']}")
    page.reload()
    expect(answer(page)).to_have_text("One.")
    service.follow_up(said, {"say": ["Two, from elsewhere."]})
    service.post("/turn", agent="talker", message='Begun elsewhere [{"say": ["x"]}]')
    page.clock.fast_forward("00:05")
    expect(answer(page).last).to_have_text("Two, from elsewhere.")
    page.clock.fast_forward("00:10")
    expect(page.get_by_role("link", name="Begun elsewhere")).to_be_visible()
    service.post(f"/conversations/{said['conversation_id']}/rollback", turn=1)
    page.clock.fast_forward("00:05")
    expect(page.get_by_role("button", name="1 turn was rolled back")).to_be_visible()
    other = page.context.new_page()
    other.goto(service.url)
    expect(other.get_by_role("link", name="Begun elsewhere")).to_be_visible()
    act(page.locator("#list .row", has_text="Begun elsewhere"), "Delete")
    page.clock.fast_forward("00:08")  # the time to undo it is over
    expect(other.get_by_role("link", name="Begun elsewhere")).to_have_count(0)
    forgive(sins, "404")


def test_the_list_is_turned_page_by_page_below_the_pinned_ones(opened: Open, service: Service) -> None:
    kept = service.post("/conversations", metadata={"title": "Kept", "pinned": True}).json()
    for number in range(25):
        made = service.post("/conversations", metadata={"title": f"Listed {number}"})
        assert made.status_code == HTTPStatus.CREATED
    page = opened(service)
    expect(page.get_by_role("link", name="Listed 24")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile(r"Listed 0\b"))).to_have_count(0)
    groups = page.locator("#list section")
    expect(groups.first.locator(".list-head")).to_have_text("Pinned")
    expect(groups.first.get_by_role("link")).to_have_accessible_name(re.compile("Kept"))
    page.get_by_role("button", name="More").click()
    oldest = page.locator("#list .row", has=page.get_by_role("link", name=re.compile(r"Listed 0\b")))
    expect(oldest).to_have_count(1)
    act(groups.first.locator(".row"), "Unpin")
    expect(groups.first.locator(".list-head")).to_have_text("Today")
    act(oldest, "Pin")
    expect(groups.first.locator(".row-title").first).to_have_text("Listed 0")
    act(groups.first.locator(".row"), "Unpin")
    expect(page.get_by_text("Pinned", exact=True)).to_have_count(0)
    assert service.get(f"/conversations/{kept['id']}")["metadata"] == {"title": "Kept"}


def test_a_rolled_back_turn_and_a_shortened_prompt_have_a_note(opened: Open, service: Service) -> None:
    said = service.play({"say": ["One."]}, agent="talker")
    place = f"/conversations/{said['conversation_id']}"
    service.follow_up(said, {"say": ["Two."]})
    assert service.post(f"{place}/rollback", turn=1).status_code == HTTPStatus.OK
    service.client.patch(place, json={"policy": {"name": "keep_last_n_steps", "n": 1}})
    service.follow_up(said, {"call": [["echo", {"text": "three"}]]}, {"say": ["Three."]})
    page = opened(service, f"/#/c/{said['conversation_id']}")
    expect(page.locator(".turn .answer").last).to_have_text("Three.")
    feet = page.locator(".turn-foot .figures")
    expect(feet).to_have_count(3)
    expect(turn(page).nth(0)).not_to_contain_text(re.compile(r"Rolled back\.|left out"))
    expect(feet.nth(2)).to_contain_text("1 step left out")
    turn(page).nth(0).get_by_role("button", name="Roll back to here").click()
    fold = page.get_by_role("button", name="2 turns were rolled back")
    expect(fold).to_have_attribute("aria-expanded", "false")
    expect(turn(page).filter(visible=True)).to_have_count(1)
    fold.click()
    expect(turn(page).nth(1).get_by_text("Rolled back.")).to_be_visible()
    turn(page).nth(2).get_by_role("button", name="Roll back to here").click()  # and forward again
    expect(page.get_by_role("button", name="1 turn was rolled back")).to_be_visible()
    page.get_by_role("button", name="Fork from here").first.click()
    expect(page.locator("#origin")).to_contain_text("after turn 1")
    expect(answer(page)).to_have_text(["One."])


def test_a_past_turn_without_its_events_shows_the_steps_on_record(opened: Open, service: Service) -> None:
    task = [{"think": ["I help."], "call": [["echo", {"text": "deep"}]]}, {"say": ["Below."]}]
    script: list[dict[str, Any]] = [
        {"think": ["I *lead*."], "call": [["helper", {"task": json.dumps(task)}]]},
        {"call": [["fail", {"reason": "no luck"}]]},
        {"say": ["Past."]},
    ]
    said = service.play(*script, agent="leader")
    page = opened(service, f"/#/c/{said['conversation_id']}")

    page.route("**/events", partial(expired, said))
    expect(page.locator(".work > summary")).to_contain_text("1 error")
    expect(page.locator(".step")).to_have_count(0)  # they are loaded when they are asked for
    page.locator(".work > summary").click()
    expect(page.locator(".work > .steps")).to_contain_text("From the record")
    steps = page.locator(".work > .steps > .step")
    expect(steps).to_have_count(3)
    expect(steps.nth(0).locator(".part-thought em")).to_have_text("lead")
    expect(steps.nth(0).locator(".call .call .call-name")).to_have_text("echo")
    expect(steps.nth(0).locator(".step .argument")).to_contain_text("deep")
    expect(steps.nth(1)).to_have_attribute("data-state", "wrong")
    expect(steps.nth(1).locator("summary .preview").first).to_contain_text("Error: ")
    expect(steps.nth(0).locator("summary .figures").first).to_contain_text("10 → 5 tokens")
    expect(answer(page)).to_have_text("Past.")


def settled(place: Locator) -> float:
    """Return the distance from the top of the window, once two frames have not changed it."""
    before, now = None, top(place)
    while before != now:
        place.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        before, now = now, top(place)
    return now


def test_a_long_conversation_opens_at_its_end_and_loads_earlier_turns(opened: Open, service: Service) -> None:
    page = opened(service, f"/#/c/{long_conversation(service, 50)}")
    expect(answer(page).last).to_contain_text("Answer 50.")
    expect(page.locator(".turn-foot").last).to_be_in_viewport()
    assert page.locator(".turn").count() < 50
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile("cursor="), hold)
    first = page.get_by_role("article", name="Turn 31", exact=True)
    with page.expect_request(re.compile("cursor=")):
        first.scroll_into_view_if_needed()
    place = settled(first)
    held[0].continue_()
    page.unroute(re.compile("cursor="))
    expect(page.get_by_role("article", name="Turn 11", exact=True)).to_be_attached()
    assert abs(place - settled(first)) < A_LINE_PX
    for number in (11, 1):
        page.locator("#scroll").evaluate("(at) => at.scrollTop = 0")
        expect(page.get_by_role("article", name=f"Turn {number}", exact=True)).to_be_attached()
    expect(page.locator(".turn")).to_have_count(50)
    numbers = page.locator(".turn").evaluate_all("(all) => all.map((each) => Number(each.ariaLabel.slice(5)))")
    assert numbers == list(range(1, 51))


def test_of_500_turns_only_those_near_the_window_are_loaded_and_laid_out(opened: Open, service: Service) -> None:
    page, most_loaded = opened(service, f"/#/c/{long_conversation(service, 500)}"), 60
    expect(answer(page).last).to_contain_text("Answer 500.")
    expect(page.locator(".turn-foot").last).to_be_in_viewport()
    expect(page.locator("#older")).to_be_attached()
    assert page.evaluate("document.querySelectorAll('*').length") < 50 * most_loaded
    page.locator("#scroll").evaluate("(at) => at.scrollTop = 0")
    expect(page.get_by_role("article", name="Turn 470", exact=True)).to_be_attached()
    assert turn(page).count() <= most_loaded
    assert page.evaluate(LAID_OUT) < turn(page).count()


def test_the_end_stays_in_view_turn_after_turn(page: Page) -> None:
    for number in range(6):
        say(page, [{"think": ["Hm."], "call": [["echo", {"text": "line\n" * 12}]]}, {"say": [f"Answer {number}"]}])
        expect(turn(page).nth(number)).to_have_attribute("data-status", "finished")
        expect(page.locator(".turn-foot").nth(number)).to_be_in_viewport()
        expect(page.get_by_role("button", name="Latest")).to_be_hidden()
        page.locator(".work > summary").nth(number).click()
        expect(page.locator(".work").nth(number)).not_to_have_attribute("open", "")
    page.locator(".said .unseen").last.evaluate("(label) => label.scrollIntoView()")
    assert top(page.locator("#title")) > 0  # the head stays


def test_new_text_does_not_move_a_reader_that_scrolled_up(page: Page, gate: Path) -> None:
    lines = "line\n\n" * 80
    say(page, [{"say": [lines, wait(gate), lines, "The end."]}])
    expect(page.locator(".answer p")).to_have_count(80)
    assert at_end(page)
    page.evaluate("document.getElementById('scroll').scrollTop -= 600")
    expect(page.get_by_role("button", name="Latest")).to_be_visible()
    read = page.locator(".answer p").nth(65)
    place = top(read)
    gate.touch()
    ended(page)
    assert abs(place - top(read)) < A_LINE_PX
    page.get_by_role("button", name="Latest").click()
    expect(page.locator(".turn-foot")).to_be_in_viewport()
