"""Clients that generators make of openapi.yaml: they compile, and run a turn on a real service.

The shape that they need is checked by tests/web/test_openapi.py in the fast tier.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.data import data
from tests.support.debian import skip
from tests.support.environments import GENERATOR, environment
from tests.support.proxy import LATER_WORDS, proxy
from tests.support.service import ROOT, Service
from tests.support.tiers import deep
from tests.support.turns import DONE, ECHO
from tests.support.waiting import PATIENCE_S
from tools.node_programs import FOLDER, NoNodeError, programs

pytestmark = deep
MESSAGE = json.dumps([ECHO, DONE])
OVERRIDES = {f"image/{kind}": "application/octet-stream" for kind in ("png", "jpeg", "gif", "webp")}
PYTHON = data("generated_client.txt")
TARGET = {"target": "es2022", "lib": ["es2022", "dom"], "module": "nodenext", "types": [], "outDir": "out"}
SETTINGS = {
    "compilerOptions": TARGET | {"strict": True, "noUncheckedIndexedAccess": False},
    "files": ["turn.ts", "node.d.ts"],
}


def run(command: list[str], folder: Path, **variables: str) -> str:
    result = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_client_of_openapi_python_client_runs_a_turn(service: Service, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", GENERATOR)
    (tmp_path / "generator.json").write_text(json.dumps({"content_type_overrides": OVERRIDES, "post_hooks": []}))
    generator = [python, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    options = ["--path", str(ROOT / "openapi.yaml"), "--config", "generator.json", "--output-path", "generated"]
    run([*generator, *options], tmp_path)
    (tmp_path / "turn.py").write_text(PYTHON)
    mypy = [sys.executable, "-m", "mypy", "--python-executable", python, "--config-file", os.devnull]
    run([*mypy, "--ignore-missing-imports", "--follow-imports=silent", "turn.py"], tmp_path)

    said = run([python, "turn.py"], tmp_path, SERVICE=str(service.client.base_url), MESSAGE=MESSAGE)

    assert said == "finished done ['echo'] 1 conversation_not_found\n"
    with proxy(str(service.client.base_url), words=LATER_WORDS) as address:
        said = run([python, "turn.py"], tmp_path, SERVICE=address, MESSAGE=MESSAGE)
    assert said == "adjourned done ['echo'] 1 conversation_moved\n"


def test_a_client_of_openapi_typescript_runs_a_turn(service: Service, tmp_path: Path) -> None:
    try:
        bin_folder = programs()
    except NoNodeError as error:
        skip(str(error))
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    files = {
        "package.json": json.dumps({"type": "module"}),
        "tsconfig.json": json.dumps(SETTINGS),
        "node.d.ts": "declare const process: { env: Record<string, string | undefined> };",
        "turn.ts": data("generated_client.ts.txt"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    generator = [str(bin_folder / "openapi-typescript"), str(ROOT / "openapi.yaml"), "-o", "schema.d.ts"]
    run([*generator, "--default-non-nullable=false"], tmp_path)  # a body may leave out fields with a default
    run([str(bin_folder / "tsc")], tmp_path)

    node = str(shutil.which("node"))
    said = run([node, "out/turn.js"], tmp_path, SERVICE=str(service.client.base_url), MESSAGE=MESSAGE)

    types = "turn.queued,turn.started,step.started,message.delta,tool.call,tool.result,step.finished,turn.finished"
    assert said == f"finished done echo {types} conversation_not_found\n"
    with proxy(str(service.client.base_url), words=LATER_WORDS) as address:
        said = run([node, "out/turn.js"], tmp_path, SERVICE=address, MESSAGE=MESSAGE)
    assert said == f"adjourned done echo {types.replace('tool.result', 'tool.rejected')} conversation_moved\n"
