"""States of the page, each made by one function. The gallery pictures them, and a test checks each one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from playwright.sync_api import FilePayload, Locator, Page, Route, expect

from browser_tests.shop import photo
from tests.support.service import Service
from tests.support.sounds import sent

ORDER = "Where is order 1042?"
ARABIC = "أين طلبي رقم 1042؟"
STOCK = "What do we have in stock?"
LONG = "Write to every customer of October."
REFUND = "Ann's cup is broken. Pay her 10 euros back and tell her."
OTHERS = ("Prices for the spring fair", "A refund for Mr Ode", "Order of the school", "Which tray is out of stock?")
BACKGROUND = {"Prefer": "respond-async"}


@dataclass
class Desk:
    """One page of one service, and the turns that it leaves running."""

    service: Service
    page: Page
    running: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def furnish(self) -> None:
        """Make the conversations that stand in the list of every state but the first."""
        if self.service.get("/conversations")["items"]:
            return
        for title in reversed(OTHERS):
            self.keep(self.service.post("/conversations", agent="shop", metadata={"title": title}).json()["id"])
        self.made.clear()  # they stay

    def play(self, *messages: str, agent: str = "shop", **body: Any) -> str:
        """Play messages as the turns of a new conversation, and return its id. The body belongs to the first."""
        conversation = None
        for message in messages:
            known = {"conversation_id": conversation} if conversation else {"agent": agent, **body}
            response = self.service.client.post("/turn", json={"message": message, **known})
            assert response.status_code in {HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.BAD_GATEWAY}, response.text
            conversation = conversation or self.keep(response.json()["conversation_id"])
        assert conversation
        return conversation

    def begin(self, conversation: str, message: str, **body: Any) -> None:
        path = f"/conversations/{conversation}/turns"
        response = self.service.client.post(path, json={"message": message, **body}, headers=BACKGROUND)
        assert response.status_code == HTTPStatus.ACCEPTED, response.text
        self.running.append(f"{path}/{response.json()['turn']}/cancel")

    def end(self) -> None:
        for path in reversed(self.running):
            self.service.client.post(path)
        for conversation in self.made:
            self.service.client.delete(f"/conversations/{conversation}")

    def keep(self, conversation: str) -> str:
        self.made.append(conversation)
        return conversation

    def open(self, conversation: str | None = None) -> Page:
        address = self.service.url
        self.page.goto(f"{address}/#/c/{conversation}" if conversation else f"{address}/")
        place = "#turns .turn" if conversation else ".agent"
        expect(self.page.locator(place).first).to_be_visible()
        return self.page

    def steps(self, *opened: int) -> Locator:
        work = self.page.locator(".turn").last.locator("> .played > .work")
        if work.get_attribute("open") is None:
            work.locator("> summary").click()
        steps = work.locator("> .steps > .step")
        expect(steps.first).to_be_visible()
        for index in opened:
            steps.nth(index).locator("> details > summary").click()
        return steps


def empty(desk: Desk) -> None:
    """Show the first visit: choose an agent, or take an example."""
    desk.open()
    expect(desk.page.locator("#list-note")).to_be_visible()


def _played(*messages: str, agent: str = "shop", opened: tuple[int, ...] | None = None) -> Callable[[Desk], None]:
    """Show played messages. `opened` are the open steps of the last turn, whose list is open then."""

    def show(desk: Desk) -> None:
        desk.open(desk.play(*messages, agent=agent))
        if opened is not None:
            desk.steps(*opened)

    return show


def images(desk: Desk) -> None:
    desk.open(desk.play("This cup came today. Draw what we sold.", images=[photo()]))
    expect(desk.page.locator(".answer-pictures img")).to_have_js_property("naturalWidth", 480)
    expect(desk.page.locator(".said img")).to_have_js_property("naturalWidth", 320)


def viewer(desk: Desk) -> None:
    images(desk)
    desk.page.locator(".answer-pictures button").click()


def files(desk: Desk) -> None:
    desk.open(
        desk.play(
            "Write the invoice of the order in this file.",
            "Read it to me.",
            files=[sent("orders.csv", "text/csv", "order\n1042\n")],
        )
    )
    expect(desk.page.locator("audio")).to_be_visible()


def running(desk: Desk) -> None:
    conversation = desk.play(ORDER)
    desk.begin(conversation, LONG)
    desk.begin(conversation, "And the ones of September.", on_busy="enqueue")
    page = desk.open(conversation)
    expect(page.locator(".answer strong").last).to_have_text("Ann Lee")
    expect(page.locator(".turn[data-status=queued]")).to_be_visible()
    expect(page.locator("#busy")).to_be_visible()


def approval(desk: Desk) -> None:
    expect(desk.open(desk.play(REFUND)).locator(".request")).to_have_count(2)


def edited(desk: Desk) -> None:
    approval(desk)
    desk.page.get_by_label("amount").fill("12.5")
    desk.page.get_by_role("textbox", name="reason", exact=True).fill("broken cup, and its postage")


def refused(desk: Desk) -> None:
    approval(desk)
    card = desk.page.locator(".request").first
    card.get_by_role("button", name="Reject").click()
    card.get_by_label("Reason, which").fill("Ask for a photo first.")


def question(desk: Desk) -> None:
    desk.open(desk.play("Send Ann a new cup.")).get_by_role("radio", name="blue").check()


def stopped(desk: Desk) -> None:
    conversation = desk.play(ORDER)
    desk.begin(conversation, LONG)
    page = desk.open(conversation)
    expect(page.locator(".answer strong").last).to_have_text("Ann Lee")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".turn[data-status=cancelled]")).to_be_visible()


def rolled_back(desk: Desk) -> None:
    conversation = desk.play(ORDER, "Please check the samovar too.")
    assert desk.service.post(f"/conversations/{conversation}/rollback", turn=1).status_code == HTTPStatus.OK
    desk.open(conversation)


def editing(desk: Desk) -> None:
    desk.open(desk.play(ORDER, STOCK)).get_by_role("button", name="Edit").last.click()


def versions(desk: Desk) -> None:
    editing(desk)
    desk.page.get_by_role("textbox", name="Edit the message").fill("Please check the samovar too.")
    desk.page.keyboard.press("Enter")
    expect(desk.page.get_by_role("img", name="Version 2 of 2")).to_be_visible()
    desk.keep(desk.page.url.rpartition("/")[2])


def fork(desk: Desk) -> None:
    conversation = desk.play(ORDER, STOCK)
    made = desk.keep(desk.service.post(f"/conversations/{conversation}/fork", turn=1).json()["id"])
    desk.service.client.patch(f"/conversations/{made}", json={"title": "Where is order 1042, and a samovar?"})
    body = {"message": "Please check the samovar too.", "conversation_id": made}
    assert desk.service.post("/turn", **body).status_code == HTTPStatus.OK
    expect(desk.open(made).locator("#origin")).to_be_visible()


def found(desk: Desk) -> None:
    desk.play(ORDER)
    desk.play("Send Ann a new cup.")
    fork(desk)
    page = desk.page
    page.get_by_role("searchbox").fill("order")
    page.locator("#filter summary").click()
    page.locator("#filter-agent").select_option("shop")
    expect(page.locator("#list .row", has_text="fork").first).to_be_visible()


def undo(desk: Desk) -> None:
    desk.open(desk.play(ORDER))
    first = desk.page.locator("#list .row").first
    first.hover()
    first.get_by_role("button").click()
    desk.page.get_by_role("menuitem", name="Delete").click()
    expect(desk.page.locator("#undo-bar")).to_be_visible()


def compose(desk: Desk) -> None:
    page = desk.open()
    orders = FilePayload(name="orders.csv", mimeType="text/csv", buffer=b"order\n1042\n")
    page.locator("#file").set_input_files(orders)
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Most steps").fill("3")
    page.get_by_label("Variables").fill('{"city": "Bonn"}')
    page.get_by_role("textbox", name="Message").fill("Write the invoice of the order in this file.")


def details(desk: Desk) -> None:
    page = desk.open()
    page.get_by_role("button", name="Details of shop").click()
    expect(page.locator(".tool").first).to_be_visible()


def keys(desk: Desk) -> None:
    desk.open().get_by_role("button", name="Shortcuts").click()


def locked(desk: Desk) -> None:
    problem = '{"status": 401, "code": "unauthorized", "detail": "This service needs an API key."}'

    def refuse(route: Route) -> None:
        route.fulfill(status=401, content_type="application/problem+json", body=problem)

    desk.page.route("**/agents", refuse)
    desk.page.goto(desk.service.url)
    expect(desk.page.locator("#key")).to_be_visible()


def lost(desk: Desk) -> None:
    conversation = desk.play(ORDER)
    desk.begin(conversation, LONG)
    desk.page.route("**/events", lambda route: route.abort())
    expect(desk.open(conversation).locator("#connection")).to_be_visible()


def missing(desk: Desk) -> None:
    desk.page.goto(f"{desk.service.url}/#/c/gone")
    expect(desk.page.locator("#missing")).to_be_visible()


def rebuilt(desk: Desk) -> None:
    page = desk.open(desk.play(ORDER, STOCK))
    page.locator(".turn").last.get_by_role("button", name="Prompt").click()
    expect(page.locator(".rebuilt")).to_be_visible()


def _inspected(name: str, *messages: str, agent: str = "shop") -> Callable[[Desk], None]:
    def show(desk: Desk) -> None:
        page = desk.open(desk.play(*messages, agent=agent))
        page.get_by_role("button", name="Inspector", exact=True).click()
        page.get_by_role("tab", name=name).click()
        expect(page.locator("#inspector-panel > *").first).to_be_visible()
        if name == "Files":
            page.locator(".workspace-file summary").click()
            expect(page.locator(".workspace-file pre")).to_contain_text("100 cups")
        if name == "Effects":
            expect(page.locator(".effects li")).not_to_have_count(0)
        if name == "Memory":
            page.locator("#policy").select_option("keep_last_n_steps")
            page.get_by_label("n", exact=True).fill("2")
            expect(page.locator(".estimate")).to_contain_text("left out")

    return show


SALES = "Which item sold best in October?"
INSPECTED = {
    "Prompt": _inspected("Prompt", ORDER),
    "Memory": _inspected("Memory", ORDER, STOCK),
    "Variables": _inspected("Variables", SALES, agent="analyst"),
    "Notes": _inspected("Notes", "Note that Ann likes blue."),
    "Files": _inspected("Files", "Write the order down.", agent="buyer"),
    "Effects": _inspected("Effects", REFUND),
    "Timeline": _inspected("Timeline", "How many cups shall we order?", agent="buyer"),
    "Share": _inspected("Share", ORDER),
}
STATES: dict[str, Callable[[Desk], None]] = {
    "empty": empty,
    "answer": _played(ORDER, STOCK, opened=()),
    "steps": _played("Please check the samovar too.", opened=(0,)),
    "code": _played(SALES, agent="analyst", opened=(0,)),
    "plan": _played("How many cups shall we order?", agent="buyer", opened=(0, 2)),
    "failed": _played("Which supplier is the cheapest?"),
    "right-to-left": _played(ARABIC, opened=(0,)),
    **{
        each.__name__.replace("_", "-"): each
        for each in (
            images, viewer, files, running, approval, edited, refused, question, stopped, rolled_back, editing,
            versions, fork, undo, compose, details, keys, locked, lost, missing, rebuilt,
        )
    },
    "list": found,
    **{f"inspector-{name.lower()}": show for name, show in INSPECTED.items()},
}  # fmt: skip
