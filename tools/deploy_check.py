"""Renders every overlay of deploy/, and checks the manifests, the Dockerfile and workflows: `make deploy-check`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
OVERLAYS = ("dev", "production", "site", "ingress")
KUBERNETES = "1.34"
KINDS_WITHOUT_SCHEMA = {"HTTPRoute", "PodMonitor"}  # not Kubernetes' own; tests/deploy/test_deploy.py looks at them
WORKFLOWS = ROOT / ".github" / "workflows"
PATIENCE_S = 120
_INGRESS = "resources: [../production]\ncomponents: [../components/ingress]\n"


class FailedError(Exception):
    """Refusal by a tool, with its output."""


def render(folder: Path, secrets: Path) -> dict[str, str]:
    """Return the manifests of each overlay with these secrets. Works in a copy in `folder`."""
    deploy = folder / "deploy"
    shutil.copytree(ROOT / "deploy", deploy, ignore=shutil.ignore_patterns("secrets"))
    for name in ("dev", "site"):
        shutil.copytree(secrets, deploy / name / "secrets")
    (deploy / "ingress").mkdir()
    (deploy / "ingress" / "kustomization.yaml").write_text(_INGRESS)
    return {name: kustomize(deploy / name) for name in OVERLAYS}


def kustomize(folder: Path) -> str:
    return _run(BIN / "kubectl", "kustomize", folder)


def make_secrets(folder: Path) -> str:
    """Make secrets as an operator does. Returns the new API key."""
    command = (ROOT / "deploy" / "make-secrets", folder, BIN / "smolsessions")
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return ended.stderr.splitlines()[-1]


def main(tools: Path) -> int:
    """Run all checks with the tools of that folder. Returns the exit status."""
    with TemporaryDirectory() as temporary:
        folder, rendered = Path(temporary), Path(temporary, "rendered")
        rendered.mkdir()
        make_secrets(folder / "secrets")
        shutil.copy2(ROOT / "Dockerfile", rendered)
        checks: dict[str, Callable[[], object]] = {
            "kustomize": lambda: _write(render(folder, folder / "secrets"), rendered),
            "kubernetes-validate": lambda: _validate(tools, rendered),
            "checkov": lambda: _run(
                tools / "checkov", "--config-file", ROOT / "deploy" / "checkov.yaml", "-d", rendered
            ),
            "check-jsonschema": lambda: _run(
                tools / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "deploy" / "compose.yaml"
            ),
            "check-jsonschema of workflows": lambda: _run(
                tools / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS.glob("*.yml")
            ),
            "hadolint": lambda: _run(BIN / "hadolint", ROOT / "Dockerfile"),
        }
        for name, check in checks.items():
            began = time.monotonic()
            try:
                check()
            except FailedError as error:
                print(f"{name}: {error}")
                return 1
            print(f"{name}: ok, {time.monotonic() - began:.1f} s")
    return 0


def _write(manifests: dict[str, str], folder: Path) -> None:
    for name, text in manifests.items():
        (folder / f"{name}.yaml").write_text(text)


def _validate(tools: Path, rendered: Path) -> None:
    manifests = sorted(rendered.glob("*.yaml"))
    said = _run(tools / "kubernetes-validate", "-k", KUBERNETES, "--strict", "--quiet", *manifests)
    if strange := set(re.findall(r"schema for kind (\w+)", said)) - KINDS_WITHOUT_SCHEMA:
        raise FailedError(f"Kubernetes {KUBERNETES} knows no {', '.join(sorted(strange))}")


def _run(*command: str | Path) -> str:
    """Return the standard output of a command. A failure raises with both outputs."""
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if ended.returncode:
        raise FailedError(f"{Path(command[0]).name} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
