"""`smolsessions.options` and the decorator `smolsessions.agent`, as an author and a type checker see them."""

import inspect
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import smolsessions
from smolsessions.agent_options import CodeLimitValues, Options, OptionValues, factory_name, options_of
from tests.support import agents
from tests.support.data import data
from tests.support.tiers import deep
from tests.support.waiting import run_program

ANY: Any = smolsessions


@deep
def test_a_type_checker_knows_the_options_and_keeps_the_types_of_agents(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(data("typed_options.txt"))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "typed.py"]
    lines = run_program(command, cwd=tmp_path).stdout.splitlines()
    refused = [line.split(":")[1] for line in lines if "error" in line and line.startswith("typed.py")]
    assert refused == ["16", "17", "18"]
    notes = [line for line in lines if "Revealed type" in line]
    assert "CodeAgent" in notes[0]
    assert "size" in notes[1]
    assert "CodeAgent" in notes[1]


def test_a_later_call_keeps_the_options_that_it_does_not_name() -> None:
    agent = agents.make_scripted()
    assert smolsessions.options(agent, model_retries=1, scratchpad=True) is agent
    smolsessions.options(agent, model_retries=2)
    assert options_of(agent) == Options(model_retries=2, scratchpad=True)
    assert options_of(agents.make_scripted()) == Options()
    with pytest.raises(ValidationError, match="frozen"):
        options_of(agent).model_retries = 3  # type: ignore[misc]


def test_a_decorated_factory_keeps_its_parameters_and_has_the_last_word() -> None:
    @smolsessions.agent("shop", model_retries=3)
    def make_shop(caller: str) -> Any:
        return smolsessions.options(agents.make_scripted(name=caller), model_retries=1, fingerprint="2")

    made = make_shop(caller="ann")
    assert (made.name, options_of(made)) == ("ann", Options(model_retries=3, fingerprint="2"))
    assert list(inspect.signature(make_shop).parameters) == ["caller"]
    assert factory_name(make_shop) == "shop"


@pytest.mark.parametrize("function", ["options", "agent"])
def test_a_misspelt_option_is_refused_with_the_right_one(function: str) -> None:
    first: Any = agents.make_scripted() if function == "options" else "shop"
    with pytest.raises(TypeError, match=f"smolsessions.{function} has no option 'excutor'; did you mean executor"):
        getattr(ANY, function)(first, excutor="thread")
    with pytest.raises(TypeError, match="no option 'colour'; use one of memory_policy, own_policies"):
        getattr(ANY, function)(first, colour="red")


def test_a_factory_in_place_of_an_agent_or_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"is no smolagents agent; .* decorate a factory with @smolsessions.agent"):
        smolsessions.options(agents.make_scripted, scratchpad=True)
    with pytest.raises(TypeError, match=r'write @smolsessions.agent\("shop"\)'):
        ANY.agent(agents.make_scripted)


def test_all_forms_of_the_options_have_the_same_names() -> None:
    from smolsessions.agents.sandbox.limits import CodeLimits  # noqa: PLC0415 - a part of the service

    assert OptionValues.__annotations__.keys() == Options.model_fields.keys()
    assert CodeLimitValues.__annotations__.keys() == {each.name for each in fields(CodeLimits)}
