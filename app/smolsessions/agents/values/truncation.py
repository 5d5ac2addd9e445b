"""Texts and data as events show them: whole where they are short."""

from __future__ import annotations

import json
from typing import Any

from smolsessions.agents.run.effects import without_text
from smolsessions.agents.values.json_forms import json_form, utf8_text

MAX_SHOWN_CHARS = 2000  # of a text in an event; the whole is in the steps
_MOST_MEMBERS = 100


def truncated(text: str) -> str:
    """Cut a text for an event, with a mark."""
    if len(text) > MAX_SHOWN_CHARS:
        text = f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"
    return utf8_text(text)


def as_text(value: Any) -> str:
    """Give a value as text: a text as it is, all else as its JSON form."""
    value = json_form(without_text(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def joined_text(parts: Any) -> str | None:
    """Give the texts of a message's parts, a line each; None where it is not made of texts."""
    if isinstance(parts, list) and parts and all(isinstance(part, dict) and "text" in part for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return None


def truncate_json(value: Any) -> Any:
    """Cut the texts in JSON data; what is large without long texts becomes one text."""
    if isinstance(value, str):
        return truncated(value)
    if isinstance(value, dict) and len(value) <= _MOST_MEMBERS:
        return {truncated(name): truncate_json(member) for name, member in value.items()}
    if isinstance(value, list) and len(value) <= _MOST_MEMBERS:
        return [truncate_json(member) for member in value]
    return truncated(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict | list) else value
