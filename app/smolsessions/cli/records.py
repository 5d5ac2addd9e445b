"""Commands `conversations` and `turns`: read and change the records of a running service."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from rich.progress import track
from rich.table import Table
from rich.text import Text

from smolsessions.cli import remote
from smolsessions.cli.questions import arguments_of, result_of
from smolsessions.cli.remote import LOCAL, ApiKey, AsJson, Url, service
from smolsessions.core.errors import StartError
from smolsessions.wire import turns as wire_turns

T = TypeVar("T")
TEXTS = {"title", "message", "reply", "tools"}
"""Columns that a narrow terminal wraps."""
WIDE = 1000
Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", callback=remote.check_id, help="Its id.")]
Conversations = Annotated[
    list[str],
    typer.Argument(metavar="CONVERSATION...", callback=lambda names: [*map(remote.check_id, names)], help="Their ids."),
]
Turn = Annotated[int, typer.Argument(metavar="TURN", min=1, help="Its number.")]
Limit = Annotated[int, typer.Option(min=1, help="Most items.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
conversations = typer.Typer(
    no_args_is_help=True, help="List, show, fork, roll back, prune, export, import and delete conversations."
)
turns = typer.Typer(no_args_is_help=True, help="List, show, watch, answer and cancel turns.")


def _progress(items: Sequence[T], action: str) -> Iterable[T]:
    return track(items, action, console=remote.err, transient=True, disable=not remote.err.is_terminal)


def _table(
    found: Iterator[BaseModel], columns: dict[str, Callable[[Any], object]], limit: int, *, as_json: bool, empty: str
) -> None:
    items = itertools.islice(found, limit)
    if as_json:
        for item in items:
            remote.line(item)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name not in TEXTS)
    for item in items:
        table.add_row(*(Text(remote.shorten(column(item))) for column in columns.values()))
    if table.rows:
        if not remote.out.is_terminal:
            remote.out.width = WIDE  # a row is a line for a program
        remote.out.print(table, soft_wrap=False)
        if next(found, None):
            remote.err.print(f"more exist than --limit {limit} shows", style="dim")
    else:
        remote.err.print(empty, style="dim")


@conversations.command("list")
def list_conversations(  # noqa: PLR0917 - typer passes them by name
    url: Url = LOCAL,
    api_key: ApiKey = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[str | None, typer.Option(help="idle, queued, running or waiting.")] = None,
    q: Annotated[str | None, typer.Option("--search", help="Part of the title.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List conversations, those that were used last first."""
    columns = {
        "id": lambda each: each.id,
        "agent": lambda each: each.agent,
        "status": lambda each: each.status,
        "turns": lambda each: each.turn_count,
        "updated": lambda each: f"{each.updated_at:%Y-%m-%d %H:%M}",
        "title": lambda each: each.title,
    }
    with service(url, api_key) as client:
        found = client.list_conversations(agent=agent, status=status, q=q)
        _table(
            found,
            columns,
            limit,
            as_json=as_json,
            empty="no conversation; none fits these filters"
            if agent or status or q
            else "no conversation; POST /turn or `smolsessions chat` begins one",
        )


@conversations.command("show")
def show_conversation(conversation: Conversation, url: Url = LOCAL, api_key: ApiKey = None) -> None:
    """Show a conversation as JSON."""
    with service(url, api_key) as client:
        remote.show(client.get_conversation(conversation))


@conversations.command("export")
def export_conversation(
    conversation: Conversation,
    file: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Else standard output.")] = None,
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Write a conversation as a JSON document (docs/export.md)."""
    with service(url, api_key) as client, remote.err.status(f"exporting {conversation} …"):
        text = json.dumps(client.export_conversation(conversation), ensure_ascii=False)
    if file:
        _write(file, text)
    else:
        sys.stdout.buffer.write(f"{text}\n".encode())  # whatever the encoding of the terminal is


def _write(file: Path, text: str) -> None:
    """Write a file, or the file that a symlink names, as a whole. A full disk leaves the one that was there."""
    try:
        target = file.resolve()
        if target.exists() and not target.is_file():  # a device
            target.write_text(text, "utf-8")
            return
        part = target.with_name(f".{token_hex(8)}.part")
        try:
            with part.open("x", encoding="utf-8") as opened:
                if target.exists():
                    shutil.copymode(target, part)
                opened.write(text)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # Python 3.11 raises `RuntimeError` for symlinks in a circle
        cause = error.strerror if isinstance(error, OSError) else error
        raise remote.fail(f"{file} cannot be written ({cause}); fix that, or name another file") from None


@conversations.command("import")
def import_conversation(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, help="Documents.")],
    agent: Annotated[str | None, typer.Option(help="Agent of the new conversations. Else the document's.")] = None,
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Create conversations from documents, and print their ids."""
    with service(url, api_key) as client:
        for file in _progress(files, "importing"):
            try:
                document = remote.parse_json(file.read_text("utf-8"))
            except ValueError as error:
                raise remote.fail(f"{file} is no JSON: {error}; export the conversation again") from None
            typer.echo(client.import_conversation(document, agent=agent).id)


@conversations.command("delete")
def delete_conversations(names: Conversations, yes: Yes = False, url: Url = LOCAL, api_key: ApiKey = None) -> None:
    """Delete conversations permanently."""
    if not yes:
        _confirm(f"Delete {len(names)} permanently?")
    with service(url, api_key) as client:
        for name in _progress(names, "deleting"):
            client.delete_conversation(name)


@conversations.command("prune")
def prune_conversation(  # noqa: PLR0917 - see above
    conversation: Conversation,
    policy: Annotated[
        str | None, typer.Option(help="A rule's name, or rules as JSON. Else the conversation's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes.")] = False,
    destroy: Annotated[bool, typer.Option("--destroy", help="Delete the steps permanently.")] = False,
    yes: Yes = False,
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Remove the steps from the memory that a policy drops."""
    if destroy and not dry_run and not yes:
        _confirm("Delete these steps permanently?")
    try:
        rules: Any = remote.parse_json(policy) if policy and policy.lstrip().startswith(("[", "{")) else policy
    except ValueError as error:
        example = """'[{"name": "keep_last_n_steps", "n": 20}]'"""
        raise StartError(f"--policy is no JSON: {error}; write it as {example}") from None
    with service(url, api_key) as client:
        remote.show(client.prune_conversation(conversation, policy=rules, dry_run=dry_run, destroy=destroy))


@conversations.command("fork")
def fork_conversation(
    conversation: Conversation,
    turn: Annotated[int | None, typer.Option(min=0, help="Last turn of the copy. Else the last one.")] = None,
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Copy a conversation as it was after a turn, and print the id of the copy."""
    with service(url, api_key) as client:
        typer.echo(client.fork_conversation(conversation, turn=turn).id)


@conversations.command("rollback")
def roll_back_conversation(
    conversation: Conversation,
    turn: Annotated[int, typer.Argument(metavar="TURN", min=0, help="Last turn to keep. 0: none.")],
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Drop the turns after TURN from the memory, and show the conversation. They stay on record."""
    with service(url, api_key) as client:
        remote.show(client.roll_back_conversation(conversation, turn))


def _confirm(question: str) -> None:
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        raise remote.fail("nothing was deleted; answer y, or use --yes") from None


@turns.command("list")
def list_turns(
    conversation: Conversation, limit: Limit = 20, as_json: AsJson = False, url: Url = LOCAL, api_key: ApiKey = None
) -> None:
    """List the turns of a conversation, and how each ended: finished, out of steps, failed, cancelled or waiting."""

    def status(turn: wire_turns.Turn) -> str:
        words = f"failed: {turn.error.code}" if turn.status == "failed" and turn.error else turn.status
        words = "out of steps" if turn.outcome == "max_steps_error" else words
        return f"{words}, rolled back" if turn.rolled_back else words

    columns = {
        "turn": lambda each: each.turn,
        "status": status,
        "steps": lambda each: each.step_count,
        "tools": lambda each: ", ".join(each.tool_call_names),
        "message": lambda each: each.message,
        "reply": lambda each: each.error.message if each.error else each.reply,
    }
    with service(url, api_key) as client:
        found = client.list_turns(conversation)
        _table(found, columns, limit, as_json=as_json, empty="no turn yet")


@turns.command("show")
def show_turn(conversation: Conversation, turn: Turn, url: Url = LOCAL, api_key: ApiKey = None) -> None:
    """Show a turn as JSON."""
    with service(url, api_key) as client:
        remote.show(client.get_turn(conversation, turn))


@turns.command("events")
def watch_turn(
    conversation: Conversation,
    turn: Turn,
    after: Annotated[int, typer.Option(min=0, help="Number of an event. Only later ones are printed.")] = 0,
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Print the events of a turn as they happen, one JSON object a line."""
    with service(url, api_key) as client:
        for event in client.get_turn_events(conversation, turn, after=after):
            remote.line(event)


@turns.command("answer")
def answer_turn(  # noqa: PLR0917 - see above
    conversation: Conversation,
    turn: Turn,
    request: Annotated[
        str | None, typer.Argument(metavar="[REQUEST]", help="Id of the request. Else the only open one.")
    ] = None,
    approve: Annotated[bool, typer.Option("--approve", help="Make the call.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Do not make the call, or decline to answer.")] = False,
    arguments: Annotated[str | None, typer.Option(metavar="JSON", help="Other arguments of the call.")] = None,
    reason: Annotated[str | None, typer.Option(help="Told to the agent's model.")] = None,
    text: Annotated[str | None, typer.Option(help="Answer to a question.")] = None,
    result: Annotated[str | None, typer.Option(help="Result of a tool of yours: JSON, or a text.")] = None,
    error: Annotated[str | None, typer.Option(help="Why a tool of yours has no result.")] = None,
    url: Url = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Answer a request of a waiting turn, and show the turn at its end or when it waits again."""
    answer: dict[str, Any] = {name: found for name, found in (("text", text), ("error", error)) if found is not None}
    if result is not None:
        answer["result"] = result_of(result)
    if approve + reject + len(answer) != 1:
        one = "--approve, --reject, --text, --result and --error"
        raise StartError(f"the command has no decision, or several; write one of {one}")
    if approve or reject:
        answer["decision"] = "approve" if approve else "reject"
    if reason is not None:
        answer["reason"] = reason
    if arguments is not None:
        try:
            answer["arguments"] = arguments_of(arguments)
        except ValueError as mistake:
            raise StartError(f'--arguments is no JSON object: {mistake}; write it as \'{{"to": "ada"}}\'') from None
    with service(url, api_key) as client, remote.err.status("waiting …"):
        if request is None:
            still_open = [each.request_id for each in client.get_turn(conversation, turn).requests]
            if len(still_open) != 1:
                raise remote.fail(f"name one of the open requests: {', '.join(still_open) or 'there is none'}")
            (request,) = still_open
        given: Any = {"request_id": request, **answer}
        answered = client.answer_turn(conversation, turn, [given])
    remote.show(answered)


@turns.command("cancel")
def cancel_turn(conversation: Conversation, turn: Turn, url: Url = LOCAL, api_key: ApiKey = None) -> None:
    """Stop a turn at its next model call, piece of text or tool call, and show it."""
    with service(url, api_key) as client, remote.err.status("stopping …"):
        stopped = client.cancel_turn(conversation, turn, wait_s=30)
    remote.show(stopped)
