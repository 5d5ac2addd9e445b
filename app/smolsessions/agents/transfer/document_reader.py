"""Process that reads one large document, which keeps hostile JSON from the interpreter lock and memory of the service.

The service sends arguments and the document. The answer is a stream of small pickles of built-in data: none takes long
to load, and code that had taken over the process could forge nothing but data.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import pickle
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from smolsessions.agents.sandbox.confinement.levels import Confinement
from smolsessions.agents.sandbox.fork_client import bare_environment
from smolsessions.agents.sandbox.json_export import DataUnpickler
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.transfer.documents import read_document
from smolsessions.core.errors import (
    OverloadedError,
    ServiceError,
    ShuttingDownError,
    TooLargeError,
    codes_of_answers,
)
from smolsessions.core.json_data import read_json
from smolsessions.core.memories import DocumentContent, ImportedConversation, ImportedMemory, PackedStep
from smolsessions.core.records import ConversationFields, Rollback

log = logging.getLogger(__name__)

MEMORY_MB, CPU_S, TIMEOUT_S = 1024, 60, 180.0
_TOO_LARGE = f"The document takes more than {MEMORY_MB} MB of memory or {CPU_S} s to read; send less."
_OUT_OF_LIMITS = frozenset({-signal.SIGXCPU, -signal.SIGABRT})  # without memory, libraries in Rust abort
_FIELDS = TypeAdapter(ConversationFields)


class DocumentReader:
    """Starts a process for each document. Its methods block."""

    def __init__(self, hidden: Iterable[Path] = (), memory_mb: int = MEMORY_MB) -> None:
        """A process cannot see `hidden` files and folders, nor take more memory beyond its beginning."""
        paths = [str(path.absolute()) for path in hidden]
        self._command = [sys.executable, "-P", "-m", __name__, str(memory_mb), *paths]
        self._running = set[subprocess.Popen[bytes]]()
        self._is_closed = False

    def read(self, document: bytes, *arguments: Any) -> DocumentContent:
        """Read a document as `read_document` does. Raises `OverloadedError` if the process was killed."""
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module
                self._command,
                env=bare_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches only the service, which kills it
            )
        except OSError:
            raise OverloadedError("No process could be started to read the document; try again later.") from None
        self._running.add(process)
        end = threading.Timer(0 if self._is_closed else TIMEOUT_S, process.kill)
        end.start()
        with process:
            assert process.stdin
            assert process.stdout
            try:
                with contextlib.suppress(BrokenPipeError), process.stdin:  # the answer may say why it ended
                    process.stdin.write(pickle.dumps(arguments))
                    process.stdin.write(document)
                return _received(process.stdout)
            except ServiceError:
                raise
            except Exception as error:  # noqa: BLE001 - half an answer fails in many ways
                if process.wait() in _OUT_OF_LIMITS:
                    raise TooLargeError(_TOO_LARGE) from None
                if self._is_closed:
                    raise ShuttingDownError from None
                sentence = "the process that read a document ended early, with status %d: %r"
                log.warning(sentence, process.returncode, error, extra={"action": "reader.lost"})
                raise OverloadedError(
                    "The process that read the document was ended, mostly because memory ran out; try again later."
                ) from None
            finally:
                end.cancel()
                process.kill()
                self._running.discard(process)

    def close(self) -> None:
        """Kill all processes. Later ones are killed at once."""
        self._is_closed = True
        for process in list(self._running):
            process.kill()


def _received(stream: IO[bytes]) -> DocumentContent:
    """Raises the error that the process sent, or any for a broken stream."""
    unpickler = DataUnpickler(stream)
    turns, steps, variables, files = list[bytes](), list[PackedStep](), dict[str, bytes](), dict[str, bytes]()
    while True:
        kind, *parts = unpickler.load()
        match kind:
            case "turn":
                turns += parts
            case "step":
                steps.append(PackedStep(*parts))
            case "variable":
                variables[parts[0]] = parts[1]
            case "file":
                files[parts[0]] = parts[1]
            case "error":
                code, message, extensions = parts
                raise codes_of_answers()[code](message, **extensions)
            case "defect":
                log.error("the process that read a document failed: %s", parts[0], extra={"action": "reader.failed"})
                raise ServiceError("The service failed; its log has the cause.")
            case _:
                agent, fields, rollbacks, archived, hidden = parts
                memory = ImportedMemory(tuple(steps), archived, hidden, variables)
                imported = ImportedConversation(tuple(turns), tuple(Rollback(*each) for each in rollbacks), memory)
                return DocumentContent(agent, _FIELDS.validate_python(fields), imported, files)


def _sent(content: DocumentContent) -> Iterator[tuple[Any, ...]]:
    imported, memory = content.imported, content.imported.memory
    yield from (("turn", turn) for turn in imported.turns)
    yield from (("step", step.type, step.turn, step.data, step.attachments) for step in memory.steps)
    yield from (("variable", *item) for item in memory.variables.items())
    yield from (("file", *item) for item in content.files.items())
    rollbacks = [(rollback.after, rollback.to) for rollback in imported.rollbacks]
    yield "rest", content.agent, _FIELDS.dump_python(content.fields), rollbacks, memory.archived, memory.hidden


def main() -> None:
    with contextlib.suppress(OSError):  # if memory runs out, the kernel ends this process before the service
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(ValueError, OSError):  # a system with a limit of its own
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    confinement = Confinement(map(Path, sys.argv[2:]))
    confinement.drop_rights()
    confinement.confine(CodeLimits(memory_mb=int(sys.argv[1])))
    gc.disable()
    arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the service
    pickler = pickle.Pickler(sys.stdout.buffer, protocol=5)  # one for all: it sends an image of several steps once
    failure: tuple[Any, ...] = ()
    try:
        for part in _sent(read_document(read_json(sys.stdin.buffer.read()), *arguments)):
            pickler.dump(part)
    except ServiceError as error:
        failure = "error", error.code, error.message, error.extensions
    except BaseException as error:  # noqa: BLE001 - without memory, libraries in Rust raise exceptions of their own
        is_defect = isinstance(error, Exception) and not isinstance(error, MemoryError)
        failure = ("defect", traceback.format_exc()) if is_defect else ("error", TooLargeError.code, _TOO_LARGE, {})
    if failure:  # now that the memory is free
        pickler.dump(failure)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
