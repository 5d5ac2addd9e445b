"""Servers of the store: a single server, a primary behind sentinels, or a cluster."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException, RedisError

from smolsessions.core.errors import StartError
from smolsessions.core.files import check_private
from smolsessions.store.connection.sentinels import QuorumSentinel

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
SENTINEL_S = 0.5
REFRESH_S = 0.25  # minimal age of the cluster map before it is read again
_SCHEME = re.compile(r"(rediss?)\+(cluster|sentinel)://")
_WRONG_ADDRESS = (
    "SMOLSESSIONS_REDIS_URL is not an address of a Redis server: redis://user:password@host:port, rediss:// or "
    "unix://, redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/service/db; write reserved "
    "letters of a password in percent form"
)


class Servers(Protocol):
    """Lookup of the server that holds a partition. It sends nothing before a client is used."""

    is_cluster: bool

    async def client(self, partition: str) -> Redis:
        """Return a client of the partition's present server. Called again after every lost connection."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the store. The password file is read at every connect, so that it may change."""

    url: str
    password_file: Path | None = None
    ca_file: Path | None = None


def servers_at(address: Address) -> Servers:
    """Check an address and its files, and parse it. Raises `StartError`, which never contains a password."""
    for path, name in ((address.password_file, "PASSWORD_FILE"), (address.ca_file, "CA_FILE")):
        try:
            if path and not path.read_bytes().strip():
                raise StartError(f"SMOLSESSIONS_REDIS_{name} is {path}, which is empty")
        except OSError as error:
            raise StartError(f"SMOLSESSIONS_REDIS_{name} is {path}, which cannot be read: {error.strerror}") from error
    try:
        if address.password_file:
            address.password_file.read_text()
            check_private(address.password_file, "SMOLSESSIONS_REDIS_PASSWORD_FILE")
        if address.ca_file:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(address.ca_file)
    except UnicodeError:
        raise StartError(f"SMOLSESSIONS_REDIS_PASSWORD_FILE is {address.password_file}, which holds no text") from None
    except ssl.SSLError as error:
        raise StartError(
            f"SMOLSESSIONS_REDIS_CA_FILE is {address.ca_file}, which holds no certificate in PEM form ({error.reason})"
        ) from error
    if address.ca_file and not address.url.startswith("rediss"):
        log.warning("SMOLSESSIONS_REDIS_CA_FILE is set, and SMOLSESSIONS_REDIS_URL has no TLS: write rediss:// for it")
    match = _SCHEME.match(address.url)
    try:
        if match is None:
            options, secure = _options(address, dict(parse_url(address.url)))
            pool = ConnectionPool(**options | ({"connection_class": SSLConnection} if secure else {}))
            return _OneServer(Redis.from_pool(pool))
        return (_Cluster if match[2] == "cluster" else _behind_sentinels)(address, match[1])
    except TypeError as error:  # it names the option without its value
        raise StartError(f"SMOLSESSIONS_REDIS_URL has an option that nothing takes: {error}") from error
    except (ValueError, RedisClusterException):
        raise StartError(_WRONG_ADDRESS) from None


class _OneServer:
    """A single server, or the primary that sentinels name, asked at every connect."""

    is_cluster = False

    def __init__(self, client: Redis, sentinel: QuorumSentinel | None = None) -> None:
        self._client = client
        self._sentinel = sentinel
        client.connection_pool.make_connection()  # raises for an unknown option

    async def client(self, partition: str) -> Redis:  # noqa: ARG002 - all partitions are there
        return self._client

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._sentinel:
            await self._sentinel.aclose()


def _behind_sentinels(address: Address, scheme: str) -> _OneServer:
    seeds, parsed, path = _parse(address.url, scheme, 26379)
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ValueError(path)
    own = {name: parsed.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    asked = {"socket_timeout": SENTINEL_S, "socket_connect_timeout": SENTINEL_S, "retry": Retry(NoBackoff(), 0)}
    options, secure = _options(address, parsed)
    tls = {"ssl": secure} | {name: value for name, value in options.items() if name.startswith("ssl_")}
    kwargs: dict[str, Any] = {"protocol": 2} | asked | own | tls
    sentinel = QuorumSentinel(seeds, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(service, **options, ssl=secure, db=int(database or 0))
    return _OneServer(client, sentinel)


class _Cluster:
    """The primaries of a cluster. Its map is read again after a lost connection."""

    is_cluster = True

    def __init__(self, address: Address, scheme: str) -> None:
        self._seeds, parsed, path = _parse(address.url, scheme, 6379)
        if path.strip("/") not in {"", "0"}:
            raise ValueError(path)
        options, secure = _options(address, parsed)
        self._options = options | {"ssl": secure}
        asked = {"socket_timeout": CONNECT_TIMEOUT_S, "require_full_coverage": False}
        startup: Any = [ClusterNode(host, port) for host, port in self._seeds]
        self._map = RedisCluster(startup_nodes=startup, **(self._options | asked)).nodes_manager
        self._clients: dict[str, Redis] = {}
        self._lock = asyncio.Lock()
        self._refreshed_at = -math.inf

    async def client(self, partition: str) -> Redis:
        async with self._lock:
            if time.monotonic() - self._refreshed_at > REFRESH_S:
                try:
                    await self._map.initialize(additional_startup_nodes_info=self._seeds)
                except RedisClusterException as error:
                    raise ConnectionError(str(error)) from error
                except IndexError as error:  # redis-py takes the first primary
                    raise ConnectionError("no server of the cluster holds any slot yet") from error
                finally:
                    self._refreshed_at = time.monotonic()
                self._clients = {name: known for name, known in self._clients.items() if name in self._map.nodes_cache}
            try:
                node = self._map.get_node_from_slot(key_slot(partition.strip("{}").encode()))
            except (KeyError, RedisError, RedisClusterException) as error:
                raise ConnectionError(f"no server of the cluster holds the key prefix {partition}") from error
        if node.name not in self._clients:
            self._clients[node.name] = Redis(host=node.host, port=int(node.port), **self._options)
        return self._clients[node.name]

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        for which in ("nodes_cache", "startup_nodes"):
            with suppress(RedisError, OSError):
                await self._map.aclose(which)


class _PasswordFile(CredentialProvider):
    """Password read from its file for every connection."""

    def __init__(self, path: Path, user: str | None) -> None:
        self._path = path
        self._user = user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._path.read_text().strip()
        except (OSError, UnicodeError) as error:
            raise ConnectionError(f"SMOLSESSIONS_REDIS_PASSWORD_FILE cannot be read: {error}") from error
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _parse(url: str, scheme: str, port: int) -> tuple[list[tuple[str, int]], dict[str, Any], str]:
    """Return the hosts, the options and the path of an address."""
    parts = urlsplit(_SCHEME.sub(r"\1://", url, count=1))
    user, _, hosts = parts.netloc.rpartition("@")
    seeds = []
    for host in hosts.split(","):
        one = urlsplit(f"//{host}")
        if not one.hostname:
            raise ValueError(host)
        seeds.append((one.hostname, one.port or port))
    query = f"?{parts.query}" if parts.query else ""
    parsed = dict(parse_url(f"{scheme}://{user}{'@' if user else ''}host{query}"))
    return seeds, {name: value for name, value in parsed.items() if name not in {"host", "port", "db"}}, parts.path


def _options(address: Address, parsed: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the options of every connection, and whether it uses TLS."""
    secure = parsed.get("connection_class") is SSLConnection
    options = {name: value for name, value in parsed.items() if name != "connection_class" or "path" in parsed}
    if address.password_file:
        options.pop("password", None)
        options["credential_provider"] = _PasswordFile(address.password_file, options.pop("username", None))
    if secure and address.ca_file:
        options["ssl_ca_certs"] = str(address.ca_file)
    return options | {"socket_timeout": None, "socket_connect_timeout": CONNECT_TIMEOUT_S, "protocol": 2}, secure
