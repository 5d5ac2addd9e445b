"""Identity of the agent that answered: its model, fingerprint and release, also with models of hostile classes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from smolagents import InferenceClientModel, OpenAIModel, ToolCallingAgent

import smolsessions
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.agents.factories import SMOLAGENTS, check_factory
from smolsessions.agents.identity import model_identity, release_of
from smolsessions.core.records import ModelIdentity
from tests.support import agents
from tests.support.identities import AGENTS, KEY, Raising, Unprintable, make_own, make_plain
from tests.support.service import Service, shared_service
from tests.support.streaming import StreamedModel
from tests.support.turns import DONE

service = shared_service({"AGENTS": AGENTS, "DEMO_AGENTS": "0"})


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


def test_the_release_is_that_of_the_package_that_holds_the_factory() -> None:
    assert release_of(partial(ToolCallingAgent, tools=[])) == SMOLAGENTS
    assert release_of(make_plain) is None
    assert release_of(smolsessions.agent("x")(make_plain)) is None
    assert release_of(object()) is None  # type: ignore[arg-type]  # the factory is anything
    assert release_of(check_factory) == smolsessions.__version__


def test_an_agent_of_a_file_has_the_release_of_its_own_factory(tmp_path: Path) -> None:
    (tmp_path / "made_here.py").write_text("__version__ = '7.1'\ndef make(): ...\ndef make_for(caller): ...\n")
    file = tmp_path / "agents.toml"
    file.write_text('agents = {a = {factory = "made_here:make"}, b = {factory = "made_here:make_for"}}')
    assert [release_of(factory) for _, factory in load_agents_file(file)] == ["7.1", "7.1"]


def test_every_turn_names_what_answered(service: Service) -> None:
    listed = {agent["name"]: agent for agent in service.get("/agents")["items"]}
    for name, model in {
        "plain": {"provider": "ScriptedModel", "id": "scripted-1"},
        "raising": {"provider": "Raising", "id": None},
        "managing": {"provider": "ScriptedModel", "id": "scripted-1"},
    }.items():
        turn = service.play(DONE, agent=name)
        assert turn["agent"]["model"] == listed[name]["model"] == model
        assert turn["agent"] == {key: listed[name][key] for key in turn["agent"]}
        assert len(turn["agent"]["fingerprint"]) == 16
    assert turn["agent"]["kind"] == "ToolCallingAgent"
    assert len({agent["fingerprint"] for agent in listed.values()}) == len(listed)


def fingerprint(change: Callable[[Any], object] = lambda _: None) -> str:
    """Return the fingerprint of an agent that is made and then changed."""

    def make() -> ToolCallingAgent:
        agent = make_own()
        change(agent)
        return agent

    return check_factory("own", make).info.version.fingerprint


CHANGES: dict[str, Callable[[Any], object]] = {
    "model": lambda agent: setattr(agent, "model", agents.ScriptedModel(model_id="scripted-2")),
    "class of the model": lambda agent: setattr(agent, "model", StreamedModel(model_id="scripted-1")),
    "system prompt": lambda agent: agent.prompt_templates.update(system_prompt="You are another."),
    "template": lambda agent: agent.prompt_templates["managed_agent"].update(task="Help."),
    "instructions": lambda agent: setattr(agent, "instructions", "Be brief."),
    "steps": lambda agent: setattr(agent, "max_steps", 7),
    "plans": lambda agent: setattr(agent, "planning_interval", 2),
    "tool": lambda agent: agent.tools.update(fail=agents.fail),
    "description of a tool": lambda agent: agent.tools.update(echo=agents.fail),
    "managed agent": lambda agent: agent.managed_agents.update(agents.make_manager().managed_agents),
    "approvals": lambda agent: smolsessions.options(agent, approve=["echo"]),
    "option": lambda agent: smolsessions.options(agent, fingerprint="2"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_a_change_of_a_part_changes_the_fingerprint(part: str) -> None:
    assert fingerprint(CHANGES[part]) != fingerprint()


def test_a_fingerprint_leaves_out_dates_and_is_replaced_by_the_option() -> None:
    days = ("Today is Monday, May 4, 2026.", "Today is Friday, June 12, 2026.")
    assert len({fingerprint(lambda agent, day=day: setattr(agent, "instructions", day)) for day in days}) == 1  # type: ignore[misc]
    named = [
        fingerprint(lambda agent, part=part: CHANGES[part](smolsessions.options(agent, fingerprint="2")))  # type: ignore[misc]
        for part in ("steps", "instructions")
    ]
    assert named[0] == named[1]


def test_an_agent_made_for_a_caller_is_named_as_it_was_made(service: Service) -> None:
    turn = service.play(DONE, agent="personal")
    assert turn["agent"]["model"]["id"] == "model-of-local"
    listed = next(agent for agent in service.get("/agents")["items"] if agent["name"] == "personal")
    assert turn["agent"]["fingerprint"] != listed["fingerprint"] or listed["model"]["id"] == "model-of-local"
    assert service.get(f"/conversations/{turn['conversation_id']}/turns/1")["agent"] == turn["agent"]


def test_a_stored_turn_keeps_the_identity_of_its_time(service: Service, tmp_path: Path) -> None:
    old = service.play(DONE, agent="plain")
    service.stop()
    changed = service.settings | {"AGENTS": "plain=tests.support.identities:make_raising", "DATA_DIR": "data"}
    changed["DATA_DIR"] = str(service.folder / "data")
    with Service(tmp_path, changed) as later:
        turn = later.follow_up(old, DONE)
        assert turn["agent"]["model"] == {"provider": "Raising", "id": None}
        path = f"/conversations/{turn['conversation_id']}/turns"
        assert [each["agent"] for each in later.get(path)["items"]] == [old["agent"], turn["agent"]]
    service.start()
