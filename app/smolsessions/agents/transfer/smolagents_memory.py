"""Decode steps of smolagents' own `agent.memory.get_full_steps()`, also after JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from smolagents.memory import ActionStep, PlanningStep, TaskStep
from smolagents.models import ChatMessage, MessageRole

from smolsessions.agents.transfer.document_models import Count, Json, Output, Strict, Text, checked
from smolsessions.agents.transfer.step_decoding import (
    CallIn,
    ErrorIn,
    MessageCallIn,
    TimingIn,
    UsageIn,
    calls_of,
    error_of,
    message_call,
)
from smolsessions.core.errors import InvalidRequestError

_ROLES = {role.name: role for role in MessageRole} | {role.value: role for role in MessageRole}


def _role(value: Any) -> Any:
    """Accept a role as a member, its value, or its `str()`."""
    name = value.removeprefix("MessageRole.") if type(value) is str else value
    return _ROLES.get(name, value) if isinstance(name, str) else value


class _Timing(TimingIn):
    duration: Any = None


class _Usage(UsageIn):
    total_tokens: Any = None


class _Function(Strict):
    name: Text
    arguments: Json
    description: Text | None = None


class _Call(Strict):
    id: Text
    type: Text = "function"
    function: _Function

    def plain(self) -> CallIn:
        return CallIn(id=self.id, name=self.function.name, arguments=self.function.arguments)

    def of_message(self) -> MessageCallIn:
        return MessageCallIn(id=self.id, type=self.type, **self.function.__dict__)


_Calls = Annotated[list[_Call], Field(fail_fast=True)]


class _Message(Strict):
    role: Annotated[MessageRole, BeforeValidator(_role)]
    content: Json = None
    tool_calls: _Calls | None = None
    raw: Any = None
    token_usage: _Usage | None = None

    def made(self) -> ChatMessage:
        content = self.content
        is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
        if not (content is None or isinstance(content, str) or is_parts):
            content = json.dumps(content, ensure_ascii=False)  # a text that looked like JSON: smolagents reads those
        calls = [message_call(call.of_message()) for call in self.tool_calls] if self.tool_calls else None
        return ChatMessage(self.role, content, calls, token_usage=self.token_usage.made() if self.token_usage else None)


class _Task(Strict):
    task: Text
    task_images: Any = None

    def made(self, pointer: str) -> TaskStep:
        _check_no_images(self.task_images, f"{pointer}/task_images")
        return TaskStep(self.task)


class _Planning(Strict):
    plan: Text
    model_input_messages: Any = None
    model_output_message: _Message | None = None
    timing: _Timing
    token_usage: _Usage | None = None

    def made(self, _pointer: str) -> PlanningStep:
        message = self.model_output_message
        said = message.made() if message else ChatMessage(MessageRole.ASSISTANT, self.plan)
        usage = self.token_usage.made() if self.token_usage else None
        return PlanningStep([], said, self.plan, self.timing.made(), usage)


class _Action(Strict):
    step_number: Count
    timing: _Timing
    model_input_messages: Any = None
    tool_calls: _Calls | None = None
    error: ErrorIn | None = None
    model_output_message: _Message | None = None
    model_output: Output = None
    code_action: Text | None = None
    observations: Text | None = None
    observations_images: Any = None
    action_output: Json = None
    token_usage: _Usage | None = None
    is_final_answer: bool = False

    def made(self, pointer: str) -> ActionStep:
        _check_no_images(self.observations_images, f"{pointer}/observations_images")
        return ActionStep(
            self.step_number,
            self.timing.made(),
            tool_calls=calls_of([call.plain() for call in self.tool_calls or ()] or None),
            error=error_of(self.error, f"{pointer}/error"),
            model_output_message=self.model_output_message.made() if self.model_output_message else None,
            model_output=self.model_output,
            code_action=self.code_action,
            observations=self.observations,
            action_output=self.action_output,
            token_usage=self.token_usage.made() if self.token_usage else None,
            is_final_answer=self.is_final_answer,
        )


class _SystemPrompt(Strict):
    system_prompt: Text

    def made(self, _pointer: str) -> None:
        return None


_MARKS: dict[str, type[_Task | _Planning | _Action | _SystemPrompt]] = {
    "task": _Task,
    "plan": _Planning,
    "step_number": _Action,
    "system_prompt": _SystemPrompt,
}


def read_memory_step(data: Any, pointer: str) -> TaskStep | PlanningStep | ActionStep | None:
    """Return the step of a smolagents dict. Its members show its type. Returns None for a system prompt."""
    kinds = [kind for mark, kind in _MARKS.items() if mark in data] if isinstance(data, dict) else []
    if not kinds:
        raise InvalidRequestError.at(pointer, f"is no step of smolagents: it has none of {', '.join(_MARKS)}")
    return checked(kinds[0], data, pointer).made(pointer)


def _check_no_images(images: Any, pointer: str) -> None:
    if images:
        raise InvalidRequestError.at(
            pointer, "holds images as smolagents gives them, pixels without a size; put null in their place"
        )
