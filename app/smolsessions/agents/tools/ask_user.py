"""Tool `ask_user`: the agent asks the person who talks with it, and its turn waits for the answer.

The option `ask_user` adds it. The tool proxy answers its calls (`agents/run/approvals.py`).
"""

from __future__ import annotations

from typing import Any

from smolagents import MultiStepAgent, Tool

from smolsessions.agent_options import options_of
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.errors import StartError

NAME = "ask_user"
MAX_QUESTION_CHARS = 10_000
MAX_CHOICES, MAX_CHOICE_CHARS = 20, 500


class AskUser(Tool):
    name = NAME
    description = (
        "Ask the user a question and wait for the answer, which may take long. Use it if you cannot go on without a "
        "decision or a fact that only the user has."
    )
    inputs: dict[str, Any] = {  # noqa: RUF012 - as in its base class
        "question": {"type": "string", "description": "The question."},
        "choices": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Answers to choose from. Leave it out if any text will do.",
            "nullable": True,
        },
    }
    output_type = "string"

    def forward(self, question: str, choices: list[str] | None = None) -> str:  # noqa: ARG002 - the proxy answers
        raise RuntimeError("ask_user needs a turn of a conversation")


def checked_question(question: Any, choices: Any = None) -> tuple[str, tuple[str, ...] | None]:
    """Return the arguments of a call. Raises `ValueError`, which the model reads."""
    if not isinstance(question, str) or not question.strip() or len(question) > MAX_QUESTION_CHARS:
        raise ValueError(f"question must be a text of at most {MAX_QUESTION_CHARS:,} characters")
    if choices is None or choices == []:
        return utf8_text(question), None
    if (
        not isinstance(choices, list | tuple)
        or not 1 < len(choices) <= MAX_CHOICES
        or len({*map(str, choices)}) < len(choices)
    ):
        raise ValueError(f"choices must be a list of 2 to {MAX_CHOICES} different texts; or leave it out")
    if not all(isinstance(choice, str) and 0 < len(choice) <= MAX_CHOICE_CHARS for choice in choices):
        raise ValueError(f"each choice must be a text of at most {MAX_CHOICE_CHARS} characters")
    return utf8_text(question), tuple(map(utf8_text, choices))


def add_ask_user(name: str, agent: MultiStepAgent) -> None:
    """Add the tool to an agent with the option. Raises `StartError` if it has another tool of that name."""
    if not options_of(agent).ask_user or isinstance(agent.tools.get(NAME), AskUser):
        return
    if NAME in agent.tools or NAME in agent.managed_agents:
        raise StartError(f"the agent {name!r} has the option ask_user and a tool {NAME!r} of its own; rename the tool")
    agent.tools[NAME] = AskUser()  # type: ignore[no-untyped-call]  # its base class is
