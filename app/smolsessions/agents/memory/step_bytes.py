"""Data of steps ⇄ bytes: a pickle of built-in data, read by an unpickler that allows no class at all."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable, Collection, Mapping
from typing import Any

import PIL.Image
from smolagents.memory import ActionStep, MemoryStep, PlanningStep

from smolsessions.agents.memory.step_data import Data, StepDecoder, StepEncoder
from smolsessions.agents.memory.step_types import EditStep, Step
from smolsessions.agents.run.failures import is_swallowed_failure
from smolsessions.agents.values.images import image_from_bytes
from smolsessions.core.errors import SealBrokenError, ServiceError
from smolsessions.core.memories import PackedStep

log = logging.getLogger(__name__)

MAX_STEP_BYTES = 16 * 1024 * 1024
MAX_IMAGE_BYTES = 128 * 1024 * 1024


class StepTooLargeError(ServiceError, code="agent_error"):
    """A step of this turn is larger than the service keeps; let the tool return less."""


def is_finished(step: MemoryStep) -> bool:
    """False for the half step that smolagents appends when a run stops in the middle of it."""
    return not isinstance(step, ActionStep) or step.error is not None or step.observations is not None


def strip(step: MemoryStep) -> None:
    """Remove values of a finished step that are not read again, in place.

    These are the repeated history, the provider's own object and the frames of an error.
    """
    if isinstance(step, EditStep):
        if step.step is not None:
            strip(step.step)
    elif isinstance(step, ActionStep):
        step.model_input_messages = None
        if is_swallowed_failure(step.action_output):
            step.action_output = None  # an exception's text, which may hold a key
        if isinstance(step.error, BaseException):
            step.error.__traceback__ = step.error.__cause__ = step.error.__context__ = None
    elif isinstance(step, PlanningStep):
        step.model_input_messages = []
    message: Any = getattr(step, "model_output_message", None)
    if hasattr(message, "raw"):
        message.raw = None


def pack(step: MemoryStep, turn: int, stored_classes: Collection[type] = ()) -> PackedStep:
    """Strip a step, replace its values of a wrong type, and encode it."""
    strip(step)
    encoder = StepEncoder(stored_classes)
    data = encoder.encode(step)
    if encoder.replaced:
        inner = step.step if isinstance(step, EditStep) and step.step else step
        _replace(inner, data["step"] if inner is not step else data, encoder, stored_classes)
    return pack_data(data, turn, encoder.attachments)


def pack_data(data: Data, turn: int, attachments: dict[str, bytes]) -> PackedStep:
    """Encode the data of a step. Raises `StepTooLargeError`."""
    packed = pickle.dumps(data, protocol=5)
    if len(packed) > MAX_STEP_BYTES or max(map(len, attachments.values()), default=0) > MAX_IMAGE_BYTES:
        raise StepTooLargeError
    return PackedStep(data["type"], turn, packed, attachments)


def unpack(
    packed: bytes,
    attachments: Mapping[str, bytes],
    stored_classes: Collection[type] = (),
    open_image: Callable[[bytes], PIL.Image.Image] = image_from_bytes,
) -> Step:
    """Decode a step. Raises `SealBrokenError`."""
    data = unpack_data(packed)
    try:
        return StepDecoder(attachments, stored_classes, open_image).decode(data)
    except SealBrokenError:
        raise
    except Exception as error:  # of Pillow, and of classes of authors
        raise SealBrokenError(f"a stored step cannot be read ({type(error).__name__})") from error


def unpack_data(packed: bytes) -> Data:
    """Return the data of a step. No class is created, although the bytes come out of the seal."""
    try:
        data = _DataUnpickler(io.BytesIO(packed)).load()
    except Exception as error:  # pickle raises many kinds for damaged bytes
        raise SealBrokenError(f"a stored step cannot be read ({type(error).__name__})") from error
    if type(data) is not dict or "type" not in data:
        raise SealBrokenError("a stored step is no step")
    return data


def repair(step: MemoryStep) -> None:
    """Replace values of a wrong type in a step that is not stored."""
    encoder = StepEncoder(only_checks=True)
    data = encoder.encode(step)
    if encoder.replaced:
        _replace(step, data, encoder, ())


def _replace(step: MemoryStep, data: Data, encoder: StepEncoder, stored_classes: Collection[type]) -> None:
    """Take over the fields whose values a callback left with a wrong type, so that every reader finds its own."""
    log.warning(
        "a callback left a value of a wrong type in %s of a step; it was replaced: keep to smolagents' types",
        ", ".join(sorted(encoder.replaced)),
        extra={"action": "agent.step_restored"},
    )
    decoded = StepDecoder(encoder.attachments, stored_classes).decode(data)
    for name in encoder.replaced:
        setattr(step, name, getattr(decoded, name))


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise SealBrokenError(f"a stored step names {module}.{name}, and a step is plain data")
