"""Frame of the contenders beside the service: one endpoint, on uvicorn as the service runs it."""

from __future__ import annotations

import argparse
import importlib
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from smolagents.memory import ActionStep


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


def tool_names(steps: list[Any]) -> list[str]:
    """Return the names of the called tools, without the final answer."""
    calls = [call for step in steps if isinstance(step, ActionStep) for call in step.tool_calls or ()]
    return [call.name for call in calls if call.name != "final_answer"]


def main() -> None:
    """Serve on a free port and print it. uvicorn is set as in the service: uvloop, httptools, no access log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("floor", "trimmed", "naive"))
    parser.add_argument("socket_path", help="the store's")
    options = parser.parse_args()
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app: FastAPI = importlib.import_module(f"benchmarks.{options.name}").create_app(options.socket_path)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    sys.stdout.write(f"{options.name} serves on 127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run([listening])


if __name__ == "__main__":
    main()
