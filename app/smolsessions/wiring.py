"""Composition root. The only module that names the concrete classes of all packages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.chat import ChatOptions, chat_factory
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.agents.demo.agents import make_demo, make_demo_code
from smolsessions.agents.factories import Factory, load_factories
from smolsessions.agents.sandbox.confinement.levels import keep_memory_private
from smolsessions.agents.sandbox.memory_budget import MemoryBudget
from smolsessions.agents.tools.tool_servers import ToolServers
from smolsessions.core.conversations import Conversations
from smolsessions.core.errors import StartError
from smolsessions.core.records import AgentName
from smolsessions.core.turns import Turns
from smolsessions.roles import ProcessSlot, Role
from smolsessions.settings import Settings, words_in
from smolsessions.store.connection.servers import Address
from smolsessions.store.connection.startup_check import ABOUT
from smolsessions.store.embedded.data_folder import FolderInUseError, check_place, recorded_server
from smolsessions.store.embedded.server import embedded_server, find_binary
from smolsessions.store.partition import Options
from smolsessions.store.seal import Sealer, keys_in, parse_keys
from smolsessions.store.store import Store, open_store, risks_of_store
from smolsessions.web.app import create_app, create_health_app
from smolsessions.web.auth import Authenticator
from smolsessions.web.dialects import check_dialects
from smolsessions.web.http_connection import limited_connections
from smolsessions.web.metrics import Metrics, MetricsText, share_metrics
from smolsessions.web.routes.common import Limits
from smolsessions.worker.folder_sweep import sweep_folders
from smolsessions.worker.queue_watch import warn_of_waiting_turns
from smolsessions.worker.session_pool import SessionPool
from smolsessions.worker.threads import Threads
from smolsessions.worker.worker import Worker
from smolsessions.workspace.folders import ConversationFolders

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


@dataclass(frozen=True)
class LoadedAgents:
    """Factories of agents by name, and the tool servers that they use."""

    factories: Sequence[tuple[str, Factory]]
    tool_servers: ToolServers

    def only(self, name: str) -> LoadedAgents:
        return replace(self, factories=[each for each in self.factories if each[0] == name])


def make_catalog(settings: Settings, slot: ProcessSlot | None = None) -> tuple[Catalog, AgentName]:
    agents = load_agents(settings)
    names = [name for name, _ in agents.factories]
    default = settings.default_agent or names[0]
    if default not in names:
        raise StartError(f"SMOLSESSIONS_DEFAULT_AGENT names {default!r}, but the agents here are: {', '.join(names)}")
    try:
        return catalog_of(settings, agents, slot), AgentName(default)
    except BaseException:  # also an interrupt: the programs of its servers would go on
        agents.tool_servers.close()
        raise


def load_agents(settings: Settings) -> LoadedAgents:
    """Return the factories of all agents, in their order. No agent is made."""
    tool_servers = ToolServers()
    described = load_agents_file(settings.agents_file, tool_servers) if settings.agents_file else []
    factories = load_factories(settings.agents) + described  # afterwards, so that no error shows a key of the file
    if settings.model_id:
        chat = chat_factory(settings.fill(ChatOptions, "model_", model_id=settings.model_id))
        factories.append(("chat", chat))
    elif settings.model_api_base or settings.model_api_key_env:
        raise StartError("SMOLSESSIONS_MODEL_API_BASE and _KEY_ENV are the chat agent's: set SMOLSESSIONS_MODEL_ID too")
    if settings.demo_agents or (settings.demo_agents is None and not factories):
        factories += [("demo", make_demo), ("demo-code", make_demo_code)]
    if not factories:
        raise StartError(
            "there is no agent to serve; name yours in SMOLSESSIONS_AGENTS=name=module:factory, or describe it in the "
            "file that SMOLSESSIONS_AGENTS_FILE names"
        )
    return LoadedAgents(factories, tool_servers)


def catalog_of(settings: Settings, agents: LoadedAgents, slot: ProcessSlot | None = None) -> Catalog:
    """Return a catalog of some agents, which closes their tool servers. Code sees no file with secrets."""
    url = settings.redis_url.get_secret_value() if settings.redis_url else ""
    socket = Path(url.removeprefix("unix://").partition("?")[0]) if url.startswith("unix://") else None
    files = (settings.seal_keys_file, settings.api_keys_file, settings.redis_password_file, socket)
    stray = (path.absolute() for path in (Path(".env"), Path("smolsessions.toml")) if path.exists())
    secrets = (settings.data_dir, settings.agents_file, *files, *stray, Path(slot.folder) if slot else None)
    folders = [Path(word) for word in words_in(settings.code_folders)]
    return Catalog(
        agents.factories,
        [path for path in secrets if path],
        folders,
        must_confine=settings.code_confinement == "required",
        allow_code_in_service=settings.allow_code_in_service or not settings.api_keys_file,
        tool_servers=agents.tool_servers,
        workspaces=workspace_folders(settings, slot),
        answer_ttl_s=settings.answer_ttl_s,
        code_memory=MemoryBudget(settings.code_memory_mb, settings.owner_share, slot.count if slot else 1),
    )


@contextlib.asynccontextmanager
async def make_service(settings: Settings, role: Role, slot: ProcessSlot | None = None) -> AsyncIterator[Service]:
    """Build the parts of a role. Raises `StartError` with the change that is needed."""
    authenticator = make_authenticator(settings, role)
    catalog, default = make_catalog(settings, slot)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, catalog.close)
        catalog.check_executors()
        threads = Threads(settings.threads if role.runs_turns else 0, settings.owner_share)
        sessions = SessionPool(settings.warm_sessions, settings.warm_idle_s, settings.warm_mb)
        metrics = Metrics(threads, lambda: len(sessions))
        metrics.tool_servers = catalog.tool_servers
        metrics_text: MetricsText = metrics.text
        if slot:
            metrics_text = await stack.enter_async_context(share_metrics(metrics, slot.number, slot.metrics_sockets))
        store, where, running = await stack.enter_async_context(connected_store(settings, slot, metrics.store_lost))
        queues = metrics.queues = lambda: store.scheduler.queues(catalog.infos)
        folders = workspace_folders(settings, slot)
        if folders and not (catalog.has_workspaces or folders.base.exists()):
            folders = None
        if folders:
            running += await share_folders(folders, store, stack if role.runs_turns else None)
        keep_memory_private()
        worker = None
        if role.runs_turns:
            catalog.start()
            await asyncio.to_thread(catalog.check_confinement)
            deadline_s, on_end = settings.deadline_s, metrics.turn_ended
            worker = Worker(store.scheduler, catalog, sessions, threads, on_end, deadline_s=deadline_s)
        else:
            warning = asyncio.create_task(warn_of_waiting_turns(queues))
            stack.callback(warning.cancel)
            running.append(warning)
        turns = Turns(store.turns, catalog, default, metrics.turn_ended)
        conversations = Conversations(
            store.conversations,
            store.history,
            store.turns,
            catalog,
            default,
            on_end=metrics.turn_ended,
            max_pixels=settings.max_image_pixels,
            folders=folders,
        )
        if role.serves_http:
            app = create_app(
                turns,
                conversations,
                authenticator=authenticator,
                metrics_text=metrics_text,
                limits=settings.fill(
                    Limits,
                    allowed_hosts=words_in(settings.allowed_hosts.lower()),
                    cors_origins=words_in(settings.cors_origins),
                ),
                dialects=check_dialects(words_in(settings.dialects)),
            )
            metrics.streams_open.set_function(lambda: app.state.streams.open_count)
        else:
            app = create_health_app(metrics_text, authenticator, settings.host)
        agents = [info.version.name for info in conversations.agents()]
        protocol = limited_connections(settings.receive_timeout_s, settings.max_connections)
        yield Service(app, protocol, worker, turns, threads, where, running, authenticator, agents)


@contextlib.asynccontextmanager
async def connected_store(
    settings: Settings, slot: ProcessSlot | None = None, on_lost: Callable[[str], None] = lambda _: None
) -> AsyncIterator[tuple[Store, str, list[asyncio.Future[None]]]]:
    """Connect to the store, or start the embedded one. Yield it, its name and place, and tasks that must not end."""
    is_embedded = slot.embedded if slot else not settings.redis_url
    with _store_address(settings, is_embedded=is_embedded) as (address, where, running):
        sealer = make_sealer(settings)
        alone = is_embedded and (slot is None or slot.is_first)  # no other process can hold a lease
        options = _options(settings, is_embedded=is_embedded, alone=alone)
        async with open_store(address, sealer, options, on_lost) as store:
            yield store, f"{store.server}, {where}", [*running, *store.running]


@contextlib.contextmanager
def _store_address(
    settings: Settings, *, is_embedded: bool
) -> Iterator[tuple[Address, str, list[asyncio.Future[None]]]]:
    """Yield the store's address and place, and the task of an embedded server that is started here."""
    place = f"embedded, in {settings.data_dir}" if is_embedded else "at SMOLSESSIONS_REDIS_URL"
    if settings.redis_url:
        url = settings.redis_url.get_secret_value()
        secrets = () if is_embedded else (settings.redis_password_file, settings.redis_ca_file)
        yield Address(url, *secrets), place, []
        return
    with embedded_server(settings.data_dir) as server:
        yield Address(f"unix://{server.socket_path}"), place, [asyncio.wrap_future(server.ended)]


async def inspected_store(settings: Settings) -> tuple[str, list[str]]:
    """Check the store without a write. Returns its name and place, and sentences about data that it may lose."""
    is_embedded = not settings.redis_url
    options = _options(settings, is_embedded=is_embedded, alone=False)
    if is_embedded and not (settings.data_dir / "appendonlydir").exists():
        find_binary()
        check_place(settings.data_dir.absolute())
        if settings.expect_store:
            raise StartError(f"SMOLSESSIONS_EXPECT_STORE is set, and {settings.data_dir} holds no store")
        return f"embedded, in {settings.data_dir}, where the first start makes it", []
    try:
        with _store_address(settings, is_embedded=is_embedded) as (address, where, _):
            server, risks = await risks_of_store(address, make_sealer(settings, may_create=False), options)
            return f"{server}, {where}", risks
    except FolderInUseError as error:
        return f"embedded: {error.message.partition(';')[0]}, which serves it", []


@contextlib.asynccontextmanager
async def store_beside_services(settings: Settings) -> AsyncIterator[Store]:
    """Connect to a store that holds data, also to the embedded one of a running service."""
    folder = settings.data_dir.absolute()
    if not settings.redis_url and not (folder / "appendonlydir").exists():
        raise StartError(f"{settings.data_dir} holds no store; set SMOLSESSIONS_REDIS_URL or SMOLSESSIONS_DATA_DIR")
    settings = settings.model_copy(update={"expect_store": True})
    async with contextlib.AsyncExitStack() as stack:
        try:
            store, _, _ = await stack.enter_async_context(connected_store(settings))
        except FolderInUseError:
            address = Address(f"unix://{recorded_server(folder)[1]}")
            options = _options(settings, is_embedded=True, alone=False)
            store = await stack.enter_async_context(open_store(address, make_sealer(settings), options, lambda _: None))
        yield store


def workspace_folders(settings: Settings, slot: ProcessSlot | None) -> ConversationFolders | None:
    """Return the folders of conversations. None: other processes may have the store, and no directory is set."""
    is_embedded = slot.embedded if slot else not settings.redis_url
    if settings.workspaces_dir:
        return ConversationFolders(settings.workspaces_dir)
    return ConversationFolders(settings.data_dir / "workspaces") if is_embedded else None


async def share_folders(
    folders: ConversationFolders, store: Store, sweeps: AsyncExitStack | None
) -> list[asyncio.Future[None]]:
    """Check that all processes of the store use the same directory. With `sweeps`, start the sweep of old folders."""
    try:
        mark = await asyncio.to_thread(folders.mark)
    except OSError as error:
        raise StartError(
            f"SMOLSESSIONS_WORKSPACES_DIR {folders.base} cannot be used: {error}; let the service's user write there"
        ) from error
    # A store that knows no conversation would have all files swept.
    is_new = not await asyncio.to_thread(folders.is_used)
    if not await store.has_workspaces(mark, may_set=is_new):
        raise StartError(
            f"SMOLSESSIONS_WORKSPACES_DIR {folders.base} is not the directory that this store's conversations have: "
            "use the same one in every process. If theirs is lost, name an empty one and remove the field workspaces "
            f"of the store's hash {ABOUT}"
        )
    if not sweeps:
        return []
    is_same_store = partial(store.has_workspaces, mark, may_set=False)
    sweep = asyncio.create_task(sweep_folders(folders, store.conversations, is_same_store))
    sweeps.callback(sweep.cancel)
    return [sweep]


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
        expects_data=settings.expect_store,
        ours_alone=alone,
    )


def make_sealer(settings: Settings, *, may_create: bool = True) -> Sealer:
    if settings.seal_keys:
        return Sealer(parse_keys(settings.seal_keys.get_secret_value()))
    if settings.seal_keys_file:
        return Sealer(keys_in(settings.seal_keys_file))
    if settings.redis_url:
        raise StartError(
            "a store outside this service needs keys of its own: put what `smolsessions keys seal` prints into "
            "SMOLSESSIONS_SEAL_KEYS or SMOLSESSIONS_SEAL_KEYS_FILE, the same for all processes"
        )
    return Sealer(keys_in(settings.data_dir / "seal.key", create=may_create))
