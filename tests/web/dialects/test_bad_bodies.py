"""Bodies that no dialect takes: each error has the dialect's form, names its place, and is the client's."""

import json
from typing import Any

import pytest

from tests.support.service import Service
from tests.support.turns import DONE

CHAT = "/openai/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
BADLY_NAMED = {"type": "image", "source": {"type": "data", "mimeType": "image/png", "value": ""}, "metadata": "a"}
MCP_TOOL = {"type": "mcp", "server_label": "smolsessions", "require_approval": {"always": {"tool_names": 5}}}
FUNCTION = {"type": "function", "function": "where"}
OLD, EMPTY = {"role": "assistant", "content": "hi"}, {"role": "user", "content": [{"type": "input_file"}]}
LINK = {"role": "user", "content": [{"type": "input_image", "image_url": "http://a.png"}]}
ODD_TOOL = {"name": "a", "description": "a", "parameters": {}, "a/b": 1}
KINDLESS = {"messageId": "1", "role": "ROLE_USER", "parts": [{"raw": "a"}]}
RUN = {"threadId": "bad", "runId": "1"}
RESULT = {"role": "tool", "content": "", "tool_call_id": "c:1:x"}
FILE = {"type": "file", "mediaType": "text/plain", "url": "data:,", "filename": "a.txt"}
NAMED = {"role": "user", "parts": [FILE, {"type": "text", "text": "hi"}]}
NAMELESS = {"role": "user", "parts": [{**FILE, "filename": "a" * 999}]}


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def chat(*messages: Any, **members: Any) -> dict[str, Any]:
    return {"model": "plain", "messages": [USER, *messages], **members}


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/ag-ui/plain", {**RUN, "messages": [{**USER, "content": [BADLY_NAMED]}]}, "/content/0/metadata"),
        ("/ag-ui/plain", {**RUN, "messages": [{**USER, "content": [{"type": "image"}]}]}, "/content/0/source"),
        ("/ag-ui/plain", {**RUN, "messages": [USER], "tools": [{"name": 5}]}, "/tools/0/name"),
        ("/ag-ui/plain", {**RUN, "messages": []}, "/messages"),
        ("/ai-sdk/plain", {"id": "bad", "messages": [NAMELESS]}, "/messages/0/parts/0/name"),
        ("/ai-sdk/plain", {"id": "bad", "messages": [{**NAMELESS, "role": "system"}]}, "/messages"),
        ("/ai-sdk/plain", {"id": "bad", "messages": [NAMED], "max_steps": "a"}, '"/max_steps"'),
        ("/ai-sdk/plain", {"id": "bad", "messages": [NAMED], "client_tools": [ODD_TOOL]}, '"/client_tools/0/a~1b"'),
        ("/openai/v1/conversations", {"items": [USER, EMPTY]}, '"items/1/content/0"'),
        ("/openai/v1/responses", {"model": "plain", "input": [{"type": "reasoning"}]}, "input"),
        ("/openai/v1/responses", {"model": "plain", "input": [OLD, EMPTY]}, '"input/1/content/0"'),
        ("/openai/v1/responses", {"model": "plain", "input": [OLD, USER, LINK]}, '"input/2/content/0/image_url"'),
        ("/openai/v1/responses", {"model": "plain", "input": "hi", "text": {"format": "json"}}, "text/format"),
        ("/openai/v1/responses", {"model": "plain", "input": "hi", "tools": [FUNCTION]}, "tools/0/function"),
        ("/openai/v1/responses", {"model": "plain", "input": "hi", "tools": [MCP_TOOL]}, "always/tool_names"),
        (CHAT, chat(tools=[FUNCTION]), "tools/0/function"),
        (CHAT, chat(response_format={"json_schema": []}), "json_schema/schema"),
        (CHAT, chat({**RESULT, "tool_call_id": ""}), "messages/request_id"),
        (CHAT, chat(*[RESULT] * 101), "answers"),
        ("/a2a/plain", rpc("SendMessage", message=KINDLESS), "/message/parts/0"),
        ("/a2a/plain", rpc("ListTasks", pageSize="many"), "pageSize"),
        ("/mcp", rpc("tools/call", name="ask_plain", arguments={"message": 5}), "message: "),
    ],
)  # fmt: skip
def test_a_bad_body_is_the_clients_error(service: Service, path: str, body: dict[str, Any], place: str) -> None:
    headers = {"Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}
    answer = service.client.post(path, json=body, headers=headers)
    is_rpc = path in {"/a2a/plain", "/mcp"}  # whose clients read no other status
    assert answer.status_code == (200 if is_rpc else 422), answer.text
    forms = {"/openai": '"type":"invalid_request_error"', "/a2a": '"code":-32602', "/mcp": '"isError":true'}
    form = next((form for prefix, form in forms.items() if path.startswith(prefix)), '"code":"invalid_request"')
    assert (form in answer.text, place in answer.text) == (True, True), answer.text


def test_a_result_of_no_call_is_read_over(service: Service) -> None:
    messages = [{"role": "tool", "content": "of none"}, {"role": "user", "content": json.dumps([DONE])}]
    answer = service.client.post("/ag-ui/plain", json={"threadId": "no-call", "runId": "1", "messages": messages})
    assert (answer.status_code, "RUN_FINISHED" in answer.text) == (200, True), answer.text
