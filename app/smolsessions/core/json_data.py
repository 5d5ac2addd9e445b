"""JSON of callers: strict decoding, bounds, merge patches, refusals, and models of records."""

from __future__ import annotations

import base64
import difflib
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any, NoReturn, TypeVar, cast, get_type_hints

import jiter
from pydantic import BaseModel, create_model
from pydantic import Field as ModelField
from pydantic_core import from_json, to_json

from smolsessions.core.errors import InvalidRequestError, MalformedError, TooLargeError
from smolsessions.core.policies import TAGS

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MAX_METADATA_BYTES = 64 * 1024
MAX_OBJECT_BYTES = 1024 * 1024
MAX_MEMBERS = 100_000  # of one object: to build a larger one holds the interpreter lock for long
MAX_PROBLEMS = 10
MAX_POINTER_CHARS = 200
_SHOWN_CHARS = 80
_FAST_BYTES = 64 * 1024
_AROUND = 8  # levels that records and pages put around what a client sends


def read_json(body: bytes) -> Any:
    """Decode a document strictly. Raises `MalformedError` if it is no JSON.

    Raises `InvalidRequestError` for JSON that readers disagree on: a repeated member, NaN, a number of thousands of
    digits, thousands of levels. Raises `TooLargeError` for an object of more than `MAX_MEMBERS`.
    """
    if len(body) <= _FAST_BYTES:
        with suppress(ValueError):  # the reason is found below
            return jiter.from_json(body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
    try:  # in the other parser, other threads run after each object
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
    if len(pairs) > MAX_MEMBERS:
        raise TooLargeError(f"An object of the body has more than {MAX_MEMBERS} members; send fewer.")
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = max(Counter(name for name, _ in pairs).items(), key=lambda found: found[1])[0]
        raise InvalidRequestError.at("", f"the member {ascii(twice)[:_SHOWN_CHARS]} comes twice in one object")
    return members


def _constant(name: str) -> NoReturn:
    raise InvalidRequestError.at("", f"holds {name}, which is no JSON")


def bounded(metadata: dict[str, Any]) -> dict[str, Any]:
    """Raises `TooLargeError`: each item of a list of conversations has its whole metadata."""
    if len(json.dumps(metadata)) > MAX_METADATA_BYTES:
        raise TooLargeError(f"The metadata is larger than {MAX_METADATA_BYTES} bytes.")
    return metadata


def storable(value: T, most_bytes: int | None = None) -> T:
    """Return a value that is strict JSON. Raises `ValueError` for others, and `TooLargeError` above `most_bytes`."""
    wrapped: Any = value
    for _ in range(_AROUND):
        wrapped = [wrapped]
    try:
        data = to_json(wrapped)
        if most_bytes is not None and len(data) - 2 * _AROUND > most_bytes:
            raise TooLargeError(f"An object of the request is larger than {most_bytes} bytes; send less.")
        from_json(data, allow_inf_nan=False)
    except ValueError:
        raise ValueError("holds what is no JSON: NaN, half a character, or too many levels") from None
    return value


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null deletes a member, objects merge, other values replace."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def invalid_request(errors: Sequence[Any], members: Collection[str] = ()) -> InvalidRequestError:
    """Return the refusal of pydantic's errors, whose locations begin with their place. `members` are the body's."""
    problems: list[dict[str, str]] = []
    for error in errors[:MAX_PROBLEMS]:
        place, *path = (part for part in error["loc"] if part not in TAGS)
        message = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message = "there is no such member"
            if len(path) == 1 and (near := difflib.get_close_matches(str(path[0])[:MAX_POINTER_CHARS], members, 1)):
                message += f"; did you mean {near[0]}?"
        is_in_body = place == "body"
        where = {"pointer": json_pointer(*path)} if is_in_body else {"in": place, "parameter": ".".join(map(str, path))}
        problems.append({**where, "message": message})
    return InvalidRequestError.of(problems)


def json_pointer(*path: object, under: str = "") -> str:
    """Return a JSON pointer (RFC 6901), below another one. Long parts are cut, and half characters replaced."""
    pointer = "".join("/" + str(part)[:MAX_POINTER_CHARS].replace("~", "~0").replace("/", "~1") for part in path)
    return under + pointer.encode(errors="replace").decode()


def decode_base64(data: Any, pointer: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (TypeError, ValueError):
        raise InvalidRequestError.at(pointer, "is no base64") from None


def derived_from(record: type, **renamed: str) -> Callable[[type[M]], type[M]]:
    """Decorate a model to have the fields of a record, some renamed. The model's own fields replace them."""
    types = get_type_hints(record, include_extras=True)

    def derive(model: type[M]) -> type[M]:
        found: dict[str, Any] = {}
        for field in fields(record):
            default = ... if field.default is MISSING else field.default
            if field.default_factory is not MISSING:
                default = ModelField(default_factory=field.default_factory)
            found[renamed.get(field.name, field.name)] = types[field.name], default
        own = {name: (field.annotation, field) for name, field in model.model_fields.items()}
        options: Any = {"__config__": model.model_config, "__module__": model.__module__}
        return cast("type[M]", create_model(model.__name__, **options, **found | own))

    return derive
