"""Worker: claims turns, runs them in threads, renews their leases and commits them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from smolsessions.core.agent_ports import AgentCatalog, Session
from smolsessions.core.errors import LeaseLostError, SealBrokenError, ServiceError, StoreUnavailableError
from smolsessions.core.events import ReplayState
from smolsessions.core.records import AGENT_CHANGED, MAX_CRASHES, AgentName, Failure, Outcome, Owner, Suspension, Turn
from smolsessions.core.store_ports import Lease, Scheduler
from smolsessions.worker.event_bridge import LoopEventBridge
from smolsessions.worker.session_pool import SessionPool
from smolsessions.worker.threads import Threads

T = TypeVar("T")

log = logging.getLogger(__name__)

LATE_CLAIMS_S = 1.0  # at the end: longest wait for late claims, which are handed back
GRACE_S = 2.0  # longest time from a stop request to the end of the thread's job
POLL_S = 2.0  # wake-ups are hints, so the worker also polls
SWEEP_S = 0.4  # longest pause between two sweeps of expired leases
HAND_BACK_S = 2.0
MOST_AT_ONCE = 16
DEFECT_SENTENCE = "The service made a mistake; it is in its log."
CRASHED_SENTENCE = (
    f"{MAX_CRASHES} attempts at this turn broke off before it got any further; it is given up, with its finished steps."
)


@dataclass(eq=False)
class _Run:
    lease: Lease
    bridge: LoopEventBridge
    session: Session | None = None
    replay: ReplayState | None = None


class Worker:
    """Runs turns of this process's agents, one thread each."""

    def __init__(
        self,
        scheduler: Scheduler[Any],
        agents: AgentCatalog,
        sessions: SessionPool,
        threads: Threads,
        on_end: Callable[[Turn], None],
        *,
        deadline_s: float,
    ) -> None:
        """`on_end` is called with each turn that this worker ended. `deadline_s` is the default of a turn."""
        self._deadline_s = deadline_s
        self._scheduler = scheduler
        self._agents = agents
        self._sessions = sessions
        self._threads = threads
        self._on_end = on_end
        self._fingerprints = {name: info.version.fingerprint for name, info in agents.infos.items()}
        self._running: set[_Run] = set()
        self.reserved_threads = 0
        self._turn_tasks: asyncio.TaskGroup | None = None
        self._slot_free = asyncio.Event()
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Work until drained or cancelled."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep_leases())
            sweeper = tasks.create_task(self._sweep())
            async with asyncio.TaskGroup() as turn_tasks:
                self._turn_tasks, self._scheduler.intake = turn_tasks, self
                try:
                    await self._claim_until_drained(turn_tasks)
                    self._scheduler.stop_claiming()
                    with suppress(TimeoutError):  # without the store, the leases expire
                        async with asyncio.timeout(LATE_CLAIMS_S):
                            while self.reserved_threads:  # turns that are being submitted are handed back
                                self._slot_free.clear()
                                await self._slot_free.wait()
                finally:
                    self._turn_tasks = self._scheduler.intake = None
            with suppress(TimeoutError):  # the leases expire instead
                async with asyncio.timeout(LATE_CLAIMS_S):
                    await self._scheduler.all_given_back()
            keeper.cancel()
            sweeper.cancel()
        self._sessions.clear()

    def retire(self) -> None:
        """Claim no more. `run` returns after the current turns."""
        self._draining.set()
        self._slot_free.set()
        self._scheduler.nudge()

    def drain(self) -> None:
        """Claim no more. `run` returns after the current steps, whose turns are handed back."""
        self.retire()
        for run in self._running:
            run.bridge.pause_requested = True

    def hand_back_all(self) -> None:
        """Hand all running turns back in the middle of a step. Journaled effects are not repeated."""
        for run in self._running:
            run.bridge.request_stop("drained")

    def reserve_thread(self, agent: AgentName, owner: Owner) -> Mapping[AgentName, str] | None:
        if self._threads.room(owner) <= 0:
            return None
        if self._draining.is_set() or self._threads.free <= 0 or self._runs_suspect or agent not in self._fingerprints:
            return None
        if 2 * self.reserved_threads >= self._threads.count:  # a silent store leaves others the other half
            return None
        self._threads.take(owner)
        self.reserved_threads += 1
        return self._fingerprints

    def use_thread(self, lease: Lease | None, owner: Owner) -> None:
        self.reserved_threads -= 1
        self._threads.give_back(owner)
        self._slot_free.set()
        if not (lease and self._turn_tasks):
            return  # a lease that comes after the end of `run` expires
        if self._draining.is_set():
            self._turn_tasks.create_task(self._hand_back(lease))
        else:
            self._begin(self._turn_tasks, lease)

    def _begin(self, turn_tasks: asyncio.TaskGroup, lease: Lease) -> None:
        self._threads.take(lease.turn.ref.owner)
        run = _Run(lease, LoopEventBridge(lease))
        self._running.add(run)
        turn_tasks.create_task(self._run_turn(run))

    async def _claim_until_drained(self, turn_tasks: asyncio.TaskGroup) -> None:
        while not self._draining.is_set():
            free = self._threads.free
            if free <= 0 or self._runs_suspect:
                self._slot_free.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S if free else None):
                        await self._slot_free.wait()
                continue
            most = min(free, MOST_AT_ONCE)
            # A crash counts against turns without a new effect. A suspect may only run beside turns that have one.
            idle = not self.reserved_threads and all(run.lease.has_progressed for run in self._running)
            most_each, rooms = self._threads.most_each, self._threads.rooms()
            leases = await self._scheduler.claim(self._fingerprints, most, idle=idle, most_each=most_each, rooms=rooms)
            if self._draining.is_set():
                await asyncio.gather(*map(self._hand_back, leases))
                return
            for lease in leases:
                self._begin(turn_tasks, lease)
            if len(leases) < most:
                await self._scheduler.wait_for_work(POLL_S)

    @property
    def _runs_suspect(self) -> bool:
        """True while a turn runs that has crashed workers before. It runs alone until it journals a new effect."""
        return any(run.lease.crashes == MAX_CRASHES - 1 and not run.lease.has_progressed for run in self._running)

    async def _hand_back(self, lease: Lease) -> None:
        """Release the lease, so that another worker continues. Without the store, the lease expires."""
        try:
            async with asyncio.timeout(HAND_BACK_S):
                await lease.flush()
                await self._scheduler.hand_back(lease)
        except (StoreUnavailableError, LeaseLostError, TimeoutError):
            pass
        except SealBrokenError as error:
            _log_turn(logging.ERROR, lease.turn, "left", f"is left: {error}")

    async def _run_turn(self, run: _Run) -> None:
        """Run one turn from claim to commit, or until it is handed back or lost."""
        lease, turn = run.lease, run.lease.turn
        again = f", attempt {lease.attempt}" if lease.attempt > 1 else ""
        _log_turn(logging.INFO, turn, "start", f"starts{again}")
        try:
            outcome = await self._outcome(run)
            if isinstance(outcome, Suspension):
                if await lease.suspend(outcome):
                    _log_turn(logging.INFO, turn, "wait", "waits for a person")
                    return
                outcome = outcome.outcome  # a stop came first
            elif run.bridge.hands_over and outcome.status == "cancelled":
                _log_turn(logging.INFO, turn, "back", "is handed back")
                await self._hand_back(lease)
                return
            ended = await self._commit(lease, outcome)
            if run.session and ended.status == "finished":
                self._sessions.release(turn.ref, lease.head_tag, run.session)
                run.session = None
            self._on_end(ended)
            how = ended.outcome.error.code if ended.outcome and ended.outcome.error else ended.status
            _log_turn(logging.INFO, turn, "end", f"ended: {how}")
        except LeaseLostError:
            _log_turn(logging.WARNING, turn, "lost", "was taken away")
        except (StoreUnavailableError, SealBrokenError) as error:
            _log_turn(logging.ERROR, turn, "left", f"is left: {error}")
        except Exception:  # the lease expires, which counts as a crash of this turn alone
            log.exception("turn %s#%d met a defect of this service", turn.ref, turn.number)
        finally:
            for steered in lease.steered:
                self._on_end(steered)
            self._running.discard(run)
            if self._threads.room(turn.ref.owner) <= 0:
                self._scheduler.nudge()  # claims left the owner's other turns where they are
            self._threads.give_back(turn.ref.owner)
            self._slot_free.set()
            if run.session:
                run.session.close()

    async def _outcome(self, run: _Run) -> Outcome | Suspension:
        """Run one attempt until its end, a stop or the deadline. All that it wrote waits for the commit at most."""
        lease, bridge = run.lease, run.bridge
        info = self._agents.infos.get(lease.turn.agent.name)
        deadline_s = lease.turn.options.deadline_s or (info and info.deadline_s) or self._deadline_s
        started_at = lease.turn.timing.started_at  # of the first attempt
        passed_s = time.time() - started_at - lease.turn.timing.waited_s if started_at and lease.attempt > 1 else 0.0
        left_s = max(0.0, deadline_s - passed_s)
        timer = asyncio.get_running_loop().call_later(left_s, bridge.request_stop, "deadline")
        bridge.ends_at = time.monotonic() + left_s
        lease.stop_reason.add_done_callback(bridge.hear_stop)
        try:
            outcome = await self._attempt(run)
            bridge.suspends = isinstance(outcome, Suspension)
            if bridge.reason == "broken":
                lease.check_readable()
        except (LeaseLostError, StoreUnavailableError):
            raise
        except Exception as error:  # noqa: BLE001 - `_failed_by` logs it
            outcome = _failed_by(error, lease.turn)
        finally:
            timer.cancel()
            bridge.close()
        if isinstance(outcome, Suspension):
            return outcome
        if outcome.status == "cancelled" and bridge.reason == "deadline":
            sentence = f"The turn took longer than its deadline of {deadline_s:g} s."
            outcome = replace(outcome, status="failed", error=Failure("deadline_exceeded", sentence, retryable=True))
        if run.replay and outcome.status != "finished":  # it did not reach the calls and tokens of earlier attempts
            try:
                calls = run.replay.calls | {call.call_id: call for call in outcome.tool_calls}
                used = (outcome.usage, self._agents.journal_usage(run.replay))
            except Exception:  # of another release, perhaps: the turn ends all the same
                log.exception("turn %s#%d has a journal that cannot be counted", lease.turn.ref, lease.turn.number)
                return outcome
            usage = max(used, key=lambda each: each.input_tokens + each.output_tokens)
            outcome = replace(outcome, tool_calls=tuple(calls.values()), usage=usage)
        return outcome

    async def _attempt(self, run: _Run) -> Outcome | Suspension:
        """Take a warm session, or build one from the stored steps, and run the turn in a thread."""
        lease, turn, bridge = run.lease, run.lease.turn, run.bridge
        lease.check_readable()
        run.session = self._sessions.acquire(turn.ref, b"" if turn.options.reset else lease.head_tag, lease.caller)
        # A crash ends the warm sessions of its process too, so the next attempt counts from its first moment.
        bridge.begin(lease.attempt, can_wait=lease.attempt == 1 and run.session is not None)
        if lease.attempt > 1:  # without its effects, if to load them may be what ended the last attempt
            run.replay = await lease.load_replay_state(effects=lease.crashes <= MAX_CRASHES)
        if lease.crashes >= MAX_CRASHES:
            return Outcome("failed", error=Failure("crashed_repeatedly", CRASHED_SENTENCE))
        info = self._agents.infos.get(turn.agent.name)
        if lease.attempt > 1 and info and info.version.fingerprint != lease.fingerprint:
            return Outcome("failed", error=AGENT_CHANGED)
        if run.session is None and not bridge.stop_requested:
            steps, attachments = await lease.steps()
            variables = await lease.variables()
            run.session = await self._run_in_thread(
                bridge,
                lambda: self._agents.build(turn.agent.name, lease.caller, steps, attachments, variables),
                lambda late: late.close() if late else None,
            )
        if run.session is None or bridge.stop_requested:
            return Outcome("cancelled")
        session = run.session

        def run_turn() -> Outcome | Suspension:
            try:
                return session.run_turn(
                    lease.turn, lease.turn_input, lease.caller, bridge, replay=run.replay, settings=lease.settings
                )
            finally:
                bridge.run_has_ended = True

        outcome = await self._run_in_thread(bridge, run_turn, lambda _: session.close(), session.cut_model_calls)
        if lease.turn.agent is not session.version:
            lease.turn = replace(lease.turn, agent=session.version)
        if outcome is None:
            run.session = None
        return outcome or session.partial_outcome()

    async def _commit(self, lease: Lease, outcome: Outcome) -> Turn:
        """Commit. If that fails, commit the turn as failed, with the steps as they are."""
        if lease.attempt > 1:  # a stopped replay has not reached all stored steps
            outcome = replace(outcome, steps=lease.kept_steps)
        try:
            is_broken = outcome.error is not None and outcome.error.code == SealBrokenError.code
            if outcome.status != "finished" and lease.lacks_task and not is_broken:  # damaged steps get no more
                with suppress(ServiceError):  # the task is too large to be stored; else the next turn's model sees it
                    task = await asyncio.to_thread(self._agents.task_step, lease.turn, lease.turn_input)
                    lease.emit("", step=task)
            return await lease.commit(outcome)
        except (LeaseLostError, StoreUnavailableError):
            raise
        except Exception as error:  # noqa: BLE001 - `_failed_by` logs it
            return await lease.commit(replace(_failed_by(error, lease.turn), usage=outcome.usage))

    async def _run_in_thread(
        self,
        bridge: LoopEventBridge,
        work: Callable[[], T],
        afterwards: Callable[[T | None], object],
        interrupt: Callable[[], None] = lambda: None,
    ) -> T | None:
        """Return the result of a job. If it does not end soon after a stop, give up the job and its thread."""
        job = self._threads.run(work)
        await asyncio.wait((job, bridge.stopping), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            interrupt()
            await asyncio.wait((job,), timeout=GRACE_S)
        if job.done():
            return job.result()
        log.warning("a thread ignores a request to stop", extra={"action": "thread.stuck"})
        bridge.close()
        self._threads.give_up(job, afterwards)
        return None

    async def _keep_leases(self) -> None:
        """Renew leases in time. A lost lease stops its turn."""
        while True:
            await asyncio.sleep(self._scheduler.lease_s / 3)
            if self._running:
                with suppress(StoreUnavailableError):
                    await self._scheduler.renew([run.lease for run in self._running])

    async def _sweep(self) -> None:
        """Make conversations of dead workers ready again, and close idle sessions."""
        while True:
            await asyncio.sleep(min(self._scheduler.lease_s / 4, SWEEP_S))
            self._sessions.evict_idle()
            with suppress(StoreUnavailableError):
                await self._scheduler.sweep()


def _log_turn(level: int, turn: Turn, action: str, what: str) -> None:
    extra = {"action": f"turn.{action}", "conversation": str(turn.ref), "turn": turn.number}
    log.log(level, "turn %s#%d %s", turn.ref, turn.number, what, extra=extra)


def _failed_by(error: Exception, turn: Turn) -> Outcome:
    if isinstance(error, ServiceError):
        return Outcome("failed", error=Failure(error.code, error.message))
    log.error("turn %s#%d met a defect of this service", turn.ref, turn.number, exc_info=error)
    return Outcome("failed", error=Failure("internal", DEFECT_SENTENCE))
