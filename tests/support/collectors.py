"""An agent whose tool runs the garbage collector, which then runs no more by itself."""

import gc

from smolagents import LogLevel, ToolCallingAgent, tool

from tests.support.agents import ScriptedModel, echo


@tool
def collect() -> int:
    """Collect garbage, and count the objects that only the collector could free."""
    gc.disable()
    return gc.collect()


def make_collector() -> ToolCallingAgent:
    return ToolCallingAgent(tools=[echo, collect], model=ScriptedModel(), verbosity_level=LogLevel.OFF)
