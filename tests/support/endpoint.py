"""Model provider whose answer the conversation's message selects, and agents that use it.

`prefill` sends nothing, and `headers` sends headers alone. `silent` sends a first piece and nothing more. `endless`
sends pieces for ever. `slow` sends a whole answer late. `counted` sends a piece and its usage, then breaks the line.
`overflow` sends a piece and llama.cpp's error. `null` and `empty` send a tool call beside that content. Any other
message is answered whole.
"""

import os
from collections.abc import Callable
from typing import Any

import httpx
from smolagents import (
    AzureOpenAIModel,
    InferenceClientModel,
    Model,
    MultiStepAgent,
    OpenAIModel,
    ToolCallingAgent,
    tool,
)

import smolsessions
from tests.support.providers import Answer, Provider, Request

KEY = "none"
OVERFLOW = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
PIECE = ("a piece ",)
ANSWERS = {
    "prefill": Answer(fault="silent"),
    "headers": Answer((), fault="stall"),
    "silent": Answer(PIECE, fault="stall"),
    "endless": Answer(PIECE, fault="endless"),
    "slow": Answer(calls=(("final_answer", {"answer": "done"}),), fault="slow"),
    "counted": Answer(PIECE, fault="counted"),
    "overflow": Answer(PIECE, body=OVERFLOW, fault="error"),
    "null": Answer(calls=(("lookup", {"word": "null"}),), beside={"content": None}),
    "empty": Answer(calls=(("lookup", {"word": "empty"}),), beside={"content": ""}),
}


class Endpoint(Provider):
    def next_answer(self, request: Request) -> Answer:
        """Return the answer that the last word of the newest task names. Tool results have the user's role, too."""
        texts = [_text(message["content"]) for message in request.body["messages"] if message["role"] == "user"]
        mode = "answer" if "Observation" in texts[-1] else texts[-1].split()[-1]
        return ANSWERS.get(mode, Answer(calls=(("final_answer", {"answer": "done"}),)))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@tool
def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: a word
    """
    return f"about {word}"


def make_openai(*, base: str = "ENDPOINT_URL", **client: Any) -> ToolCallingAgent:
    return _agent(OpenAIModel("m", api_base=os.environ[base], api_key=KEY, client_kwargs=client))


def make_streaming() -> ToolCallingAgent:
    agent = make_openai()
    agent.stream_outputs = True
    return agent


def make_eager() -> ToolCallingAgent:
    return smolsessions.options(make_openai(), model_retries="often")  # type: ignore[arg-type]  # wrong


def make_openai_whole() -> ToolCallingAgent:
    class Whole(OpenAIModel):
        generate_stream = property()  # `hasattr` is false

    return _agent(Whole("m", api_base=_url(), api_key=KEY))


def make_delegating() -> ToolCallingAgent:
    """Make an agent whose model wraps another one, as one that logs or routes does."""

    class Delegating:
        def __init__(self, model: Model) -> None:
            self.wrapped = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["wrapped"], name)

    agent = make_openai()
    wrapping: Any = Delegating(agent.model)
    agent.model = wrapping
    return agent


def make_azure() -> ToolCallingAgent:
    base = _url().removesuffix("/v1")
    return _agent(AzureOpenAIModel("m", azure_endpoint=base, api_key=KEY, api_version="2024-10-21"))


def make_inference() -> ToolCallingAgent:
    none: Any = None  # an address instead of a name, which its type does not foresee
    return _agent(InferenceClientModel(model_id=none, base_url=_url(), token=KEY, timeout=600))


NAMES = "openai openai_whole delegating openai_httpx azure inference streaming retried twice".split()
AGENTS = ",".join(f"{name.replace('_', '-')}=tests.support.endpoint:make_{name}" for name in NAMES)


def _agent(model: Model) -> ToolCallingAgent:
    return ToolCallingAgent(tools=[lookup], model=model, max_steps=3)


def _url() -> str:
    return os.environ["ENDPOINT_URL"]


FACTORIES: dict[str, Callable[[], MultiStepAgent]] = {
    # An agent whose client uses httpx instead of httpx2.
    "openai_httpx": lambda: make_openai(http_client=httpx.Client()),
    # An agent whose client repeats failed calls by itself.
    "twice": lambda: make_openai(max_retries=2),
    # An agent whose provider takes connections and never answers the tls handshake.
    "encrypted": lambda: make_openai(base="SILENT_URL"),
    "encrypted_httpx": lambda: make_openai(base="SILENT_URL", http_client=httpx.Client(timeout=600)),
    "retried": lambda: smolsessions.options(make_openai(), model_retries=1),
}
globals().update({f"make_{name}": factory for name, factory in FACTORIES.items()})
