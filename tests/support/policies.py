"""Turns under memory policies, and the prompts that they lead to."""

import io
import json
from pathlib import Path
from typing import Any

import PIL.Image
from smolagents.memory import TaskStep
from smolagents.models import ChatMessage, MessageRole

from tests.support import agents, rememberers, remembering
from tests.support.service import PLAIN, Service, json_of
from tests.support.turns import DONE

Json = dict[str, Any]
SETTINGS = {
    "AGENTS": f"{remembering.AGENTS},{rememberers.NOTERS},{PLAIN['AGENTS']},own=tests.support.agents:make_broken",
    "DEMO_AGENTS": "0",
    "THREADS": "16",
}
CODELESS = SETTINGS | {"AGENTS": remembering.CODELESS}
OWN = "tests.support.remembering:"
LONG = "long " * 100
LAST_TWO: Json = {"name": "keep_last_n_steps", "n": 2}


def echo_call(text: str) -> Json:
    return {"call": [["echo", {"text": text}]]}


def path_of(turn: Json, below: str = "") -> str:
    return f"/conversations/{turn['conversation_id']}{below}"


def patch_policy(service: Service, turn: Json, policy: Any) -> Json:
    return json_of(service.client.patch(path_of(turn), json={"policy": policy}))


def play_turns(service: Service, turns: int = 4, agent: str = "plain", policy: Any = None) -> Json:
    """Play turns of a call and an answer each, the first of them with a picture. Return the last turn."""
    turn = service.play({"call": [["picture", {}]]}, DONE, agent=agent)
    for number in range(2, turns + 1):
        turn = service.follow_up(turn, echo_call(f"{number} {LONG}"), DONE)
    if policy:
        patch_policy(service, turn, policy)
    return turn


def requested(folder: Path) -> list[str]:
    path = folder / "asked"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def prompt_of(service: Service, turn: Json, **query: Any) -> list[ChatMessage]:
    """Return the announced next messages in the form that a model receives."""

    def part(given: Json) -> Json:
        if given["type"] == "text":
            return given
        return {"type": "image", "image": PIL.Image.open(io.BytesIO(service.client.get(given["url"]).content))}

    found = service.get(path_of(turn, "/prompt"), **query)["messages"]
    return [ChatMessage(MessageRole(each["role"]), [part(one) for one in each["content"]]) for each in found]


def predicted(service: Service, turn: Json, *script: Json) -> str:
    return agents.digest([*prompt_of(service, turn), *TaskStep(json.dumps(script)).to_messages()])


def message_texts(service: Service, turn: Json, **query: Any) -> list[str]:
    return [agents.text_of(message) for message in prompt_of(service, turn, **query)]


def prune(service: Service, turn: Json, policy: Any = LAST_TWO, **more: Any) -> Json:
    return json_of(service.post(path_of(turn, "/prune"), policy=policy, **more))
