"""The conformance suite of the Model Context Protocol, of its last release and of the one for 2026-07-28."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from tests.support.debian import npm_packages
from tests.support.service import Service
from tests.web.dialects.test_mcp import with_fixtures

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

EXCEPTIONS = {  # checks that fail, by the reason
    "there are no resources": """
        resources-list resources-read-text resources-read-binary resources-templates-read resources-subscribe
        resources-unsubscribe sep-2549-resources-list-caching-hints sep-2549-resources-templates-list-caching-hints
        """,
    "there are no prompts and no completions": """
        prompts-list prompts-get-simple prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image
        completion-complete sep-2549-prompts-list-caching-hints sep-2322-non-tool-incomplete
        """,
    "logging is deprecated": "logging-set-level tools-call-with-logging sep-2575-server-no-log-without-loglevel",
    "results are texts and images": "tools-call-audio tools-call-embedded-resource tools-call-mixed-content",
    "no model and no files of the client are asked for": """
        tools-call-sampling sep-2322-sampling-incomplete sep-2322-list-roots-incomplete
        """,
    "clients before 2026-07-28 are asked in words": """
        tools-call-elicitation elicitation-sep1034-general elicitation-sep1330-general
        """,
    "all tools have one schema, without headers": """
        json-schema-2020-12-tool-found sep-2243-server-no-xmcp-tool sep-2243-server-decode-base64
        sep-2243-server-validate-param-match sep-2243-server-reject-invalid-param-chars
        sep-2243-server-reject-param-mismatch
        """,
    "the names of requests are those of the turn, and it needs no state of the client": """
        sep-2322-elicitation-incomplete sep-2322-request-state-incomplete sep-2322-multiple-inputs-incomplete
        sep-2322-multi-round-r1 sep-2322-result-type-included sep-2322-reject-tampered-state
        sep-2322-respect-client-capabilities
        """,
    "no tool needs a capability, as clients without forms read what to ask": """
        sep-2575-server-rejects-undeclared-capability sep-2575-missing-capability-http-400
        sep-2575-http-server-no-independent-requests-on-stream
        """,
}
TASKS = """
lifecycle capability-negotiation wire-fields request-state-removal mrtr-input request-headers dispatch-and-envelope
status-notifications
"""
TASK_EXCEPTIONS = {"sep-2663-tasks-get-status-failed"}  # a turn that fails is a result, and no error of the protocol


def failed_checks(url: str, package: str, folder: Path, *options: str) -> tuple[set[str], int]:
    """Run the suite. Return the checks that failed, and the number of the others."""
    node, _ = compute_driver_executable()
    program = str(npm_packages() / package / "dist" / "index.js")
    command = [node, program, "server", "--url", url, "--output-dir", str(folder), *options]
    subprocess.run(command, capture_output=True, check=False, timeout=300)
    checks = [check for file in folder.rglob("checks.json") for check in json.loads(file.read_text())]
    failed = {check["id"] for check in checks if check["status"] == "FAILURE"}
    return failed, sum(check["status"] == "SUCCESS" for check in checks)


def known(reasons: Iterable[str]) -> set[str]:
    return {check for checks in reasons for check in checks.split()}


def test_all_checks_pass_except_those_with_a_reason(service: Service, tmp_path: Path) -> None:
    with with_fixtures(service) as url:
        last, some = failed_checks(url, "@modelcontextprotocol/conformance", tmp_path / "last", "--suite", "all")
        version = ("--suite", "all", "--spec-version", "2026-07-28")
        new, many = failed_checks(url, "mcp-conformance-next", tmp_path / "new", *version)
    assert last | new == known(EXCEPTIONS.values())
    assert (some >= 9, many >= 80) == (True, True)


@pytest.mark.parametrize("name", TASKS.split())
def test_tasks_conform(service: Service, tmp_path: Path, name: str) -> None:
    with with_fixtures(service) as url:
        failed, _ = failed_checks(url, "mcp-conformance-next", tmp_path, "--scenario", f"tasks-{name}")
    assert failed == (TASK_EXCEPTIONS if name == "lifecycle" else set())
