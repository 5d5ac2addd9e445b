"""`serve --reload`: changed code takes over, and running turns end in the code that began them."""

import signal
from pathlib import Path

import pytest

from tests.support.service import Service
from tests.support.streaming import place
from tests.support.tiers import deep
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import PATIENCE_S, Gate, wait_until

CODE = """from tests.support.agents import make_scripted

def make_shop():
    agent = make_scripted()
    {}
    return agent
"""


FILE = '[agents.other]\nfactory = "mine:make_shop"\ndescription = "first of the file"\n'


@pytest.mark.parametrize(
    ("name", "first", "broken", "second"),
    [
        ("mine.py", CODE.format("agent.description = 'first'"), "broken(", CODE.format("agent.description = 'second'")),
        pytest.param("agents.toml", FILE, "[agents", FILE.replace("first", "second"), marks=deep),
    ],
    ids=["code", "file"],
)
def test_changed_code_takes_over_while_running_turns_end_in_the_earlier_code(
    name: str, first: str, broken: str, second: str, tmp_path: Path
) -> None:
    changed, gate = tmp_path / name, Gate(tmp_path / "gate")
    (tmp_path / "mine.py").write_text(CODE.format("agent.description = 'first'"))
    (tmp_path / "agents.toml").write_text(FILE)
    changed.write_text(first)
    command = ("serve", "--reload", "--processes", "1", "mine:make_shop")
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": "agents.toml"}
    with Service(tmp_path, settings, cwd=tmp_path, command=command) as service:

        def described_as(word: str) -> bool:
            return any(agent["description"].startswith(word) for agent in service.get("/agents")["items"])

        turn = submit_turn(service, gate.script, DONE, agent="shop")
        gate.reached()
        changed.write_text(broken)
        wait_until(lambda: "the changed code does not start" in service.log())
        assert not described_as("second")
        changed.write_text(second)
        wait_until(lambda: described_as("second"))
        assert service.play({"say": "from the new code"}, agent="shop")["reply"] == "from the new code"
        assert service.get(place(turn))["status"] == "running"
        gate.open()
        ended = wait_for_end(service, turn)
        assert (ended["reply"], ended["attempts"]) == ("done", 1)
        wait_until(lambda: "stopping" in service.log())
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(PATIENCE_S) == 0
