"""Use agents through the library of OpenAI: a chat, and a response that waits for a person or for a function.

    pip install openai
    python examples/openai_sdk.py http://127.0.0.1:8000

It asks the demo agent of a service that runs there (`smolsessions serve`), which needs no key of a model. Add a
question and the name of your agent to see it call the function. Stop this program while it asks, and run it with the
address and the id that it has printed: the response still waits.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

from openai import APIError, OpenAI

TOOLS: list[Any] = [
    {"type": "mcp", "server_label": "smolsessions", "require_approval": "always"},
    {
        "type": "function",
        "name": "where_am_i",
        "description": "Return the system of the user's machine.",
        "parameters": {"type": "object", "properties": {}},
    },
]


def main(address: str, question: str = "What is 12 * 7?", agent: str = "demo") -> None:
    client = OpenAI(base_url=f"{address.rstrip('/')}/openai/v1", api_key="any")
    if question.startswith("resp_"):
        response = client.responses.retrieve(question)
        agent = response.model
    else:
        stream = client.chat.completions.create(
            model=agent, messages=[{"role": "user", "content": question}], stream=True
        )
        print("chat:", "".join(chunk.choices[0].delta.content or "" for chunk in stream))
        response = client.responses.create(model=agent, input=question, tools=TOOLS)
    while answers := [answer for item in response.output if (answer := answer_to(item, response.id))]:
        response = client.responses.create(model=agent, input=answers, previous_response_id=response.id)
    print("response:", response.output_text)


def answer_to(item: Any, response_id: str) -> Any:
    """Return the answer to an item that asks for one."""
    if item.type == "mcp_approval_request":
        approve = input(f"{response_id}: {item.name} with {item.arguments}? [y/n] ") == "y"
        return {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": approve}
    if item.type == "function_call":
        return {"type": "function_call_output", "call_id": item.call_id, "output": json.dumps(platform.system())}
    return None


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["http://127.0.0.1:8000"]))
    except (EOFError, KeyboardInterrupt):
        sys.exit("\nThe response waits for an answer: run this with its id behind the address.")
    except APIError as error:
        sys.exit(f"The service: {error.message}")
