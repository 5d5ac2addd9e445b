"""The example of the client, run as its first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import PATIENCE_S, PLAIN, ROOT, Service


@pytest.mark.parametrize(("key", "said"), [("y", "12 * 7 = 84.\n"), ("n", "The person said no.")])
def test_the_example_of_approvals_asks_and_goes_on(key: str, said: str, tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN) as service:
        command = [sys.executable, str(ROOT / "examples/approval.py"), str(service.client.base_url)]
        ended, unanswered = (
            subprocess.run(command, input=typed, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            for typed in (f"{key}\n", "")
        )
    assert unanswered.stderr.startswith("\nThe turn waits for an answer: run this in a terminal"), unanswered.stderr
    assert ended.stdout.startswith("calculator with {'expression': '12 * 7'}? [y/n] ")
    assert said in ended.stdout
