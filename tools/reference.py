"""Parts of the docs' reference that are made from the code: events, commands, methods of the client."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from smolsessions.agent_options import WorkspaceOptions
from smolsessions.agents.config.schema import AgentTable, McpTable, ModelOptions, ModelTable
from smolsessions.cli.commands import app
from smolsessions.client.sync import Client
from smolsessions.core.errors import FAILURES, STEP_FAILURES, codes_of_answers
from smolsessions.settings import Settings, settings_table
from smolsessions.web.problems import status_of
from smolsessions.wire.events import MODELS_OF_TYPES, StepEvent, TurnEvent

DOCS = Path(__file__).parent.parent / "docs"
_TABLES: dict[str, type[BaseModel]] = {
    "[models.NAME]": ModelTable,
    "options of a model": ModelOptions,
    "[agents.NAME]": AgentTable,
    "workspace of an agent": WorkspaceOptions,
    "[mcp.NAME]": McpTable,
}
_COMMON = (  # the page of commands says once which ones have them
    "An agent with a name of its own. May be repeated.",
    "Address of the service.",
    "Your API key.",
)


def parts() -> Iterator[tuple[Path, str, str]]:
    """Yield each part with its page and the name of its marks."""
    yield DOCS / "reference" / "settings.md", "settings", settings_table()
    yield DOCS / "reference" / "commands.md", "commands", _commands()
    page, answers = DOCS / "reference" / "errors.md", sorted(codes_of_answers().items())
    rows = [f"- `{code}` ({status_of(kind()).value}): {kind().message}" for code, kind in answers]
    yield page, "answers", "\n".join(rows)
    for name, meanings in {"turns": FAILURES, "steps": STEP_FAILURES}.items():
        yield page, name, "\n".join(f"- `{code}`: {meaning}" for code, meaning in sorted(meanings.items()))
    yield DOCS / "client.md", "methods", _methods()
    yield DOCS / "agents.md", "keys", _keys()
    yield DOCS / "events.md", "members", f"{_members(TurnEvent)}\n\n{_members(StepEvent)}"
    yield DOCS / "events.md", "types", "\n\n".join(_events())


def fill(page: Path, name: str, text: str) -> str:
    """Return a page with the part between two marks replaced."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.read_text("utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} has no lines {start.strip()} and {end}")
    return f"{before}{start}{text.strip()}\n{end}{after}"


def _commands() -> str:
    return "\n\n".join(_command("smolsessions", typer.main.get_command(app)))


def _command(name: str, command: Any) -> Iterator[str]:
    if commands := getattr(command, "commands", None):
        for word, each in commands.items():
            yield from _command(f"{name} {word}", each)
        return
    arguments = [
        each.metavar or (each.name.upper() if each.required else f"[{each.name.upper()}]")
        for each in command.params
        if each.param_type_name == "argument"
    ]
    options = [(flag, text) for flag, text in _options(command) if text not in _COMMON]
    if "--port" in dict(options):
        options = [row for row in options if row[0].removeprefix("--").replace("-", "_") not in Settings.model_fields]
    lines = "\n".join(f"- `{flag}`: {text}" for flag, text in options)
    summary = inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
    yield "\n\n".join([f"### {' '.join([*name.split()[1:], *arguments])}", summary, *([lines] if options else [])])


def _options(command: Any) -> Iterator[tuple[str, str]]:
    for each in command.params:
        if each.param_type_name == "option" and not each.hidden and "--help" not in each.opts:
            yield each.opts[0], (each.help or "").replace("|", "\\|")


def _events() -> Iterator[str]:
    seen: set[str] = set()  # a member that an earlier event has described is named alone
    for model in dict.fromkeys(MODELS_OF_TYPES.values()):
        types = ", ".join(f"`{word}`" for word, each in MODELS_OF_TYPES.items() if each is model)
        inside = " Inside a step." if issubclass(model, StepEvent) else ""
        yield f"### {types}\n\n{inspect.getdoc(model)}{inside}"
        if members := _members(model).splitlines():
            known = ", ".join(line[2:].partition(":")[0] for line in members if line in seen)
            new = [line for line in members if line not in seen]
            seen.update(new)
            yield "\n".join([*new, *([f"- {known}: as above."] if known else [])])


def _members(model: type[TurnEvent]) -> str:
    """Return a list of the members that a model has beyond those of its base."""
    base: Any = model.__base__
    members = [(name, field.description) for name, field in model.model_fields.items() if name not in base.model_fields]
    return "\n".join(f"- `{name}`: {text}" for name, text in members)


def _methods() -> str:
    rows = []
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_"):
            names = [each for each in inspect.signature(method).parameters if each != "self"]
            rows.append(f"- `{name}({', '.join(names)})`")
    return "\n".join(rows)


def _keys() -> str:
    """Return a Markdown list of the keys of each table, with their defaults."""
    parts = []
    for title, table in _TABLES.items():
        rows = []
        for name in sorted(table.model_fields, key=lambda key: key not in table.__annotations__):  # inherited ones last
            field = table.model_fields[name]
            default = field.get_default(call_default_factory=True)
            shown = f" (`{json.dumps(default)}`)" if isinstance(default, str | int | float) else ""
            rows.append(f"- `{name}`{shown}: {field.description or ''}")
        parts.append("\n".join([f"### {title}", "", *rows]))
    return "\n\n".join(parts)
