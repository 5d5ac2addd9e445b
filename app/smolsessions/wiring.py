"""Composition root. The only module that names the concrete classes of all packages."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.chat import ChatOptions, chat_factory
from smolsessions.agents.demo.agents import make_demo, make_demo_code
from smolsessions.agents.factories import load_factories
from smolsessions.agents.sandbox.confinement.levels import keep_memory_private
from smolsessions.core.conversations import Conversations
from smolsessions.core.errors import StartError
from smolsessions.core.records import AgentName
from smolsessions.core.turns import Turns
from smolsessions.settings import words_in
from smolsessions.store.connection.servers import Address
from smolsessions.store.embedded.server import embedded_server
from smolsessions.store.partition import Options
from smolsessions.store.seal import Sealer, keys_in, parse_keys
from smolsessions.store.store import Store, open_store
from smolsessions.web.app import create_app, create_health_app
from smolsessions.web.auth import Authenticator
from smolsessions.web.http_connection import limited_connections
from smolsessions.web.metrics import Metrics, MetricsText, share_metrics
from smolsessions.web.routes.common import Limits
from smolsessions.worker.queue_watch import warn_of_waiting_turns
from smolsessions.worker.session_pool import SessionPool
from smolsessions.worker.threads import Threads
from smolsessions.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fastapi import FastAPI

    from smolsessions.roles import ProcessSlot, Role
    from smolsessions.settings import Settings


AFFINITY_S = 0.01  # an agent that must be built anew costs more, from some ten turns on


@dataclass(frozen=True)
class Service:
    """Parts of a process. The worker and the HTTP server are not started. `running` are tasks that must not end."""

    app: FastAPI
    protocol: Callable[..., asyncio.Protocol]
    worker: Worker | None
    """None in a process that runs no turns."""
    turns: Turns
    threads: Threads
    store: str
    running: list[asyncio.Future[None]]
    authenticator: Authenticator
    agents: list[AgentName]


def make_catalog(settings: Settings, *hidden: Path) -> tuple[Catalog, AgentName]:
    """Return the catalog and its default agent. Model-written code sees no `hidden` file and no file with secrets."""
    factories = load_factories(settings.agents)
    if settings.model_id:
        chat = chat_factory(settings.fill(ChatOptions, "model_", model_id=settings.model_id))
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
    url = settings.redis_url.get_secret_value() if settings.redis_url else ""
    socket = Path(url.removeprefix("unix://").partition("?")[0]) if url.startswith("unix://") else None
    files = (settings.seal_keys_file, settings.api_keys_file, settings.redis_password_file, socket)
    secrets = (settings.data_dir, *files, *hidden)
    folders = [Path(word) for word in words_in(settings.code_folders)]
    must_confine = settings.code_confinement == "required"
    catalog = Catalog(factories, [path for path in secrets if path], folders, must_confine=must_confine)
    return catalog, AgentName(default)


@contextlib.asynccontextmanager
async def make_service(settings: Settings, role: Role, slot: ProcessSlot | None = None) -> AsyncIterator[Service]:
    """Build the parts of a role. Raises `StartError` with the change that is needed."""
    authenticator = make_authenticator(settings, role)
    catalog, default = make_catalog(settings, *([Path(slot.folder)] if slot else []))
    async with AsyncExitStack() as stack:
        threads = Threads(settings.threads if role.runs_turns else 0)
        sessions = SessionPool(settings.warm_sessions, settings.warm_idle_s, settings.warm_mb)
        metrics = Metrics(threads, lambda: len(sessions))
        metrics_text: MetricsText = metrics.text
        if slot:
            metrics_text = await stack.enter_async_context(share_metrics(metrics, slot.number, slot.metrics_sockets))
        store, where, running = await stack.enter_async_context(connected_store(settings, slot, metrics.store_lost))
        queues = metrics.queues = lambda: store.scheduler.queues(catalog.infos)
        keep_memory_private()
        worker = None
        if role.runs_turns:
            catalog.start()
            await asyncio.to_thread(catalog.check_confinement)
            worker = Worker(
                store.scheduler, catalog, sessions, threads, metrics.turn_ended, deadline_s=settings.deadline_s
            )
        else:
            warning = asyncio.create_task(warn_of_waiting_turns(queues))
            stack.callback(warning.cancel)
            running.append(warning)
        turns = Turns(store.turns, catalog, default, metrics.turn_ended)
        conversations = Conversations(
            store.conversations,
            store.history,
            catalog,
            default,
            on_end=metrics.turn_ended,
            max_pixels=settings.max_image_pixels,
        )
        if role.serves_http:
            app = create_app(
                turns,
                conversations,
                authenticator=authenticator,
                metrics_text=metrics_text,
                limits=settings.fill(Limits, cors_origins=words_in(settings.cors_origins)),
            )
            metrics.streams_open.set_function(lambda: app.state.streams.open_count)
        else:
            app = create_health_app(metrics_text, authenticator, settings.host)
        agents = [info.version.name for info in conversations.agents()]
        protocol = limited_connections(settings.receive_timeout_s, settings.max_connections)
        yield Service(app, protocol, worker, turns, threads, where, running, authenticator, agents)


@contextlib.asynccontextmanager
async def connected_store(
    settings: Settings, slot: ProcessSlot | None = None, on_lost: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[Store, str, list[asyncio.Future[None]]]]:
    """Connect to the store, or start the embedded one. Yield it, its name and place, and tasks that must not end."""
    running: list[asyncio.Future[None]] = []
    async with AsyncExitStack() as stack:
        if settings.redis_url:
            url, where = settings.redis_url.get_secret_value(), "at SMOLSESSIONS_REDIS_URL"
        else:
            server = stack.enter_context(embedded_server(settings.data_dir))
            url = f"unix://{server.socket_path}"
            running.append(asyncio.wrap_future(server.ended))
        is_embedded = slot.embedded if slot else not settings.redis_url
        if is_embedded:
            where = f"embedded, in {settings.data_dir}"
        store = await stack.enter_async_context(
            open_store(
                Address(url) if is_embedded else Address(url, settings.redis_password_file, settings.redis_ca_file),
                make_sealer(settings),
                _options(settings, is_embedded=is_embedded, alone=slot.has_store_alone if slot else is_embedded),
                on_lost,
            )
        )
        yield store, f"{store.server}, {where}", [*running, *store.running]


def make_authenticator(settings: Settings, role: Role) -> Authenticator:
    """Return the authenticator. A worker has no content, so it needs no keys."""
    path, anonymous = settings.api_keys_file, settings.allow_anonymous
    if not role.serves_http:
        path, anonymous = None, True
    return Authenticator(path, loopback=settings.loopback, anonymous=anonymous)


def _options(settings: Settings, *, is_embedded: bool, alone: bool) -> Options:
    if is_embedded and settings.durability == "replicated":
        raise StartError(
            "the embedded store has no replica: set SMOLSESSIONS_REDIS_URL to a store that has one, or leave "
            "SMOLSESSIONS_DURABILITY at primary"
        )
    return settings.fill(
        Options,
        max_behind=settings.max_turns_behind,
        max_queued=settings.max_queued_turns,
        replicated=settings.durability == "replicated",
        patience_s=0 if is_embedded else settings.drain_s,
        affinity_s=AFFINITY_S,
        ours_alone=alone,
    )


def make_sealer(settings: Settings) -> Sealer:
    if settings.seal_keys:
        return Sealer(parse_keys(settings.seal_keys.get_secret_value()))
    if settings.seal_keys_file:
        return Sealer(keys_in(settings.seal_keys_file))
    if settings.redis_url:
        raise StartError(
            "a store outside this service needs keys of its own: put what `smolsessions keys seal` prints into "
            "SMOLSESSIONS_SEAL_KEYS or SMOLSESSIONS_SEAL_KEYS_FILE, the same for all processes"
        )
    return Sealer(keys_in(settings.data_dir / "seal.key", create=True))
