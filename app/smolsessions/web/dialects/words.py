"""Words for clients: what a turn asks a person, why it failed, and short arguments and results of calls."""

from __future__ import annotations

from pydantic_core import to_json

from smolsessions.core.records import Outcome, Turn
from smolsessions.core.requests import InputRequest
from smolsessions.web.views import is_refused

CODE, FINAL = "python_interpreter", "final_answer"  # smolagents' names of a code block and of the answer's tool
MOST_SHOWN = 500  # characters of a call's arguments or result


def question_words(request: InputRequest) -> str:
    """Return a request in words, for a client that has no form for it."""
    if request.kind == "question":
        choices = f" ({', '.join(request.choices)})" if request.choices else ""
        return f"{request.question}{choices}"
    called = f"{request.tool} with {short(to_json(request.arguments).decode())}"
    if request.kind == "approval":
        return f"May I call {called}? Answer yes, or say why not."
    return f"I wait for the result of {called}, which another client runs."


def short(text: str) -> str:
    """Return the beginning of a call's arguments or result."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def failure_of(turn: Turn) -> tuple[str, str]:
    """Return code and sentence of the failure of a turn."""
    failure = turn.outcome.error if turn.outcome else None
    return (failure.code, failure.message) if failure else ("internal", "The turn failed.")


def called_names(outcome: Outcome) -> list[str]:
    """Return the names of the tools that a turn called, in order, without rejected calls."""
    return [call.name for call in outcome.tool_calls if not (call.internal or is_refused(call))]
