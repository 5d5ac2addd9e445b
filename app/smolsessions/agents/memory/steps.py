"""Steps ⇄ bytes: the only pickle of steps. An exact list of classes bounds unpickling.

smolagents' own values survive, and so does plain data of a user's tool. Other values become JSON if they have a JSON
form, and a labelled text otherwise, unless the agent declares their class in `stored_classes`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import io
import logging
import pickle
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar, cast

import PIL.Image
from smolagents.agent_types import AgentAudio, AgentImage, AgentText
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage
from smolagents.utils import AgentError

from smolsessions.agents.memory.plain_steps import Plain, holds_data_only, plain_form, step_of
from smolsessions.agents.memory.step_fields import error_of, repair_fields
from smolsessions.agents.memory.step_types import EditStep, NoteStep, SummaryStep
from smolsessions.agents.run.failures import is_swallowed_failure
from smolsessions.agents.values.images import image_from_bytes, image_to_bytes, name_image
from smolsessions.agents.values.json_forms import json_form, label_of
from smolsessions.core.attachments import File, decode_file, encode_file
from smolsessions.core.errors import SealBrokenError, ServiceError
from smolsessions.core.media import image_name
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import EntryType

log = logging.getLogger(__name__)

T = TypeVar("T")
Step = TaskStep | PlanningStep | ActionStep | NoteStep | SummaryStep | EditStep
MAX_STEP_BYTES = 16 * 1024 * 1024
MAX_IMAGE_BYTES = 128 * 1024 * 1024

_STEP_CLASSES: tuple[type, ...] = (
    *(TaskStep, PlanningStep, ActionStep, NoteStep, SummaryStep, EditStep, ToolCall, Timing, TokenUsage),
    *(ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole),
)
_DATA_CLASSES: tuple[type, ...] = (
    *(dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(set, frozenset, complex, bytearray, range),
)
_TYPES: dict[type, EntryType] = {
    TaskStep: "task",
    PlanningStep: "planning",
    NoteStep: "note",
    SummaryStep: "summary",
    EditStep: "edit",
    ActionStep: "action",
}


class StepTooLargeError(ServiceError, code="agent_error"):
    """A step of this turn is larger than the service keeps; let the tool return less."""


def is_finished(step: MemoryStep) -> bool:
    """False for the half step that smolagents appends when a run stops in the middle of it."""
    return not isinstance(step, ActionStep) or step.error is not None or step.observations is not None


def strip(step: MemoryStep) -> Plain | None:
    """Repair a finished step and remove values that are not read again, in place. Return its plain form, if any.

    These are the repeated history, the provider's own object and the frames of an error.
    """
    if isinstance(step, EditStep):
        if step.step is not None:
            strip(step.step)
        return None
    if isinstance(step, ActionStep) and is_swallowed_failure(step.action_output):
        step.action_output = None  # an exception's text, which may hold a key
    plain = plain_form(step)
    if plain is None:
        _repair(step)
    if isinstance(step, ActionStep):
        step.model_input_messages = None
    elif isinstance(step, PlanningStep):
        step.model_input_messages = []
    message = getattr(step, "model_output_message", None)
    if message is not None:
        message.raw = None
    return plain


def pack(step: MemoryStep, turn: int, stored_classes: Iterable[type] = (), *, is_data: bool = False) -> PackedStep:
    """Strip and encode a step. Bytes that might not decode are decoded once, so a committed step is readable.

    `is_data` skips that: the step consists of JSON data and decoded images.
    """
    classes = frozenset(stored_classes)
    plain = strip(step)
    try:
        data, attachments, is_safe = _dump(step if plain is None else plain, classes)
        if not (is_safe or is_data):
            unpack(data, attachments, classes)
    except StepTooLargeError:
        raise
    except BaseException:  # noqa: BLE001 - foreign classes may fail in any way, even exit; the step must survive
        data, attachments, _ = _dump(_simplify(step, classes), classes)
        unpack(data, attachments, classes)
    return PackedStep(step_type(step), turn, data, attachments)


def pack_plain(plain: Plain, turn: int) -> PackedStep:
    """Encode the plain form of a step whose values are JSON data."""
    data = pickle.dumps(plain, 5)
    if len(data) > MAX_STEP_BYTES:
        raise StepTooLargeError
    return PackedStep("task" if isinstance(plain, str) else "action", turn, data, {})


def unpack(
    data: bytes,
    attachments: dict[str, bytes],
    stored_classes: Iterable[type] = (),
    open_image: Callable[[bytes], PIL.Image.Image] = image_from_bytes,
) -> Step:
    """Decode a step. Only listed classes are created, although the bytes come out of the seal."""
    return unpack_as(step_of, data, attachments, stored_classes, open_image)


def unpack_as(
    of_plain: Callable[[Plain], T],
    data: bytes,
    attachments: dict[str, bytes],
    stored_classes: Iterable[type],
    open_image: Callable[[bytes], PIL.Image.Image],
) -> T | Step:
    """Decode a step as `unpack` does, but return `of_plain` of its plain form if it has one."""
    try:
        try:
            stored = _PlainUnpickler(io.BytesIO(data)).load()
        except _NotPlainError:
            stored = _Unpickler(io.BytesIO(data), attachments, stored_classes, open_image).load()
        if type(stored) is str or type(stored) is tuple:
            return of_plain(stored)
    except SealBrokenError:
        raise
    except Exception as error:
        raise SealBrokenError(f"a stored step cannot be read ({type(error).__name__})") from error
    if not isinstance(stored, Step):
        raise SealBrokenError("a stored step is no step")
    repair_fields(stored.step if isinstance(stored, EditStep) and stored.step else stored)
    return stored


def agent_error(name: str, message: str) -> AgentError:
    """Return an error of smolagents with a name from `ERROR_NAMES`."""
    return error_of(_ERRORS[name], message)


def step_type(step: MemoryStep) -> EntryType:
    if known := _TYPES.get(type(step)):
        return known
    return next((name for kind, name in _TYPES.items() if isinstance(step, kind)), "action")


def _repair(step: MemoryStep) -> None:
    if names := repair_fields(step):
        log.warning(
            "a callback left a value of a wrong type in %s of a step; it was replaced: keep to smolagents' types",
            ", ".join(names),
            extra={"action": "agent.step_restored"},
        )
    if isinstance(step, ActionStep) and step.error is not None:
        step.error.__traceback__ = step.error.__cause__ = step.error.__context__ = None


def _dump(step: Any, stored_classes: frozenset[type]) -> tuple[bytes, dict[str, bytes], bool]:
    if (type(step) is str or type(step) is tuple) and holds_data_only(step):  # a pickler costs five times as much
        data = pickle.dumps(step, 5)
        if len(data) > MAX_STEP_BYTES:
            raise StepTooLargeError
        return data, {}, True
    file = io.BytesIO()
    pickler = _Pickler(file, stored_classes)
    pickler.dump(step)
    largest = max(map(len, pickler.attachments.values()), default=0)
    if file.tell() > MAX_STEP_BYTES or largest > MAX_IMAGE_BYTES:
        raise StepTooLargeError
    return file.getvalue(), pickler.attachments, pickler.is_safe


def _simplify(step: Any, stored_classes: frozenset[type]) -> Any:
    """Copy a step with a label in place of each value that cannot be stored."""
    if isinstance(step, EditStep):
        return replace(step, step=_simplify(step.step, stored_classes))
    if not isinstance(step, ActionStep):
        return step
    fields = vars(step) | {"action_output": _value_or_label(step.action_output, stored_classes)}
    if step.tool_calls:
        calls = [
            ToolCall(call.name, _value_or_label(call.arguments, stored_classes), call.id) for call in step.tool_calls
        ]
        fields["tool_calls"] = calls
    message = step.model_output_message
    if message is not None and _value_or_label(message, stored_classes) is not message:
        fields["model_output_message"] = ChatMessage(role=message.role, content=label_of(message.content))
    return ActionStep(**fields)


def _value_or_label(value: Any, stored_classes: frozenset[type]) -> Any:
    file = io.BytesIO()
    pickler = _Pickler(file, stored_classes)
    try:
        pickler.dump(value)
        _Unpickler(io.BytesIO(file.getvalue()), pickler.attachments, stored_classes).load()
    except BaseException:  # noqa: BLE001 - see pack
        return label_of(value)
    return value


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, stored_classes: frozenset[type]) -> None:
        super().__init__(file, protocol=5)
        self._allowed = _ALLOWED_IDS.union(map(id, stored_classes)) if stored_classes else _ALLOWED_IDS
        self.attachments: dict[str, bytes] = {}
        self.is_safe = True
        """True until a value is neither plain data nor of smolagents' own classes."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if id(kind) in _STEP_IDS or id(obj) in _STEP_IDS:
            return _reduce(obj, kind) if kind is MessageRole else NotImplemented
        self.is_safe = False
        if id(kind) in self._allowed or id(obj) in self._allowed:
            return _reduce(obj, kind)
        if issubclass(kind, AgentError):
            known = next(c.__name__ for c in kind.__mro__ if c.__name__ in _ERRORS)
            return agent_error, (known, str(obj))
        if issubclass(kind, PIL.Image.Image):
            return _image, (self._attach_image(obj), issubclass(kind, AgentImage))
        if issubclass(kind, File):
            return _file, (self._attach(encode_file(obj)),)
        text = str(obj) if kind is AgentText else label_of(obj) if kind is AgentAudio else json_form(obj)
        return _value, (text,)

    def _attach_image(self, image: PIL.Image.Image) -> str:
        raw = cast("PIL.Image.Image", image.to_raw()) if isinstance(image, AgentImage) else image
        data = image_to_bytes(raw)
        name = self._attach(data)
        name_image(raw, name)
        return name

    def _attach(self, data: bytes) -> str:
        name = image_name(data)
        self.attachments[name] = data
        return name


class _NotPlainError(Exception):
    """A pickle names a class."""


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of built-in data, which most steps are. One with attributes costs a third more."""

    def find_class(self, _module: str, _name: str) -> Any:
        raise _NotPlainError


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        attachments: dict[str, bytes],
        stored_classes: Iterable[type],
        open_image: Callable[[bytes], PIL.Image.Image] = image_from_bytes,
    ) -> None:
        super().__init__(file)
        self._attachments = attachments
        self._open_image = open_image
        self._allowed = _ALLOWED
        if stored_classes:
            self._allowed = _ALLOWED | {(kind.__module__, kind.__qualname__): kind for kind in stored_classes}

    def find_class(self, module: str, name: str) -> Any:
        found = self._allowed.get((module, name))
        if found is None:
            raise SealBrokenError(f"a stored step holds {module}.{name}, which this agent does not carry")
        return self._image if found is _image else self._file if found is _file else found

    def _attached(self, name: str) -> bytes:
        if name not in self._attachments:
            raise SealBrokenError("an image or a file of a stored step is missing")
        return self._attachments[name]

    def _file(self, name: str) -> Any:
        return decode_file(self._attached(name))

    def _image(self, name: str, is_agent_image: bool) -> Any:
        image = self._open_image(self._attached(name))
        name_image(image, name)
        return AgentImage(image) if is_agent_image else image


def _reduce(obj: Any, kind: type) -> Any:
    """Reduce an enum's member to (class, value). Python before 3.11.4 reduces it to `getattr`."""
    if isinstance(kind, enum.EnumType) and kind.__reduce_ex__ in _ENUM_REDUCERS:
        return kind, (obj._value_,)
    return NotImplemented


def _value(value: object) -> object:
    return value


def _image(name: str, is_agent_image: bool) -> Any:
    """Stand-in in the pickle for the method of the unpickler."""
    raise AssertionError(name, is_agent_image)


def _file(name: str) -> Any:
    """Stand-in as `_image`."""
    raise AssertionError(name)


def _subclasses(kind: type[AgentError]) -> dict[str, type[AgentError]]:
    found = {kind.__name__: kind}
    for child in kind.__subclasses__():
        if child.__module__ == kind.__module__:
            found |= _subclasses(child)
    return found


_ERRORS = _subclasses(AgentError)
ERROR_NAMES = frozenset(_ERRORS)
_ENUM_REDUCERS: tuple[Any, ...] = (enum.Enum.__reduce_ex__, enum.Flag.__reduce_ex__)
_ALL: tuple[Any, ...] = (*_STEP_CLASSES, *_DATA_CLASSES, _value, agent_error, _image, _file)
_ALLOWED: dict[tuple[str, str], Any] = {(thing.__module__, thing.__qualname__): thing for thing in _ALL}
# By identity: a foreign class may answer == and hash() with code of its own.
_STEP_IDS = frozenset(map(id, _STEP_CLASSES))
_ALLOWED_IDS = frozenset(map(id, _ALL))
