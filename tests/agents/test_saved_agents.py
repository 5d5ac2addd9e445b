"""Agents of saved folders and of the Hub: their code runs, and their models and executors do not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from smolagents import CodeAgent, OpenAIModel, Tool, ToolCallingAgent

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.core.errors import StartError
from tests.support.http_server import Hub
from tests.support.llm import LLM
from tests.support.service import ROOT, Service, run, write_agents

KEY = "sk-live-4f1d0c7e9a5b"
REVISION = "0123456789abcdef0123456789abcdef01234567"
MODEL = """
[models.small]
provider = "openai"
id = "gpt-4o"
base = "{base}"
api_key_env = "SHOP_KEY"
"""
AGENT = """
[agents.shop]
folder = "saved"
trust = true
model = "small"
"""
CLERK = """
[agents.clerk]  # another one than that in the folder
kind = "tool_calling"
model = "small"
tools = ["smolsessions.agents.demo.tools:Calculator"]
"""
ENVIRONMENT = {"SHOP_KEY": KEY, "OPENAI_API_KEY": "sk-of-the-host"}


class Stock(Tool):  # type: ignore[misc, unused-ignore]
    name = "stock"
    description = "Counts an item."
    inputs = {"item": {"type": "string", "description": "Its name."}}  # noqa: RUF012 - as smolagents declares them
    output_type = "integer"

    def forward(self, item: str) -> int:
        return len(item)


@pytest.fixture
def elsewhere() -> Iterator[LLM]:
    with LLM() as llm:
        yield llm


@pytest.fixture
def saved(tmp_path: Path, elsewhere: LLM) -> Path:
    stock: Tool = Stock()  # type: ignore[no-untyped-call]

    def model() -> OpenAIModel:
        return OpenAIModel("gpt-of-the-folder", api_base=elsewhere.base_url, api_key="x")

    clerk = CodeAgent([stock], model(), name="clerk", description="Counts.", additional_authorized_imports=["math"])
    shop = ToolCallingAgent([stock], model(), managed_agents=[clerk], instructions="Be brief.", max_steps=7)
    shop.save(tmp_path / "saved")
    agent = json.loads((tmp_path / "saved" / "agent.json").read_text())
    agent["model"]["data"]["api_base"] = elsewhere.base_url
    (tmp_path / "saved" / "agent.json").write_text(json.dumps(agent))
    return tmp_path / "saved"


@pytest.mark.usefixtures("saved")
def test_a_saved_agent_runs_with_the_model_of_the_file(llm: LLM, elsewhere: LLM, tmp_path: Path) -> None:
    settings = write_agents(tmp_path, MODEL.format(base=llm.base_url) + CLERK + AGENT)
    llm.call(("stock", {"item": "pears"}), ("clerk", {"task": "Count."}))
    llm.say("<code>final_answer(stock(item='figs') + 38)</code>")
    llm.answer("It is 5, and 42.")
    with Service(tmp_path, settings, ENVIRONMENT) as service:
        turn = service.post("/turn", message="how many pears?", agent="shop").json()
        described = service.get("/agents/shop")
    assert (turn["reply"], described["max_steps"]) == ("It is 5, and 42.", 7)
    assert {(request.key, request.body["model"]) for request in llm.requests} == {(KEY, "gpt-4o")}
    assert "42" in llm.requests[-1].text
    assert "calculator" not in llm.requests[1].text
    assert elsewhere.requests == []
    assert "a saved folder does not hold instructions, structured_output" in service.log()


def test_an_agent_of_the_hub_is_downloaded_at_its_commit(saved: Path, llm: LLM, tmp_path: Path) -> None:
    (saved / "weights.bin").write_bytes(bytes(1000))
    way = f'hub = "ada/agent"\nrevision = "{REVISION}"'
    settings = write_agents(tmp_path, MODEL.format(base=llm.base_url) + AGENT.replace('folder = "saved"', way))
    with Hub(saved, "ada/agent", REVISION) as hub:
        environment = ENVIRONMENT | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), "PYTHONUTF8": "1"}
        status, output, errors = _check(tmp_path, settings, environment)
    assert (status, output.split(", fingerprint")[0]) == (0, "shop: ok    ToolCallingAgent, stock, clerk"), errors
    assert "Fetching" not in errors
    assert any(path.endswith(f"/{REVISION}/managed_agents/clerk/agent.json") for path in hub.requests)
    assert not any("weights" in path or "app.py" in path for path in hub.requests)
    status, output, errors = _check(tmp_path, settings, environment)
    assert status == 0, "the commit is in the cache" + output + errors
    for offline in ("1", "0"):  # 0: nothing listens there
        environment |= {"HF_HOME": str(tmp_path / "empty"), "HF_HUB_OFFLINE": offline}
        status, output, errors = _check(tmp_path, settings, environment)
        assert (status, "Retry" in output + errors) == (1, False)
        assert (
            f"{settings['AGENTS_FILE']}: [agents.shop] hub: the repository cannot be downloaded at this revision"
            in output
        )


def _check(folder: Path, settings: dict[str, str], environment: dict[str, str]) -> tuple[int, str, str]:
    return run(folder, settings, "agents", "check", cwd=ROOT, **environment)


def _change(**changes: Any) -> Callable[[Path], object]:
    def change(saved: Path) -> None:
        agent = json.loads((saved / "agent.json").read_text())
        (saved / "agent.json").write_text(json.dumps(agent | changes))

    return change


def _write(path: str, text: str) -> Callable[[Path], object]:
    return lambda saved: (saved / path).write_text(text)


def _break_templates(saved: Path) -> None:
    templates = json.loads((saved / "agent.json").read_text())["prompt_templates"]
    _change(prompt_templates=templates | {"system_prompt": "{% for x in %}"})(saved)


def _manage_itself(saved: Path) -> None:
    _change(managed_agents={"clerk": "CodeAgent"})(saved / "managed_agents" / "clerk")
    (saved / "managed_agents" / "clerk" / "managed_agents").symlink_to("..")


HOSTILE = {
    "a tool outside": (_change(tools=["../../stock"]), "(tools.0: "),
    "an agent outside": (_change(managed_agents={"../saved": "CodeAgent"}), "(managed_agents.../saved"),
    "another class": (_change(**{"class": "MyAgent"}), "(class: Input should be 'ToolCallingAgent' or 'CodeAgent')"),
    "all modules": (
        _change(**{"class": "CodeAgent", "authorized_imports": ["*"], "tools": ["stock"], "managed_agents": {}}),
        "[agents.shop] authorized_imports: is missing, and the saved agent asks for all modules",
    ),
    "incomplete templates": (_change(prompt_templates={"system_prompt": "Hello."}), "agent.json lacks texts"),
    "templates that fail": (
        _break_templates,
        "[agents.shop] folder: agent.json system_prompt, line 1 of this text: no Jinja (Expected an expression",
    ),
    "no object": (_write("agent.json", "[1]"), "was not written by agent.save()"),
    "no JSON": (_write("agent.json", "\0"), "was not written by agent.save()"),
    "a deep JSON": (_write("agent.json", "[" * 100_000), "was not written by agent.save()"),
    "too large": (_write("agent.json", " " * (4 * 1024 * 1024 + 1)), "larger than 4 MiB"),
    "a tool that exits": (_write("tools/stock.py", "raise SystemExit(3)"), "is no tool that loads (SystemExit)"),
    "a tool without a class": (_write("tools/stock.py", "x = 1"), "stock.py is no tool that loads"),
    "a tool that is not there": (lambda saved: (saved / "tools/stock.py").unlink(), "cannot be read (No such file"),
    "an agent without a file": (
        lambda saved: (saved / "managed_agents" / "clerk" / "agent.json").unlink(),
        "clerk/agent.json cannot be read",
    ),
    "an agent that manages itself": (_manage_itself, "has agents nested deeper than 8"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_folder_is_refused(attack: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = HOSTILE[attack]
    change(saved)
    monkeypatch.setenv("SHOP_KEY", KEY)
    file = tmp_path / "agents.toml"
    file.write_text(MODEL.format(base="http://127.0.0.1:9/v1") + AGENT)
    with pytest.raises(StartError) as caught:
        Catalog(load_agents_file(file))
    assert caught.value.message.startswith(f"{file}: [agents.shop] ")
    assert expected in caught.value.message


def test_executor_and_model_of_a_folder_are_idle(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"class": "TransformersModel", "data": {"model_id": "x/y", "trust_remote_code": True}}
    _change(**{"class": "CodeAgent", "model": model, "executor_type": "docker", "executor_kwargs": {"x": 1}})(saved)
    monkeypatch.setenv("SHOP_KEY", KEY)
    file = tmp_path / "agents.toml"
    file.write_text(MODEL.format(base="http://127.0.0.1:9/v1") + AGENT)
    assert next(iter(Catalog(load_agents_file(file)).infos.values())).code_runs_in == "child"
