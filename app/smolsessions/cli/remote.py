"""Connection of commands to a running service, and their output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.highlighter import JSONHighlighter

from smolsessions.cli.flags import places_of
from smolsessions.client import Client, ClientError, requests
from smolsessions.core.errors import StartError
from smolsessions.settings import PREFIX, Settings
from smolsessions.store.embedded.data_folder import address_in

_DELETE, _CONTROLS = 0x7F, range(0x80, 0xA0)  # which JSON does not escape
_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t\r"} | {_DELETE: 0x2421}
_SIGNS |= dict.fromkeys(_CONTROLS, 0xFFFD)
_ESCAPES = {code: f"\\u{code:04x}" for code in (_DELETE, *_CONTROLS)}

LOCAL = "http://127.0.0.1:8000"


def check_url(context: typer.Context, url: str | None) -> str | None:
    """Check the address of a service, and the files that it may come from."""
    if context.resilient_parsing:  # a shell completes the line
        return url
    places_of(context)
    if url == LOCAL:
        url = _service_of_this_folder()
    try:
        if url is not None:
            requests.check_address(url)
    except ValueError as error:
        raise StartError(f"{error} (--url, SMOLSESSIONS_URL)") from None
    return url


def _service_of_this_folder() -> str:
    folder = os.environ.get(f"{PREFIX}DATA_DIR") or Settings.model_fields["data_dir"].default
    if not os.environ.get(f"{PREFIX}REDIS_URL") and (address := address_in(Path(folder))):
        return f"http://{address}"
    port = os.environ.get(f"{PREFIX}PORT", "")
    return LOCAL if port in {"", "0"} else f"http://127.0.0.1:{port}"


def check_key(key: str | None) -> str | None:
    try:
        return requests.check_key(key) if key else key
    except ValueError as error:
        raise StartError(f"{error} (--api-key, SMOLSESSIONS_API_KEY)") from None


def check_id(conversation: str | None) -> str | None:
    if conversation is not None and not re.fullmatch("[A-Za-z0-9_-]{1,64}", conversation):
        raise StartError(f"{conversation!r} is no id of a conversation; `smolsessions conversations list` lists them")
    return conversation


Url = Annotated[str, typer.Option(envvar="SMOLSESSIONS_URL", callback=check_url, help="Address of the service.")]
ApiKey = Annotated[str | None, typer.Option(envvar="SMOLSESSIONS_API_KEY", callback=check_key, help="Your API key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


class _Screen(Console):
    """Console that shows control characters, which would change the terminal, as signs."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)


out = _Screen(highlight=False, soft_wrap=True)
err = _Screen(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def service(url: str, api_key: str | None) -> Iterator[Client]:
    """Connect to a service. A refusal ends the command with its sentence and status 1."""
    try:
        with Client(url, api_key=api_key, patience_s=5) as client:
            yield client
    except ClientError as error:
        raise fail(" ".join(str(error).split())) from None
    except UnicodeEncodeError:
        raise fail("the request has text that is no Unicode; write it in UTF-8") from None


def fail(sentence: str) -> typer.Exit:
    """Print the sentence of an error, and return the end of the command with status 1."""
    err.print(f"smolsessions: {sentence}", style="red", markup=False)
    return typer.Exit(1)


def show(record: BaseModel) -> None:
    out.print(JSONHighlighter()(_json(record, indent=2)), soft_wrap=True)


def line(record: BaseModel) -> None:
    typer.echo(_json(record))


def _json(record: BaseModel, indent: int | None = None) -> str:
    return record.model_dump_json(indent=indent).translate(_ESCAPES)


def printable(text: str) -> str:
    """Replace control characters except line breaks and tabs. Titles and replies are the texts of others."""
    return text.translate(_SIGNS)


def shorten(value: Any, most: int = 60) -> str:
    text = printable(" ".join(str(value if value is not None else "").split()))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def parse_json(text: str) -> Any:
    """Parse JSON. Raises `ValueError` also for numbers and depths that JSON on the wire does not have."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
