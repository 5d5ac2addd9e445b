"""Tools that call other tools and the model of their agent, and predicates that do, over a crash."""

import json
from pathlib import Path

from tests.support.service import Service
from tests.support.turns import wait_for_end
from tests.support.waiting import wait_until

AGENTS = '''
import json, os, signal
from pathlib import Path

from smolagents import CodeAgent, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole


from tests.support.agents import TASK, ScriptedModel, echo

FOLDER = Path(os.environ["FOLDER"])


def ask_model(agent, text):
    with (FOLDER / "asked").open("a") as asked:
        asked.write(text + "\\n")
    message = ChatMessage(MessageRole.USER, TASK + json.dumps([{"text": f"heard {text}"}]))
    return agent.model.generate([message], stop_sequences=[]).content


class Consult(Tool):
    name = "consult"
    description = "Ask the model of its agent."
    inputs = {"text": {"type": "string", "description": "a question"}}
    output_type = "string"

    def forward(self, text):
        said = ask_model(self.agent, self.agent.tools["echo"](text=text))
        if text == "second" and not (FOLDER / "crashed").exists():
            (FOLDER / "crashed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return said


def make_consulting():
    consult = Consult()
    consult.agent = CodeAgent(tools=[consult, echo], model=ScriptedModel())
    return consult.agent
'''


def test_a_tool_calls_another_tool_and_the_model_over_a_crash(tmp_path: Path) -> None:
    (tmp_path / "nesting.py").write_text(AGENTS)
    settings = {"AGENTS": f"consulting={tmp_path / 'nesting.py'}:make_consulting", "DEMO_AGENTS": "0"}
    with Service(tmp_path / "service", settings, {"FOLDER": str(tmp_path)}) as service:
        code = "final_answer(consult('first') + ', ' + consult('second'))"
        body = {"agent": "consulting", "message": json.dumps([{"code": code}])}
        turn = service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).json()
        wait_until((tmp_path / "crashed").exists)
        wait_until(lambda: service.process.poll() is not None)
        service.stop()
        service.start()
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["reply"]) == ("finished", "heard first, heard second"), ended["error"]
    assert (tmp_path / "asked").read_text().split() == ["first", "second", "second"]
