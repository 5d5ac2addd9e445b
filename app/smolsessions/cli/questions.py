"""Requests of a waiting turn, asked in the terminal."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import click

from smolsessions.cli.remote import err, out
from smolsessions.client import Answer
from smolsessions.wire.turns import InputRequest, ShownFile, ShownImage

_UNSEEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")
"""Characters that change the look of the text around them, or have none."""


def ask(request: InputRequest) -> Answer:
    """Ask a person for the answer to a request. Raises `EOFError` and `KeyboardInterrupt`."""
    return _answer(request) if request.kind == "question" else _decision(request)


def arguments_of(text: str) -> dict[str, Any]:
    """Read the arguments of a call. Raises `ValueError`."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object with a member for each argument")  # noqa: TRY004 - as for other text
    return found


def _decision(request: InputRequest) -> Answer:
    again = ", again, as its arguments are other ones now" if request.replaces else ""
    out.print(f"\n{request.agent or 'the agent'} asks to call {request.tool}{again}:", style="yellow", markup=False)
    out.print(_shown(request), markup=False)
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


def _edited(request: InputRequest) -> dict[str, Any] | None:
    """Return the arguments after a change. None: they stay as they are."""
    text = json.dumps(request.arguments, indent=2, ensure_ascii=False)
    if os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        changed = click.edit(_seen(text), extension=".json")
    else:
        changed = _changed("all arguments as JSON: ", json.dumps(request.arguments, ensure_ascii=False))
    if not changed or not changed.strip():
        return None
    try:
        return arguments_of(changed)
    except ValueError as error:
        err.print(f"these are no arguments: {error}; mend them", style="red", markup=False)
        return None


def _changed(prompt: str, text: str) -> str:
    """Ask for a line, with a text to change if the terminal can edit lines."""
    try:
        import readline  # noqa: PLC0415 - not on every platform
    except ImportError:
        return input(prompt)
    readline.set_startup_hook(lambda: readline.insert_text(_seen(text)))
    try:
        return input(prompt)
    finally:
        readline.set_startup_hook()


def _shown(request: InputRequest) -> str:
    if request.tool == "python_interpreter" and isinstance(request.arguments, dict):
        return _seen(str(request.arguments.get("code")))
    return _seen(json.dumps(request.arguments, indent=2, ensure_ascii=False))


def _seen(text: str) -> str:
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)
