"""Command `check`: the checks of a start, each as a line, without serving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import typer

from smolsessions.agents.catalog import Catalog
from smolsessions.cli.flags import with_settings
from smolsessions.cli.remote import err, out
from smolsessions.core.errors import StartError
from smolsessions.core.files import check_private
from smolsessions.roles import Role
from smolsessions.settings import PREFIX, Settings, read_settings, unknown_setting_warnings

T = TypeVar("T")
SECRETS = ("seal_keys_file", "api_keys_file", "redis_password_file", "data_dir")


@with_settings
def check(*, places: dict[str, str]) -> None:
    """Check settings, rights, keys, agents, confinement and store, as a start does. Status 1 if one needs a mend."""
    logging.basicConfig(level=logging.CRITICAL)
    report = _Report()
    if settings := report.line("settings", lambda: read_settings(places), _settings_sentence):
        report.line("rights", lambda: _check_rights(settings), str)
        report.line("keys", lambda: _check_keys(settings), str)
        if catalog := report.line("agents", lambda: _catalog(settings), _agents_sentence):
            report.line("confinement", lambda: _check_confinement(catalog), str)
        report.line("store", lambda: _check_store(settings), lambda found: found[0], lambda found: found[1])
    raise typer.Exit(int(report.has_failed))


class _Report:
    """The lines so far."""

    has_failed = False

    def line(
        self,
        name: str,
        check_it: Callable[[], T],
        sentence: Callable[[T], str],
        risks: Callable[[T], list[str]] = lambda _: [],
    ) -> T | None:
        """Print the result of a check with its risks, which a start logs, and return it. None if it failed."""
        try:
            with err.status(f"checking {name} …"):
                found = check_it()
                text = sentence(found)
        except (StartError, OSError) as error:
            self.has_failed = True
            defect = error.message if isinstance(error, StartError) else f"{error.filename}: {error.strerror}"
            out.print(f"{name:<11} FAIL  {defect}", style="red", markup=False)
            return None
        for risk in risks(found):
            out.print(f"{name:<11} WARN  {text}: {risk}", style="yellow", markup=False)
        if not risks(found):
            out.print(f"{name:<11} ok    {text}", markup=False)
        return found


def _settings_sentence(_: Settings) -> str:
    return "; ".join(["all are valid", *unknown_setting_warnings()])


def _check_rights(settings: Settings) -> str:
    paths = {name: path for name in SECRETS if (path := getattr(settings, name)) and path.exists()}
    for name, path in paths.items():
        check_private(path, f"{PREFIX}{name.upper()}")
    return "not all users may read " + ", ".join(map(str, paths.values())) if paths else "no file with secrets yet"


def _check_keys(settings: Settings) -> str:
    from smolsessions.wiring import make_authenticator, make_sealer  # noqa: PLC0415 - other commands load no server

    access = make_authenticator(settings, Role.SERVE).sentence
    if not settings.redis_url and not (settings.seal_keys or settings.seal_keys_file):
        return f"{access}; the seal's key is made with the embedded store"
    make_sealer(settings)
    return access


def _catalog(settings: Settings) -> Catalog:
    from smolsessions.agents.compatibility import check_smolagents  # noqa: PLC0415 - as above

    check_smolagents()
    from smolsessions.wiring import make_catalog  # noqa: PLC0415 - it imports smolagents, after the check

    return make_catalog(settings)[0]


def _agents_sentence(catalog: Catalog) -> str:
    catalog.close()
    if catalog.unavailable:
        raise StartError(" ".join(catalog.unavailable.values()))
    return ", ".join(catalog.infos)


def _check_confinement(catalog: Catalog) -> str:
    catalog.check_executors()
    catalog.start()
    catalog.check_confinement()
    levels = {name: level for name, level in catalog.confinement().items() if level}
    return ", ".join(f"{name}: {level}" for name, level in levels.items()) or "no agent writes code"


def _check_store(settings: Settings) -> tuple[str, list[str]]:
    from smolsessions.wiring import inspected_store  # noqa: PLC0415 - as above

    return asyncio.run(inspected_store(settings))
