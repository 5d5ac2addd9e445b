"""Agents with tools that take and return files and audio, and files for them.

PYTEST_DONT_REWRITE: the service, which is another process, imports this too.
"""

import base64
import io
import wave
from typing import Any

from smolagents import CodeAgent, Tool, ToolCallingAgent, tool

import smolsessions
from tests.support import agents

AGENTS = (
    "teller=tests.support.sounds:make_teller,coder=tests.support.sounds:make_coder,"
    "threaded=tests.support.sounds:make_threaded"
)
CSV = "city,people\nParis,2\nRome,3\n"
PDF = b"%PDF-1.4\n\x00\xff the contract"


def sound(rate: int = 8000, frames: int = 8) -> bytes:
    """Return the bytes of a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(b"\x01\x02" * frames)
    return buffer.getvalue()


def sent(name: str, media_type: str, data: bytes | str) -> dict[str, str]:
    """Return a file as the body of a turn holds it."""
    content = data.encode() if isinstance(data, str) else data
    return {"name": name, "media_type": media_type, "data": base64.b64encode(content).decode()}


@tool
def speak(text: str) -> object:
    """Speak a text.

    Args:
        text: any text.
    """
    return smolsessions.Audio(sound(frames=len(text)), "audio/wav", rate=8000)


@tool
def write_report(lines: int) -> object:
    """Write a report.

    Args:
        lines: how long it is.
    """
    return smolsessions.File(b"a,b\n" * lines, "text/csv", "report.csv")


@tool
def write_letter(name: str) -> object:
    """Write a letter, in a file without an extension.

    Args:
        name: name of the file.
    """
    return smolsessions.File(b"Dear.", "text/plain", name)


@tool
def count_lines(text: str) -> int:
    """Count the lines of a text.

    Args:
        text: any text.
    """
    return len(text.splitlines())


class Describe(Tool):  # type: ignore[misc, unused-ignore]
    """Says which object it got."""

    name = "describe"
    description = "Describe a file."
    inputs = {"file": {"type": "any", "description": "A file."}}  # noqa: RUF012 - as smolagents has it
    output_type = "string"

    def forward(self, file: Any) -> str:
        """Describe the file."""
        data = getattr(file, "data", file)
        return f"{type(file).__name__} {len(data)} {getattr(file, 'rate', None)}"


@tool
def refuse(text: str) -> str:
    """Refuse a text.

    Args:
        text: any text.
    """
    raise ValueError(f"no text of {len(text)} characters is welcome")


def tools() -> list[Tool]:
    describe = Describe()  # type: ignore[no-untyped-call, unused-ignore]
    return [speak, write_report, write_letter, count_lines, describe, refuse, agents.wait_for, agents.picture]


def make_teller() -> ToolCallingAgent:
    return ToolCallingAgent(tools=tools(), model=agents.ScriptedModel(model_id="scripted"))


def make_coder() -> CodeAgent:
    return CodeAgent(tools=tools(), model=agents.ScriptedModel(model_id="scripted"))


def make_threaded() -> CodeAgent:
    agent = make_coder()
    smolsessions.options(agent, executor="thread")
    return agent


class Sing(Tool):  # type: ignore[misc, unused-ignore]
    """A tool that smolagents could only wrap with torch."""

    name = "sing"
    description = "Sing."
    inputs: dict[str, Any] = {}  # noqa: RUF012 - as smolagents has it
    output_type = "audio"

    def forward(self) -> Any:
        """Sing."""
        return sound()


def make_singer() -> ToolCallingAgent:
    sing = Sing()  # type: ignore[no-untyped-call, unused-ignore]
    return ToolCallingAgent(tools=[sing], model=agents.ScriptedModel(model_id="scripted"))


class Listen(Tool):  # type: ignore[misc, unused-ignore]
    """A tool whose input smolagents would refuse at each call, unless it is a tensor."""

    name = "listen"
    description = "Listen."
    inputs: dict[str, Any] = {"sound": {"type": "audio", "description": "Sound."}}  # noqa: RUF012 - as smolagents has it
    output_type = "string"

    def forward(self, sound: Any) -> Any:
        """Listen."""
        return str(sound)


def make_listener() -> ToolCallingAgent:
    listen = Listen()  # type: ignore[no-untyped-call, unused-ignore]
    return ToolCallingAgent(tools=[listen], model=agents.ScriptedModel(model_id="scripted"))
