"""Agents that a service offers or refuses at start, and the `chat` agent against a model's server."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smolsessions.core.errors import StartError
from smolsessions.settings import read_settings
from smolsessions.wiring import make_catalog
from tests.support.llm import LLM
from tests.support.providers import Answer
from tests.support.refusals import refused, sentence_of
from tests.support.service import Service, run, wait_until
from tests.support.stopwatch import Stopwatch
from tests.support.tiers import deep

KEY = "sk-test-9b1f27c0d4"

MODULES = {
    "mine.py": (Path(__file__).parents[1] / "data" / "workshop.txt").read_text(),
    "broken.py": "def make(:\n",
    "leaving.py": "import sys\nsys.exit('leaving leaves')\n",
}
REFUSED = refused("refused_agents.yaml", key=KEY, key_=KEY.replace("-", "_"))


@pytest.fixture(scope="module")
def workshop(folder: Path) -> Path:
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def imports() -> Iterator[None]:
    """Forget the modules of the workshop afterwards."""
    path = [*sys.path]
    yield
    sys.path[:] = path
    for name in ("mine", "broken", "leaving"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("imports")
@pytest.mark.parametrize("what", REFUSED)
def test_agents_are_refused_with_the_mend_for(what: str, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = REFUSED[what]
    monkeypatch.chdir(workshop / case.folder)
    for name, value in case.settings.items():
        monkeypatch.setenv(f"SMOLSESSIONS_{name}", value)
    with pytest.raises(StartError) as caught:
        make_catalog(read_settings())
    assert [part for part in case.told if part not in caught.value.message] == [], caught.value.message
    assert KEY not in caught.value.message


def test_a_start_is_refused_with_one_sentence(workshop: Path, tmp_path: Path) -> None:
    sentence = sentence_of(run(tmp_path, {"AGENTS": "x=mine:make_later"}, cwd=workshop))
    assert "gave coroutine, not a smolagents agent; return one" in sentence


def test_a_module_beside_a_users_own_app_is_found_at_the_working_folder(workshop: Path, tmp_path: Path) -> None:
    folder = workshop / "package"
    folder.mkdir()
    (folder / "my_agents.py").write_text(MODULES["mine.py"])
    settings = {
        "AGENTS": "second=my_agents:make, first=my_agents:make, my_agents:make_shop, my_agents:make",
        "DEMO_AGENTS": "0",
        "MODEL_ID": "m",
        "MODEL_API_BASE": "http://127.0.0.1:1/v1",
        "DEFAULT_AGENT": "first",
    }
    with Service(tmp_path, settings, cwd=folder) as service:
        offered = {agent["name"]: agent for agent in service.get("/agents")["items"]}
        turn = service.post("/turn", message='[{"say": "here"}]').json()
    assert list(offered) == ["first", "second", "Shop-1", "make", "chat"], "a factory's decorator or name names others"
    assert (turn["agent"]["name"], turn["reply"]) == ("first", "here")
    shop = offered["Shop-1"]
    assert (shop["kind"], shop["code_runs_in"]) == ("CodeAgent", "thread")
    assert "note_write" in [tool["name"] for tool in shop["tools"]]


def test_an_agent_whose_cleanup_leaves_ends_nothing(tmp_path: Path) -> None:
    settings = {"AGENTS": "slamming=tests.support.agents:make_slamming", "WARM_SESSIONS": "0"}
    with Service(tmp_path, settings) as service:
        at_start = service.log().count("could not be cleaned up")
        turn = service.play({"say": "one"}, agent="slamming")
        wait_until(lambda: service.log().count("could not be cleaned up") > at_start)
        assert service.follow_up(turn, {"say": "two"})["reply"] == "two"
        assert service.process.poll() is None
        assert service.stop() == 0


@deep
@pytest.mark.alone
def test_an_agent_that_is_slow_to_clean_up_keeps_nobody_waiting(tmp_path: Path) -> None:
    settings = {"AGENTS": "lingering=tests.support.agents:make_lingering", "WARM_SESSIONS": "0", "THREADS": "1"}
    with Service(tmp_path, settings) as service:
        turn = service.play({"say": "one"}, agent="lingering")
        delays = []
        with Stopwatch() as watch:
            for number in range(5):
                for asked in range(20):
                    since_s = watch.s
                    assert service.client.get("/livez").status_code == 200, asked
                    delays.append(watch.s - since_s)
                turn = service.follow_up(turn, {"say": f"number {number}"})
                assert turn["reply"] == f"number {number}"
            assert max(delays) < 0.5
            assert watch.s < 3
            assert service.stop() == 0
            assert watch.s < 5


@pytest.fixture(scope="module")
def chatting(_llm_server: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service whose chat agent calls the model's server, with logs at debug level."""
    settings = {
        "AGENTS": "",
        "MODEL_ID": "gpt-4o",
        "MODEL_API_BASE": _llm_server.base_url,
        "MODEL_API_KEY_ENV": "KEY_OF_THE_MODEL",
        "MODEL_TIMEOUT_S": "4",
        "MODEL_FIRST_BYTE_S": "4",
        "MODEL_RETRIES": "0",
        "LOG_LEVEL": "debug",
    }
    with Service(tmp_path_factory.mktemp("chatting"), settings, {"KEY_OF_THE_MODEL": KEY}) as running:
        yield running


def test_chat_is_the_default_where_there_is_no_agent_of_the_users_own(chatting: Service, llm: LLM) -> None:
    assert [agent["name"] for agent in chatting.get("/agents")["items"]] == ["chat", "demo", "demo-code"]
    llm.answer("hello")
    assert chatting.post("/turn", message="hi").json()["agent"]["name"] == "chat"


def test_chat_plays_a_turn_with_a_tool_call_and_goes_on_from_it(chatting: Service, llm: LLM) -> None:
    llm.call(("calculator", {"expression": "6 * 7"}))
    llm.answer("It is 42.")
    first = chatting.post("/turn", message="What is 6 * 7?").json()
    llm.answer("As I said.")
    second = chatting.post("/turn", message="And again?", conversation_id=first["conversation_id"]).json()
    assert (first["status"], first["reply"], first["tool_call_names"]) == ("finished", "It is 42.", ["calculator"])
    assert (second["reply"], second["tool_call_names"], second["turn"]) == ("As I said.", [], 2)
    assert "Observation:\\n42" in llm.requests[1].text
    assert "It is 42." in llm.requests[2].text
    assert [request.key for request in llm.requests] == [KEY] * 3


def test_an_answer_that_was_cut_off_is_no_final_one(chatting: Service, llm: LLM) -> None:
    llm.garble("final_answer", {"answer": "It is 42."})
    llm.answer("It is 42 indeed.")
    assert chatting.post("/turn", message="What is 6 * 7?").json()["reply"] == "It is 42 indeed."
    assert "the arguments of final_answer are no JSON" in llm.requests[1].text


def test_plain_text_in_place_of_json_is_the_answer(chatting: Service, llm: LLM) -> None:
    llm.script.append(Answer(calls=(("final_answer", "The cat."),)))
    assert chatting.post("/turn", message="Who sat on the mat?").json()["reply"] == "The cat."
    assert len(llm.requests) == 1


def test_a_librarys_client_logs_no_line_beside_that_of_a_model_call(chatting: Service, llm: LLM) -> None:
    began = len(chatting.log())
    llm.answer("hello")
    chatting.post("/turn", message="hi")
    assert [line for line in chatting.log()[began:].splitlines() if re.search(r" INFO httpx2? ", line)] == []
