"""Agents of a shop for the gallery. Their model plays the script that belongs to the message (talker.py)."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import PIL.Image
import PIL.ImageDraw
import yaml
from smolagents import CodeAgent, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageStreamDelta
from smolagents.monitoring import TokenUsage

import smolsessions
from browser_tests.talker import Talker, make_coder, make_talker
from tests.support.service import ROOT
from tests.support.sounds import sound
from tests.support.tools import tool

AGENTS = ",".join(f"{name}=browser_tests.shop:make_{name}" for name in ("shop", "analyst", "buyer"))
CHARS_PER_TOKEN = 4
SCRIPTS: dict[str, list[dict[str, Any]]] = yaml.safe_load((ROOT / "tests" / "data" / "shop.yaml").read_text("utf-8"))
PLAN = """\
1. Count the cups in stock.
2. Ask the scout for a price.
3. Name the number of cups to order.

<end_plan>"""


class Player(Talker):
    """Plays the script of the message in the task, and one plan for each planning step."""

    def generate_stream(self, messages: list[ChatMessage], **options: Any) -> Iterator[ChatMessageStreamDelta]:
        if options.get("stop_sequences") == ["<end_plan>"]:
            yield ChatMessageStreamDelta(content=PLAN)
            yield ChatMessageStreamDelta(token_usage=self.usage([PLAN] * 9))
        else:
            yield from super().generate_stream(messages, **options)

    def script(self, task: str) -> list[dict[str, Any]]:
        return next(script for message, script in SCRIPTS.items() if message in task)

    def usage(self, texts: list[str]) -> TokenUsage:
        size = sum(map(len, texts)) // CHARS_PER_TOKEN
        return TokenUsage(input_tokens=size, output_tokens=20 + size % 90)


@tool
def find_order(number: int) -> dict[str, Any]:
    """Find an order."""
    return {"number": number, "customer": "Ann Lee", "items": ["teapot", "2 cups"], "total": 64.5, "state": "delivered"}


@tool
def check_stock(item: str) -> int:
    """Count the pieces of an item in stock."""
    if item == "samovar":
        raise LookupError("no item is called samovar")
    return 12


@tool
def refund(order: int, amount: float, reason: str) -> str:  # noqa: ARG001 - a tool of the scene
    """Pay money back."""
    return f"paid back {amount} for order {order}"


@tool
def send_email(to: str, text: str) -> str:  # noqa: ARG001 - a tool of the scene
    """Send an e-mail."""
    return f"sent to {to}"


@tool
def sales(month: str) -> dict[str, int]:  # noqa: ARG001 - a tool of the scene
    """Return the sold pieces of a month."""
    return {"teapot": 41, "cup": 118, "kettle": 23, "tray": 9}


@tool
def draw_chart(title: str) -> Any:
    """Draw a bar chart of the last sales."""
    image = PIL.Image.new("RGB", (480, 240), (250, 250, 247))
    draw = PIL.ImageDraw.Draw(image)
    draw.text((16, 10), title, (60, 60, 66), font_size=16)
    for index, height in enumerate((41, 118, 23, 9)):
        draw.rectangle((40 + index * 110, 220 - height * 1.4, 110 + index * 110, 220), (58, 83, 214))
    return image


draw_chart.output_type = "image"


@tool
def write_invoice(order: int) -> object:
    """Write an invoice as a file."""
    return smolsessions.File(b"item,price\nteapot,44.50\ncup,10\ncup,10\n", "text/csv", f"invoice-{order}.csv")


@tool
def read_aloud(text: str) -> object:  # noqa: ARG001 - a tool of the scene
    """Read a text aloud."""
    return smolsessions.Audio(sound(frames=8000), "audio/wav", rate=8000)


@tool
def ask_supplier(item: str) -> str:
    """Ask a supplier for a price."""
    return f"{item}: 21.90 each, 10 days"


def photo() -> str:
    image = PIL.Image.new("RGB", (320, 220), (214, 226, 222))
    draw = PIL.ImageDraw.Draw(image)
    draw.ellipse((215, 75, 275, 145), outline=(176, 84, 46), width=14)
    draw.rounded_rectangle((90, 55, 235, 180), 26, (176, 84, 46))
    draw.line((120, 55, 150, 120, 135, 180), (70, 34, 20), 4)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def make_shop() -> ToolCallingAgent:
    agent = _caller(
        [find_order, check_stock, refund, send_email, draw_chart, write_invoice, read_aloud],
        description="Finds orders, pays back and writes e-mails. A person approves each payment and each e-mail.",
    )
    examples = ["Where is order 1042?", "What do we have in stock?"]
    return smolsessions.options(
        agent, approve=["refund", "send_email"], ask_user=True, scratchpad=True, examples=examples
    )


def make_analyst() -> CodeAgent:
    return make_coder(
        tools=[sales, draw_chart],
        model=Player(model_id="scripted"),
        description="Counts and compares the sales, in Python.",
    )


def make_buyer() -> ToolCallingAgent:
    scout = _caller([ask_supplier], name="scout", description="Asks suppliers for prices.")
    buyer = _caller([check_stock], managed_agents=[scout], planning_interval=4, description="Plans with a scout.")
    return smolsessions.options(buyer, workspace={"editable": ["**"]})


def _caller(tools: list[Any], **options: Any) -> ToolCallingAgent:
    return make_talker(tools=tools, model=Player(model_id="scripted"), **options)
