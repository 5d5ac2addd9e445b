"""Agents with tools that take and return files and audio, and files for them. PYTEST_DONT_REWRITE."""

import base64
import io
import wave
from typing import Any

from smolagents import CodeAgent, Tool, ToolCallingAgent

import smolsessions
from tests.support import agents
from tests.support.tools import tool

AGENTS = (
    "teller=tests.support.sounds:make_teller,coder=tests.support.sounds:make_coder,"
    "threaded=tests.support.sounds:make_threaded"
)
CSV = "city,people\nParis,2\nRome,3\n"
PDF = b"%PDF-1.4\n\x00\xff the contract"


def sound(rate: int = 8000, frames: int = 8) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(b"\x01\x02" * frames)
    return buffer.getvalue()


def sent(name: str, media_type: str, data: bytes | str) -> dict[str, str]:
    content = data.encode() if isinstance(data, str) else data
    return {"name": name, "media_type": media_type, "data": base64.b64encode(content).decode()}


@tool
def speak(text: str) -> object:
    """Speak a text."""
    return smolsessions.Audio(sound(frames=len(text)), "audio/wav", rate=8000)


@tool
def write_report(lines: int) -> object:
    """Write a report."""
    return smolsessions.File(b"a,b\n" * lines, "text/csv", "report.csv")


@tool
def write_letter(name: str) -> object:
    """Write a letter, in a file without an extension."""
    return smolsessions.File(b"Dear.", "text/plain", name)


@tool
def count_lines(text: str) -> int:
    """Count the lines of a text."""
    return len(text.splitlines())


@tool
def describe(file: Any) -> str:
    """Say which object this is."""
    data = getattr(file, "data", file)
    return f"{type(file).__name__} {len(data)} {getattr(file, 'rate', None)}"


@tool
def refuse(text: str) -> str:
    """Refuse a text."""
    raise ValueError(f"no text of {len(text)} characters is welcome")


@tool
def sing() -> Any:
    """Sing. Smolagents could only wrap the sound with torch."""
    return sound()


@tool
def listen(sound: Any) -> str:
    """Listen. Smolagents would refuse the input at each call, unless it is a tensor."""
    return str(sound)


sing.output_type = "audio"
listen.inputs["sound"]["type"] = "audio"
TOOLS = [speak, write_report, write_letter, count_lines, describe, refuse, agents.wait_for, agents.picture]


def make_with(*tools: Tool) -> ToolCallingAgent:
    return ToolCallingAgent(tools=list(tools), model=agents.ScriptedModel(model_id="scripted"))


def make_teller() -> ToolCallingAgent:
    return make_with(*TOOLS)


def make_singer() -> ToolCallingAgent:
    return make_with(sing)


def make_listener() -> ToolCallingAgent:
    return make_with(listen)


def make_coder() -> CodeAgent:
    return CodeAgent(tools=TOOLS, model=agents.ScriptedModel(model_id="scripted"))


def make_threaded() -> CodeAgent:
    return smolsessions.options(make_coder(), executor="thread")
