"""Command line of smolsessions."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from smolsessions.core.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("smolsessions")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. A wrong configuration ends it with a sentence and status 2."""
    status = 1
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except StartError as error:
        sys.stderr.write(f"smolsessions: {error.message}\n")
        status = 2
    except BrokenPipeError:  # the reader of the output has closed it
        pass
    except BaseException:
        log.exception("smolsessions met a defect and ends")
    finally:
        sys.stderr.flush()
        # A hard exit: a thread that is stuck in foreign code must not keep the process. All of ours is closed.
        os._exit(status)


def _run(arguments: list[str]) -> int:
    if "--slot" in arguments:  # a process of a supervisor, which has read the command line and set the environment
        from smolsessions.cli.run import run_slot  # noqa: PLC0415 - it loads no library of commands

        return run_slot(arguments[0], arguments[arguments.index("--slot") + 1])
    from smolsessions.cli.commands import app  # noqa: PLC0415 - see above

    try:
        app(arguments or ["--help"], prog_name="smolsessions")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
