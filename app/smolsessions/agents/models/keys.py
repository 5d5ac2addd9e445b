"""Keys of providers: read from variables that are named, shown nowhere."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Collection, Iterable
from urllib.parse import quote

from smolsessions.core.errors import StartError

NO_KEY = "none"
"""Sent instead of a key. Without one, clients take the host's OPENAI_API_KEY or HF_TOKEN, for any address."""
KEY_OR_BASE = "name the environment variable that holds it in api_key_env, or an endpoint that needs none in base"
NOT_SET = "names a variable that is not set; set it, or name another (its name, not the key)"
_MASK = "***"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[!-~]+")
_EXTRA = re.compile(r"\bsmolagents(?=\[(openai|litellm|bedrock|transformers|docker|e2b|modal|blaxel|mcp)\])")
_SHORTEST = 6  # a shorter value is a word of common texts
_known: set[str] = set()


class Secret(str):
    """A key whose repr hides it. It appears only when it is formatted into a header."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{_MASK}'"


def read_key(variable: str, named_by: str = "api_key_env") -> Secret:
    """Return the value of an environment variable. Texts that pass `without_secrets` do not show it from then on.

    No sentence repeats the variable: a key may stand in the place of its name, and look like a name.
    """
    if not _VARIABLE.fullmatch(variable):
        raise StartError(
            f"{named_by}: holds no name; set it to the name of the environment variable that holds the key, not to "
            "the key"
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise StartError(f"{named_by}: {NOT_SET}")
    if not _KEY.fullmatch(key):  # a header refuses it, with an exception that shows it
        raise StartError(
            f"{named_by}: names a variable that holds no key, having blanks or letters beyond ASCII; fix its value"
        )
    _known.add(key)
    return Secret(key)


def remember_keys(variables: Iterable[str]) -> None:
    """Let `without_secrets` mask the values of these variables, also before any of them is read."""
    for variable in variables:
        value = os.environ.get(variable, "").strip()
        _known.update({value, value.rpartition(" ")[2]})  # without "Bearer "


def describe_error(error: BaseException) -> str:
    """Return class and text of a foreign exception for a sentence about a start, with keys masked.

    An extra of smolagents that the text tells to install becomes that of this package.
    """
    text = _EXTRA.sub("smolsessions", f"{type(error).__name__}: {error}")
    return without_secrets(text).rstrip(" .\n")


def keys_of(model: object) -> list[str]:
    """Return the keys that a smolagents model holds, which may come from a factory's own code."""
    held = getattr(model, "client_kwargs", None)
    values = [getattr(model, "api_key", None)]
    if isinstance(held, dict):
        values += [held.get("api_key"), held.get("token")]
    return [str(value) for value in values if isinstance(value, str)]


def without_secrets(text: str, keys: Collection[str] = ()) -> str:
    """Return the text with all keys that were read, and these `keys`, masked."""
    for form in _forms_of(frozenset((*_known, *keys))):
        text = text.replace(form, _MASK)
    return text


@functools.lru_cache(16)
def _forms_of(keys: frozenset[str]) -> tuple[str, ...]:
    """Return keys as they are, in JSON and in an address, the longest first."""
    long = [key for key in keys if len(key) >= _SHORTEST]
    forms = {form for key in long for form in (key, json.dumps(key)[1:-1], quote(key, safe=""))}
    return tuple(sorted(forms, key=len, reverse=True))
