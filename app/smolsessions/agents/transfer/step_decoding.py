"""Decode the JSON steps of this service's own format."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.memory.step_types import EditStep, NoteStep, SummaryStep
from smolsessions.agents.memory.steps import ERROR_NAMES, agent_error
from smolsessions.agents.memory.tokens import set_shown_estimate
from smolsessions.agents.transfer.document_models import (
    Count,
    ImageName,
    ImageNames,
    Json,
    Output,
    Strict,
    Text,
    checked,
)
from smolsessions.agents.transfer.step_encoding import LABELS
from smolsessions.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from smolsessions.agents.memory.steps import Step
    from smolsessions.agents.transfer.documents import DocumentImages

MAX_TURNS = 1_000_000_000
_Run = Annotated[list[int], Field(min_length=2, max_length=2)]
_Runs = Annotated[list[_Run], Field(fail_fast=True)]
Label = Annotated[str, Field(pattern=r"^/", max_length=200)]


class StepIn(Strict):
    """Members of every step. `archived` is out of the prompt, `hidden` by a later reset or a rollback."""

    turn: int = Field(ge=1, le=MAX_TURNS)
    archived: bool = False
    hidden: bool = False
    labels: list[Label] = Field(default_factory=list, fail_fast=True)


class TimingIn(Strict):
    start_time: float
    end_time: float | None = None

    def made(self) -> Timing:
        return Timing(self.start_time, self.end_time)


class UsageIn(Strict):
    input_tokens: Count
    output_tokens: Count

    def made(self) -> TokenUsage:
        return TokenUsage(self.input_tokens, self.output_tokens)


class ErrorIn(Strict):
    type: Text
    message: Text


class CallIn(Strict):
    id: Text
    name: Text
    arguments: Json


class MessageCallIn(CallIn):
    type: Text = "function"
    description: Text | None = None


class MessageIn(Strict):
    role: Literal["user", "assistant", "system", "tool-call", "tool-response"]
    content: Output = None
    tool_calls: Annotated[list[MessageCallIn], Field(fail_fast=True)] | None = None
    token_usage: UsageIn | None = None

    def made(self) -> ChatMessage:
        calls = None if self.tool_calls is None else [message_call(call) for call in self.tool_calls]
        usage = self.token_usage.made() if self.token_usage else None
        return ChatMessage(MessageRole(self.role), self.content, calls, token_usage=usage)


class TaskIn(StepIn):
    type: Literal["task"]
    task: Text
    task_images: ImageNames | None = None

    def made(self, pointer: str, images: DocumentImages) -> TaskStep:
        found = images.of_step(pointer, _places("task_images", self.task_images))
        return TaskStep(self.task, None if self.task_images is None else found)


class PlanningIn(StepIn):
    type: Literal["planning"]
    plan: Text
    model_output_message: MessageIn
    timing: TimingIn
    token_usage: UsageIn | None = None

    def made(self, _pointer: str, _images: DocumentImages) -> PlanningStep:
        usage = self.token_usage.made() if self.token_usage else None
        return PlanningStep([], self.model_output_message.made(), self.plan, self.timing.made(), usage)


class ActionIn(StepIn):
    type: Literal["action"]
    step_number: Count
    timing: TimingIn
    model_output: Output = None
    model_output_message: MessageIn | None = None
    tool_calls: Annotated[list[CallIn], Field(fail_fast=True)] | None = None
    code_action: Text | None = None
    observations: Text | None = None
    observations_images: ImageNames | None = None
    action_output: Json = None
    action_output_image: ImageName | None = None
    error: ErrorIn | None = None
    is_final_answer: bool = False
    shown_estimate: Count | None = None
    token_usage: UsageIn | None = None

    def made(self, pointer: str, images: DocumentImages) -> ActionStep:
        shown, output = self.observations_images, self.action_output_image
        if output and self.action_output is not None:
            raise InvalidRequestError.at(f"{pointer}/action_output", "is there beside action_output_image")
        names = _places("observations_images", shown) | ({"/action_output_image": output} if output else {})
        found = images.of_step(pointer, names)
        step = ActionStep(
            self.step_number,
            self.timing.made(),
            tool_calls=calls_of(self.tool_calls),
            error=error_of(self.error, f"{pointer}/error"),
            model_output_message=self.model_output_message.made() if self.model_output_message else None,
            model_output=self.model_output,
            code_action=self.code_action,
            observations=self.observations,
            observations_images=None if shown is None else found[: len(shown)],
            action_output=found[-1] if output else self.action_output,
            token_usage=self.token_usage.made() if self.token_usage else None,
            is_final_answer=self.is_final_answer,
        )
        if self.shown_estimate is not None:
            set_shown_estimate(step, self.shown_estimate)
        return step


class NoteIn(StepIn):
    type: Literal["note"]
    number: int = Field(ge=1, le=MAX_TURNS)
    text: Text
    replaces: Annotated[int, Field(ge=1, le=MAX_TURNS)] | None = None

    def made(self, _pointer: str, _images: DocumentImages) -> NoteStep:
        return NoteStep(self.number, self.text, self.replaces)


class SummaryIn(StepIn):
    type: Literal["summary"]
    text: Text
    recent: Count = 0
    input_tokens: Count | None = None
    output_tokens: Count | None = None

    def made(self, _pointer: str, _images: DocumentImages) -> SummaryStep:
        return SummaryStep(self.text, self.recent, self.input_tokens, self.output_tokens)


class EditIn(StepIn):
    """Change of the memory. Its numbers are distances to earlier entries."""

    type: Literal["edit"]
    step: Any = None
    of: Annotated[int, Field(ge=0, le=MAX_TURNS)] | None = None
    gone: _Runs | None = None
    order: _Runs | None = None

    @property
    def places(self) -> int:
        """Number of entries that it names."""
        return sum(first - last + 1 for runs in (self.gone, self.order) for first, last in runs or ())

    def made(self, pointer: str, images: DocumentImages) -> EditStep:
        inner = None
        if self.step is not None:
            data = {**self.step, "turn": self.turn} if isinstance(self.step, dict) else self.step
            inner_in = read_step(data, f"{pointer}/step")
            if isinstance(inner_in, EditIn):
                raise InvalidRequestError.at(f"{pointer}/step/type", "is an edit, which no edit holds")
            inner = made(inner_in, f"{pointer}/step", images)
        for name, runs in (("gone", self.gone), ("order", self.order)):
            index = int(pointer.rpartition("/")[2])
            if any(not index >= first >= last >= 0 for first, last in runs or ()):
                raise InvalidRequestError.at(
                    f"{pointer}/{name}", "holds a number that is no distance to an earlier entry"
                )
            if any(last <= first for (first, _), (_, last) in pairwise(sorted(runs or ()))):
                raise InvalidRequestError.at(f"{pointer}/{name}", "names an entry twice")
        runs_of = [None if runs is None else [(a, b) for a, b in runs] for runs in (self.gone, self.order)]
        return EditStep(inner, self.of, *runs_of)


AnyStepIn = EditIn | TaskIn | PlanningIn | ActionIn | NoteIn | SummaryIn
_BY_TYPE: dict[str, type[AnyStepIn]] = {
    "task": TaskIn,
    "planning": PlanningIn,
    "action": ActionIn,
    "note": NoteIn,
    "summary": SummaryIn,
    "edit": EditIn,
}


def read_step(data: Any, pointer: str) -> AnyStepIn:
    """Validate a step's members."""
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _BY_TYPE:
        raise InvalidRequestError.at(f"{pointer}/type", f"is none of {', '.join(_BY_TYPE)}")
    return checked(_BY_TYPE[kind], data, pointer)


def made(step: AnyStepIn, pointer: str, images: DocumentImages) -> Step:
    """Return the step."""
    step_made = step.made(pointer, images)
    if step.labels:
        setattr(step_made, LABELS, tuple(step.labels))
    return step_made


def calls_of(calls: list[CallIn] | None) -> list[ToolCall] | None:
    return None if calls is None else [ToolCall(call.name, call.arguments, call.id) for call in calls]


def error_of(error: ErrorIn | None, pointer: str) -> Any:
    if error is None:
        return None
    if error.type not in ERROR_NAMES:
        raise InvalidRequestError.at(f"{pointer}/type", f"is none of smolagents' {', '.join(sorted(ERROR_NAMES))}")
    return agent_error(error.type, error.message)


def _places(member: str, names: list[str] | None) -> dict[str, str]:
    return {f"/{member}/{index}": name for index, name in enumerate(names or ())}


def message_call(call: MessageCallIn) -> ChatMessageToolCall:
    function = ChatMessageToolCallFunction(name=call.name, arguments=call.arguments, description=call.description)
    return ChatMessageToolCall(function=function, id=call.id, type=call.type)
