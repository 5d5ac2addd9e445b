"""One live agent; plays one turn at a time, in whatever thread calls."""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import PIL.Image
from smolagents import CodeAgent
from smolagents.agents import ActionOutput, ToolOutput
from smolagents.memory import ActionStep, FinalAnswerStep, TaskStep
from smolagents.memory import ToolCall as SmolToolCall
from smolagents.utils import AgentMaxStepsError

from app.agents.failures import FINAL_ANSWER_FAILED, classify, is_swallowed_failure
from app.agents.pictures import image_from_bytes
from app.agents.plain import labelled, plain, text_of
from app.agents.steps import Step, finished, pack, strip
from app.agents.thrift import make_thrifty
from app.records import Failure, Outcome, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep

    from app.records import PackedStep, RunState, Turn, TurnInput

log = logging.getLogger(__name__)

INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})
MAX_REPLY_CHARS = 1_000_000


class AgentSession:
    """A conversation's agent with its memory. Not for two threads at once."""

    def __init__(self, agent: MultiStepAgent, steps: Sequence[Step], carries: Sequence[type]) -> None:
        self._agent = agent
        self._carries = tuple(carries)
        agent.memory.steps = list(steps)
        make_thrifty(agent)

    def play(
        self, turn: Turn, given: TurnInput, keep: Callable[[PackedStep], None], stopped: Callable[[], bool]
    ) -> Outcome:
        """Run the agent; every finished step goes to `keep` at once, a half one never."""
        tail = _Tail(self._agent, turn.number, self._carries, keep)
        calls = _Calls(turn.agent.name)
        answer: FinalAnswerStep | None = None
        failure: Failure | None = None
        try:
            for item in self._run(turn, given):
                calls.see(item)
                tail.keep_finished()
                if isinstance(item, FinalAnswerStep):
                    answer = item
                elif isinstance(item, ActionStep) and stopped():
                    break
        except BaseException as error:
            failure = classify(error)
            # Only for who asks: the text of a provider's exception may hold what was said, or a key.
            log.debug("turn %s#%d failed", turn.ref, turn.number, exc_info=error)
        tail.keep_finished()
        return _outcome(answer, failure, tail, calls)

    def close(self) -> None:
        """Let go of the steps at once (the agent refers to itself, so it waits for the collector), then clean up."""
        self._agent.memory.steps = []
        clean_up(self._agent)

    def _run(self, turn: Turn, given: TurnInput) -> Any:
        images = [image_from_bytes(data) for data in given.images]
        return self._agent.run(
            turn.message,
            stream=True,
            reset=False,
            images=images or None,
            additional_args=given.additional_args or None,
            max_steps=turn.options.max_steps,
        )


def clean_up(agent: MultiStepAgent) -> None:
    """Call an agent's `cleanup`, if it has one, in a thread of its own: a remote executor's takes its time."""
    executor = getattr(agent, "python_executor", None)
    if not hasattr(agent, "cleanup") or (type(agent) is CodeAgent and not hasattr(executor, "cleanup")):
        return

    def run() -> None:
        try:
            agent.cleanup()
        except BaseException:
            log.exception("an agent could not be cleaned up", extra={"action": "agent.cleanup"})

    threading.Thread(target=run, name="cleanup", daemon=True).start()


class _Tail:
    """The steps that this turn has added to the agent's memory."""

    def __init__(
        self, agent: MultiStepAgent, turn: int, carries: tuple[type, ...], keep: Callable[[PackedStep], None]
    ) -> None:
        self._memory = agent.memory
        self._turn = turn
        self._carries = carries
        self._keep = keep
        self._base = self._next = len(agent.memory.steps)

    @property
    def steps(self) -> list[MemoryStep]:
        """What was kept, without the task."""
        return [step for step in self._memory.steps[self._base : self._next] if not isinstance(step, TaskStep)]

    @property
    def ran_out(self) -> bool:
        last = self._memory.steps[-1] if self._memory.steps else None
        return isinstance(getattr(last, "error", None), AgentMaxStepsError)

    def keep_finished(self) -> None:
        """Pack what is new. The task goes with the first step after it: a turn without a step leaves no task behind."""
        fresh = self._memory.steps[self._next :]
        whole = list(itertools.takewhile(finished, fresh))
        if all(isinstance(step, TaskStep) for step in whole):
            return
        for step in whole:
            strip(step)
            self._keep(pack(step, self._turn, self._carries))
            self._next += 1


@dataclass(slots=True)
class _Calls:
    """The tool calls of a run, as its stream shows them: in the order in which they began."""

    agent: str
    _calls: list[ToolCall] = field(default_factory=list)
    _open: dict[str, tuple[int, float]] = field(default_factory=dict)
    _step: int = 1
    _last_step: ActionStep | None = None

    @property
    def done(self) -> list[ToolCall]:
        return self._calls

    def see(self, item: object) -> None:
        if isinstance(item, SmolToolCall):
            self._begin(item)
        elif isinstance(item, ToolOutput):
            self._close(item.id, ok=True)
        elif isinstance(item, ActionOutput):
            self._close_all(ok=True)
        elif isinstance(item, ActionStep) and item is not self._last_step:
            self._close_all(ok=False)
            self._last_step = item
            self._step += 1

    def _begin(self, call: SmolToolCall) -> None:
        self._open[call.id] = (len(self._calls), time.perf_counter())
        self._calls.append(
            ToolCall(
                call_id=f"{self._step}.{len(self._calls) + 1}",
                name=text_of(str(call.name)),
                arguments=plain(call.arguments),
                agent=self.agent,
                step_id=str(self._step),
                internal=call.name in INTERNAL_TOOLS,
                ok=False,
                duration_ms=0,
            )
        )

    def _close_all(self, *, ok: bool) -> None:
        for call_id in list(self._open):
            self._close(call_id, ok=ok)

    def _close(self, call_id: str, *, ok: bool) -> None:
        if call_id in self._open:
            place, since = self._open.pop(call_id)
            duration_ms = round((time.perf_counter() - since) * 1000, 3)
            self._calls[place] = replace(self._calls[place], ok=ok, duration_ms=duration_ms)


def _outcome(answer: FinalAnswerStep | None, failure: Failure | None, tail: _Tail, calls: _Calls) -> Outcome:
    output = answer.output if answer else None
    state: RunState | None = None
    if answer and not failure:
        state = "max_steps_error" if tail.ran_out else "success"
        if state == "max_steps_error" and is_swallowed_failure(output):
            failure = FINAL_ANSWER_FAILED
    if not answer and not failure:
        return Outcome("cancelled", steps=len(tail.steps), tool_calls=tuple(calls.done), usage=_usage(tail.steps))
    return Outcome(
        "failed" if failure else "finished",
        reply=None if failure else _reply(output),
        output=None if failure else plain(output),
        state=state,
        steps=len(tail.steps),
        tool_calls=tuple(calls.done),
        usage=_usage(tail.steps),
        error=failure,
    )


def _reply(output: Any) -> str:
    """Give an answer as text: a text as it is, content parts joined, data as JSON."""
    if isinstance(output, str):
        text = text_of(str(output))
    elif isinstance(output, list) and output and all(isinstance(part, dict) and "text" in part for part in output):
        text = text_of("\n".join(str(part["text"]) for part in output))
    elif isinstance(output, PIL.Image.Image):
        text = labelled(output)
    else:
        value = plain(output)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_REPLY_CHARS else f"{text[:MAX_REPLY_CHARS]}… ({len(text)} characters)"


def _usage(steps: Sequence[MemoryStep]) -> Usage:
    found = [usage for step in steps if (usage := getattr(step, "token_usage", None))]
    return Usage(sum(usage.input_tokens for usage in found), sum(usage.output_tokens for usage in found))
