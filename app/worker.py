"""The worker: claims turns, plays them in threads, keeps their leases, and ends them. It reads top-down."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from app.errors import LeaseLostError, SealBrokenError, ServiceError, StoreUnavailableError
from app.events import TurnStarted
from app.records import Failure, Outcome
from app.stage import LoopStage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from app.ports import Agents, Lease, Scheduler, Session, StopReason
    from app.records import Turn
    from app.registry import Registry
    from app.threads import Threads

T = TypeVar("T")

log = logging.getLogger(__name__)

LAST_WORD_S = 1.0
GRACE_S = 2.0  # how long a thread may take to heed a stop
LOOK_S = 2.0  # wake-ups are hints: the worker also looks by itself
MOST_AT_ONCE = 16
DEFECT_SENTENCE = "The service made a mistake; it is in its log."
LOST_SENTENCE = "The process that played this turn ended before it did; the turn's finished steps are kept."


class Worker:
    """Plays turns of this process's agents, one thread each."""

    def __init__(
        self,
        scheduler: Scheduler,
        agents: Agents,
        registry: Registry,
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
        self._playing: dict[Lease, asyncio.Task[None]] = {}
        self._slot_free = asyncio.Event()
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Work until drained or cancelled."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep_leases())
            sweeper = tasks.create_task(self._sweep())
            await self._claim_until_drained(tasks)
            while self._playing:
                await asyncio.wait(self._playing.values())
            keeper.cancel()
            sweeper.cancel()
        self._registry.clear()

    def drain(self) -> None:
        """Claim nothing more; `run` returns when what plays is over."""
        self._draining.set()
        self._slot_free.set()
        self._scheduler.nudge()

    async def _claim_until_drained(self, tasks: asyncio.TaskGroup) -> None:
        while not self._draining.is_set():
            free = self._threads.free
            if not free:
                self._slot_free.clear()
                await self._slot_free.wait()
                continue
            most = min(free, MOST_AT_ONCE)
            leases = await self._claim(most)
            if self._draining.is_set():
                await self._hand_back(leases)
                return
            for lease in leases:
                self._threads.busy += 1
                self._playing[lease] = tasks.create_task(self._play_and_forget(lease))
            if len(leases) < most:
                await self._scheduler.wait_for_work(LOOK_S)

    async def _claim(self, most: int) -> Sequence[Lease]:
        try:
            return await self._scheduler.claim(list(self._agents.infos), most)
        except StoreUnavailableError:
            return []

    async def _hand_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            with suppress(StoreUnavailableError):  # then the lease expires, which comes to the same
                await self._scheduler.hand_back(lease)

    async def _play_and_forget(self, lease: Lease) -> None:
        try:
            await self._play(lease)
        finally:
            del self._playing[lease]
            self._threads.busy -= 1
            self._slot_free.set()

    async def _play(self, lease: Lease) -> None:
        """One turn, from claim to commit."""
        turn = lease.turn
        where = {"conversation": str(turn.ref), "turn": turn.number}
        log.info("turn %s#%d starts", turn.ref, turn.number, extra={"action": "turn.start", **where})
        session = None
        try:
            session, outcome = await self._outcome(lease)
            ended = await self._end(lease, outcome)
        except asyncio.CancelledError:
            session = None  # its thread still plays: it is not ours to close
            log.warning("turn %s#%d outlived the drain", turn.ref, turn.number, extra={"action": "turn.left", **where})
            with suppress(ServiceError, TimeoutError):
                await asyncio.wait_for(lease.commit(_failed("worker_lost", LOST_SENTENCE)), LAST_WORD_S)
            raise
        except LeaseLostError:
            log.warning("turn %s#%d was taken away", turn.ref, turn.number, extra={"action": "turn.lost", **where})
        except StoreUnavailableError as error:
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
        try:
            return await lease.commit(outcome)
        except (LeaseLostError, StoreUnavailableError):
            raise
        except SealBrokenError as error:
            return await lease.commit(_failed(error.code, error.message))
        except Exception:
            log.exception("the end of turn %s#%d met a defect of this service", lease.turn.ref, lease.turn.number)
            return await lease.commit(_failed("internal", DEFECT_SENTENCE))

    async def _outcome(self, lease: Lease) -> tuple[Session | None, Outcome]:
        session = None
        deadline_s = lease.turn.options.deadline_s or self._deadline_s
        stage = LoopStage(lease)
        timer = asyncio.get_running_loop().call_later(deadline_s, stage.halt, "deadline")
        lease.stopped.add_done_callback(lambda reason: stage.halt(reason.result()))
        try:
            lease.check()
            started = TurnStarted(lease.attempt, lease.turn.timing.started_at or 0)
            lease.emit(f"started:{lease.attempt}", events=[started])
            if lease.attempt > 1:
                return None, _as_left(await lease.adopt_tail(), lease)
            session = await self._check_out(lease, stage)
            await lease.settled()  # that this attempt began must be known before it does what cannot be undone
            if session is None or stage.halted:
                return session, _as_halted(Outcome("cancelled"), stage.reason, deadline_s)
            session, outcome = await self._run(lease, session, stage)
            return session, _as_halted(outcome, stage.reason, deadline_s)
        except (LeaseLostError, StoreUnavailableError):
            if session:  # checked out and never played: nobody else will close it
                session.close()
            raise
        except ServiceError as error:
            return session, _failed(error.code, error.message)
        except Exception:
            log.exception("turn %s#%d met a defect of this service", lease.turn.ref, lease.turn.number)
            return session, _failed("internal", DEFECT_SENTENCE)
        finally:
            timer.cancel()
            stage.close()

    async def _check_out(self, lease: Lease, stage: LoopStage) -> Session | None:
        """Take the warm session of these very steps, or build one; nothing where a stop came first."""
        turn = lease.turn
        warm = self._registry.check_out(turn.ref, b"" if turn.options.reset else lease.version)
        if warm or stage.halted:
            return warm
        steps, attachments = await lease.steps()
        variables = await lease.variables()
        job = self._threads.run(lambda: self._agents.build(turn.agent.name, steps, attachments, variables))
        if await self._heeds(job, stage, _close):
            return job.result()
        return None

    async def _run(self, lease: Lease, session: Session, stage: LoopStage) -> tuple[Session | None, Outcome]:
        """Play in a thread until the end, a stop or the deadline."""
        job = self._threads.run(lambda: session.play(lease.turn, lease.given, stage))
        if await self._heeds(job, stage, lambda _: session.close()):
            return session, job.result()
        return None, session.broken_off()

    async def _heeds(self, job: asyncio.Future[T], stage: LoopStage, afterwards: Callable[[T | None], object]) -> bool:
        """Wait for a job; one that does not heed a stop in time is given up, with its thread."""
        await asyncio.wait((job, stage.stopping), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            await asyncio.wait((job,), timeout=GRACE_S)
        if not job.done():
            log.warning("a thread does not heed a stop", extra={"action": "thread.stuck"})
            stage.close()
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
            await asyncio.sleep(self._scheduler.lease_s / 4)
            self._registry.evict_idle()
            with suppress(StoreUnavailableError):
                await self._scheduler.sweep()


def _close(session: Session | None) -> None:
    if session:
        session.close()


def _as_left(steps: int, lease: Lease) -> Outcome:
    """Say of a turn whose worker died how it ends, with the steps that it had finished."""
    if lease.stopped.done():
        return Outcome("cancelled", steps=steps)
    return replace(_failed("worker_lost", LOST_SENTENCE), steps=steps)


def _as_halted(outcome: Outcome, reason: StopReason | None, deadline_s: float) -> Outcome:
    """Say of a turn that was broken off why; one that ended before the stop landed stays as it is."""
    if outcome.status != "cancelled" or reason != "deadline":
        return outcome
    failure = Failure(
        "deadline_exceeded", f"The turn took longer than its deadline of {deadline_s:g} s.", retryable=True
    )
    return replace(outcome, status="failed", error=failure)


def _failed(code: str, message: str) -> Outcome:
    return Outcome("failed", error=Failure(code, message, retryable=code == "worker_lost"))
