"""`serve --reload`: changed code takes over, and running turns end in the code that began them."""

import signal
from pathlib import Path

from tests.support.service import Service
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import Gate, wait_until

CODE = """from tests.support.agents import make_scripted

def make_shop():
    agent = make_scripted()
    {}
    return agent
"""
LONG_S = 45.0


def test_changed_code_takes_over_while_running_turns_end_in_the_earlier_code(tmp_path: Path) -> None:
    code, gate = tmp_path / "mine.py", Gate(tmp_path / "gate")
    code.write_text(CODE.format("agent.description = 'first'"))
    file = tmp_path / "agents.toml"
    file.write_text('[agents.other]\nfactory = "mine:make_shop"\ndescription = "first of the file"\n')
    command = ("serve", "--reload", "--processes", "1", "mine:make_shop")
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": "agents.toml"}
    with Service(tmp_path, settings, cwd=tmp_path, command=command) as service:

        def description(number: int = 0) -> str:
            return str(service.get("/agents")["items"][number]["description"])

        assert description() == "first"
        turn = submit_turn(service, gate.script, DONE, agent="shop")
        gate.reached()
        code.write_text(CODE.format("broken("))
        wait_until(lambda: "the changed code does not start" in service.log(), LONG_S)
        assert "SyntaxError" in service.log()
        assert description() == "first"
        code.write_text(CODE.format("agent.description = 'second'"))
        wait_until(lambda: description() == "second", LONG_S)
        assert service.play({"say": "from the new code"}, agent="shop")["reply"] == "from the new code"
        running = service.get(f"/conversations/{turn['conversation_id']}/turns/1")
        assert running["status"] == "running"
        gate.open()
        ended = wait_for_end(service, turn)
        assert (ended["reply"], ended["attempts"]) == ("done", 1)
        wait_until(lambda: "stopping" in service.log(), LONG_S)
        assert description(1) == "first of the file"
        file.write_text(file.read_text().replace("first", "second"))
        wait_until(lambda: description(1) == "second of the file", LONG_S)
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(LONG_S) == 0
