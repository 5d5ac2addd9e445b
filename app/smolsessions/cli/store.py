"""Commands `store`: care for the stored data."""

from __future__ import annotations

import asyncio

import typer
from rich.progress import Progress

from smolsessions.cli.flags import places_of
from smolsessions.cli.remote import err, out
from smolsessions.core.errors import ServiceError, StartError
from smolsessions.settings import read_settings

store = typer.Typer(no_args_is_help=True, help="Care for the stored data.")


@store.callback()
def front() -> None:
    """Care for the stored data."""


@store.command()
def rekey(context: typer.Context) -> None:
    """Seal all records with the first seal key, so that older keys can be removed.

    Services may run meanwhile, if all have the key in the first place. If it is stopped, run it again.
    """
    from smolsessions.store.key_rotation import Rekeyed  # noqa: PLC0415 - other commands load no server
    from smolsessions.wiring import store_beside_services  # noqa: PLC0415 - as above

    settings = read_settings(places_of(context))

    async def rekey_all() -> Rekeyed:
        async with store_beside_services(settings) as opened:
            with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
                task = progress.add_task("sealing …", total=2 * await opened.key_count())  # a second pass finds nothing
                return await opened.rekey(lambda more: progress.advance(task, more))

    try:
        done = asyncio.run(rekey_all())
    except StartError:
        raise
    except ServiceError as error:
        raise StartError(f"{error.message} Run the command again to go on.") from error
    out.print(f"{done.records} records were sealed again.", highlight=False)
    if done.unreadable:
        out.print(
            f"{done.unreadable} records cannot be opened and stay as they are, such as one of {done.example}.",
            style="red",
            markup=False,
        )
    if not done.is_complete:
        out.print(
            "Some records may still have an older key: another process seals with it, or was copying a conversation. "
            "Start all services with the new key first, and run the command again in ten minutes.",
            style="red",
        )
    if done.unreadable or not done.is_complete:
        raise typer.Exit(1)
