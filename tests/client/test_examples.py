"""The examples in Python of clients, run as their first lines say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import PATIENCE_S, PLAIN, ROOT, Service
from tests.support.turns import SHOWN


@pytest.mark.parametrize(("key", "said"), [("y", "12 * 7 = 84.\n"), ("n", "The person said no.")])
def test_the_example_of_approvals_asks_and_goes_on(key: str, said: str, tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN) as service:
        command = [sys.executable, str(ROOT / "examples/approval.py"), service.url]
        ended, unanswered = (
            subprocess.run(command, input=typed, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            for typed in (f"{key}\n", "")
        )
    assert unanswered.stderr.startswith("\nThe turn waits for an answer: run this in a terminal"), unanswered.stderr
    assert ended.stdout.startswith("calculator with {'expression': '12 * 7'}? [y/n] ")
    assert said in ended.stdout


def test_the_example_of_openai_waits_for_approvals_and_functions(tmp_path: Path) -> None:
    def run(typed: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "examples/openai_sdk.py"), service.url, *words]
        return subprocess.run(command, input=typed, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    with Service(tmp_path, PLAIN) as service:
        left = run("")
        assert left.stdout.startswith("chat: 12 * 7 = 84.\n"), left.stderr
        assert "The response waits for an answer" in left.stderr
        waiting = re.findall(r"(resp_\S+): calculator with ", left.stdout)
        assert run("y\n", *waiting).stdout.endswith("response: 12 * 7 = 84.\n")
        script = json.dumps([{"call": [["where_am_i", {}]]}, SHOWN])
        assert "Linux" in run("y\n", script, "scripted").stdout.partition("response: ")[2]
