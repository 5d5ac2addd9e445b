"""Chats of the AI SDK in a process of Node, which speak with a service of a test."""

import json
from typing import Any

from tests.support.service import Service
from tests.web.dialects.clients import NodeClient

Part = dict[str, Any]


class Chats(NodeClient):
    """Chats of one version of the SDK, one after another. Each method returns this, with the chat as it is then."""

    def __init__(self, service: Service, version: str) -> None:
        """Start a version of the package: `ai` or `ai6`."""
        super().__init__(service, "ai_sdk_chat.mjs", "/ai-sdk", version)
        self.status = ""
        self.error: str | None = None
        self.messages: list[Any] = []
        self.requests: list[str] = []
        """Methods of the requests since the last call."""

    def __call__(self, call: str, **given: Any) -> "Chats":
        vars(self).update({"error": None, **self.answer(call, **given)})
        return self

    def open(self, agent: str, chat: str, **given: Any) -> "Chats":
        return self("open", agent=agent, id=chat, **given)

    def send(self, *script: Any, **given: Any) -> "Chats":
        return self("send", text=json.dumps(script), **given)

    @property
    def parts(self) -> list[Part]:
        """Parts of the last message."""
        found: list[Part] = self.messages[-1]["parts"]
        return found

    def of(self, kind: str) -> list[Part]:
        return [part for part in self.parts if part["type"] == kind]

    @property
    def text(self) -> str:
        return "\n".join(part["text"] for part in self.of("text"))

    @property
    def tools(self) -> list[tuple[str, str, Any]]:
        """Name, state and output of the calls of the last message."""
        return [(part["toolName"], part["state"], part.get("output")) for part in self.of("dynamic-tool")]
