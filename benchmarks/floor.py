"""The floor: a request, one read and one write of the store, a reply. No agent."""

from __future__ import annotations

import secrets

from fastapi import FastAPI
from redis.asyncio import Redis

from benchmarks.agents import right_answer
from benchmarks.peer import TurnReply, TurnRequest


def create_app(socket_path: str) -> FastAPI:
    """Make the application. It stores each conversation's last turn."""
    app = FastAPI()
    store = Redis(unix_socket_path=socket_path)

    @app.post("/turn")
    async def post_turn(body: TurnRequest) -> TurnReply:
        conversation_id = body.conversation_id or secrets.token_hex(12)
        last = await store.get(f"conversation:{conversation_id}")
        turn = TurnReply.model_validate_json(last).turn + 1 if last else 1
        reply = TurnReply(conversation_id=conversation_id, turn=turn, reply=right_answer(turn), tool_call_names=[])
        await store.set(f"conversation:{conversation_id}", reply.model_dump_json())
        return reply

    return app
