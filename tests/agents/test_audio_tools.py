"""Tools with audio as smolagents has it, which stop the start where torch is missing."""

from collections.abc import Callable

import pytest
from smolagents import ToolCallingAgent

from smolsessions.agents.factories import check_factory
from smolsessions.core.errors import StartError
from tests.support import agents
from tests.support.sounds import make_listener, make_singer, make_teller


def _managed() -> ToolCallingAgent:
    singer = make_singer()
    singer.name = singer.description = "singer"
    return ToolCallingAgent(tools=[], model=agents.ScriptedModel(model_id="scripted"), managed_agents=[singer])


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (make_singer, r"'sing' of agent '\w+' has output_type = 'audio', .* return smolsessions\.Audio"),
        (_managed, r"'sing' of agent '\w+' has output_type = 'audio'"),
        (make_listener, r"'listen' of agent '\w+' has an input 'sound' of the type 'audio', .* write 'any'"),
    ],
)
def test_audio_of_torch_stops_the_start_without_torch(factory: Callable[[], ToolCallingAgent], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        check_factory("mine", factory)


def test_audio_without_torch_needs_no_torch() -> None:
    check_factory("mine", make_teller)
