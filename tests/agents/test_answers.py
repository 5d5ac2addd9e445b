"""An author's checks and callbacks receive the answers and outputs of code as in a bare smolagents agent."""

import json
import re
from pathlib import Path

import pytest

from tests.support import coders
from tests.support.code_turns import code_script
from tests.support.service import Service, shared_service
from tests.support.streaming import Event
from tests.support.turns import DONE

AGENTS = "observed=tests.support.coders:make_observed,lead=tests.support.coders:make_observed_lead"
IMAGE = "from PIL import Image\nImage.new('RGB', (2, 1), (1, 2, 3))"
REAL = {
    "a text": "'text'",
    "a number": "2.5",
    "nothing": "None",
    "a list": "[1, 'two', None]",
    "a dict": "{'a': [1], 2: (3,)}",
    "a set of texts": "{'p', 'q', 'r', 's', 't'}",
    "sets in a dict": "{'in': [{2, 1}, set()]}",
    "bytes": "b'abc'",
    "a date": "import datetime\ndatetime.date(2026, 1, 2)",
    "a decimal": "import decimal\ndecimal.Decimal('1.10')",
    "an image": IMAGE,
    "an image of a tool": "picture()",
    "an array": "import numpy as np\nnp.arange(3)",
    "a frame": "import pandas as pd\npd.DataFrame({'a': [1, 2]})",
    "an instance that the agent declares": "parcel(weight=3)",
}
OWN_CLASS = "class Thing:\n    def __len__(self):\n        return 7\nThing()"
STAND_INS = {
    "an instance of a class of the code": (OWN_CLASS, r"str of \d+: '\[.*\.Thing\] <.*Thing object at 0x>'"),
    "a function": ("def double(n):\n    return 2 * n\ndouble", r"str of \d+: '\[builtins.function\] <function .*>'"),
    "a generator": ("(n for n in [1])", r"str of \d+: '\[builtins.generator\] <generator object .*>'"),
}


SETTINGS = {"AGENTS": AGENTS, "WARM_SESSIONS": "0"}
observed = shared_service(lambda folder: Service(folder, SETTINGS, {coders.NOTED: str(folder / "noted")}))


@pytest.fixture
def noted(observed: Service) -> Path:
    """Return the file of the answers and outputs that the agents noted since the test began."""
    (observed.folder / "noted").unlink(missing_ok=True)
    return observed.folder / "noted"


def ending_in(block: str) -> list[Event]:
    lines, _, value = block.rpartition("\n")
    return code_script(f"{lines}\nvalue = {value}\nvalue", "print(value)\nfinal_answer(value)")


def taken(noted: Path) -> list[str]:
    found = same(noted.read_text()).splitlines()
    noted.unlink()
    return found


def same(text: str) -> str:
    """Leave out the addresses of objects, which differ in each process."""
    return re.sub("0x[0-9a-fA-F]+", "0x", text)


@pytest.mark.parametrize("what", REAL)
def test_what_can_cross_does_so(observed: Service, noted: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(coders.NOTED, str(noted))
    script = ending_in(REAL[what])
    bare = coders.make_observed()
    bare.run(json.dumps(script), reset=False)
    theirs, shown = taken(noted), bare.run(json.dumps([{"shown": True}]), reset=False)
    taken(noted)
    turn = observed.play(*script, agent="observed")
    ours = taken(noted)
    assert ours == theirs
    assert [line.partition(":")[0] for line in ours] == ["output", "check", "output", "answer"]
    assert turn["outcome"] == "success", turn
    later = observed.follow_up(turn, {"shown": True})
    if "text" not in what or what == "a text":  # a set of texts has the order of the process that printed it
        assert json.loads(same(later["reply"])) == json.loads(same(str(shown)))


def test_the_text_of_a_set_is_the_one_that_its_process_printed(observed: Service, noted: Path) -> None:
    turn = observed.play(*ending_in(REAL["a set of texts"]), agent="observed")
    taken(noted)
    logs, _, last = observed.steps(turn)[-1]["observations"].partition("\nLast output from code snippet:\n")
    assert logs == f"Execution logs:\n{last}"


@pytest.mark.parametrize("what", STAND_INS)
def test_what_cannot_cross_is_a_text_that_says_what_it_is(observed: Service, noted: Path, what: str) -> None:
    block, pattern = STAND_INS[what]
    turn = observed.play(*ending_in(block), agent="observed")
    first, check, output, answer = taken(noted)
    assert re.fullmatch(f"check: {pattern}", check)
    assert first == output == check.replace("check", "output", 1)
    assert answer == check.replace("check: str", "answer: AgentText")
    assert turn["outcome"] == "success"
    assert type(turn["output"]) is str


def test_a_managed_agents_answer_is_the_value_and_its_manager_reads_the_text(observed: Service, noted: Path) -> None:
    task = json.dumps(ending_in(REAL["a set of texts"]))
    turn = observed.play(*code_script(f"print(helper(task={task!r}))"), DONE, agent="lead")
    first, check, output, answer = taken(noted)
    assert "set of ['p', 'q', 'r', 's', 't']" in check
    assert first == output
    assert "set of ['p', 'q', 'r', 's', 't']" in answer
    observations = observed.steps(turn)[1]["observations"]
    assert re.search(r"'final_answer': \{('[p-t]'(, )?){5}\}|\{('[p-t]'(, )?){5}\}", observations), observations
