"""The examples of clients in Python, and clients that generators make of openapi.yaml: they play an application.

The shape that those need is checked by tests/web/test_openapi.py in the fast tier.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.data import data
from tests.support.debian import npm_packages
from tests.support.environments import GENERATOR, environment
from tests.support.proxy import LATER_WORDS, proxy
from tests.support.service import PLAIN, ROOT, Service, run_program
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO, SHOWN

MESSAGE = json.dumps([ECHO, DONE])
OVERRIDES = {f"image/{kind}": "application/octet-stream" for kind in ("png", "jpeg", "gif", "webp")}
EVENTS = (
    "turn.queued,turn.started,step.started,message.delta,tool.call,turn.waiting,input.answered,tool.result,"
    "step.finished,turn.finished"
)
PYTHON = data("generated_client.txt")
TARGET = {
    "target": "es2022",
    "lib": ["es2022", "dom", "dom.asynciterable"],
    "module": "nodenext",
    "types": [],
    "outDir": "out",
}
SETTINGS = {
    "compilerOptions": TARGET | {"strict": True, "noUncheckedIndexedAccess": False},
    "files": ["turn.ts", "node.d.ts"],
}


def run(command: list[str], folder: Path, **variables: str) -> str:
    result = run_program(command, cwd=folder, env=os.environ | variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_played(command: list[str], service: Service, folder: Path, *said: str) -> None:
    """Let a client create, patch, ask, answer, stream, list and fork, also where the service has words of later."""
    variables = {"MESSAGE": MESSAGE, "TEAM": folder.name}
    line = " ".join((said[0], EVENTS, said[1]))
    assert run(command, folder, SERVICE=service.url, **variables) == f"{line}\n"
    with proxy(service.url, words=LATER_WORDS) as address:
        later = run(command, folder, SERVICE=address, **variables | {"TEAM": f"{folder.name} later"})
    for now, then in (("finished d", "adjourned d"), ("tool.result", "tool.rejected"), ("not_found", "moved")):
        line = line.replace(now, then)
    assert later == f"{line}\n"


@deep
def test_a_client_of_openapi_python_client_plays_an_application(service: Service, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", GENERATOR)
    (tmp_path / "generator.json").write_text(json.dumps({"content_type_overrides": OVERRIDES, "post_hooks": []}))
    generator = [python, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    options = ["--path", str(ROOT / "openapi.yaml"), "--config", "generator.json", "--output-path", "generated"]
    run([*generator, *options], tmp_path)
    (tmp_path / "turn.py").write_text(PYTHON)
    mypy = [sys.executable, "-m", "mypy", "--python-executable", python, "--config-file", os.devnull]
    run([*mypy, "--ignore-missing-imports", "--follow-imports=silent", "turn.py"], tmp_path)

    assert_played([python, "turn.py"], service, tmp_path, "finished done ['echo'] ['Blue'] 1", "conversation_not_found")


def test_a_client_of_openapi_typescript_plays_an_application(service: Service, tmp_path: Path) -> None:
    packages = npm_packages()
    (tmp_path / "node_modules").symlink_to(packages)
    files = {
        "package.json": json.dumps({"type": "module"}),
        "tsconfig.json": json.dumps(SETTINGS),
        "node.d.ts": "declare const process: { env: Record<string, string | undefined> };",
        "turn.ts": data("generated_client.ts.txt"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    generator = [str(packages / ".bin" / "openapi-typescript"), str(ROOT / "openapi.yaml"), "-o", "schema.d.ts"]
    run([*generator, "--default-non-nullable=false"], tmp_path)  # a body may leave out fields with a default
    run([str(packages / ".bin" / "tsc")], tmp_path)

    node = [str(shutil.which("node")), "out/turn.js"]
    assert_played(node, service, tmp_path, "finished done echo Blue 1", "conversation_not_found")


@pytest.mark.parametrize(("key", "said"), [("y", "12 * 7 = 84.\n"), ("n", "The person said no.")])
def test_the_example_of_approvals_asks_and_goes_on(key: str, said: str, tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN) as service:
        command = [sys.executable, str(ROOT / "examples/approval.py"), service.url]
        ended, unanswered = (run_program(command, input=typed) for typed in (f"{key}\n", ""))
    assert unanswered.stderr.startswith("\nThe turn waits for an answer: run this in a terminal"), unanswered.stderr
    assert ended.stdout.startswith("calculator with {'expression': '12 * 7'}? [y/n] ")
    assert said in ended.stdout


def test_the_example_of_openai_waits_for_approvals_and_functions(tmp_path: Path) -> None:
    def run(typed: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "examples/openai_sdk.py"), service.url, *words]
        return run_program(command, input=typed)

    with Service(tmp_path, PLAIN) as service:
        left = run("")
        assert left.stdout.startswith("chat: 12 * 7 = 84.\n"), left.stderr
        assert "The response waits for an answer" in left.stderr
        waiting = re.findall(r"(resp_\S+): calculator with ", left.stdout)
        assert run("y\n", *waiting).stdout.endswith("response: 12 * 7 = 84.\n")
        script = json.dumps([{"call": [["where_am_i", {}]]}, SHOWN])
        assert "Linux" in run("y\n", script, "scripted").stdout.partition("response: ")[2]
