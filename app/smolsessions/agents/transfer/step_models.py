"""Models of the JSON steps in a document: the data of `agents/memory/step_data.py`, with the marks of a step."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from smolsessions.agents.memory.step_data import ROLES, Data
from smolsessions.agents.run.failures import is_swallowed_failure
from smolsessions.agents.transfer.document_media import DocumentMedia
from smolsessions.agents.transfer.document_models import Count, Json, Output, Strict, Text, checked
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.events import CODES_OF_STEPS
from smolsessions.core.times import seconds_of

MAX_TURNS = 1_000_000_000
IMAGE_FIELDS = ("task_images", "observations_images")
OUTPUT_MEDIA = ("action_output_image", "action_output_file")

_Media = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_MediaList = Annotated[list[_Media], Field(fail_fast=True)]
_Label = Annotated[str, Field(pattern=r"^/", max_length=200)]
_Number = Annotated[int, Field(ge=1, le=MAX_TURNS)]


_Time = Annotated[float, BeforeValidator(seconds_of)]


class TimingIn(Strict):
    start_time: _Time
    end_time: _Time | None = None


class UsageIn(Strict):
    input_tokens: Count
    output_tokens: Count
    cached_input_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    reasoning_tokens: Count | None = None

    @model_serializer(mode="wrap")
    def _without_unknown(self, serialize: SerializerFunctionWrapHandler) -> dict[str, int]:
        return {name: count for name, count in serialize(self).items() if count is not None}


class ErrorIn(Strict):
    code: Annotated[str, Field(pattern=f"^({'|'.join(sorted(CODES_OF_STEPS.values()))})$")]
    message: Text
    retryable: bool = False


class CallIn(Strict):
    id: Text | None
    name: Text
    arguments: Json


class MessageCallIn(CallIn):
    type: Text = "function"
    description: Text | None = None


class MessageIn(Strict):
    role: Annotated[str, Field(pattern=f"^({'|'.join(sorted(ROLES))})$")]
    content: Output = None
    tool_calls: Annotated[list[MessageCallIn], Field(fail_fast=True)] | None = None
    token_usage: UsageIn | None = None


class StepIn(Strict):
    """Members of every step. `archived` is out of the prompt, `hidden` by a later reset or a rollback."""

    type: str
    turn: _Number
    archived: bool = False
    hidden: bool = False
    labels: list[_Label] = Field(default_factory=list, fail_fast=True)


class TaskIn(StepIn):
    task: Text
    task_images: _MediaList | None = None
    task_files: _MediaList | None = None


class PlanningIn(StepIn):
    plan: Text
    model_output_message: MessageIn
    timing: TimingIn
    token_usage: UsageIn | None = None


class ActionIn(StepIn):
    step_number: Count
    timing: TimingIn
    model_output: Output = None
    model_output_message: MessageIn | None = None
    tool_calls: Annotated[list[CallIn], Field(fail_fast=True)] | None = None
    code_action: Text | None = None
    observations: Text | None = None
    observations_images: _MediaList | None = None
    action_output: Json = None
    action_output_image: _Media | None = None
    action_output_file: _Media | None = None
    error: ErrorIn | None = None
    is_final_answer: bool = False
    shown_estimate: Count | None = None
    token_usage: UsageIn | None = None


class NoteIn(StepIn):
    number: _Number
    text: Text
    replaces: _Number | None = None


class SummaryIn(StepIn):
    text: Text
    recent: Count = 0
    input_tokens: Count | None = None
    output_tokens: Count | None = None


class EditIn(StepIn):
    """Change of the memory. Its numbers are distances to earlier entries."""

    step: Any = None
    of: _Number | None = None
    removed: Annotated[list[_Number], Field(fail_fast=True)] | None = None


STEP_MODELS: dict[str, type[StepIn]] = {
    "task": TaskIn,
    "planning": PlanningIn,
    "action": ActionIn,
    "note": NoteIn,
    "summary": SummaryIn,
    "edit": EditIn,
}


def read_step(data: Any, pointer: str) -> StepIn:
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in STEP_MODELS:
        raise InvalidRequestError.at(f"{pointer}/type", f"is none of {', '.join(STEP_MODELS)}")
    return checked(STEP_MODELS[kind], data, pointer)


def step_data(step: StepIn, pointer: str, media: DocumentMedia) -> tuple[Data, dict[str, bytes]]:
    data = step.model_dump(exclude={"turn", "archived", "hidden"})
    if isinstance(step, EditIn):
        index = int(pointer.rpartition("/")[2])
        for name, distances in (("of", [step.of or 0]), ("removed", step.removed or [])):
            if any(distance > index for distance in distances):
                raise InvalidRequestError.at(f"{pointer}/{name}", "is no distance to an earlier entry, or holds one")
        if step.step is None:
            return data, {}
        inner = read_step({**step.step, "turn": step.turn} if isinstance(step.step, dict) else None, f"{pointer}/step")
        if isinstance(inner, EditIn):
            raise InvalidRequestError.at(f"{pointer}/step/type", "is an edit, which no edit holds")
        data["step"], attachments = step_data(inner, f"{pointer}/step", media)
        return data, attachments
    images = {f"/{name}/{at}": image for name in IMAGE_FIELDS for at, image in enumerate(data.get(name) or ())}
    files = {f"/task_files/{at}": file for at, file in enumerate(data.get("task_files") or ())}
    if isinstance(step, ActionIn):
        if step.error:
            kind = next(name for name, code in CODES_OF_STEPS.items() if code == step.error.code)
            data["error"] = {"type": kind, "message": step.error.message}
        outputs = [name for name in ("action_output", *OUTPUT_MEDIA) if data[name] is not None]
        if len(outputs) > 1:
            raise InvalidRequestError.at(f"{pointer}/action_output", "is there beside action_output_image or …_file")
        if is_swallowed_failure(step.action_output):
            data["action_output"] = None  # an exception's text, which may hold a key
        images |= {"/action_output_image": step.action_output_image} if step.action_output_image else {}
        files |= {"/action_output_file": step.action_output_file} if step.action_output_file else {}
    return data, media.images(pointer, images) | media.files(pointer, files) if images or files else {}
