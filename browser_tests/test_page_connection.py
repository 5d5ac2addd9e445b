"""Reloads, tabs and lost connections: nothing is lost, and the page shows a note."""

import json
from pathlib import Path

from playwright.sync_api import Route, expect

from browser_tests.reader import Open, answer, ended, forgive, say, wait, whole
from tests.support.service import Service


def test_a_reload_in_the_middle_of_a_turn_loses_and_doubles_no_character(
    opened: Open, service: Service, gate: Path
) -> None:
    page = opened(service)
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


def test_a_lost_connection_is_shown_and_the_turn_resumes(
    opened: Open, service: Service, gate: Path, sins: list[str]
) -> None:
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


def test_a_broken_stream_is_taken_up_after_its_last_whole_event(opened: Open, service: Service) -> None:
    page = opened(service)
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


def test_text_of_a_call_made_again_is_thrown_away_and_unknown_and_repeated_events_are_passed_over(
    opened: Open, service: Service
) -> None:
    page = opened(service)
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
