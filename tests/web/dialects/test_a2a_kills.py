"""Tasks of A2A whose stream is cut, and whose process is killed: another process has the same task."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from a2a.client.errors import A2AClientError
from a2a.utils import errors

from tests.support.service import CODELESS, Service
from tests.support.store_server import running_store
from tests.support.streaming import Event
from tests.support.turns import ENDLESS
from tests.support.waiting import wait_until
from tests.web.dialects.a2a_tasks import COMPLETED, Joined, get, message, send

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

EVERY = 3  # events
SCRIPT: list[Event] = [
    {"call": [["echo", {"text": "first"}]], "pace_s": 0.02},
    {"call": [["echo", {"text": "second"}], ["echo", {"text": "third"}]], "pace_s": 0.02},
    {"say": "It is said in the end.", "pace_s": 0.05},
]


def test_a_task_that_was_cut_is_whole_in_another_process(tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as store, ExitStack() as stack:
        settings = CODELESS | store.settings
        here, there = Service(tmp_path / "a", settings), Service(tmp_path / "b", settings)
        stack.callback(lambda: here.stop())  # noqa: PLW0108 - whichever runs then
        here.start()
        whole = send(here, "streamed", message("whole", *SCRIPT))
        assert (whole.state, whole.text) == (COMPLETED, "It is said in the end.")
        attempts = []
        for most in range(1, len(whole.events), EVERY):
            there.start()
            there.process.send_signal(signal.SIGSTOP)  # it takes no turn
            asked = message(f"cut-{most}", *SCRIPT)
            task = send(here, "streamed", asked, most=most)
            here.kill()
            there.process.send_signal(signal.SIGCONT)
            here, there = there, here
            name = task.task.id
            first = task.said
            try:
                task = task if most % 2 else Joined()
                task.read(here, "streamed", name)
            except errors.UnsupportedOperationError:  # it is over
                task = get(here, "streamed", name)
            again = send(here, "streamed", asked)
            assert (task.state, task.text, task.task.id) == (COMPLETED, whole.text, name), most
            assert (again.text, sorted(again.said), again.task.id) == (whole.text, sorted(whole.said), name), most
            assert not set(first + task.said) - set(whole.said)
            assert get(here, "streamed", name).text == whole.text
            attempts.append(here.get(f"/conversations/{task.task.context_id}/turns/1")["attempts"])
        assert attempts.count(2) > len(attempts) / 2, "few turns were still running"


def test_a_drain_breaks_the_stream(tmp_path: Path) -> None:
    with Service(tmp_path / "a", CODELESS) as service, ThreadPoolExecutor(1) as pool:
        task = Joined()
        reading = pool.submit(task.read, service, "streamed", message("drained", ENDLESS))
        wait_until(lambda: len(task.events) > 3)
        service.stop()
        with pytest.raises(A2AClientError, match="Network"):
            reading.result()
