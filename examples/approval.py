"""Ask a person in the terminal before each tool call, and go on after the answer.

    python examples/approval.py http://127.0.0.1:8000

It asks the demo agent of a service that runs there (`smolsessions serve`), which needs no key of a model. Add the name
of an agent to ask that one.
Stop the service while it asks, and start it again: the turn still waits, and goes on after the answer.
"""

from __future__ import annotations

import sys

from smolsessions import Client, ClientError


def main(address: str, agent: str = "demo") -> None:
    with Client(address, patience_s=5) as client:
        turn = client.turn("What is 12 * 7?", agent=agent, approve=["*"])
        while turn.status == "waiting":
            for request in turn.requests:
                if input(f"{request.tool} with {request.arguments}? [y/n] ") == "y":
                    turn = client.answer(turn, request.request_id, "approve")
                else:
                    turn = client.answer(turn, request.request_id, "reject", reason="The person said no")
        print(turn.reply)
        print("called:", ", ".join(turn.tool_call_names))


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:] or ["http://127.0.0.1:8000"]))
    except (EOFError, KeyboardInterrupt):
        sys.exit("\nThe turn waits for an answer: run this in a terminal, or pipe a line with y or n into it.")
    except ClientError as error:
        sys.exit(str(error))
