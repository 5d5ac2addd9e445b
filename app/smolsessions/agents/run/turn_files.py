"""Files of a message: in `agent.state` by name, and named to the model without their content."""

from __future__ import annotations

import builtins
import itertools
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from smolagents import CodeAgent

from smolsessions.agents.run.agent_state import AgentNode
from smolsessions.core.attachments import File, decode_file, extension_of, is_text, name_of
from smolsessions.core.errors import ServiceError
from smolsessions.core.records import TurnInput

MAX_STATE_BYTES = 32 * 1024 * 1024
FILES = """

These files came with this message. Their content is not shown. A name as an argument of a tool passes the content:
{files}"""
VARIABLES = """

These files came with this message, as variables:
{files}"""
UNKEPT = f" is not kept: the conversation's files would have more than {MAX_STATE_BYTES // 1024**2} MiB"
UNREAD = "\n\n(These files came with this message, but its turn ended before the agent could read them: {files}.)"
_WITH_EXTENSION = re.compile(r".+\.[A-Za-z0-9]{1,10}")
_SIZED = (File, str, bytes)
_NAMES = frozenset({*dir(builtins), *keyword.kwlist, "final_answer"})


class FilesTooLargeError(ServiceError, code="agent_error"):
    """The files and variables of this conversation are too large together; begin a new conversation."""


def files_of(turn_input: TurnInput) -> tuple[File, ...]:
    return tuple(file for data in turn_input.files if (file := decode_file(data)))


def state_of_files(node: AgentNode, files: Sequence[File], arguments: Collection[str]) -> tuple[dict[str, Any], str]:
    """Return the files as values of `agent.state`, and a sentence that names them to the model.

    A text is its text, so that any tool takes it. Code reads variables, whose names are taken from the files' names and
    are neither those of `arguments` nor of tools.
    """
    agent = node.agent
    if not fits(agent.state, {file.name: file for file in files}):
        raise FilesTooLargeError
    contents = [file.text if is_text(file.media_type) else file for file in files]
    if not isinstance(agent, CodeAgent):
        values = {file.name: content for file, content in zip(files, contents, strict=True)}
        return values, FILES.format(files="\n".join(f"- {_about(file)}" for file in files))
    taken = _NAMES | {*agent.tools, *agent.managed_agents, *arguments}
    values = dict(zip(_variables(files, taken), contents, strict=True))
    lines = []
    for name, file in zip(values, files, strict=True):
        if is_text(file.media_type):
            lines.append(f"- {name}: the text of {_about(file)}")
        elif node.code_runs_in == "remote":  # the kernel lacks this class
            lines.append(f"- {name}: the bytes of {_about(file)}")
        else:
            lines.append(f"- {name}: the file {_about(file)}; {name}.data holds its bytes")
    return values, VARIABLES.format(files="\n".join(lines))


def fits(state: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    held = [each for each in {**state, **values}.values() if isinstance(each, _SIZED)]
    return sum(len(each.data) if isinstance(each, File) else len(each) for each in held) <= MAX_STATE_BYTES


def name_in_state(part: Any) -> str:
    """Return the name of a tool's file or image. It has an extension, as no other argument may be taken for it."""
    if not isinstance(part, File):
        return "image.png"
    name = name_of(part)
    return name if _WITH_EXTENSION.fullmatch(name) else name + extension_of(part.media_type)


def by_name(arguments: Any, state: Mapping[str, Any]) -> Any:
    """Return a call's arguments with its name in place of each text of a file: a record does not repeat files."""
    if type(arguments) is not dict:
        return arguments
    names = {
        id(value): name
        for name, value in [*state.items()]
        # Python keeps one object of each text of one character.
        if type(value) is str and len(value) > 1 and _WITH_EXTENSION.fullmatch(name)
    }
    return {key: names.get(id(value), value) for key, value in arguments.items()} if names else arguments


def _variables(files: Sequence[File], taken: Collection[str]) -> Iterator[str]:
    used = set(taken)
    for file in files:
        letters = unicodedata.normalize("NFKC", file.name)  # as Python reads names
        name = "".join(each if f"_{each}".isidentifier() else " " for each in letters)
        name = "_".join(name.replace("_", " ").split())
        if not name.isidentifier():
            name = f"file_{name}".rstrip("_")
        name = free_name(name, used)
        used.add(name)
        yield name


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken, with a number before its extension if need be."""
    stem, dot, extension = name.rpartition(".")
    numbered = (f"{stem}_{number}.{extension}" if dot else f"{name}_{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def _about(file: File) -> str:
    return f"{file.name} ({file.media_type}, {len(file.data):,} bytes)"
