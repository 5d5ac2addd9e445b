"""Requests of a waiting turn, asked in the terminal."""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack, suppress
from typing import Any

import click

from smolsessions.cli.remote import err, out, parse_json
from smolsessions.client import Answer
from smolsessions.wire.turns import InputRequest, ShownFile, ShownImage

_UNSEEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")
"""Characters that change the look of the text around them, or have none."""


def arguments_of(text: str) -> dict[str, Any]:
    """Read the arguments of a call. Raises `ValueError`."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("it is no object with a member for each argument")  # noqa: TRY004 - as for other text
    return found


def result_of(text: str) -> Any:
    """Read a result: JSON, or the text itself if it is none."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def ask(request: InputRequest) -> Answer:
    """Ask a person for the answer to a request. Raises `EOFError` and `KeyboardInterrupt`."""
    if request.kind == "question":
        return _answer(request)
    if request.kind == "result":
        return _result(request)
    again = ", again, as its arguments are other ones now" if request.replaces else ""
    out.print(f"\n{request.agent or 'the agent'} asks to call {request.tool}{again}:", style="yellow", markup=False)
    if request.tool == "python_interpreter" and isinstance(request.arguments, dict):
        out.print(_seen(str(request.arguments.get("code"))), markup=False)
    else:
        out.print(_seen(json.dumps(request.arguments, indent=2, ensure_ascii=False)), markup=False)
    media: list[ShownImage | ShownFile] = [*request.images, *request.files]
    for part in media:
        out.print(f"{_seen(part.pointer)}: {part.url} (SHA-256 {part.sha256})", markup=False)
    while True:
        match input("[a]pprove, [r]eject or [e]dit? ").strip().lower():
            case "a" | "approve":
                return {"request_id": request.request_id, "decision": "approve"}
            case "r" | "reject":
                reason = input("reason (may be empty): ").strip()
                answer: Answer = {"request_id": request.request_id, "decision": "reject"}
                if reason:
                    answer["reason"] = reason
                return answer
            case "e" | "edit":
                if (arguments := _edited(request)) is not None:
                    return {"request_id": request.request_id, "decision": "approve", "arguments": arguments}
            case _:
                err.print("write a, r or e", style="red")


def _answer(request: InputRequest) -> Answer:
    out.print(f"\n{request.question}", style="yellow", markup=False)
    choices = request.choices or []
    for number, choice in enumerate(choices, 1):
        out.print(f"  {number}. {choice}", markup=False)
    while True:
        text = input("number, or nothing to decline: " if choices else "answer, or nothing to decline: ").strip()
        if not text:
            if input("Decline to answer? [y/N] ").strip().lower() in {"y", "yes"}:
                return {"request_id": request.request_id, "decision": "reject"}
        elif not choices or text in choices:
            return {"request_id": request.request_id, "text": text}
        elif text.isdecimal() and 0 < int(text) <= len(choices):
            return {"request_id": request.request_id, "text": choices[int(text) - 1]}
        else:
            err.print(f"{text} is none of the choices; write a number from 1 to {len(choices)}", style="red")


def _result(request: InputRequest) -> Answer:
    out.print(f"\n{request.agent or 'the agent'} asks you to run {request.tool}:", style="yellow", markup=False)
    out.print(_seen(json.dumps(request.arguments, indent=2, ensure_ascii=False)), markup=False)
    while not (text := input("result as JSON or text, or nothing for none: ").strip()):
        if input("Send no result? [y/N] ").strip().lower() in {"y", "yes"}:
            return {"request_id": request.request_id, "error": "The user has no result."}
    return {"request_id": request.request_id, "result": result_of(text)}


def _edited(request: InputRequest) -> dict[str, Any] | None:
    """Return the arguments after a change, in an editor or in this line. None: they stay as they are."""
    text: str | None
    if os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        text = click.edit(_seen(json.dumps(request.arguments, indent=2, ensure_ascii=False)), extension=".json")
    else:
        line = _seen(json.dumps(request.arguments, ensure_ascii=False))
        with ExitStack() as stack:
            with suppress(ImportError):  # not on every platform
                import readline  # noqa: PLC0415 - see above

                readline.set_startup_hook(lambda: readline.insert_text(line))
                stack.callback(readline.set_startup_hook)
            text = input("all arguments as JSON: ")
    if not text or not text.strip():
        return None
    try:
        return arguments_of(text)
    except ValueError as error:
        err.print(f"these are no arguments: {error}; correct them", style="red", markup=False)
        return None


def _seen(text: str) -> str:
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)
