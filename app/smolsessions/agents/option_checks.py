"""Checks at start of the options that an author sets on an agent."""

from __future__ import annotations

import importlib.util
import logging
import math

from smolagents import MultiStepAgent

from smolsessions.agents.models.providers import check_model
from smolsessions.agents.sandbox.limits import limits_of
from smolsessions.core.errors import StartError
from smolsessions.options import nearest, options_of

MAX_MODEL_RETRIES = 10
log = logging.getLogger(__name__)


def check_options(name: str, agent: MultiStepAgent) -> None:
    """Check the options of one agent. Raises `StartError`."""
    _refuse_attributes(name, agent)
    options = options_of(agent)
    unsafe = options.unsafe_to_repeat
    if not isinstance(unsafe, list | tuple | set | frozenset) or not set(unsafe) <= set(agent.tools):
        raise StartError(f"the agent {name!r} has unsafe_to_repeat = {unsafe!r}; make it a list of names of its tools")
    if options.executor not in {"child", "thread"}:
        raise StartError(f"the agent {name!r} has executor = {options.executor!r}; make it 'child' or 'thread'")
    if options.fingerprint is not None and not isinstance(options.fingerprint, str):
        raise StartError(f"the agent {name!r} has fingerprint = {options.fingerprint!r}; make it a text")
    if not isinstance(options.examples, list | tuple) or not all(isinstance(each, str) for each in options.examples):
        raise StartError(f"the agent {name!r} has examples that are no list of texts; make them one")
    deadline_s = options.deadline_s
    if deadline_s is not None and (type(deadline_s) not in {int, float} or not 0 < deadline_s < math.inf):
        raise StartError(f"the agent {name!r} has deadline_s = {deadline_s!r}; make it a number of seconds above 0")
    try:
        limits_of(options.code_limits)
    except (ValueError, AttributeError) as error:
        raise StartError(f"the code_limits of agent {name!r}: it {error}") from error
    _check_retries(name, agent)
    _refuse_audio(name, agent)
    check_model(name, agent)


def stored_classes_of(name: str, agent: MultiStepAgent) -> tuple[type, ...]:
    """Return the classes of the option `stored_classes`. Raises `StartError`."""
    stored_classes = options_of(agent).stored_classes
    if not isinstance(stored_classes, list | tuple | set | frozenset):
        raise StartError(f"the agent {name!r} has stored_classes={stored_classes!r}; make it a list of classes")
    for kind in stored_classes:
        if not isinstance(kind, type) or "." in kind.__qualname__:
            raise StartError(
                f"the agent {name!r} has {kind!r} in stored_classes; it must be a class at the top of its module"
            )
    return tuple(stored_classes)


def _refuse_attributes(name: str, agent: MultiStepAgent) -> None:
    """Refuse attributes of an agent, or of its own class, that look like options: they have no effect."""
    for attribute in sorted(_own_attributes(agent)):
        if option := nearest(attribute):
            advice = "" if option == attribute else ", or rename the attribute if you use it yourself"
            raise StartError(
                f"the agent {name!r} has an attribute {attribute!r}, and attributes set no options; remove it and "
                f"write smolsessions.options(agent, {option}=…) in the factory{advice}"
            )


def _own_attributes(agent: MultiStepAgent) -> set[str]:
    classes = [
        kind for kind in type(agent).__mro__ if kind is not object and not kind.__module__.startswith("smolagents")
    ]
    fields = {key for kind in classes for key, value in vars(kind).items() if not _is_code(value)}
    return {*vars(agent), *fields}


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def _refuse_audio(name: str, agent: MultiStepAgent) -> None:
    """Refuse tools with audio as smolagents has it: without torch they would fail after they ran, or at each call."""
    if importlib.util.find_spec("torch") is not None:
        return
    for tool in agent.tools.values():
        if getattr(tool, "output_type", None) == "audio":
            raise StartError(
                f"the tool {tool.name!r} of agent {name!r} has output_type = 'audio', which needs torch in smolagents; "
                "let it return smolsessions.Audio(data, media_type), with output_type = 'object'"
            )
        for key, schema in getattr(tool, "inputs", {}).items():
            if schema.get("type") == "audio":
                raise StartError(
                    f"the tool {tool.name!r} of agent {name!r} has an input {key!r} of the type 'audio', which is a "
                    "tensor of torch in smolagents; write 'any', and it gets smolsessions.Audio"
                )


def _check_retries(name: str, agent: MultiStepAgent) -> None:
    retries = options_of(agent).model_retries
    if type(retries) is not int or not 0 <= retries <= MAX_MODEL_RETRIES:
        raise StartError(f"the agent {name!r} has model_retries = {retries!r}; make it 0 to {MAX_MODEL_RETRIES}")
    hidden = getattr(getattr(agent.model, "client", None), "max_retries", 0)
    if isinstance(hidden, int) and hidden > 0:
        log.warning(
            "the model client of agent %r repeats failed calls %d times, unseen by the turn; pass "
            'client_kwargs={"max_retries": 0} to the model',
            name,
            hidden,
            extra={"action": "model.retries"},
        )
