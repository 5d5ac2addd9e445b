"""Stores of two replicas on one embedded server, used through their own interface."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from redis import Redis

from smolsessions.core.errors import SealBrokenError
from smolsessions.core.events import TurnStarted
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import (
    AgentName,
    AgentVersion,
    IdempotentRequest,
    OnBusy,
    Outcome,
    Owner,
    Ref,
    Submission,
    Suspension,
    Timing,
    Turn,
    TurnInput,
    TurnOptions,
)
from smolsessions.core.requests import InputRequest
from smolsessions.store import codec
from smolsessions.store.connection.servers import Address
from smolsessions.store.embedded.server import embedded_server
from smolsessions.store.partition import Options
from smolsessions.store.scripts.loader import script
from smolsessions.store.seal import Sealer, new_key, parse_keys
from smolsessions.store.store import Store, open_store
from smolsessions.store.turns.lease import HeldLease
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")
Raw = Any  # redis-py annotates the answers of both its clients at once
AGENT = AgentName("scripted")
KIND = "0123456789abcdef"
LEASE_S = 60.0
LOG_TTL_S = 60
ID_REUSE_S = 90
DONE = Outcome("finished", reply="done")
PARTITION = "{p000}"
LEASES = f"{PARTITION}:leases"
BEAT = f"{PARTITION}:beat"
READY = f"{PARTITION}:ready:{AGENT}"
OWNERS = f"{PARTITION}:owners:{AGENT}"
ALONE = f"{PARTITION}:alone"
MOST_BEHIND = 3  # limit of waiting turns for the replicas of `test_replica_model`
SEALER = Sealer(parse_keys(new_key()))


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_server(tmp_path_factory.mktemp("scripts")) as server:
        yield server.socket_path


@pytest.fixture
def raw(socket_path: Path) -> Iterator[Raw]:
    """Yield a client beside the service, on an empty store that was swept just now."""
    with Redis(unix_socket_path=str(socket_path), decode_responses=True, encoding_errors="surrogateescape") as client:
        client.flushall()
        client.set(BEAT, int(time.time() * 1e6))
        yield client


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return SEALER


@pytest.fixture
async def stores(socket_path: Path, raw: Raw, sealer: Sealer) -> AsyncIterator[tuple[Store, Store]]:
    assert raw.ping()
    async with open_replica(socket_path, sealer) as one, open_replica(socket_path, sealer) as other:
        yield one, other


@pytest.fixture
def one(stores: tuple[Store, Store]) -> Store:
    return stores[0]


@pytest.fixture
def other(stores: tuple[Store, Store]) -> Store:
    return stores[1]


@asynccontextmanager
async def open_replica(
    socket_path: Path,
    sealer: Sealer = SEALER,
    *,
    max_behind: int = 100,
    max_queued: int = 1000,
    log_ttl_s: int = LOG_TTL_S,
    lease_s: float = LEASE_S,
    **more: Any,
) -> AsyncIterator[Store]:
    options = Options(
        lease_s=lease_s,
        log_ttl_s=log_ttl_s,
        id_reuse_s=ID_REUSE_S,
        max_behind=max_behind,
        max_queued=max_queued,
        **more,
    )
    async with open_store(Address(f"unix://{socket_path}"), sealer, options, lambda _: None) as store:
        yield store


def ref_of(conversation: str) -> Ref:
    """Return the reference of `OWNER/ID`. The default owner is the local one."""
    owner, _, name = conversation.rpartition("/")
    return Ref(Owner(owner or "local"), name)


def key_of(kind: str, conversation: str, *more: object) -> str:
    return ":".join([PARTITION, kind, str(ref_of(conversation)), *map(str, more)])


def version_of(agent: AgentName, _client_tools: object = ()) -> AgentVersion:
    return AgentVersion(agent, "ToolCallingAgent", "1.26.0")


async def submit(
    store: Store,
    conversation: str,
    agent: AgentName = AGENT,
    *,
    asked: bool = True,
    new: bool = True,
    on_busy: OnBusy = "reject",
    once: IdempotentRequest | None = None,
    follows: bool = False,
) -> int:
    turn = Turn(ref_of(conversation), 0, version_of(agent), "hello", TurnOptions(on_busy=on_busy), Timing(time.time()))
    submission = Submission(
        turn, TurnInput(), create={} if new else None, asked=asked, version_of=version_of, once=once, follows=follows
    )
    accepted, _ = await store.turns.submit(submission)
    return accepted.number


async def claim(store: Store, *agents: AgentName, most: int = 10) -> list[HeldLease]:
    """Claim and begin, as a worker does."""
    leases = await store.scheduler.claim(dict.fromkeys(agents or [AGENT], KIND), most)
    for lease in leases:
        lease.emit(f"started:{lease.attempt}")
        with suppress(SealBrokenError):
            await lease.flush()
    return leases


async def claim_one(store: Store) -> HeldLease:
    (lease,) = await claim(store)
    return lease


async def begin(store: Store, conversation: str, **options: Any) -> HeldLease:
    await submit(store, conversation, **options)
    return await claim_one(store)


def packed_step(text: str = "step", turn: int = 1) -> PackedStep:
    return PackedStep("action", turn, text.encode(), {"ab" * 16: b"pixels"})


async def emit(raw: Raw, lease: HeldLease, name: str, step: PackedStep | None = None) -> None:
    """Write, and wait until the effect is stored or the lease is lost."""
    lease.emit(name, result=b"done", step=step, events=[TurnStarted(lease.attempt, 0.0)])
    lease.send()
    journal = key_of("journal", lease.turn.ref.id, lease.turn.number)
    await wait_until_async(lambda: lease.lost or bool(raw.hexists(journal, name)))


def waiting() -> Suspension:
    request = InputRequest("r", "approval", "call", "tool", "", "step", time.time(), time.time() + 60)
    return Suspension((request,), DONE)


async def wait_until_async(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "this did not come to pass"
        await asyncio.sleep(0)


def expire_lease(raw: Raw, conversation: str) -> None:
    raw.zadd(LEASES, {str(ref_of(conversation)): 1}, xx=True)
    assert raw.zscore(LEASES, str(ref_of(conversation))) == 1


def event_names_of(raw: Raw, conversation: str, turn: int = 1) -> list[str]:
    """Return the names of a turn's events in order, from a packed log or an unpacked one."""
    entries = [entry.partition("\n") for entry in raw.lrange(key_of("log", conversation, turn), 0, -1)]
    if entries and entries[0][0] == "packed":
        blob = entries[0][2].encode(errors="surrogateescape")
        packed = codec.unpack_events(SEALER.open(blob, str(ref_of(conversation)), "log", turn))
        return [*(event.type for event in packed if event), *(name for name, _, _ in entries[1:])]
    return [name for name, _, _ in entries]


def step_count(raw: Raw, conversation: str) -> int:
    return int(raw.llen(key_of("steps", conversation, 0)))


async def step_texts(store: Store, conversation: str) -> list[str]:
    _, page, _ = await store.conversations.steps(ref_of(conversation), 0, 100)
    return [step.data.decode() for step in page.items]


def entry(name: str, index: int | str = "", step: bytes = b"", events: int = 0) -> list[Any]:
    parts: list[tuple[Any, ...]] = [("s", index, step)] if step else []
    parts += [("k", name, "")] if name else []
    parts += [("e", "turn.started", b"sealed")] * events
    return ["".join(part for part, *_ in parts), *(given for _, *pair in parts for given in pair)]


def emit_raw(raw: Raw, lease: HeldLease, *entries: list[Any], serial: int = 2) -> Any:
    """Run emit.lua directly. Number 1 was the start of the turn."""
    named: dict[str, str | bytes | int] = {
        "ref": str(lease.turn.ref),
        "turn": lease.turn.number,
        "fence": lease.fence,
        "own_channel": "none",
        "lease_us": int(LEASE_S * 1_000_000),
        "serial": serial,
    }
    command = script("emit").command(PARTITION, tuple(item for given in entries for item in given), named)
    return raw.execute_command(*command)


def refusals(raw: Raw) -> int:
    return int(raw.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


def submit_raw(
    raw: Raw, turn: int, record: str, on_busy: OnBusy = "reject", *, worker: str = "", idem: str = ""
) -> Any:
    named: dict[str, str | bytes | int] = dict.fromkeys(["title", "wake", "digest", "fingerprint"], "")
    named |= dict.fromkeys(["conversation", "input", "event"], "sealed")
    named |= {"owner": "local", "ref": str(ref_of("c")), "agent": AGENT, "turn": turn, "record": f"{record} {turn}"}
    named |= {"own_channel": "none", "on_busy": on_busy, "idem": idem, "worker": worker}
    named |= {"follows": 0, "most_behind": 2, "most_queued": 1000, "lease_us": 10_000_000}
    return raw.execute_command(*script("submit").command(PARTITION, (), named))


async def second_turn(store: Store, raw: Raw) -> HeldLease:
    """Return the lease of a second turn with a finished step, behind a first turn that has ended."""
    first = await begin(store, "c")
    await emit(raw, first, "step:1", replace(packed_step("first"), variables={"x": b"1"}))
    await first.commit(DONE)
    second = await begin(store, "c")
    await emit(raw, second, "step:1", replace(packed_step("second", 2), variables={"x": None, "y": b"2"}))
    return second


def error_code_of(turn: Turn) -> str | None:
    assert turn.outcome
    return turn.outcome.error.code if turn.outcome.error else None


@dataclass
class Loop:
    socket_path: Path
    sealer: Sealer
    log_ttl_s: int = LOG_TTL_S
    stores: list[Store] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold()))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._left.set)
        self._thread.join(PATIENCE_S)

    async def _hold(self) -> None:
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        opens = partial(open_replica, self.socket_path, self.sealer, max_behind=MOST_BEHIND, log_ttl_s=self.log_ttl_s)
        async with opens() as one, opens() as other:
            self.stores = [one, other]
            self._ready.set()
            await self._left.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


async def read_events(store: Store, conversation: str, turn: int) -> list[tuple[int, str]]:
    with store.turns.reader(ref_of(conversation), reads_log=True, all_events=True) as reader:
        return [(logged.seq, logged.event.type) async for logged in reader.follow(turn) if logged]
