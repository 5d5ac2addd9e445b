"""The service that people write first: live agents in a dict, the whole memory pickled into Redis after each turn."""

from __future__ import annotations

import pickle
import secrets
from collections import defaultdict
from threading import Lock

from fastapi import FastAPI, HTTPException
from redis import Redis
from smolagents import ToolCallingAgent

from benchmarks.agents import make_agent
from benchmarks.peer import TurnReply, TurnRequest, tool_names


def create_app(socket_path: str) -> FastAPI:
    """Make the application. Its endpoint is sync, so FastAPI runs it in its pool of 40 threads."""
    app = FastAPI()
    store = Redis(unix_socket_path=socket_path)
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
                tool_call_names=tool_names(agent.memory.steps[before:]),
            )

    return app
