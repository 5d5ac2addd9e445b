"""Strict models of a document's parts. A model's fields decode a part, encode it, and check it with JSON pointers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from smolsessions.agents.values.json_forms import is_utf8, json_flaw, json_form, json_pointer, utf8_text
from smolsessions.core.errors import InvalidRequestError

Encode = Callable[[Any, str, set[str]], Any]
Place = tuple[int | str, ...]

Model = TypeVar("Model", bound=BaseModel)

MAX_FIELDS = 50
_DATA = frozenset({bool, int, float, str, dict, type(None)})
"""Types of members that are the same in the object. A dict is JSON of the caller."""
MAX_COUNT = 2**53 - 1  # the largest whole number that every JSON reader keeps


class Encoder(NamedTuple):
    """Annotation of a field with the function that encodes its value.

    The function gets the value, its pointer, and a set. It adds the pointer if the result replaces another value.
    """

    encode: Encode
    kept: frozenset[type] = frozenset()
    """Types of values that need no encoding. A text needs none if it is ASCII."""


class Strict(BaseModel):
    """Model without unknown members. Very many members raise one error instead of one error each."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    makes: ClassVar[Any] = dict
    """Function that makes the object of a model."""
    own: ClassVar[frozenset[str]] = frozenset()
    """Fields that are no fields of the object."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if type(data) is not dict or data.keys() <= _names(cls):
            return data
        if len(data) > MAX_FIELDS or not all(map(_is_name, data)):
            raise _refusal("has far too many members, or one whose name is no text")
        return data

    @classmethod
    def computed(cls, _source: Any) -> dict[str, Any]:
        """Return values of fields that are no attributes of an object."""
        return {}

    @classmethod
    def encode(cls, source: Any, pointer: str, labels: set[str]) -> dict[str, Any]:
        """Return an object as JSON data. `labels` collects pointers to texts and data that replace other values."""
        values = cls.computed(source)
        encoded = {}
        for name, (encode, kept) in _encoders(cls).items():
            value = values[name] if name in values else getattr(source, name)
            if type(value) in kept and (type(value) is not str or value.isascii()):
                encoded[name] = value
            else:
                encoded[name] = encode(value, f"{pointer}/{name}", labels)
        return encoded

    def fields(self) -> dict[str, Any]:
        return {
            name: value if type(value) in _DATA else _made(value)
            for name, value in vars(self).items()
            if name not in self.own
        }

    def made(self) -> Any:
        """Return the object."""
        return type(self).makes(**self.fields())


def checked(model: type[Model], data: Any, pointer: str, place: Callable[[Place], Place] = tuple) -> Model:
    """Validate the part of a document at `pointer`. Raises `InvalidRequestError` with the first fault.

    `place` returns the place of a fault in the document if the data had another form there.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidRequestError.at(json_pointer(pointer, *place(problem["loc"])), utf8_text(problem["msg"])) from None


def is_parts(value: Any) -> bool:
    """True for a list of content parts."""
    return type(value) is list and all(type(part) is dict for part in value)


def _made(value: Any) -> Any:
    if type(value) is list:
        return [_made(one) for one in value] if value and hasattr(value[0], "made") else value
    return value.made() if hasattr(value, "made") else value  # isinstance() of a pydantic class is slow


@cache
def _names(model: type[Strict]) -> frozenset[str]:
    return frozenset(model.model_fields)


@cache
def _encoders(model: type[Strict]) -> dict[str, Encoder]:
    hints = get_type_hints(model, include_extras=True)
    return {name: _encoder_of(hints[name]) for name in model.model_fields if name not in model.own}


def _encoder_of(hint: Any) -> Encoder:
    """Return the encoder of a field's type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = (one for one in args if isinstance(one, Encoder))
        return next(found, None) or _encoder_of(args[0])
    if origin in {Union, UnionType}:
        encode, kept = _encoder_of(args[0])
        return Encoder(encode, kept | {type(None)})
    if origin is list:
        encode_member, _ = _encoder_of(args[0])
        return Encoder(
            lambda values, pointer, labels: [
                encode_member(value, f"{pointer}/{index}", labels) for index, value in enumerate(values)
            ]
        )
    if isinstance(hint, type) and issubclass(hint, Strict):
        return Encoder(hint.encode)
    return Encoder(lambda value, _pointer, _labels: value, frozenset({bool, int, float, str}))


def _is_name(name: object) -> bool:
    return type(name) is str and is_utf8(name)


def _refusal(message: str) -> PydanticCustomError:
    return PydanticCustomError("portable", "{message}", {"message": message})


def _json(value: Any) -> Any:
    if flaw := json_flaw(value):
        raise _refusal(flaw.sentence)
    return value


def _text_or_parts(value: Any) -> Any:
    if value is not None and type(value) is not str and not is_parts(value):
        raise _refusal("is neither a text nor a list of content parts")
    return _json(value)


def _whole(text: str) -> str:
    if not is_utf8(text):
        raise _refusal("holds half a character")
    return text


def encode_text(text: Any, pointer: str, labels: set[str]) -> str:
    if type(text) is str:
        return utf8_text(text)
    labels.add(pointer)
    return utf8_text(str(json_form(text)))


def encode_json(value: Any, pointer: str, labels: set[str]) -> Any:
    if json_flaw(value) is None:
        return value
    labels.add(pointer)
    return json_form(value)


def encode_output(output: Any, pointer: str, labels: set[str]) -> Any:
    if output is None or type(output) is str:
        return output and utf8_text(output)
    parts = encode_json(output, pointer, labels)
    return parts if is_parts(parts) else encode_text(output, pointer, labels)


def encode_count(count: Any, _pointer: str = "", _labels: object = None) -> int:
    """Return a provider's token count, or 0 if it is no count."""
    return int(count) if (type(count) is int or type(count) is float) and 0 <= count <= MAX_COUNT else 0


Text = Annotated[str, AfterValidator(_whole), Encoder(encode_text, frozenset({str}))]
Json = Annotated[Any, AfterValidator(_json), Encoder(encode_json, frozenset({str, type(None)}))]
Output = Annotated[Any, AfterValidator(_text_or_parts), Encoder(encode_output, frozenset({str, type(None)}))]
"""Output of a model: a text, a list of content parts, or null."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT), Encoder(encode_count)]
