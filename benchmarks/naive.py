"""The service that people write first: live agents in a dict, the whole memory pickled into Redis after each turn."""

from __future__ import annotations

import argparse
import pickle
import secrets
import socket
import sys
from collections import defaultdict
from threading import Lock
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from redis import Redis
from smolagents.memory import ActionStep

from benchmarks.agents import make_agent

if TYPE_CHECKING:
    from smolagents import ToolCallingAgent


class TurnRequest(BaseModel):
    """One user message. Without an id it starts a conversation."""

    message: str
    conversation_id: str | None = None


class TurnReply(BaseModel):
    """A finished turn."""

    conversation_id: str
    turn: int
    reply: Any
    tool_call_names: list[str]


def create_app(store: Redis) -> FastAPI:
    """Make the application. Its endpoint is sync, so FastAPI runs it in its pool of 40 threads."""
    app = FastAPI()
    agents: dict[str, ToolCallingAgent] = {}
    turns: defaultdict[str, int] = defaultdict(int)
    locks: defaultdict[str, Lock] = defaultdict(Lock)

    @app.post("/turn")
    def post_turn(body: TurnRequest) -> TurnReply:
        conversation_id = body.conversation_id or secrets.token_hex(12)
        if body.conversation_id is None:
            agents[conversation_id] = make_agent()
        elif conversation_id not in agents:
            raise HTTPException(404)
        agent = agents[conversation_id]
        with locks[conversation_id]:
            before = len(agent.memory.steps)
            reply = agent.run(body.message, reset=False)
            store.set(f"conversation:{conversation_id}", pickle.dumps(agent.memory.steps))
            turns[conversation_id] += 1
            return TurnReply(
                conversation_id=conversation_id,
                turn=turns[conversation_id],
                reply=reply,
                tool_call_names=_tool_names(agent.memory.steps[before:]),
            )

    return app


def _tool_names(steps: list[Any]) -> list[str]:
    calls = [call for step in steps if isinstance(step, ActionStep) for call in step.tool_calls or ()]
    return [call.name for call in calls if call.name != "final_answer"]


def main() -> None:
    """Serve on a free port and print it. uvicorn is set as in the service: uvloop, httptools, no access log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket_path", help="the store's")
    options = parser.parse_args()
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app = create_app(Redis(unix_socket_path=options.socket_path))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    sys.stdout.write(f"naive serves on 127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run([listening])


if __name__ == "__main__":
    main()
