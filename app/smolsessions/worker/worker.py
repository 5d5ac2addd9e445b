"""The worker: claims turns, plays them in threads, keeps their leases, and ends them. It reads top-down."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from smolsessions.core.errors import LeaseLostError, SealBrokenError, ServiceError, StoreUnavailableError
from smolsessions.core.events import TurnStarted
from smolsessions.core.records import MAX_CRASHES, Failure, Outcome
from smolsessions.worker.event_bridge import LoopEventBridge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from smolsessions.core.agent_ports import AgentCatalog, Session
    from smolsessions.core.records import AgentName, Queues, Turn, Usage
    from smolsessions.core.replay_state import ReplayState
    from smolsessions.core.store_ports import Lease, Scheduler, StopReason
    from smolsessions.worker.session_pool import SessionPool
    from smolsessions.worker.threads import Threads

T = TypeVar("T")

log = logging.getLogger(__name__)

LATE_CLAIMS_S = 1.0  # how long one that ends waits for claims that are not answered yet, to give back what they bring
GRACE_S = 2.0  # how long a thread may take to heed a stop
LOOK_S = 2.0  # wake-ups are hints: the worker also looks by itself
SWEEP_S = 0.4  # at most, between two looks for leases that are over
HAND_BACK_S = 2.0
LATE_TURN_S = 30.0  # from when a waiting turn is worth a warning
LATE_LOOK_S = 5.0
MOST_AT_ONCE = 16
DEFECT_SENTENCE = "The service made a mistake; it is in its log."
CRASHED_SENTENCE = (
    f"The process that played this turn ended {MAX_CRASHES} times before the turn got any further; it is given up, "
    "with its finished steps."
)
CHANGED_SENTENCE = (
    "The process that played this turn ended, and the agent is another one now: its prompts, tools or options were "
    "changed. The turn ends with its finished steps."
)


class Worker:
    """Plays turns of this process's agents, one thread each."""

    def __init__(
        self,
        scheduler: Scheduler,
        agents: AgentCatalog,
        registry: SessionPool,
        threads: Threads,
        on_end: Callable[[Turn], None],
        *,
        deadline_s: float,
    ) -> None:
        """`on_end` is told of every turn that this worker ended; `deadline_s` is for turns without one of their own."""
        self._deadline_s = deadline_s
        self._scheduler = scheduler
        self._agents = agents
        self._registry = registry
        self._threads = threads
        self._on_end = on_end
        self._playing: dict[Lease, LoopEventBridge] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slot_free = asyncio.Event()
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Work until drained or cancelled."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep_leases())
            sweeper = tasks.create_task(self._sweep())
            await self._claim_until_drained(tasks)
            self._scheduler.stop_claiming()
            while self._tasks:
                await asyncio.wait(self._tasks)
            with suppress(TimeoutError):  # then leases expire, which comes to the same
                async with asyncio.timeout(LATE_CLAIMS_S):
                    await self._scheduler.all_given_back()
            keeper.cancel()
            sweeper.cancel()
        self._registry.clear()

    def drain(self) -> None:
        """Claim nothing more; `run` returns when the steps that run are finished, and their turns are handed back."""
        self._draining.set()
        self._slot_free.set()
        self._scheduler.nudge()
        for bridge in self._playing.values():
            bridge.request_pause()

    def hurry(self) -> None:
        """Hand back what still plays, in the middle of a step: what the journal holds of it is not done again."""
        for bridge in self._playing.values():
            bridge.request_stop("drained")

    async def _claim_until_drained(self, tasks: asyncio.TaskGroup) -> None:
        while not self._draining.is_set():
            free = self._threads.free
            if free <= 0 or self._is_watching_a_suspect:
                self._slot_free.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S if free else None):
                        await self._slot_free.wait()
                continue
            most = min(free, MOST_AT_ONCE)
            leases = await self._claim(most)
            if self._draining.is_set():
                await asyncio.gather(*map(self._hand_back, leases))
                return
            for lease in leases:
                self._threads.busy += 1
                self._playing[lease] = LoopEventBridge(lease)
                task = tasks.create_task(self._play_and_forget(lease))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if len(leases) < most:
                await self._scheduler.wait_for_work(LOOK_S)

    @property
    def _is_watching_a_suspect(self) -> bool:
        """A turn plays whose process ended before: alone, until it has got further than then."""
        return any(lease.crashes == MAX_CRASHES - 1 and not lease.has_progressed for lease in self._playing)

    async def _claim(self, most: int) -> Sequence[Lease]:
        agents = {name: info.fingerprint for name, info in self._agents.infos.items()}
        # What has written an effect here would not be held guilty of a suspect's crash.
        return await self._scheduler.claim(agents, most, idle=all(lease.has_progressed for lease in self._playing))

    async def _hand_back(self, lease: Lease) -> None:
        """Let another worker go on; where the store is away the lease expires, which comes to the same."""
        with suppress(ServiceError, TimeoutError):
            async with asyncio.timeout(HAND_BACK_S):
                await lease.flush()
                await self._scheduler.hand_back(lease)

    async def _play_and_forget(self, lease: Lease) -> None:
        try:
            await self._play(lease)
        finally:
            del self._playing[lease]
            self._threads.busy -= 1
            self._slot_free.set()

    async def _play(self, lease: Lease) -> None:
        """One turn, from claim to commit, or as far as this process may play it."""
        turn, bridge = lease.turn, self._playing[lease]
        where = {"conversation": str(turn.ref), "turn": turn.number}
        again = f", attempt {lease.attempt}" if lease.attempt > 1 else ""
        log.info("turn %s#%d starts%s", turn.ref, turn.number, again, extra={"action": "turn.start", **where})
        session = None
        try:
            session, outcome = await self._outcome(lease, bridge)
            if bridge.hands_over and outcome.status == "cancelled":
                log.info("turn %s#%d is handed back", turn.ref, turn.number, extra={"action": "turn.back", **where})
                await self._hand_back(lease)
                return
            ended = await self._end(lease, outcome)
        except LeaseLostError:
            log.warning("turn %s#%d was taken away", turn.ref, turn.number, extra={"action": "turn.lost", **where})
        except (StoreUnavailableError, SealBrokenError) as error:
            log.error("turn %s#%d is left: %s", turn.ref, turn.number, error, extra={"action": "turn.left", **where})  # noqa: TRY400 - the store's outage is no defect of ours
        else:
            if session and ended.status == "finished":
                self._registry.check_in(turn.ref, lease.version, session)
                session = None
            self._on_end(ended)
            how = ended.outcome.error.code if ended.outcome and ended.outcome.error else ended.status
            log.info("turn %s#%d: %s", turn.ref, turn.number, how, extra={"action": "turn.end", **where})
        finally:
            if session:
                session.close()

    async def _end(self, lease: Lease, outcome: Outcome) -> Turn:
        """Commit; where that cannot be, end the turn as what stood in the way, with the steps as they are."""
        if lease.attempt > 1:  # a replay that was broken off has not come to all the steps that are kept
            outcome = replace(outcome, steps=lease.kept_steps)
        try:
            is_broken = outcome.error is not None and outcome.error.code == SealBrokenError.code
            if outcome.status != "finished" and lease.lacks_task and not is_broken:  # nothing is added to damaged steps
                await self._keep_task(lease)
            return await lease.commit(outcome)
        except (LeaseLostError, StoreUnavailableError):
            raise
        except SealBrokenError as error:
            return await lease.commit(replace(_failed(error.code, error.message), usage=outcome.usage))
        except Exception:
            log.exception("the end of turn %s#%d met a defect of this service", lease.turn.ref, lease.turn.number)
            return await lease.commit(replace(_failed("internal", DEFECT_SENTENCE), usage=outcome.usage))

    async def _keep_task(self, lease: Lease) -> None:
        """Keep the task of a turn that ended before its agent ran: the next turn's model is shown it all the same."""
        with suppress(ServiceError):  # too large to be kept
            task = await asyncio.to_thread(self._agents.task_step, lease.turn, lease.turn_input)
            lease.emit("", step=task)

    async def _outcome(self, lease: Lease, bridge: LoopEventBridge) -> tuple[Session | None, Outcome]:
        session = replay = None
        deadline_s = lease.turn.options.deadline_s or self._deadline_s
        timer = asyncio.get_running_loop().call_later(_left_of(deadline_s, lease), bridge.request_stop, "deadline")
        lease.stop_reason.add_done_callback(lambda reason: bridge.request_stop(reason.result()))
        try:
            lease.check_readable()
            started = TurnStarted(lease.attempt, time.time())
            lease.emit(f"started:{lease.attempt}", events=[started])
            replay = await lease.load_replay_state() if lease.attempt > 1 else None
            if failure := self._why_not_to_go_on(lease):
                return None, self._with_past(Outcome("failed", error=failure), replay)
            session = await self._check_out(lease, bridge)
            outcome = Outcome("cancelled")
            if session and not bridge.stop_requested:
                session, outcome = await self._run(lease, session, bridge, replay)
            if bridge.reason == "broken":
                lease.check_readable()
            return session, self._with_past(_as_halted(outcome, bridge.reason, deadline_s), replay)
        except (LeaseLostError, StoreUnavailableError):
            if session:  # checked out and never played: nobody else will close it
                session.close()
            raise
        except ServiceError as error:
            return session, self._with_past(_failed(error.code, error.message), replay)
        except Exception:
            log.exception("turn %s#%d met a defect of this service", lease.turn.ref, lease.turn.number)
            return session, self._with_past(_failed("internal", DEFECT_SENTENCE), replay)
        finally:
            timer.cancel()
            bridge.close()

    def _why_not_to_go_on(self, lease: Lease) -> Failure | None:
        if lease.crashes >= MAX_CRASHES:
            return Failure("crashed_repeatedly", CRASHED_SENTENCE)
        info = self._agents.infos.get(lease.turn.agent.name)
        if lease.attempt > 1 and info and info.fingerprint != lease.fingerprint:
            return Failure("agent_changed", CHANGED_SENTENCE, retryable=True)
        return None

    def _with_past(self, outcome: Outcome, replay: ReplayState | None) -> Outcome:
        """Add the calls and tokens of earlier attempts to a turn whose replay was broken off before it came there."""
        if replay is None or outcome.status == "finished":
            return outcome
        calls = replay.calls | {call.call_id: call for call in outcome.tool_calls}
        usage = max(outcome.usage, self._agents.journal_usage(replay), key=_tokens)
        return replace(outcome, tool_calls=tuple(calls.values()), usage=usage)

    async def _check_out(self, lease: Lease, bridge: LoopEventBridge) -> Session | None:
        """Take the warm session of these very steps, or build one; nothing where a stop came first."""
        turn = lease.turn
        warm = self._registry.check_out(turn.ref, b"" if turn.options.reset else lease.version)
        if warm or bridge.stop_requested:
            return warm
        steps, attachments = await lease.steps()
        variables = await lease.variables()
        job = self._threads.run(lambda: self._agents.build(turn.agent.name, steps, attachments, variables))
        if await self._heeds(job, bridge, _close):
            return job.result()
        return None

    async def _run(
        self, lease: Lease, session: Session, bridge: LoopEventBridge, replay: ReplayState | None
    ) -> tuple[Session | None, Outcome]:
        """Play in a thread until the end, a stop or the deadline; what earlier attempts did is not done again."""
        job = self._threads.run(lambda: session.run_turn(lease.turn, lease.turn_input, bridge, replay, lease.policy))
        if await self._heeds(job, bridge, lambda _: session.close(), session.cut_model_calls):
            return session, job.result()
        return None, session.partial_outcome()

    async def _heeds(
        self,
        job: asyncio.Future[T],
        bridge: LoopEventBridge,
        afterwards: Callable[[T | None], object],
        interrupt: Callable[[], None] | None = None,
    ) -> bool:
        """Wait for a job. One that does not end soon after a stop is given up, with its thread."""
        await asyncio.wait((job, bridge.stopping), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            if interrupt:
                interrupt()
            await asyncio.wait((job,), timeout=GRACE_S)
        if not job.done():
            log.warning("a thread does not heed a stop", extra={"action": "thread.stuck"})
            bridge.close()
            self._threads.give_up(job, afterwards)
            return False
        return True

    async def _keep_leases(self) -> None:
        """Renew in time; a lease that is lost stops its turn at the next step."""
        while True:
            await asyncio.sleep(self._scheduler.lease_s / 3)
            if self._playing:
                with suppress(StoreUnavailableError):
                    await self._scheduler.renew(list(self._playing))

    async def _sweep(self) -> None:
        """Make conversations ready again whose worker is gone; let idle sessions go."""
        while True:
            await asyncio.sleep(min(self._scheduler.lease_s / 4, SWEEP_S))
            self._registry.evict_idle()
            with suppress(StoreUnavailableError):
                await self._scheduler.sweep()


def _close(session: Session | None) -> None:
    if session:
        session.close()


def _left_of(deadline_s: float, lease: Lease) -> float:
    """Give what is left of a turn's time, which counts from its first attempt."""
    started_at = lease.turn.timing.started_at
    passed_s = time.time() - started_at if started_at and lease.attempt > 1 else 0.0
    return max(0.0, deadline_s - passed_s)


def _as_halted(outcome: Outcome, reason: StopReason | None, deadline_s: float) -> Outcome:
    """Say of a turn that was broken off why; one that ended before the stop landed stays as it is."""
    if outcome.status != "cancelled" or reason != "deadline":
        return outcome
    failure = Failure(
        "deadline_exceeded", f"The turn took longer than its deadline of {deadline_s:g} s.", retryable=True
    )
    return replace(outcome, status="failed", error=failure)


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


def _failed(code: str, message: str) -> Outcome:
    return Outcome("failed", error=Failure(code, message))


async def warn_of_waiting_turns(queues: Callable[[], Awaitable[Queues]]) -> None:
    """Warn once of each agent whose turns wait for long. For a process that runs no turns itself."""
    warned: set[AgentName] = set()
    while True:
        found = await queues()
        late = {agent: queue for agent, queue in found.of.items() if queue.oldest_s > LATE_TURN_S}
        for agent in late.keys() - warned:
            log.warning(
                "%d conversations wait for agent %s, the first for %d s, and this process plays no turns: see that a "
                "`work` or `serve` runs on this store, that it knows the agent, and has threads free",
                *(late[agent].length, agent, late[agent].oldest_s),
                extra={"action": "queue.late"},
            )
        warned = set(late) if not found.silent else warned | set(late)
        await asyncio.sleep(LATE_LOOK_S)
