"""Python client of the service: `Client`, and `AsyncClient` for asyncio and trio."""

from smolsessions.client.aio.client import AsyncClient
from smolsessions.client.errors import ApiError, ClientError, UnreachableError
from smolsessions.client.requests import Answer, TurnOptions
from smolsessions.client.sync import Client

__all__ = ["Answer", "ApiError", "AsyncClient", "Client", "ClientError", "TurnOptions", "UnreachableError"]
