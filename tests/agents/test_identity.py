"""Identity of the agent that answered: its model, fingerprint and release, also with models of hostile classes."""

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from smolagents import InferenceClientModel, MultiStepAgent, OpenAIModel, ToolCallingAgent

import smolsessions
from smolsessions.agents.config.agents_file import load_agents_file
from smolsessions.agents.factories import SMOLAGENTS, check_factory
from smolsessions.agents.identity import READ_S, model_identity, release_of
from smolsessions.core.records import ModelIdentity
from tests.support import agents
from tests.support.service import Service
from tests.support.stopwatch import Stopwatch
from tests.support.turns import DONE

KEY = "sk-of-the-identity"
AGENTS = ",".join(
    f"{name}=tests.agents.test_identity:make_{name}" for name in ("plain", "raising", "hanging", "managing", "personal")
)


class Raising(agents.ScriptedModel):
    @property
    def model_id(self) -> str:
        raise OSError(KEY)

    @model_id.setter
    def model_id(self, value: str) -> None:
        pass


class Hanging(agents.ScriptedModel):
    @property
    def model_id(self) -> str:
        time.sleep(60)
        return "late"

    @model_id.setter
    def model_id(self, value: str) -> None:
        pass


class Unprintable(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise OSError(KEY)


def make_plain(model: Any = None, **options: Any) -> ToolCallingAgent:
    agent = agents.make_scripted(**options)
    agent.model = model or agents.ScriptedModel(model_id="scripted-1")
    return agent


def make_raising() -> ToolCallingAgent:
    return make_plain(Raising())


def make_hanging() -> ToolCallingAgent:
    return make_plain(Hanging())


def make_managing() -> ToolCallingAgent:
    helper = make_plain(Raising(), name="helper", description="Helps.")
    return make_plain(managed_agents=[helper])


def make_personal(caller: smolsessions.Caller) -> MultiStepAgent:
    """Make an agent whose model and prompt are the caller's."""
    agent = make_plain(agents.ScriptedModel(model_id=f"model-of-{caller.owner or 'nobody'}"))
    agent.instructions = f"You serve {caller.owner or 'nobody'}."
    return agent


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("identity"), {"AGENTS": AGENTS, "DEMO_AGENTS": "0"}) as service:
        yield service


@pytest.mark.parametrize(
    ("model", "identity"),
    [
        (OpenAIModel("gpt-5-mini", api_key=KEY), ("openai", "gpt-5-mini")),
        (InferenceClientModel(f"https://me:{KEY}@host/v1?key={KEY}", token=KEY), ("huggingface", "https://host/v1")),
        (Raising(), ("Raising", None)),
        (agents.ScriptedModel(model_id=Unprintable("plain text")), ("ScriptedModel", "plain text")),
        (agents.ScriptedModel(model_id="\ud800"), ("ScriptedModel", "\ufffd")),
        (object(), ("object", None)),
        (None, ("NoneType", None)),
    ],
)
def test_a_model_has_an_identity_whatever_its_class_does(model: object, identity: tuple[str, str | None]) -> None:
    assert model_identity(model) == ModelIdentity(*identity)


def test_a_property_that_hangs_is_read_once() -> None:
    with Stopwatch() as watch:
        assert [model_identity(Hanging()), model_identity(Hanging())] == [ModelIdentity("Hanging")] * 2
    assert watch.s < 1.5 * READ_S


def test_the_release_is_that_of_the_package_that_holds_the_factory() -> None:
    assert release_of(partial(ToolCallingAgent, tools=[])) == SMOLAGENTS
    assert release_of(make_plain) is None
    assert release_of(smolsessions.agent("x")(make_plain)) is None
    assert release_of(object()) is None  # type: ignore[arg-type]  # the factory is anything
    assert release_of(check_factory) == smolsessions.__version__


def test_an_agent_of_a_file_has_the_release_of_its_own_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the file's folder is added
    (tmp_path / "made_here.py").write_text("__version__ = '7.1'\ndef make(): ...\ndef make_for(caller): ...\n")
    file = tmp_path / "agents.toml"
    file.write_text('agents = {a = {factory = "made_here:make"}, b = {factory = "made_here:make_for"}}')
    assert [release_of(factory) for _, factory in load_agents_file(file)] == ["7.1", "7.1"]


def test_every_turn_names_what_answered(service: Service) -> None:
    listed = {agent["name"]: agent for agent in service.get("/agents")["items"]}
    for name, model in {
        "plain": {"provider": "ScriptedModel", "id": "scripted-1"},
        "raising": {"provider": "Raising", "id": None},
        "hanging": {"provider": "Hanging", "id": None},
        "managing": {"provider": "ScriptedModel", "id": "scripted-1"},
    }.items():
        turn = service.play(DONE, agent=name)
        assert turn["agent"]["model"] == listed[name]["model"] == model
        assert turn["agent"] == {key: listed[name][key] for key in turn["agent"]}
        assert len(turn["agent"]["fingerprint"]) == 16
    assert turn["agent"]["kind"] == "ToolCallingAgent"
    assert len({agent["fingerprint"] for agent in listed.values()}) == len(listed)


def make_own() -> ToolCallingAgent:
    """Make an agent whose texts are its own, except those of `final_answer`."""
    plan = {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""}
    templates: Any = {"system_prompt": "You are {{tools | length}}.", "planning": plan}
    templates |= {
        "managed_agent": {"task": "", "report": ""},
        "final_answer": {"pre_messages": "", "post_messages": ""},
    }
    model = agents.ScriptedModel(model_id="scripted-1")
    return ToolCallingAgent(tools=[agents.echo], model=model, prompt_templates=templates, max_steps=6)


def test_a_release_does_not_change_a_fingerprint() -> None:
    """A turn may wait for a person while the service is upgraded. Another fingerprint would end it."""
    assert check_factory("own", make_own).info.version.fingerprint == "33b648c9922c0d22"


def test_an_agent_made_for_a_caller_is_named_as_it_was_made(service: Service) -> None:
    turn = service.play(DONE, agent="personal")
    assert turn["agent"]["model"]["id"] == "model-of-local"
    listed = next(agent for agent in service.get("/agents")["items"] if agent["name"] == "personal")
    assert turn["agent"]["fingerprint"] != listed["fingerprint"] or listed["model"]["id"] == "model-of-local"
    again = service.get(f"/conversations/{turn['conversation_id']}/turns/1")
    assert again["agent"] == turn["agent"]


def test_a_stored_turn_keeps_the_identity_of_its_time(service: Service, tmp_path: Path) -> None:
    old = service.play(DONE, agent="plain")
    service.stop()
    changed = service.settings | {"AGENTS": "plain=tests.agents.test_identity:make_raising", "DATA_DIR": "data"}
    changed["DATA_DIR"] = str(service.folder / "data")
    with Service(tmp_path, changed) as later:
        turn = later.follow_up(old, DONE)
        assert turn["agent"]["model"] == {"provider": "Raising", "id": None}
        path = f"/conversations/{turn['conversation_id']}/turns"
        assert [each["agent"] for each in later.get(path)["items"]] == [old["agent"], turn["agent"]]
    service.start()
