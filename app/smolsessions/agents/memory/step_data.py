"""Steps ⇄ data: the one form of a step, which the store, exports, imports and views share.

The data of a step is a dict with its type and the members that docs/export.md lists. All of it is JSON, except bytes.
Bytes are a value that JSON does not keep exactly, as the codec of `agents/values` encodes it. Images and files are
names of attachments. `attributes` holds additions of an author's callback to the step or its parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import floor, isfinite
from typing import Any

import PIL.Image
from smolagents import models
from smolagents.agent_types import AgentAudio, AgentText
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.monitoring import Timing

from smolsessions.agents.memory import step_types
from smolsessions.agents.models.token_usage import MAX_COUNT, details_of, usage_of_data
from smolsessions.agents.run.failures import is_swallowed_failure
from smolsessions.agents.values import CodecError, dumps, loads
from smolsessions.agents.values.images import image_from_bytes, image_to_bytes, name_image
from smolsessions.agents.values.json_forms import json_flaw, json_form, label_of
from smolsessions.agents.values.media import attach_files, attached_files, raw_image
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_NODES
from smolsessions.core.attachments import File, decode_file, encode_file
from smolsessions.core.errors import SealBrokenError
from smolsessions.core.media import image_name

Data = dict[str, Any]
log = logging.getLogger(__name__)

ROLES = frozenset(role.value for role in models.MessageRole)
_OWN_PREFIX = "smolsessions_"  # of the attributes that the service adds
_PARTS = dict.fromkeys(("action", "planning"), ("", "timing", "token_usage", "model_output_message"))
"""Owners of attributes: the step itself, and its parts."""
_COLLECTIONS = frozenset({list, tuple, set, frozenset})
_SCALARS = frozenset({str, float, bool, bytes, type(None)})
_NO_MESSAGE = models.ChatMessage(role=models.MessageRole.ASSISTANT, content=None)
_FORM_NODES = 100  # budget of a part that only has a JSON form


@dataclass(frozen=True, slots=True)
class Medium:
    """Stand-in for an image or a file inside an encoded value: the name of its attachment."""

    name: str


class StepEncoder:
    """Encoder of one step. A callback may leave any value in any field, so wrong types are replaced."""

    def __init__(self, stored_classes: Collection[type] = (), *, only_checks: bool = False) -> None:
        """With `only_checks`, values stay as they are. Only the images of a list with a wrong member are attached."""
        self._classes = (*stored_classes, Medium)
        self._only_checks = only_checks
        self._nodes_left = MAX_NODES
        self._exact: dict[int, Any] = {}
        """Values that JSON keeps exactly: a step and its message have the same arguments of calls."""
        self.attachments: dict[str, bytes] = {}
        self.replaced: set[str] = set()
        """Fields of the step that held a value of a wrong type."""

    def encode(self, step: Any) -> Data:
        data: Data = {"type": step_types.step_type(step)}
        match data["type"]:
            case "action":
                data |= self._action(step)
            case "task":
                data["task"] = self._text("task", step.task)
                data["task_images"] = self._images("task_images", step.task_images)
                data["task_files"] = [self._attach(encode_file(file)) for file in attached_files(step)] or None
            case "planning":
                data["plan"] = self._text("plan", step.plan)
                message = self._message(step.model_output_message)
                if message is None:
                    self.replaced.add("model_output_message")
                data["model_output_message"] = message or self._message(_NO_MESSAGE)
                data["timing"] = self._timing(step.timing)
                data["token_usage"] = self._usage("token_usage", step.token_usage)
            case "note":
                data["number"] = self._count("number", step.number)
                data["text"] = self._text("text", step.text)
                data["replaces"] = self._count("replaces", step.replaces, optional=True)
            case "summary":
                data["text"] = self._text("text", step.text)
                data["recent"] = self._count("recent", step.recent)
                for name in ("input_tokens", "output_tokens"):
                    data[name] = self._count(name, getattr(step, name), optional=True)
            case "edit":
                data |= {"step": step.step and self.encode(step.step), "of": step.of, "removed": step.removed}
        data["labels"] = list(getattr(step, step_types.LABELS, ()))
        attributes = {}
        for name in _PARTS.get(data["type"], ("",)):
            owner = getattr(step, name) if name else step
            fields = getattr(type(owner), "__dataclass_fields__", ())
            if fields and len(vars(owner)) > len(fields):
                added = sorted(vars(owner).keys() - fields.keys() - {step_types.ESTIMATE})
                if kept := [each for each in added if not each.startswith(_OWN_PREFIX)]:
                    attributes[name] = {each: self.value(vars(owner)[each]) for each in kept}
        return data | {"attributes": attributes} if attributes else data

    def value(self, value: Any) -> Any:
        """Return a value itself if JSON keeps it exactly, otherwise encoded as bytes.

        A part that has no encoding becomes its JSON form or its label.
        """
        if value is None or type(value) is str or id(value) in self._exact:
            return value
        if (self._only_checks and type(value) is not bytes) or json_flaw(value) is None:
            self._exact[id(value)] = value
            return value
        try:
            kept = self._kept(value, MAX_DEPTH)
            if json_flaw(kept) is not None:
                kept = dumps(kept, self._classes)
                loads(kept, self._classes)  # a value that cannot be decoded would make its conversation unreadable
        except (Exception, SystemExit):  # noqa: BLE001 - foreign classes may fail in any way; the step must survive
            return json_form(value)
        return kept

    def _kept(self, value: Any, depth: int) -> Any:
        """Copy the collections of a value, with stand-ins for media and JSON forms for parts without an encoding."""
        kind: Any = type(value)
        self._nodes_left -= 1
        if self._nodes_left < 0 or depth == 0:
            raise ValueError("the value has too many parts, or too many levels")
        if kind in _COLLECTIONS:
            return kind([self._kept(part, depth - 1) for part in value])
        if kind is dict:
            return {self._kept(key, depth - 1): self._kept(part, depth - 1) for key, part in value.items()}
        if kind is AgentText:
            value, kind = str.__str__(value), str
        if name := self._medium(value):
            return Medium(name)
        with suppress(CodecError):
            if kind in _SCALARS or (kind is not AgentAudio and dumps(value, self._classes)):
                return value
        self._nodes_left -= _FORM_NODES
        return label_of(value) if kind is AgentAudio else json_form(value)

    def _action(self, step: Any) -> Data:
        text, optional, name = self._text, self._optional_text, "tool_calls"
        calls = self._members(name, step.tool_calls, ToolCall)
        output, error, is_final = step.action_output, step.error, step.is_final_answer
        medium, is_file = self._medium(output), issubclass(type(output), File)
        if medium or is_swallowed_failure(output):
            output = None  # an exception's text may hold a key
        if error is not None:
            known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in step_types.ERRORS), None)
            if known is None:
                self.replaced.add("error")
            error = {"type": known or "AgentError", "message": _text_of(error)}
        if type(is_final) is not bool:
            self.replaced.add("is_final_answer")
            is_final = issubclass(type(is_final), int) and is_final == 1
        return {
            "step_number": self._count("step_number", step.step_number),
            "timing": self._timing(step.timing),
            "model_output": self._parts("model_output", step.model_output),
            "model_output_message": self._message(step.model_output_message),
            "tool_calls": calls
            and [
                {"id": optional(name, call.id), "name": text(name, call.name), "arguments": self.value(call.arguments)}
                for call in calls
            ],
            "code_action": optional("code_action", step.code_action),
            "observations": optional("observations", step.observations),
            "observations_images": self._images("observations_images", step.observations_images),
            "action_output": self.value(output),
            "action_output_image": None if is_file else medium,
            "action_output_file": medium if is_file else None,
            "error": error,
            "is_final_answer": is_final,
            "shown_estimate": self._count(step_types.ESTIMATE, getattr(step, step_types.ESTIMATE, None), optional=True),
            "token_usage": self._usage("token_usage", step.token_usage),
        }

    def _text(self, name: str, value: Any) -> str:
        if issubclass(type(value), str):
            return str.__str__(value)
        self.replaced.add(name)
        return _text_of(value)

    def _optional_text(self, name: str, value: Any) -> str | None:
        return value if value is None or type(value) is str else self._text(name, value)

    def _parts(self, name: str, value: Any) -> Any:
        """Return a model's output: a text, a list of content parts, or None."""
        is_parts = type(value) is list and all(type(part) is dict for part in value)
        return self.value(value) if is_parts else self._optional_text(name, value)

    def _count(self, name: str, value: Any, *, optional: bool = False) -> int | None:
        if optional and value is None:
            return None
        if issubclass(type(value), int) and 0 <= value <= MAX_COUNT:
            return int(value)
        self.replaced.add(name)
        return 0

    def _timing(self, timing: Any) -> Data:
        try:
            start, end = timing.start_time, timing.end_time
            if isfinite(start) and (end is None or isfinite(end)):
                return {"start_time": float(start), "end_time": None if end is None else float(end)}
        except (AttributeError, TypeError, OverflowError):
            pass  # they are no numbers, or integers that no float can hold
        self.replaced.add("timing")
        return {"start_time": 0.0, "end_time": None}

    def _usage(self, name: str, usage: Any) -> Data | None:
        try:
            if usage is None:
                return None
            read, written = floor(usage.input_tokens), floor(usage.output_tokens)
            if 0 <= read <= MAX_COUNT and 0 <= written <= MAX_COUNT:
                return {"input_tokens": read, "output_tokens": written, **details_of(usage)}
        except (AttributeError, TypeError, ValueError, OverflowError):
            pass  # they are no finite numbers
        self.replaced.add(name)
        return None

    def _members(self, name: str, values: Any, kind: type) -> list[Any] | None:
        """Return the members of this class, or None if the value is no list."""
        if values is None:
            return None
        members = [each for each in values if isinstance(each, kind)] if isinstance(values, (list, tuple)) else None
        if members is None or len(members) < len(values):
            self.replaced.add(name)
        return members

    def _message(self, message: Any) -> Data | None:
        name, text, optional = "model_output_message", self._text, self._optional_text
        if not isinstance(message, models.ChatMessage):
            if message is not None:
                self.replaced.add(name)
            return None
        role = getattr(message.role, "value", message.role)
        if type(role) is not str or role not in ROLES:
            self.replaced.add(name)
            role = models.MessageRole.ASSISTANT.value
        calls = self._members(name, message.tool_calls, models.ChatMessageToolCall)
        if calls and not all(isinstance(call.function, models.ChatMessageToolCallFunction) for call in calls):
            self.replaced.add(name)
            calls = None
        return {
            "role": role,
            "content": self._parts(name, message.content),
            "tool_calls": calls
            and [
                {
                    "id": optional(name, call.id),
                    "name": text(name, call.function.name),
                    "arguments": self.value(call.function.arguments),
                    "type": text(name, call.type),
                    "description": optional(name, call.function.description),
                }
                for call in calls
            ],
            "token_usage": self._usage(name, message.token_usage),
        }

    def _images(self, name: str, images: Any) -> list[str] | None:
        members = self._members(name, images, PIL.Image.Image)
        if self._only_checks and name not in self.replaced:
            return []
        return members and [stored for image in members if (stored := self._image(image))]

    def _medium(self, value: Any) -> str | None:
        """Attach an image or a file and return its name. None for other values, and for an image that is unreadable."""
        if self._only_checks:
            return None
        if issubclass(type(value), File):
            return self._attach(encode_file(value))
        return self._image(value) if issubclass(type(value), PIL.Image.Image) else None

    def _image(self, image: PIL.Image.Image) -> str | None:
        """Attach an image and return its name. None if it cannot be read."""
        try:
            raw: Any = raw_image(image)
            name = self._attach(image_to_bytes(raw))
            name_image(raw, name)
        except Exception as error:  # noqa: BLE001 - Pillow fails in many ways, and `raw` may be None
            log.warning(
                "an image of a step cannot be read (%s); it is left out",
                type(error).__name__,
                extra={"action": "image.unreadable"},
            )
            return None
        return name

    def _attach(self, data: bytes) -> str:
        self.attachments[name := image_name(data)] = data
        return name


class StepDecoder:
    def __init__(
        self,
        attachments: Mapping[str, bytes],
        stored_classes: Collection[type] = (),
        open_image: Callable[[bytes], PIL.Image.Image] = image_from_bytes,
    ) -> None:
        self._attachments = attachments
        self._classes = (*stored_classes, Medium)
        self._open_image = open_image

    def decode(self, data: Data) -> step_types.Step:
        """Raises `SealBrokenError` for an attachment that is missing or a value that is unreadable."""
        step: step_types.Step
        match data["type"]:
            case "task":
                step = TaskStep(data["task"], self._media(data["task_images"]))
                attach_files(step, self._media(data["task_files"]) or ())
            case "planning":
                message, timing = self._message(data["model_output_message"]), Timing(**data["timing"])
                usage = usage_of_data(data["token_usage"])
                step = PlanningStep([], message, data["plan"], timing, usage)
            case "action":
                step = self._action(data)
            case "note":
                step = step_types.NoteStep(data["number"], data["text"], data["replaces"])
            case "summary":
                step = step_types.SummaryStep(data["text"], data["recent"], data["input_tokens"], data["output_tokens"])
            case "edit":
                step = step_types.EditStep(data["step"] and self.decode(data["step"]), data["of"], data["removed"])
            case kind:
                raise SealBrokenError(f"a stored step is of no known type: {kind!r:.40}")
        if data["labels"]:
            setattr(step, step_types.LABELS, tuple(data["labels"]))
        for part, added in data.get("attributes", {}).items():
            for name, value in added.items():
                setattr(getattr(step, part) if part else step, name, self.value(value))
        return step

    def value(self, data: Any) -> Any:
        """Return a value of the data, decoded if it is bytes."""
        if type(data) is not bytes:
            return data
        try:
            value = loads(data, self._classes)
        except CodecError as error:
            raise SealBrokenError(f"a value in a stored step cannot be read: {error}") from error
        return self._with_media(value) if Medium.__qualname__.encode() in data else value

    def output(self, data: Data) -> Any:
        name = data["action_output_image"] or data["action_output_file"]
        return self.medium(name) if name else self.value(data["action_output"])

    def medium(self, name: str) -> Any:
        if name not in self._attachments:
            raise SealBrokenError("an image or a file of a stored step is missing")
        stored = self._attachments[name]
        if file := decode_file(stored):
            return file
        image = self._open_image(stored)
        name_image(image, name)
        return image

    def _media(self, names: list[str] | None) -> list[Any] | None:
        return names and [self.medium(name) for name in names]

    def _with_media(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is Medium:
            return self.medium(value.name)
        if kind in _COLLECTIONS:
            return kind([self._with_media(part) for part in value])
        return {key: self._with_media(part) for key, part in value.items()} if kind is dict else value

    def _action(self, data: Data) -> ActionStep:
        calls, error, usage = data["tool_calls"], data["error"], usage_of_data(data["token_usage"])
        message = data["model_output_message"] and self._message(data["model_output_message"])
        if message and usage and message.token_usage == usage:
            message.token_usage = usage  # one object, as smolagents has it
        step = ActionStep(
            step_number=data["step_number"],
            timing=Timing(**data["timing"]),
            tool_calls=calls and [ToolCall(call["name"], self.value(call["arguments"]), call["id"]) for call in calls],
            error=error and step_types.agent_error(error["type"], error["message"]),
            model_output_message=message,
            model_output=self.value(data["model_output"]),
            code_action=data["code_action"],
            observations=data["observations"],
            observations_images=self._media(data["observations_images"]),
            action_output=self.output(data),
            token_usage=usage,
            is_final_answer=data["is_final_answer"],
        )
        if data["shown_estimate"] is not None:
            setattr(step, step_types.ESTIMATE, data["shown_estimate"])
        return step

    def _message(self, data: Data) -> models.ChatMessage:
        calls = data["tool_calls"]
        return models.ChatMessage(
            role=models.MessageRole(data["role"]),
            content=self.value(data["content"]),
            tool_calls=calls
            and [
                models.ChatMessageToolCall(
                    models.ChatMessageToolCallFunction(
                        self.value(call["arguments"]), call["name"], call["description"]
                    ),
                    call["id"],
                    call["type"],
                )
                for call in calls
            ],
            token_usage=usage_of_data(data["token_usage"]),
        )


def _text_of(value: Any) -> str:
    try:
        return str.__str__(str(value if isinstance(value, Exception) else json_form(value)))
    except Exception:  # noqa: BLE001 - a foreign exception's own text
        return str(json_form(value))
