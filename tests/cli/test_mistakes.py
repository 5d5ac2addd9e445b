"""Wrong arguments, wrong servers and broken outputs: each ends a command with one sentence, and no traceback."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.data import table
from tests.support.http_server import Handler, Server
from tests.support.refusals import sentence_of
from tests.support.service import PATIENCE_S, ROOT, Service, run, run_program
from tests.support.terminal import CTRL_C, command, terminal_of
from tests.support.tiers import mostly_deep
from tests.support.turns import cancel, submit_turn

NOWHERE = "http://127.0.0.1:1"
WRONG = table("mistakes wrong")
FAILED = {
    "a refused connection": (f"turns list x --url {NOWHERE}", f"{NOWHERE} does not answer: "),
    "text in no encoding": (f"conversations list --search \udcff --url {NOWHERE}", "the request has text that is no"),
    "a document without JSON": (f"conversations import {{folder}}/torn.json --url {NOWHERE}", "torn.json is no JSON"),
    "a document that is deep": (f"conversations import {{folder}}/deep.json --url {NOWHERE}", "nested too deeply"),
    "a folder below a file": ("init {folder}/torn.json/below", "torn.json/below cannot be read or written ("),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_a_usage_error(case: str, tmp_path: Path) -> None:
    line, sentence = WRONG[case]
    assert sentence in sentence_of(run(tmp_path, {}, *line.split(" ")))


@pytest.mark.parametrize("case", FAILED)
def test_a_command_that_cannot_be_done_ends_with_a_sentence(case: str, tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text("[[")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    line, sentence = FAILED[case]
    status, output, errors = run(tmp_path, {}, *line.format(folder=tmp_path).split())
    assert (status, output) == (1, ""), errors
    assert errors.startswith("smolsessions: ")
    assert (sentence in errors, errors.count("\n")) == (True, 1), errors


@contextmanager
def other_server(status: int, kind: str, body: bytes) -> Iterator[str]:
    class Foreign(Handler):
        def _answer(self) -> None:
            self.body()
            self.answer(status, body, {"Content-Type": kind})

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - names of the base class

    with Server(Foreign) as server:
        yield server.url


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", b"<html>\n</html>"),
        (200, "application/json", b'{"items": [1], "next_cursor": null}'),
        (302, "text/html", b""),
        (404, "text/html", b"no such\npage"),
    ],
)
def test_another_server_is_noticed(status: int, kind: str, body: bytes, tmp_path: Path) -> None:
    lines = ["conversations list", "conversations show x", "conversations delete -y x", "turns events x 1", "chat"]
    with other_server(status, kind, body) as url:
        for number, line in enumerate(lines if status == 302 else lines[:1]):
            ended, _, errors = run(tmp_path / str(number), {"URL": url}, *line.split())
            assert (ended, errors.count("\n")) == (1, 1), errors
            assert errors.startswith(f"smolsessions: {status} foreign_answer: {url}/"), errors
            assert errors.endswith("; is the address right?\n"), errors


def ending(*arguments: str, shell: str) -> subprocess.CompletedProcess[str]:
    return run_program(["bash", "-c", f"set -o pipefail; {shell}", *command(*arguments)], cwd=ROOT)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_disk_ends_a_command_and_leaves_the_earlier_file(service: Service, tmp_path: Path) -> None:
    url = service.url
    short, name = (service.play({"say": "x" * size})["conversation_id"] for size in (1, 5000))
    buffered = 'env -u PYTHONUNBUFFERED "$0" "$@" > /dev/full'
    for each in (short, name):  # a short document is written when the command ends
        full = ending("conversations", "export", each, "--url", url, shell=buffered)
        assert (full.returncode, full.stderr.count("\n")) == (1, 1), full.stderr
        assert "the output cannot be read or written (No space left on device)" in full.stderr
    file = tmp_path / "earlier.json"
    file.write_text("earlier")
    limited = 'ulimit -f 1; "$0" "$@"'  # one KiB
    full = ending("conversations", "export", name, "--url", url, "-o", str(file), shell=limited)
    assert (full.returncode, full.stderr.count("\n")) == (1, 1), full.stderr
    assert f"{file} cannot be written (File too large)" in full.stderr
    assert (file.read_text(), list(tmp_path.iterdir())) == ("earlier", [file])


CLOSED = ['"$0" "$@" | true', '"$0" "$@" >&-', '"$0" "$@" <&- >&- 2>&-']


@pytest.mark.parametrize("shell", mostly_deep(CLOSED, fast=CLOSED[:2]))
def test_closed_streams_cause_no_traceback(shell: str) -> None:
    assert ending("settings", shell=shell).stderr == ""


def test_ctrl_c_ends_a_command_at_once(service: Service, tmp_path: Path) -> None:
    url = service.url
    name = service.play({"say": "x"})["conversation_id"]
    endless = submit_turn(service, {"endless": "x", "pace_s": 0.01}, agent="streamed")
    waits = ["turns", "events", endless["conversation_id"], "1", "--url", url]
    with terminal_of(tmp_path, *command(*waits)) as terminal:
        terminal.reply("message.delta", CTRL_C)
        assert terminal.process.wait(PATIENCE_S) == 128 + signal.SIGINT
        assert "Traceback" not in terminal.seen
    cancel(service, endless)
    with terminal_of(tmp_path, *command("conversations", "delete", name, "--url", url)) as terminal:
        terminal.reply("permanently", CTRL_C)
        terminal.wait_for("nothing was deleted", again=CTRL_C)
        assert terminal.process.wait(PATIENCE_S) == 1
