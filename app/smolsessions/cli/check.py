"""Command `check`: the checks of a start, each as a line, without serving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import typer

from smolsessions.agents.sandbox.code_group import obstacle, own_group
from smolsessions.cli.flags import Named, Targets, add_agents, with_settings
from smolsessions.cli.remote import err, out
from smolsessions.core.errors import StartError
from smolsessions.core.files import check_private
from smolsessions.roles import Role
from smolsessions.settings import PREFIX, read_settings, unknown_setting_warnings

SECRETS = ("seal_keys_file", "api_keys_file", "redis_password_file", "data_dir")


@with_settings
def check(context: typer.Context, *, targets: Targets = None, named: Named = None) -> None:
    """Check settings, rights, keys, agents, confinement and store, as a start does. Status 1 if one of them fails."""
    logging.basicConfig(level=logging.CRITICAL)
    add_agents(targets, named)
    failed: set[str] = set()
    with _reported("settings", failed) as line:
        settings = read_settings(context.obj)
        line.text = "; ".join(["all are valid", *unknown_setting_warnings()])
    if failed:
        raise typer.Exit(1)
    with _reported("rights", failed) as line:
        paths = {name: path for name in SECRETS if (path := getattr(settings, name)) and path.exists()}
        for name, path in paths.items():
            check_private(path, f"{PREFIX}{name.upper()}")
        shown = ", ".join(map(str, paths.values()))
        line.text = f"only owner and group may read {shown}" if paths else "no file with secrets yet"
    with _reported("keys", failed) as line:
        from smolsessions.wiring import make_authenticator, make_sealer  # noqa: PLC0415 - other commands load no server

        line.text = make_authenticator(settings, Role.SERVE).sentence
        if settings.redis_url or settings.seal_keys or settings.seal_keys_file:
            make_sealer(settings)
        else:
            line.text += "; the seal's key is made with the embedded store"
    with _reported("agents", failed) as line:
        from smolsessions.agents.compatibility import check_smolagents  # noqa: PLC0415 - as above
        from smolsessions.wiring import make_catalog  # noqa: PLC0415 - as above

        check_smolagents()
        catalog, _ = make_catalog(settings)
        context.call_on_close(catalog.close)
        if catalog.unavailable:
            raise StartError(" ".join(catalog.unavailable.values()))
        line.text = ", ".join(catalog.infos)
    if "agents" not in failed:
        with _reported("confinement", failed) as line:
            catalog.check_executors()
            catalog.start()
            catalog.check_confinement()
            levels = {name: level for name, level in catalog.confinement().items() if level}
            line.text = ", ".join(f"{name}: {level}" for name, level in levels.items()) or "no agent writes code"
            if levels:
                line.text += f"; control group of its own: {obstacle(own_group()) or 'yes'}"
    with _reported("store", failed) as line:
        from smolsessions.wiring import inspected_store  # noqa: PLC0415 - as above

        line.text, line.risks = asyncio.run(inspected_store(settings))
    raise typer.Exit(int(bool(failed)))


@dataclass
class _Line:
    """Result of a check that did not fail. `risks` are what a start logs."""

    text: str = ""
    risks: list[str] = field(default_factory=list)


@contextmanager
def _reported(name: str, failed: set[str]) -> Iterator[_Line]:
    """Print the result of the check in the block, or its `StartError` or `OSError`, and add its name to `failed`."""
    line = _Line()
    try:
        with err.status(f"checking {name} …"):
            yield line
    except (StartError, OSError) as error:
        failed.add(name)
        defect = error.message if isinstance(error, StartError) else f"{error.filename}: {error.strerror}"
        out.print(f"{name:<11} FAIL  {defect}", style="red", markup=False)
        return
    for risk in line.risks:
        out.print(f"{name:<11} WARN  {line.text}: {risk}", style="yellow", markup=False)
    if not line.risks:
        out.print(f"{name:<11} ok    {line.text}", markup=False)
