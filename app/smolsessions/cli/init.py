"""Command `init`: a folder to begin with."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from smolsessions.core.errors import StartError


def init(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="It is created if it does not exist.")] = Path(),
) -> None:
    """Create a folder with an agent, agents.toml, settings, a test and a Dockerfile. No file is overwritten."""
    template = files("smolsessions.cli").joinpath("template")
    texts = {folder / each.name.removesuffix(".txt"): each.read_text("utf-8") for each in template.iterdir()}
    if found := sorted(path.name for path in texts if path.exists()):
        raise StartError(f"{folder} has {', '.join(found)} already; move them away, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in sorted(texts.items()):
        path.write_text(text, "utf-8")
        typer.echo(f"created {path}")
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    typer.echo(f"Next: {go}smolsessions serve --reload, or smolsessions chat, or pytest (pip install pytest)")
