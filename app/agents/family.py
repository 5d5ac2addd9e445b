"""An agent and those that it manages, equipped: their models, tools, agents and interpreters are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smolagents import CodeAgent
from smolagents.memory import ActionStep, PlanningStep

from app.agents.model_proxy import ModelProxy
from app.agents.steps import finished
from app.agents.tool_proxy import AgentProxy, InterpreterProxy, Seat, see_tools

if TYPE_CHECKING:
    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep


def equip(agent: MultiStepAgent) -> Seat:
    """Put proxies into an agent and into all that it manages, once; give the seat where its runs are to be set."""
    return _equipped(agent, {}, is_managed=False)


def _equipped(agent: MultiStepAgent, known: dict[int, Seat], *, is_managed: bool) -> Seat:
    if id(agent) in known:  # one agent, managed by two
        return known[id(agent)]
    seat = known[id(agent)] = Seat()
    agent.model = ModelProxy(agent.model, seat, agent)  # type: ignore[assignment]  # passes for one
    agent.stream_outputs = False  # the model proxy streams, at a cost that grows with the text and not with its square
    executor = getattr(agent, "python_executor", None)
    see_tools(agent, seat)
    for name, managed in agent.managed_agents.items():
        inner = _equipped(managed, known, is_managed=True)
        agent.managed_agents[name] = AgentProxy(managed, seat, inner)
    if isinstance(agent, CodeAgent):
        agent.python_executor = InterpreterProxy(executor, seat)  # type: ignore[assignment]  # passes for one
    if is_managed:
        agent.step_callbacks.register(ActionStep, lambda step: _show_finished(seat, step))
        agent.step_callbacks.register(PlanningStep, lambda step: _show_finished(seat, step))
    return seat


def _show_finished(seat: Seat, step: MemoryStep) -> None:
    """Show a managed agent's step, which is kept nowhere."""
    track = seat.track
    if track and finished(step) and (event := track.finish(step)):
        track.recorder.tell(event)
