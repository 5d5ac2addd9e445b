"""JSON Schemas of others: their form, and the mistakes in a value. Both are bounded, as a schema may be hostile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model

from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import MAX_PROBLEMS, invalid_request, json_pointer

MAX_CHECKS = 200_000  # keywords for one value: about a second
MAX_MESSAGE_CHARS = 300
MAX_REFERENCES = 50  # followed within each other
_UNCHECKED = frozenset(
    {"pattern", "patternProperties", "$dynamicRef", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords that may take for ever. One that needs them is not checked beside them."""


def _resolved(reference: str, info: ValidationInfo) -> str:
    if not reference.startswith("#"):
        raise ValueError("refers to another document; write that schema here")
    resolver: Any = info.context
    try:
        resolver.lookup(reference)
    except Exception:  # noqa: BLE001 - whatever the library raises for a wrong schema
        raise ValueError("refers to nothing in this schema") from None
    return reference


_Type = Literal["string", "number", "integer", "boolean", "array", "object", "null"]
_Sub: Any = Annotated["JsonSchema", BeforeValidator(lambda schema: {} if isinstance(schema, bool) else schema)]
_FORMS: tuple[tuple[Any, str], ...] = (
    (Annotated[str, AfterValidator(_resolved)], "$ref"),
    (Annotated[list[_Type], BeforeValidator(lambda kind: kind if isinstance(kind, list) else [kind])], "type"),
    (str, "$id $anchor title description"),
    (list[Any], "enum"),
    (list[str], "required"),
    (dict[str, list[str]], "dependentRequired"),
    (dict[str, _Sub], "properties patternProperties dependentSchemas $defs definitions"),
    (list[_Sub], "allOf anyOf oneOf prefixItems"),
    (_Sub, "items contains additionalProperties propertyNames not if then else"),
    (Annotated[int, Field(ge=0)], "minLength maxLength minItems maxItems minContains maxContains"),
    (Annotated[int, Field(ge=0)], "minProperties maxProperties"),
    (float, "minimum maximum exclusiveMinimum exclusiveMaximum"),
    (Annotated[float, Field(gt=0)], "multipleOf"),
)
_words = [(word, form) for form, words in _FORMS for word in words.split()]
_members: dict[str, Any] = {f"word_{n}": (form, Field(None, alias=word)) for n, (word, form) in enumerate(_words)}
JsonSchema: Any = create_model(
    "JsonSchema",
    __config__=ConfigDict(strict=True, hide_input_in_errors=True, defer_build=True),
    __module__=__name__,
    **_members,
)
"""Form of a JSON Schema. The library's own check of one with 500 members takes a second."""


def check_schema(schema: dict[str, Any], pointer: str) -> None:
    """Raise `InvalidRequestError` at the place of a mistake in a schema, or of a reference out of it or to nothing."""
    from referencing import Registry  # noqa: PLC0415 - it takes 20 ms
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    registry: Any = Registry().with_resource("", DRAFT202012.create_resource(schema))
    try:
        JsonSchema.model_validate(schema, context=registry.resolver())
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise InvalidRequestError.at(pointer, "has too many levels") from None
        prefix = ("body", *pointer.split("/")[1:])
        raise invalid_request([{**each, "loc": (*prefix, *each["loc"])} for each in error.errors()]) from None


def schema_problems(schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """Return pointer and message of each mistake in a value, by its JSON Schema.

    Patterns and `uniqueItems` are not checked, as they may take for ever, and no reference leaves the schema. A schema
    that is itself wrong, as a foreign server's may be, refuses all values.
    """
    from jsonschema.validators import Draft202012Validator, create  # noqa: PLC0415 - it takes 60 ms
    from referencing import Registry  # noqa: PLC0415

    checks = depth = 0

    def counted(word: str, check: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any]]:
        def checked(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
            nonlocal checks, depth
            checks, depth = checks + (5 if word == "$ref" else 1), depth + (word == "$ref")
            if checks > MAX_CHECKS or depth > MAX_REFERENCES:
                raise RecursionError
            is_left_out = word == "additionalProperties" and "patternProperties" in schema
            try:
                for error in () if is_left_out else check(validator, given, value, schema) or ():
                    checks += len(error.message) // 50  # it holds the whole value, and the library keeps all of anyOf
                    error.message = error.message[:MAX_MESSAGE_CHARS]
                    yield error
            finally:  # the library may want the first error only
                depth -= word == "$ref"

        return checked

    words = {word: counted(word, check) for word, check in Draft202012Validator.VALIDATORS.items()}
    kept = {word: check for word, check in words.items() if word not in _UNCHECKED}
    kind = create(Draft202012Validator.META_SCHEMA, kept, type_checker=Draft202012Validator.TYPE_CHECKER)
    found = []
    try:
        for error in kind(schema, registry=Registry()).iter_errors(value):
            found.append((json_pointer(*error.absolute_path), error.message))
            if len(found) == MAX_PROBLEMS:
                break
    except Exception:  # noqa: BLE001 - whatever the library raises for a wrong schema
        return [("", "cannot be checked, as its schema is wrong, or as both are too large: leave it, or send less")]
    return found
