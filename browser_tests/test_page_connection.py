"""The page while connections break, and its API keys."""

import json
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from browser_tests.conftest import SETTINGS
from browser_tests.reader import KEY, Open, answer, ended, forgive, keys_file, png, say, send, turn, wait, whole
from browser_tests.talker import AGENTS
from tests.support.service import Service


def test_a_reload_in_the_middle_of_a_turn_loses_and_doubles_no_character(page: Page, gate: Path) -> None:
    pieces = [f"{number}, " for number in range(300)]
    say(page, [{"say": [*pieces[:150], wait(gate), *pieces[150:]]}])
    expect(answer(page)).to_contain_text("149, ")
    page.reload()
    expect(answer(page)).to_contain_text("149, ")
    assert whole(answer(page)) == "".join(pieces[:150]).strip() + "\n"
    gate.touch()
    ended(page)
    assert whole(answer(page)) == "".join(pieces).strip() + "\n"
    page.reload()
    ended(page)
    assert whole(answer(page)) == "".join(pieces).strip() + "\n"


def test_a_lost_connection_is_shown_and_resumes(opened: Open, service: Service, gate: Path, sins: list[str]) -> None:
    page = opened(service, is_alone=True)
    say(page, [{"say": ["Before, ", wait(gate), "after."]}])
    expect(answer(page)).to_have_text("Before,")
    page.context.set_offline(True)
    expect(page.locator("#connection")).to_be_visible()
    gate.touch()
    page.context.set_offline(False)
    expect(answer(page)).to_have_text("Before, after.")
    expect(page.locator("#connection")).to_be_hidden()
    forgive(sins, "ERR_INTERNET_DISCONNECTED", at_least=0)


def test_a_broken_stream_is_taken_up_after_its_last_whole_event(page: Page) -> None:
    asked: list[str | None] = []

    def cut(route: Route) -> None:
        response = route.fetch()
        whole_events = response.text().split("\n\n")
        route.fulfill(response=response, body="\n\n".join(whole_events[:4]) + "\n\n" + whole_events[4][:40])

    def note(route: Route) -> None:
        asked.append(route.request.header_value("last-event-id"))
        route.continue_()

    page.route("**/turn", cut)
    page.route("**/events", note)
    say(page, [{"think": ["Hm."], "call": [["echo", {"text": "a"}]]}, {"say": ["Whole."]}])
    expect(answer(page)).to_have_text("Whole.")
    assert asked == ["4"]
    page.locator(".step summary").first.click()
    expect(page.locator(".part-thought .text")).to_have_text("Hm.")


def test_a_message_with_a_lost_reply_is_played_once(page: Page, service: Service, gate: Path, sins: list[str]) -> None:
    def lose(route: Route) -> None:
        asked = route.request
        with service.client.stream("POST", "/turn", content=asked.post_data_buffer, headers=asked.headers):
            route.abort("connectionreset")

    page.route("**/turn", lose, times=1)
    send(page, [{"think": ["Hm. ", wait(gate)], "call": [["echo", {"text": "a"}]]}, {"raise": "no"}], "Lost reply")
    expect(page.get_by_role("alert")).to_have_text("The service cannot be reached.")
    page.keyboard.press("Enter")
    expect(page.locator(".step")).to_contain_text("Hm.")
    gate.touch()
    ended(page, "failed")
    page.route("**/turn", lose, times=1)
    for number in (2, 3):  # the first retry is found on record, and the second one is a turn of its own
        page.get_by_role("button", name="Retry").last.click()
        expect(turn(page)).to_have_count(number)
        ended(page, "failed")
        expect(page.get_by_role("alert")).to_be_hidden()
    assert [each["turn_count"] for each in service.get("/conversations", q="Lost reply")["items"]] == [3]
    forgive(sins, "ERR_CONNECTION_RESET", at_least=2)


def test_a_key_refused_in_the_middle_of_a_turn_can_be_tried_again(page: Page, gate: Path, sins: list[str]) -> None:
    say(page, [{"say": ["Before, ", wait(gate), "after."]}])
    expect(answer(page)).to_have_text("Before,")
    page.route("**/events", lambda route: route.fulfill(status=401, json={"detail": "This key is not known here."}))
    page.evaluate("dispatchEvent(new Event('offline'))")  # the page drops its stream
    page.get_by_role("button", name="Not now").click()
    page.unroute("**/events")
    gate.touch()
    page.get_by_role("button", name="Try again").click()
    expect(answer(page)).to_have_text("Before, after.")
    forgive(sins, "401")


def test_text_of_a_call_made_again_is_thrown_away_and_unknown_and_repeated_events_are_passed_over(page: Page) -> None:
    step = {"step_id": "1", "step": 1, "agent": "talker", "parent_call_id": None}

    def rewritten(route: Route) -> None:
        response = route.fetch()
        events = [json.loads(frame.partition("data: ")[2]) for frame in response.text().split("\n\n") if frame.strip()]
        start = next(index for index, event in enumerate(events) if event["type"] == "message.delta")
        spoiled = [{**events[start], "channel": channel, "text": "spoiled"} for channel in ("thought", "answer")]
        again = {"type": "message.restarted", "call_id": events[start]["call_id"], **step}
        unknown = {"type": "weather.changed", "call_id": None, **step}
        changed = [*events[:start], *spoiled, unknown, again, *events[start:]]
        frames = [
            f"event: {event['type']}\r\nid: {seq}\r\n: ping\r\ndata: {json.dumps(event | {'seq': seq})}\r\n\r\n"
            for seq, event in enumerate(changed, 1)
        ]
        route.fulfill(response=response, body="".join(frame + ": ping\r\n\r\n" + frame for frame in frames))

    page.route("**/turn", rewritten)
    page.route("**/events", lambda route: route.abort())  # the stream above is complete
    say(page, [{"think": ["Fresh. "], "call": [["echo", {"text": "a"}]]}, {"say": ["Whole."]}])
    expect(answer(page)).to_have_text("Whole.")
    page.locator(".step summary").first.click()
    expect(page.locator(".part-thought .text")).to_have_text("Fresh. ")
    expect(page.get_by_text("spoiled")).to_have_count(0)


def test_a_key_is_asked_for_refused_taken_and_forgotten(opened: Open, tmp_path: Path, sins: list[str]) -> None:
    settings = SETTINGS | {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "API_KEYS_FILE": str(keys_file(tmp_path))}
    with Service(tmp_path / "service", settings) as service:
        page = opened(service, is_alone=True)
        dialog = page.get_by_role("dialog", name="An API key is needed")
        expect(dialog.get_by_label("API key")).to_be_focused()
        page.keyboard.type("no such key")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("not known here")
        dialog.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#list-note")).to_have_text("No conversations yet.")
        page.locator("#file").set_input_files(png("a.png", 50))
        say(page, [{"say": ["For you."]}])
        expect(answer(page)).to_have_text("For you.")
        page.reload()
        expect(answer(page)).to_have_text("For you.")
        expect(page.locator(".said img")).to_have_js_property("naturalWidth", 50)  # fetched with the key
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
