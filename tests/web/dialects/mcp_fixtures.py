"""Proxy with the tools that the conformance suite of the Model Context Protocol expects: calls of scripted agents."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests.support.answering import mail
from tests.support.http_server import Handler, Server
from tests.support.service import PATIENCE_S, Service
from tests.support.streaming import Event
from tests.support.turns import DONE, ECHO

Script = list[Event]
SLOW_S = 3  # longer than a call without a task
SCRIPTS: dict[str, Callable[[Any], Script]] = {
    "greet": lambda given: [{"say": f"Hello, {given.get('name')}!"}],
    "slow_compute": lambda given: [{**ECHO, "busy_s": given["seconds"] and SLOW_S + given["seconds"]}, DONE],
    "failing_job": lambda _: [{**ECHO, "busy_s": SLOW_S}, {"raise": "failing"}],
    "confirm_delete": lambda _: [{**ECHO, "busy_s": SLOW_S}, {"call": [mail("one")]}, DONE],
    "multi_input": lambda _: [{**ECHO, "busy_s": SLOW_S}, {"call": [mail("one"), mail("two")]}, DONE],
    "test_simple_text": lambda _: [{"say": "This is a simple text response for testing."}],
    "test_image_content": lambda _: [{"call": [["picture", {}]]}, {"say": "image.png"}],
    "test_error_handling": lambda _: [{"raise": "This tool intentionally returns an error for testing"}],
    "test_tool_with_progress": lambda _: [ECHO, ECHO, ECHO, DONE],
}


@contextmanager
def with_fixtures(service: Service) -> Iterator[str]:
    """Yield the address of the proxy."""

    class Proxy(Handler):
        def do_POST(self) -> None:
            data = self.body()
            call = json.loads(data)
            headers = {name: value.strip() for name, value in self.headers.items() if name.lower() != "content-length"}
            params = call.get("params") or {}
            name = params.get("name")
            if call.get("method") == "tools/call" and name in SCRIPTS:
                script = SCRIPTS[name](params.get("arguments") or {})
                params |= {"name": "ask_mailer", "arguments": {"message": json.dumps(script)}}
                data = json.dumps(call).encode()
                for header, value in headers.items():
                    if header.lower() == "mcp-name" and value == name:
                        headers[header] = "ask_mailer"
            answer = client.post("/mcp", content=data, headers=headers)
            text = answer.text
            if call.get("method") == "tools/list" and answer.status_code == 200:
                start = text.index("{")
                listed = json.loads(text[start:])
                tools = listed["result"]["tools"]
                tools += [{**tools[0], "name": name} for name in SCRIPTS]
                text = text[:start] + json.dumps(listed) + "\n\n" * (start > 0)
            kept = {"content-type", "mcp-session-id", "mcp-protocol-version"}
            self.answer(answer.status_code, text.encode(), {k: v for k, v in answer.headers.items() if k in kept})

        def do_GET(self) -> None:
            self.answer(client.get("/mcp", headers=dict(self.headers)).status_code)

        def do_DELETE(self) -> None:
            self.do_GET()

    with httpx2.Client(base_url=service.client.base_url, timeout=PATIENCE_S) as client, Server(Proxy) as proxy:
        yield f"{proxy.url}/mcp"
