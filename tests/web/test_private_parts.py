"""Parts of uvicorn that are not its public interface, and that `web/http_connection.py` needs."""

import asyncio
import inspect
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

USED = (
    *("app", "connections", "cycle", "flow", "headers", "loop", "parser", "pipeline", "server_state"),
    *("timeout_keep_alive", "transport"),
)
OVERRIDDEN = {
    "_start_asgi_task": ["self", "cycle", "app"],
    "on_body": ["self", "body"],
    "on_headers_complete": ["self"],
    "on_message_begin": ["self"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
}


async def test_uvicorn_has_the_private_parts_that_the_connection_uses() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...

    protocol = HttpToolsProtocol(uvicorn.Config(app, ws="none", log_config=None), ServerState(), {})
    assert [name for name in USED if not hasattr(protocol, name)] == []
    assert callable(protocol._unset_keepalive_if_required)  # noqa: SLF001
    for name, parameters in OVERRIDDEN.items():
        assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == parameters, name
    assert STATUS_LINE[503] == b"HTTP/1.1 503 Service Unavailable\r\n"
    flow = FlowControl(asyncio.Transport())
    assert (flow.read_paused, flow.write_paused) == (False, False)
    source = inspect.getsource(RequestResponseCycle)
    names = ("disconnected", "message_event", "response_complete", "response_started")
    assert [name for name in names if f"self.{name} = " not in source] == []
