"""Command line of smolsessions."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from smolsessions.core.errors import StartError

log = logging.getLogger("smolsessions")

INTERRUPTED = 130
SERVICES = frozenset({"serve", "web", "work"})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. A wrong configuration ends it with a sentence and status 2."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # closed: a socket would take its place
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode))
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # another file has taken the stream's place
                stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    status = 1
    try:
        ended = _run(words)
        sys.stdout.flush()
        status = ended
    except StartError as error:
        _say(error.message)
        status = 2
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it
        pass
    except BaseException as error:  # of any command: a sentence in place of a traceback
        if isinstance(error, OSError) and SERVICES.isdisjoint(words[:1]):
            place = error.filename or "the output"
            _say(f"{place} cannot be read or written ({error.strerror or error}); fix that, then try again")
        else:
            log.exception("smolsessions met a defect and ends")
    finally:
        # A hard exit: a thread that is stuck in foreign code must not keep the process. All of ours is closed.
        os._exit(status)


def _say(sentence: str) -> None:
    with suppress(OSError):  # no reader has it
        sys.stderr.write(f"smolsessions: {sentence}\n")
        sys.stderr.flush()


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
