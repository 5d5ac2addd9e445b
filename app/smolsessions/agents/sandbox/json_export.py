"""JSON forms of pickled variables, made in a confined process: the service itself never unpickles them."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from smolsessions.agents.sandbox.channel import Channel, ClosedError, MisbehavedError
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.limits import MB, CodeLimits
from smolsessions.agents.values.json_forms import json_flaw, utf8_text
from smolsessions.core.errors import OverloadedError, ServiceError, TooLargeError
from smolsessions.core.json_data import read_json

MAX_JSON_BYTES = 64 * MB
"""Of all variables of a document together."""
EXPORT_TIMEOUT_S = 20.0
_MAX_PROCESSES = 2
_MAX_REASON_CHARS = 300
_TOO_LARGE = "is too large for an export"
_ENDED = "cannot be read: the process that read it ended"


class NotJSON(NamedTuple):
    """Reason why a variable has no JSON form."""

    reason: str


class VariableReader:
    """Reads pickled variables as JSON in a process that is forked for each export."""

    def __init__(self, fork_client: ForkClient) -> None:
        self._fork_client = fork_client
        self._running = threading.BoundedSemaphore(_MAX_PROCESSES)

    def read(self, pickled: Mapping[str, bytes]) -> dict[str, Any]:
        """Return a JSON value or a `NotJSON` for each key. Small variables come first, up to `MAX_JSON_BYTES`.

        Each pickle holds a dict of one value, under the part of its key after the last colon.
        Raises `OverloadedError` if no process can be started.
        """
        left, sent = MAX_JSON_BYTES, {}
        for key, data in sorted(pickled.items(), key=lambda item: (len(item[1]), item[0])):
            left -= len(data)
            if left >= 0:
                sent[key] = data
        if not sent:
            return {key: NotJSON(_TOO_LARGE) for key in pickled}
        if not self._running.acquire(timeout=EXPORT_TIMEOUT_S):
            raise OverloadedError("Too many exports read variables at once; try again later.")
        deadline = time.monotonic() + EXPORT_TIMEOUT_S

        def check_time() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

        with contextlib.ExitStack() as stack:
            stack.callback(self._running.release)
            try:
                child = self._fork_client.fork()
            except OSError:
                raise OverloadedError("No process could be started to read the variables; try again later.") from None
            stack.callback(child.kill)
            channel = Channel(child.sock, 2 * MAX_JSON_BYTES)
            try:
                channel.send({"export": sent, "limits": asdict(CodeLimits())}, check_time)
                answers = channel.receive(check_time).get("answers")
            except (ClosedError, MisbehavedError, TimeoutError):
                answers = None
        if type(answers) is not dict:
            answers = dict.fromkeys(sent, _ENDED)
        return {key: _checked(answers.get(key, _TOO_LARGE)) for key in pickled}


def _checked(answer: Any) -> Any:
    """Validate what a process answered for a variable: model-written code may have written the answer."""
    if type(answer) is str:
        return NotJSON(utf8_text(answer[:_MAX_REASON_CHARS]))
    try:
        value = read_json(answer)
    except TooLargeError:
        return NotJSON(_TOO_LARGE)
    except (ServiceError, TypeError, AttributeError):
        return NotJSON("cannot be read")
    flaw = json_flaw(value)
    return NotJSON(flaw) if flaw else value


def json_answers(pickled: Mapping[str, bytes]) -> dict[str, bytes | str]:
    """Return the JSON of each variable as bytes, or the reason why it has none. Runs in the forked process."""
    answers: dict[str, bytes | str] = {}
    left = MAX_JSON_BYTES
    for key, data in pickled.items():
        answer: bytes | str = "cannot be read"
        try:
            values = DataUnpickler(io.BytesIO(data)).load()
            if type(values) is dict and list(values) == [name := key.rpartition(":")[2]]:
                flaw = json_flaw(values[name], max_chars=MAX_JSON_BYTES, is_tree=True)
                answer = flaw or json.dumps(values[name], ensure_ascii=False).encode()
        except _ObjectError:
            answer = "is or holds a function, a class or an object"
        except Exception:  # noqa: BLE001, S110 - hostile bytes fail in many ways
            pass
        left -= len(answer)
        answers[key] = answer if left >= 0 else _TOO_LARGE
    return answers


class _ObjectError(pickle.UnpicklingError):
    """A pickle names a class or a function."""


class DataUnpickler(pickle.Unpickler):
    """Unpickler of built-in data: it imports nothing and calls nothing that a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        raise _ObjectError(f"{module}.{name}")
