"""Format of exported documents: names, version, and a strict JSON decoder."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from smolsessions.core.errors import InvalidRequestError, MalformedError

FORMAT, VERSION = "smolsessions/conversation", 1
MEMORY_FORMAT = "smolagents/memory"
"""Format of a document with the result of `agent.memory.get_full_steps()`."""
_SHOWN_CHARS = 80


def read_json(body: bytes) -> Any:
    """Decode a document strictly. Raises `MalformedError` if it is no JSON.

    Raises `InvalidRequestError` for JSON that readers disagree on: a repeated member, NaN, a number of thousands of
    digits, thousands of levels.
    """
    try:
        return json.loads(body.decode(), object_pairs_hook=_members, parse_constant=_constant)
    except UnicodeDecodeError:
        raise MalformedError from None
    except json.JSONDecodeError as error:
        raise MalformedError(f"The body is no JSON: {error}.") from None
    except ValueError:
        raise InvalidRequestError.at("", "holds a number of too many digits") from None
    except RecursionError:
        raise InvalidRequestError.at("", "has too many levels") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = max(Counter(name for name, _ in pairs).items(), key=lambda found: found[1])[0]
        raise InvalidRequestError.at("", f"the member {ascii(twice)[:_SHOWN_CHARS]} comes twice in one object")
    return members


def _constant(name: str) -> NoReturn:
    raise InvalidRequestError.at("", f"holds {name}, which is no JSON")
