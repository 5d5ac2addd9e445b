"""Plain form of a usual step (`agents/memory/plain_steps.py`) → the JSON data that `encode_step` makes of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolsessions.agents.memory.plain_steps import ROLE
from smolsessions.agents.transfer.document_models import encode_count, encode_json, encode_output, encode_text
from smolsessions.agents.transfer.step_models import stored_image
from smolsessions.agents.values.json_forms import utf8_text

if TYPE_CHECKING:
    from smolsessions.agents.memory.plain_steps import Plain

_MESSAGE = "/model_output_message"


def encode_plain(plain: Plain) -> dict[str, Any]:
    if isinstance(plain, str):
        return {"type": "task", "task": utf8_text(plain), "task_images": None, "labels": []}
    number, start, end, calls, message, output, code, observations, result, tokens, is_final, shown = plain
    labels = set[str]()
    image = stored_image(result)
    return {
        "type": "action",
        "step_number": encode_count(number),
        "timing": {"start_time": start, "end_time": end},
        "model_output": output and utf8_text(output),
        "model_output_message": None if message is None else _message(message, labels),
        "tool_calls": None if calls is None else [_call(*one, labels) for one in enumerate(calls)],
        "code_action": code and utf8_text(code),
        "observations": observations and utf8_text(observations),
        "observations_images": None,
        "action_output": None if image else encode_json(result, "/action_output", labels),
        "action_output_image": image,
        "error": None,
        "is_final_answer": is_final,
        "shown_estimate": None if shown is None else encode_count(shown),
        "token_usage": _usage(tokens),
        "labels": sorted(labels),
    }


def _call(place: int, call: tuple[str, Any, str], labels: set[str]) -> dict[str, Any]:
    name, arguments, call_id = call
    arguments = encode_json(arguments, f"/tool_calls/{place}/arguments", labels)
    return {"id": utf8_text(call_id), "name": utf8_text(name), "arguments": arguments}


def _message(message: tuple[Any, ...], labels: set[str]) -> dict[str, Any]:
    content, calls, tokens = message
    return {
        "role": ROLE.value,
        "content": encode_output(content, f"{_MESSAGE}/content", labels),
        "tool_calls": None if calls is None else [_request(*one, labels) for one in enumerate(calls)],
        "token_usage": _usage(tokens),
    }


def _request(place: int, call: Any, labels: set[str]) -> dict[str, Any]:
    (arguments, name, description), call_id, kind = call
    pointer = f"{_MESSAGE}/tool_calls/{place}"
    return {
        "id": encode_text(call_id, f"{pointer}/id", labels),
        "name": encode_text(name, f"{pointer}/name", labels),
        "arguments": encode_json(arguments, f"{pointer}/arguments", labels),
        "type": encode_text(kind, f"{pointer}/type", labels),
        "description": None if description is None else encode_text(description, f"{pointer}/description", labels),
    }


def _usage(tokens: tuple[int, int] | None) -> dict[str, int] | None:
    return tokens and {"input_tokens": encode_count(tokens[0]), "output_tokens": encode_count(tokens[1])}
