"""Agents whose calls need approval, or that ask questions. Their e-mails are lines of a file. PYTEST_DONT_REWRITE."""

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
from smolagents import CodeAgent, MultiStepAgent, Tool, ToolCallingAgent

import smolsessions
from smolsessions.caller import Caller
from tests.support import agents, coders
from tests.support.tools import tool

OUTBOX = "APPROVALS_OUTBOX"
"""Variable with the path of the file of sent e-mails."""


@tool
def send_email(to: str, text: str) -> str:
    """Send an e-mail."""
    with Path(os.environ[OUTBOX]).open("a") as outbox:
        outbox.write(f"{to}: {text}\n")
    return f"sent to {to}"


@tool
def send_and_crash(to: str) -> str:
    """Send an e-mail, and end the process."""
    with Path(os.environ[OUTBOX]).open("a") as outbox:
        outbox.write(f"{to}: the last\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool
def delete_file(path: str, force: bool = False, times: int | None = None) -> str:
    """Delete a file."""
    return f"deleted {path} {force} {times}"


@tool
def post(to: str, media: Any) -> str:
    """Send images and files. The outbox holds their hashes.

    Args:
        to: their receiver.
        media: an image, a file, or a list of both and of texts.
    """
    parts = media if isinstance(media, list) else [media]
    with Path(os.environ[OUTBOX]).open("a") as outbox:
        outbox.writelines(f"{to}: {_hashed(part)}\n" for part in parts)
    return f"posted to {to}"


def _hashed(part: Any) -> str:
    if isinstance(part, smolsessions.File):
        return hashlib.sha256(part.data).hexdigest()
    if isinstance(part, list):
        return f"[{', '.join(map(_hashed, part))}]"
    return hashlib.sha256(part.tobytes()).hexdigest() if isinstance(part, PIL.Image.Image) else str(part)


@tool
def report() -> object:
    """Return a file."""
    return smolsessions.File(b"a;b\n1;2\n", "text/csv", "report.csv")


class Linger(Tool):
    name = "linger"
    description = "Return the text after a while."
    inputs: dict[str, Any] = {"text": {"type": "string", "description": "any text."}}  # noqa: RUF012
    output_type = "string"

    async def forward(self, text: str) -> str:
        await asyncio.sleep(0.01)
        return text


class Wordy(Tool):
    name = "wordy"
    description = "Return a text."
    inputs: dict[str, Any] = {"text": {"type": "string", "description": "a text. " + 64 * 1024 * "x"}}  # noqa: RUF012
    output_type = "string"

    def forward(self, text: str) -> str:
        return text


TOOLS = [send_email, send_and_crash, delete_file, agents.echo, agents.wait_for, agents.picture, post, report, Linger()]  # type: ignore[no-untyped-call]


def make_plain(**options: Any) -> ToolCallingAgent:
    templates = agents.script_templates("toolcalling_agent.yaml")
    return agents.make_scripted(**({"tools": [*TOOLS], "prompt_templates": templates, "max_steps": 12} | options))


def make_mailer(**options: Any) -> ToolCallingAgent:
    return smolsessions.options(make_plain(**options), approve=["send_*", "delete_file"], ask_user=True)


def make_code_mailer(**options: Any) -> CodeAgent:
    agent = coders.make_coder(("time", "random"), tools=[*TOOLS], **options)
    return smolsessions.options(agent, approve=["send_*"], ask_user=True)


def make_office() -> ToolCallingAgent:
    """Make a manager whose rule holds for the mailers below it."""
    lead = make_plain(
        name="lead", description="Leads.", managed_agents=[make_plain(name="deputy", description="Helps the lead.")]
    )
    clerk = coders.make_coder(tools=[*TOOLS], name="clerk", description="Writes code.")
    return smolsessions.options(make_plain(managed_agents=[lead, clerk]), approve=["send_email", "lead"])


def make_chain() -> ToolCallingAgent:
    """Make an agent without wishes, that manages one with a rule, that manages one without any."""
    deputy = make_plain(name="deputy", description="Helps the lead.")
    lead = make_plain(name="lead", description="Leads.", managed_agents=[deputy])
    smolsessions.options(lead, approve=_is_outside)
    return smolsessions.options(make_plain(managed_agents=[lead]), approve=lambda _name, _arguments, _caller: False)


def _is_outside(name: str, arguments: dict[str, Any], caller: Caller) -> bool:
    if arguments.get("to") == "nobody":
        raise LookupError(caller.owner)
    return name == "send_email" and not arguments["to"].endswith("@here")


def make_careful() -> ToolCallingAgent:
    return smolsessions.options(make_plain(), approve=["send_*"], unsafe_to_repeat=["send_and_crash"])


def make_moody() -> ToolCallingAgent:
    """Make an agent whose instructions come from the environment of its process."""
    instructions = os.environ.get("APPROVALS_INSTRUCTIONS", "Be brief.")
    return smolsessions.options(make_plain(instructions=instructions), approve=["send_*"])


def make_personal(caller: Caller) -> ToolCallingAgent:
    agent = make_plain(instructions=f"Work for {caller.owner} in {caller.conversation_id}.")
    return smolsessions.options(agent, approve=["send_*"])


def make_threaded() -> CodeAgent:
    return smolsessions.options(coders.make_coder(tools=[*TOOLS]), executor="thread")


NAMES = """
chain poster code_poster wordy plain mailer code_mailer code_reader office judging careful moody personal wild threaded
formed
""".split()
AGENTS = ",".join(f"{name.replace('_', '-')}=tests.support.approvals:make_{name}" for name in NAMES)


FACTORIES: dict[str, Callable[[], MultiStepAgent]] = {
    # A coder each of whose blocks is approved.
    "code_reader": lambda: smolsessions.options(coders.make_coder(tools=[*TOOLS]), approve=["python_interpreter"]),
    # An agent with a rule of its own, which fails for one receiver.
    "judging": lambda: smolsessions.options(make_plain(), approve=_is_outside),
    # A coder with random numbers that no seed covers: those of SQLite.
    "wild": lambda: smolsessions.options(coders.make_coder(("sqlite3",), tools=[*TOOLS]), approve=["send_email"]),
    # An agent whose answers are lists.
    "formed": lambda: smolsessions.options(make_plain(), output_schema={"type": "array"}),
    "poster": lambda: smolsessions.options(make_plain(), approve=["post"]),
    # An agent with a tool whose schema is large.
    "wordy": lambda: smolsessions.options(make_plain(tools=[Wordy()]), approve=["wordy"]),  # type: ignore[no-untyped-call]
    "code_poster": lambda: smolsessions.options(
        coders.make_coder(("PIL.*", "sqlite3"), tools=[*TOOLS]), approve=["post"]
    ),
}
globals().update({f"make_{name}": factory for name, factory in FACTORIES.items()})
