"""Connection of commands to a running service, and their output."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from smolsessions.client import Client, ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

Url = Annotated[str, typer.Option(envvar="SMOLSESSIONS_URL", help="Address of the service.")]
ApiKey = Annotated[str | None, typer.Option(envvar="SMOLSESSIONS_API_KEY", help="Your API key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
LOCAL = "http://127.0.0.1:8000"
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def service(url: str, api_key: str | None) -> Iterator[Client]:
    """Connect to a service. A refusal ends the command with its sentence and status 1."""
    try:
        with Client(url, api_key=api_key, patience_s=5) as client:
            yield client
    except ClientError as error:
        err.print(f"smolsessions: {error}", style="red", markup=False)
        raise typer.Exit(1) from None


def show(record: BaseModel) -> None:
    """Print a record as indented JSON."""
    out.print_json(record.model_dump_json())


def line(record: BaseModel) -> None:
    """Print a record as one line of JSON."""
    typer.echo(record.model_dump_json())


def shorten(value: Any, most: int = 60) -> str:
    text = " ".join(str(value if value is not None else "").split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
