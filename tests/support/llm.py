"""Model provider that returns scripted answers in order, as OpenAI's protocol has them. PYTEST_DONT_REWRITE."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.providers import Answer, Provider


class LLM(Provider):
    """The provider. Each verb scripts the answer to one request. The service receives `llm.base_url`."""

    def answer(self, answer: object) -> None:
        self.call(("final_answer", {"answer": answer}))

    def call(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.script.append(Answer(calls=calls))

    def say(self, text: str) -> None:
        """Answer with text alone, without any tool call."""
        self.script.append(Answer((text,)))

    def garble(self, name: str, arguments: dict[str, Any]) -> None:
        """Call a tool with arguments that are cut in the middle, and thus are invalid JSON."""
        text = json.dumps(arguments)
        self.script.append(Answer(calls=((name, text[: len(text) // 2]),)))

    def fail(self, status: int, *, code: str | None = None, message: str | None = None) -> None:
        error = {"message": message or "it fails", "type": "error", "param": None, "code": code}
        self.script.append(Answer(status=status, body={"error": error}))

    def fall_silent(self) -> None:
        """Accept the request and answer nothing until the client disconnects."""
        self.script.append(Answer(fault="silent"))

    def break_stream(self) -> None:
        """Begin a streamed `final_answer`, and break the connection."""
        self.script.append(Answer(calls=(("final_answer", {"answer": "never read to its end"}),), fault="abort"))

    def is_idle(self, within_s: float) -> bool:
        """Wait until every request was answered, or abandoned by its client. Return whether this was in time."""
        return self.wait(lambda it: it.open_calls == 0, within_s)

    def reset(self) -> None:
        self.play()


@pytest.fixture(scope="session")
def _llm_server() -> Iterator[LLM]:
    with LLM() as server:
        yield server


@pytest.fixture
def llm(_llm_server: LLM) -> LLM:
    _llm_server.reset()
    return _llm_server
