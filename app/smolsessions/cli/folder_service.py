"""Service of this folder's data, for the time of a command."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from smolsessions.cli.remote import err, out
from smolsessions.core.errors import StartError
from smolsessions.settings import Settings
from smolsessions.store.embedded.data_folder import address_in

END_S = 30
MAX_ERROR_LINES = 100


@contextmanager
def address_of(url: str | None, settings: Settings, *, may_join: bool) -> Iterator[tuple[str, bool]]:
    """Yield the address of a service, and whether it goes on after the chat.

    Without a `url` it is the service of this folder's data, if it `may_join` that one, or a new one.
    """

    def running_service(wait_s: float = 0) -> str | None:
        address = address_in(settings.data_dir, wait_s) if may_join and not settings.redis_url else None
        if address is None:
            return None
        out.print(f"joins the service on {address}", style="dim", markup=False)
        return f"http://{address}"

    if found := url or running_service():
        yield found, True
        return
    for number in (signal.SIGTERM, signal.SIGHUP):  # the service must not outlive a closed terminal
        signal.signal(number, _end)
    command = [sys.executable, "-m", "smolsessions", "serve", "--port", "0", "--log-level", "error"]
    command += ["--until-stdin-ends"]  # also if this process is killed
    # A terminal sends Ctrl-C to its foreground group, and this service must survive it.
    process = subprocess.Popen(  # noqa: S603 - this program
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    errors: deque[str] = deque(maxlen=MAX_ERROR_LINES)
    is_up = threading.Event()

    def read_errors(lines: Iterable[str]) -> None:
        """Read what the service says, so that it never waits for it, and keep it until the start has succeeded."""
        for line in lines:
            (sys.stderr.write if is_up.is_set() else errors.append)(line)

    reader = threading.Thread(target=read_errors, args=[process.stderr], daemon=True)
    reader.start()
    try:
        assert process.stdout
        with err.status("starting a service …"):
            first = process.stdout.readline()
        if first:
            is_up.set()
            yield f"http://{first.split()[-1]}", False
            return
        if found := running_service(END_S):  # another chat has just started it
            yield found, True
            return
        reader.join(1)
        sys.stderr.writelines(errors.copy())
        raise StartError("no service could be started for the chat; see above, or name one with --url")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
