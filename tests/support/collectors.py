"""An agent whose tool runs the garbage collector, which then runs no more by itself."""

import gc

from smolagents import LogLevel, ToolCallingAgent, tool

from tests.support.agents import ScriptedModel, echo


@tool
def collect() -> str:
    """Collect garbage, and count the objects that only the collector could free, and the turns that are left."""
    gc.disable()
    found = gc.collect()
    return f"{found} {sum(type(each).__name__ == 'LoopEventBridge' for each in gc.get_objects())}"


def make_collector() -> ToolCallingAgent:
    return ToolCallingAgent(tools=[echo, collect], model=ScriptedModel(), verbosity_level=LogLevel.OFF)
