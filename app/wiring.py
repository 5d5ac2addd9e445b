"""The composition root: the only file that names concrete classes."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.agents.catalog import Catalog, factories_of
from app.agents.chat import chat_factory
from app.agents.code.confinement import keep_memory_private
from app.agents.demo import make_demo, make_demo_code
from app.conversations import Conversations
from app.errors import StartError
from app.records import AgentName
from app.registry import Registry
from app.seal import Sealer, keys_in, parse_keys
from app.stores.embedded import embedded_server
from app.stores.servers import Address
from app.stores.space import Options, open_store
from app.threads import Threads
from app.turns import TurnDesk
from app.web.api import create_app
from app.web.auth import Callers
from app.web.common import Limits
from app.web.metrics import Metrics
from app.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from app.settings import Settings


@dataclass(frozen=True)
class Service:
    """All parts, running but for the worker and the HTTP server; `running` is what must not end."""

    app: FastAPI
    worker: Worker
    turns: TurnDesk
    threads: Threads
    store: str
    running: list[asyncio.Future[None]]
    callers: Callers
    agents: list[AgentName]


def make_catalog(settings: Settings) -> tuple[Catalog, AgentName]:
    """Gather the agents; the default one is the most particular there is."""
    factories = factories_of(settings.agents)
    if settings.model_id:
        chat = chat_factory(
            model_id=settings.model_id,
            api_base=settings.model_api_base,
            api_key_env=settings.model_api_key_env,
            timeout_s=settings.model_timeout_s,
        )
        factories.append(("chat", chat))
    elif settings.model_api_base or settings.model_api_key_env:
        raise StartError("SMOLSESSIONS_MODEL_API_BASE and _KEY_ENV are the chat agent's: set SMOLSESSIONS_MODEL_ID too")
    if settings.demo_agents:
        factories += [("demo", make_demo), ("demo-code", make_demo_code)]
    if not factories:
        raise StartError("there is no agent to serve; name yours in SMOLSESSIONS_AGENTS=name=module:factory")
    default = settings.default_agent or factories[0][0]
    if default not in dict(factories):
        names = ", ".join(name for name, _ in factories)
        raise StartError(f"SMOLSESSIONS_DEFAULT_AGENT names {default!r}, but the agents here are: {names}")
    secrets = (settings.data_dir, settings.seal_keys_file, settings.api_keys_file)
    return Catalog(factories, [path for path in secrets if path]), AgentName(default)


@contextlib.asynccontextmanager
async def make_service(settings: Settings) -> AsyncIterator[Service]:
    """Put the parts together; `StartError` names the mend where one of them cannot be had."""
    callers = Callers.read(settings.api_keys_file, loopback=settings.loopback, anonymous=settings.allow_anonymous)
    catalog, default = make_catalog(settings)
    running: list[asyncio.Future[None]] = []
    async with AsyncExitStack() as stack:
        if settings.redis_url:
            url, where = settings.redis_url.get_secret_value(), "at SMOLSESSIONS_REDIS_URL"
        else:
            server = stack.enter_context(embedded_server(settings.data_dir))
            url, where = f"unix://{server.socket_path}", f"embedded, in {settings.data_dir}"
            running.append(asyncio.wrap_future(server.ended))
        sealer = _sealer(settings)
        threads = Threads(settings.threads)
        registry = Registry(settings.warm_sessions, settings.warm_idle_s)
        metrics = Metrics(threads, lambda: len(registry))
        store = await stack.enter_async_context(
            open_store(
                Address(url, settings.redis_password_file, settings.redis_ca_file),
                sealer,
                Options(
                    lease_s=settings.lease_s,
                    log_ttl_s=settings.log_ttl_s,
                    max_waiting=settings.max_waiting_turns,
                    max_queued=settings.max_queued_turns,
                    partitions=settings.partitions,
                    replicated=settings.durability == "replicated",
                    patience_s=settings.drain_s if settings.redis_url else 0,
                    ours_alone=settings.redis_url is None,
                ),
                metrics.store_lost,
            )
        )
        keep_memory_private()
        catalog.start()
        worker = Worker(store.scheduler, catalog, registry, threads, metrics.turn_ended, deadline_s=settings.deadline_s)
        turns = TurnDesk(store.turns, catalog, default, metrics.turn_ended)
        conversations = Conversations(store.conversations, catalog, default, metrics.turn_ended)
        limits = Limits(
            settings.host,
            settings.max_body_bytes,
            settings.max_message_chars,
            settings.max_steps,
            settings.max_image_pixels,
            settings.wait_s,
            settings.max_deadline_s,
            settings.send_timeout_s,
            settings.origins,
        )
        app = create_app(turns, conversations, callers, metrics, limits)
        agents = [info.version.name for info in conversations.agents()]
        running += store.running
        yield Service(app, worker, turns, threads, f"{store.server}, {where}", running, callers, agents)


def _sealer(settings: Settings) -> Sealer:
    if settings.seal_keys:
        return Sealer(parse_keys(settings.seal_keys.get_secret_value()))
    if settings.seal_keys_file:
        return Sealer(keys_in(settings.seal_keys_file))
    if settings.redis_url:
        raise StartError(
            "a store outside this service needs keys of its own: put what `smolsessions new-key` prints into "
            "SMOLSESSIONS_SEAL_KEYS or SMOLSESSIONS_SEAL_KEYS_FILE, the same for all processes"
        )
    return Sealer(keys_in(settings.data_dir / "seal.key", create=True))
