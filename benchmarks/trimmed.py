"""smolagents without its avoidable costs: live agents in a dict, the memory pickled into Redis after each turn."""

from __future__ import annotations

import pickle
import secrets
import sys
from functools import cache
from threading import Lock
from typing import Any

from fastapi import FastAPI, HTTPException
from redis import Redis
from smolagents import AgentLogger, ChatMessage, LogLevel, ToolCallingAgent
from smolagents.memory import ActionStep, CallbackRegistry

from benchmarks.agents import TOOLS, ScriptedModel, make_agent, templates
from benchmarks.peer import TurnReply, TurnRequest, tool_names

sys.modules["torch"] = None  # type: ignore[assignment]  # smolagents looks for it after each tool call


def create_app(socket_path: str) -> FastAPI:
    """Make the application. Its endpoint is sync, so FastAPI runs it in its pool of 40 threads."""
    app = FastAPI()
    store = Redis(unix_socket_path=socket_path)
    agents: dict[str, Trimmed] = {}

    @app.post("/turn")
    def post_turn(body: TurnRequest) -> TurnReply:
        conversation_id = body.conversation_id or secrets.token_hex(12)
        if body.conversation_id is None:
            agents[conversation_id] = Trimmed()
        elif conversation_id not in agents:
            raise HTTPException(404)
        agent = agents[conversation_id]
        with agent.lock:
            before = len(agent.memory.steps)
            reply = agent.run(body.message, reset=False)
            store.set(f"conversation:{conversation_id}", pickle.dumps(agent.memory.steps))
            agent.turns += 1
            names = tool_names(agent.memory.steps[before:])
            return TurnReply(conversation_id=conversation_id, turn=agent.turns, reply=reply, tool_call_names=names)

    return app


class Trimmed(ToolCallingAgent):  # type: ignore[misc, unused-ignore]
    """Agent that renders its prompt once, each step's messages once, and logs nothing."""

    def __init__(self) -> None:
        super().__init__(TOOLS, ScriptedModel(), prompt_templates=templates(), logger=_silent)
        self.step_callbacks = _no_callbacks
        self.lock = Lock()
        self.turns = 0
        self._messages = self.memory.system_prompt.to_messages()
        self._rendered = 0

    def initialize_system_prompt(self) -> str:
        return _system_prompt()

    def write_memory_to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
        for step in self.memory.steps[self._rendered :]:
            self._messages += step.to_messages(summary_mode)
        self._rendered = len(self.memory.steps)
        return self._messages


class _Silent(AgentLogger):  # type: ignore[misc, unused-ignore]
    """Logger that neither prints nor formats."""

    def log(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    log_error = log_markdown = log_code = log_rule = log_task = log_messages = log


class _NoCallbacks(CallbackRegistry):  # type: ignore[misc, unused-ignore]
    """Registry without the monitor. It drops each step's copy of its prompt."""

    def callback(self, memory_step: Any, **_kwargs: Any) -> None:
        if isinstance(memory_step, ActionStep):
            memory_step.model_input_messages = None


_silent = _Silent(LogLevel.OFF)
_no_callbacks = _NoCallbacks()  # type: ignore[no-untyped-call]


@cache
def _system_prompt() -> str:
    return make_agent().system_prompt
