"""CopilotKit's own runtime server between a page and an agent. It is 280 MB of packages, so only this test has it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright._impl._driver import compute_driver_executable

from tests.support.data import FOLDER
from tests.support.debian import skip
from tests.support.service import Service
from tests.support.turns import SHOWN
from tests.support.waiting import PATIENCE_S

PAINT = {"name": "paint", "description": "Paint.", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_page_behind_the_runtime_runs_its_tool(service: Service, tmp_path: Path) -> None:
    if not (npm := shutil.which("npm")):
        skip("this machine has no npm")
    packages = ["@copilotkit/runtime@1.75.0", "@ag-ui/client@0.0.59", "@hono/node-server@1"]
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *packages]
    subprocess.run(install, cwd=tmp_path, check=True)
    program, url = shutil.copy(FOLDER / "copilotkit_runtime.mjs", tmp_path), service.client.base_url.join("ag-ui/plain")
    command = [str(compute_driver_executable()[0]), str(program), str(url)]
    quiet = os.environ | {"COPILOTKIT_TELEMETRY_DISABLED": "true"}
    with subprocess.Popen(command, cwd=tmp_path, env=quiet, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        base = f"http://127.0.0.1:{int(process.stdout.readline())}/copilotkit/agent/default/run"

        def run(run_id: str, *messages: Any) -> list[dict[str, Any]]:
            more: dict[str, Any] = {"tools": [PAINT], "state": {}, "context": [], "forwardedProps": {}}
            sent = {"threadId": tmp_path.name, "runId": run_id, "messages": messages, **more}
            text = httpx2.post(base, json=sent, timeout=PATIENCE_S).raise_for_status().text
            return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]

        try:
            user = {"id": "u1", "role": "user", "content": json.dumps([{"call": [["paint", {}]]}, SHOWN])}
            (call,) = (event for event in run("r1", user) if event["type"] == "TOOL_CALL_START")
            function = {"id": call["toolCallId"], "type": "function", "function": {"name": "paint", "arguments": "{}"}}
            assistant = {"id": call["parentMessageId"], "role": "assistant", "toolCalls": [function]}
            result = {"id": "t1", "role": "tool", "toolCallId": call["toolCallId"], "content": "It is teal."}
            said = [event["delta"] for event in run("r2", user, assistant, result) if "delta" in event]
            assert "It is teal." in "".join(said)
        finally:
            process.kill()
