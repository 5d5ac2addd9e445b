"""Models of the JSON steps of this service's own format, with all fields that prompt and record depend on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import PIL.Image
from pydantic import Field
from smolagents.agent_types import AgentImage
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.memory.step_types import EditStep, NoteStep, SummaryStep
from smolsessions.agents.memory.steps import ERROR_NAMES, Step, agent_error, step_type
from smolsessions.agents.memory.tokens import set_shown_estimate, shown_estimate
from smolsessions.agents.transfer.document_models import (
    Count,
    Encoder,
    Json,
    Output,
    Strict,
    Text,
    checked,
)
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.media import attach_files, attached_files, stored_files
from smolsessions.core.attachments import File
from smolsessions.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from smolsessions.agents.transfer.documents import DocumentMedia

MAX_TURNS = 1_000_000_000
IMAGE_FIELDS = ("task_images", "observations_images")
_LABELS = "smolsessions_labels"
"""Attribute of an imported step with pointers to texts and data that replaced other values at its export."""
_ROLES = frozenset(role.value for role in MessageRole)


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data. Its `labels` point to texts and data that replace values without exact JSON."""
    labels = set(getattr(step, _LABELS, ()))
    kind = step_type(step)
    return {"type": kind, **STEP_MODELS[kind].encode(step, "", labels), "labels": sorted(labels)}


def _encode_role(role: Any, pointer: str, labels: set[str]) -> str:
    name = str(getattr(role, "value", role))
    if name in _ROLES:
        return name
    labels.add(pointer)
    return MessageRole.ASSISTANT.value


def _encode_images(images: Sequence[PIL.Image.Image], _pointer: str, _labels: set[str]) -> list[str]:
    return [image.name for image in stored_images(images)]


def _encode_edited(step: Step | None, _pointer: str, _labels: set[str]) -> dict[str, Any] | None:
    return encode_step(step) if step else None


def _planning_step(**fields: Any) -> PlanningStep:
    return PlanningStep(model_input_messages=[], **fields)


def _message_call(name: str, arguments: Any, description: str | None, **fields: Any) -> ChatMessageToolCall:
    return ChatMessageToolCall(ChatMessageToolCallFunction(arguments, name, description), **fields)


_Image = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Images = Annotated[list[_Image], Field(fail_fast=True), Encoder(_encode_images)]
_Files = Annotated[list[_Image], Field(fail_fast=True), Encoder(lambda names, _pointer, _labels: names)]
_Role = Annotated[MessageRole, Field(strict=False), Encoder(_encode_role)]
_Label = Annotated[str, Field(pattern=r"^/", max_length=200)]
_Number = Annotated[int, Field(ge=1, le=MAX_TURNS)]
_Runs = Annotated[list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(fail_fast=True)]


class TimingIn(Strict):
    makes: ClassVar = Timing
    start_time: float
    end_time: float | None = None


class UsageIn(Strict):
    makes: ClassVar = TokenUsage
    input_tokens: Count
    output_tokens: Count


class ErrorIn(Strict):
    type: Annotated[str, Field(pattern=f"^({'|'.join(sorted(ERROR_NAMES))})$")]
    message: Text

    @classmethod
    def computed(cls, error: Any) -> dict[str, Any]:
        return {"type": type(error).__name__, "message": str(error)}

    def made(self) -> Any:
        return agent_error(self.type, self.message)


class CallIn(Strict):
    makes: ClassVar[Any] = ToolCall
    id: Text
    name: Text
    arguments: Json


class MessageCallIn(CallIn):
    makes: ClassVar[Any] = _message_call
    type: Text = "function"
    description: Text | None = None

    @classmethod
    def computed(cls, call: Any) -> dict[str, Any]:
        return dict(vars(call.function))


class MessageIn(Strict):
    makes: ClassVar = ChatMessage
    role: _Role
    content: Output = None
    tool_calls: Annotated[list[MessageCallIn], Field(fail_fast=True)] | None = None
    token_usage: UsageIn | None = None


class StepIn(Strict):
    """Members of every step. `archived` is out of the prompt, `hidden` by a later reset or a rollback."""

    own: ClassVar = frozenset({"type", "turn", "archived", "hidden", "labels"})
    type: str
    turn: _Number
    archived: bool = False
    hidden: bool = False
    labels: list[_Label] = Field(default_factory=list, fail_fast=True)


class TaskIn(StepIn):
    makes: ClassVar = TaskStep
    task: Text
    task_images: _Images | None = None
    task_files: _Files | None = None

    @classmethod
    def computed(cls, step: Any) -> dict[str, Any]:
        return {"task_files": [file.name for file in stored_files(attached_files(step))] or None}


class PlanningIn(StepIn):
    makes: ClassVar = _planning_step
    plan: Text
    model_output_message: MessageIn
    timing: TimingIn
    token_usage: UsageIn | None = None


class ActionIn(StepIn):
    makes: ClassVar = ActionStep
    step_number: Count
    timing: TimingIn
    model_output: Output = None
    model_output_message: MessageIn | None = None
    tool_calls: Annotated[list[CallIn], Field(fail_fast=True)] | None = None
    code_action: Text | None = None
    observations: Text | None = None
    observations_images: _Images | None = None
    action_output: Json = None
    action_output_image: _Image | None = None
    action_output_file: _Image | None = None
    error: ErrorIn | None = None
    is_final_answer: bool = False
    shown_estimate: Count | None = None
    token_usage: UsageIn | None = None

    @classmethod
    def computed(cls, step: Any) -> dict[str, Any]:
        name, file = stored_image(step.action_output), stored_file(step.action_output)
        output = {"action_output": None} if name or file else {}
        named = {"action_output_image": name, "action_output_file": file}
        return {**named, "shown_estimate": shown_estimate(step), **output}


class NoteIn(StepIn):
    makes: ClassVar = NoteStep
    number: _Number
    text: Text
    replaces: _Number | None = None


class SummaryIn(StepIn):
    makes: ClassVar = SummaryStep
    text: Text
    recent: Count = 0
    input_tokens: Count | None = None
    output_tokens: Count | None = None


class EditIn(StepIn):
    """Change of the memory. Its numbers are distances to earlier entries."""

    makes: ClassVar = EditStep
    step: Annotated[Any, Encoder(_encode_edited)] = None
    of: Annotated[int, Field(ge=0, le=MAX_TURNS)] | None = None
    gone: _Runs | None = None
    order: _Runs | None = None

    @property
    def places(self) -> int:
        """Number of entries that it names."""
        return sum(first - last + 1 for runs in (self.gone, self.order) for first, last in runs or ())

    def check_runs(self, pointer: str) -> None:
        index = int(pointer.rpartition("/")[2])
        for name, runs in (("gone", self.gone), ("order", self.order)):
            if any(not index >= first >= last >= 0 for first, last in runs or ()):
                raise InvalidRequestError.at(
                    f"{pointer}/{name}", "holds a number that is no distance to an earlier entry"
                )
            if any(last <= first for (first, _), (_, last) in pairwise(sorted(runs or ()))):
                raise InvalidRequestError.at(f"{pointer}/{name}", "names an entry twice")


STEP_MODELS: dict[str, type[StepIn]] = {
    "task": TaskIn,
    "planning": PlanningIn,
    "action": ActionIn,
    "note": NoteIn,
    "summary": SummaryIn,
    "edit": EditIn,
}


def read_step(data: Any, pointer: str) -> StepIn:
    """Validate a step's members."""
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in STEP_MODELS:
        raise InvalidRequestError.at(f"{pointer}/type", f"is none of {', '.join(STEP_MODELS)}")
    return checked(STEP_MODELS[kind], data, pointer)


def made_step(step: StepIn, pointer: str, media: DocumentMedia) -> Step:
    """Return the step with its images and files."""
    fields = _edit_fields(step, pointer, media) if isinstance(step, EditIn) else step.fields()
    output, estimate = fields.pop("action_output_image", None), fields.pop("shown_estimate", None)
    files, output_file = fields.pop("task_files", None) or (), fields.pop("action_output_file", None)
    if (output or output_file) and (fields["action_output"] is not None or (output and output_file)):
        raise InvalidRequestError.at(f"{pointer}/action_output", "is there beside action_output_image or …_file")
    shown = {field: fields[field] for field in IMAGE_FIELDS if fields.get(field)}
    places = {f"/{field}/{index}": name for field, names in shown.items() for index, name in enumerate(names)}
    found = media.images.of_step(pointer, places | ({"/action_output_image": output} if output else {}))
    fields |= {field: [found[name] for name in names] for field, names in shown.items()}
    if output:
        fields["action_output"] = found[output]
    if output_file:
        fields["action_output"] = media.files.get(output_file, f"{pointer}/action_output_file")
    made: Step = type(step).makes(**fields)
    attach_files(made, [media.files.get(name, f"{pointer}/task_files/{at}") for at, name in enumerate(files)])
    if estimate is not None:
        set_shown_estimate(made, estimate)
    if step.labels:
        setattr(made, _LABELS, tuple(step.labels))
    return made


def _edit_fields(edit: EditIn, pointer: str, media: DocumentMedia) -> dict[str, Any]:
    inner = None
    if edit.step is not None:
        data = {**edit.step, "turn": edit.turn} if isinstance(edit.step, dict) else edit.step
        inner_in = read_step(data, f"{pointer}/step")
        if isinstance(inner_in, EditIn):
            raise InvalidRequestError.at(f"{pointer}/step/type", "is an edit, which no edit holds")
        inner = made_step(inner_in, f"{pointer}/step", media)
    edit.check_runs(pointer)
    gone, order = ([(a, b) for a, b in runs] if runs is not None else None for runs in (edit.gone, edit.order))
    return {"step": inner, "of": edit.of, "gone": gone, "order": order}


def stored_image(value: Any) -> str | None:
    if not isinstance(value, PIL.Image.Image):
        return None
    raw: Any = value.to_raw() if isinstance(value, AgentImage) else value
    return next((image.name for image in stored_images([raw])), None)


def stored_file(value: Any) -> str | None:
    return stored_files([value])[0].name if isinstance(value, File) else None
