"""Strict models of a document's parts: they check it and name faults with JSON pointers."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from smolsessions.agents.models.token_usage import MAX_COUNT
from smolsessions.agents.values.json_forms import json_flaw, utf8_text
from smolsessions.core.errors import InvalidRequestError
from smolsessions.core.json_data import json_pointer

Model = TypeVar("Model", bound=BaseModel)

MAX_FIELDS = 50


class Strict(BaseModel):
    """Model without unknown members. Very many members raise one error instead of one error each."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if type(data) is dict and len(data) > MAX_FIELDS:
            raise _refusal("has far too many members")
        return data


def checked(model: type[Model], data: Any, pointer: str) -> Model:
    """Validate the part of a document at `pointer`. Raises `InvalidRequestError` with the first fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidRequestError.at(json_pointer(*problem["loc"], under=pointer), utf8_text(problem["msg"])) from None


def _refusal(message: str) -> PydanticCustomError:
    return PydanticCustomError("portable", "{message}", {"message": message})


def _json(value: Any) -> Any:
    if value is not None and (flaw := json_flaw(value)):
        raise _refusal(flaw)
    return value


def _text_or_parts(value: Any) -> Any:
    is_parts = type(value) is list and all(type(part) is dict for part in value)
    if value is not None and type(value) is not str and not is_parts:
        raise _refusal("is neither a text nor a list of content parts")
    return _json(value)


Text = Annotated[str, Field(min_length=0)]
"""A text without half characters: pydantic takes those of a text without bounds."""
Json = Annotated[Any, AfterValidator(_json)]
Output = Annotated[Any, AfterValidator(_text_or_parts)]
"""Output of a model: a text, a list of content parts, or null."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
