"""Strict models of a document's parts. Their errors carry JSON pointers."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from smolsessions.agents.values.json_forms import is_utf8, json_flaw, json_pointer, utf8_text
from smolsessions.core.errors import InvalidRequestError

Model = TypeVar("Model", bound=BaseModel)

MAX_FIELDS = 50
MAX_COUNT = 2**53 - 1  # the largest whole number that every JSON reader keeps


class Strict(BaseModel):
    """Model without unknown members. Very many members raise one error instead of one error each."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and (len(data) > MAX_FIELDS or not all(map(_is_name, data))):
            raise _refusal("has far too many members, or one whose name is no text")
        return data


def checked(model: type[Model], data: Any, pointer: str) -> Model:
    """Validate the part of a document at `pointer`. Raises `InvalidRequestError` with the first fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidRequestError.at(json_pointer(pointer, *problem["loc"]), utf8_text(problem["msg"])) from None


def _is_name(name: object) -> bool:
    return type(name) is str and is_utf8(name)


def _refusal(message: str) -> PydanticCustomError:
    return PydanticCustomError("portable", "{message}", {"message": message})


def _json(value: Any) -> Any:
    if flaw := json_flaw(value):
        raise _refusal(flaw.sentence)
    return value


def _text_or_parts(value: Any) -> Any:
    is_parts = type(value) is list and all(type(part) is dict for part in value)
    if value is not None and type(value) is not str and not is_parts:
        raise _refusal("is neither a text nor a list of content parts")
    return _json(value)


def _whole(text: str) -> str:
    if not is_utf8(text):
        raise _refusal("holds half a character")
    return text


Text = Annotated[str, AfterValidator(_whole)]
Json = Annotated[Any, AfterValidator(_json)]
Output = Annotated[Any, AfterValidator(_text_or_parts)]
"""Output of a model: a text, a list of content parts, or null."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
ImageName = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
ImageNames = Annotated[list[ImageName], Field(fail_fast=True)]
