"""Functions as tools of a turn: described for the model, and called when the turn waits for their results."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ArgsKwargs, from_json, to_json

from smolsessions.wire.turns import InputRequest

MAX_RESULT_BYTES = 1024 * 1024
MAX_ERROR_CHARS = 10_000
# Parts of a docstring, as smolagents' `@tool` reads them.
_DESCRIPTION = re.compile(r"(.*?)(?=\n\s*(?:Args|Returns|Raises):|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)\s*(?:\n\s*(?:Returns|Raises):|\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"(?:^|\n)\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*?)\s*(?=\n\s*\w+\s*(?:\([^)]*\))?:|\Z)", re.DOTALL)


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - it would repeat the name
        return False


class Toolbox:
    """Functions by name. `described` is their form in `client_tools`.

    A client that `blocks` calls them one after the other, and none may be asynchronous (`TypeError`).
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], *, blocks: bool) -> None:
        self._blocks = blocks
        self._functions: dict[str, Any] = {getattr(function, "__name__", ""): function for function in functions}
        self._adapters: dict[str, Any] = {name: TypeAdapter(found) for name, found in self._functions.items()}
        self.described: list[dict[str, Any]] = []
        for name, function in self._functions.items():
            if blocks and inspect.iscoroutinefunction(function):
                raise TypeError(f"the tool {name} is asynchronous; use AsyncClient")
            text = inspect.getdoc(function) or ""
            about = _DESCRIPTION.match(text)
            if not (text and about):
                raise TypeError(f"the tool {name!r} has no docstring; say there what it does, as the model reads it")
            schema = self._adapters[name].json_schema(schema_generator=_Schema)
            found = _ARGUMENTS.search(text)
            for argument, meaning in _ARGUMENT.findall(found[1] if found else ""):
                if argument in schema.get("properties", {}):
                    schema["properties"][argument].setdefault("description", " ".join(meaning.split()))
            self.described.append({"name": name, "description": about[1].strip(), "parameters": schema})

    async def answers(self, requests: Sequence[InputRequest]) -> list[Any]:
        """Call the functions that the requests ask for, and return their results.

        They run at the same time, those that are not asynchronous in threads. If the client blocks, they run here,
        one after the other.
        """
        found: dict[str, Any] = {}

        async def answer(request: InputRequest) -> None:
            try:
                if inspect.iscoroutinefunction(self._functions[request.tool]):
                    value = await self._call(request)
                else:
                    value = self._call(request) if self._blocks else await anyio.to_thread.run_sync(self._call, request)
                data = to_json(value, inf_nan_mode="null")
                if len(data) > MAX_RESULT_BYTES:
                    raise ValueError("the result is larger than 1 MiB")  # noqa: TRY301 - an error of the tool, too
                found[request.request_id] = {"request_id": request.request_id, "result": from_json(data)}
            except Exception as error:  # noqa: BLE001 - any error of a function is one of the tool
                sentence = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
                found[request.request_id] = {"request_id": request.request_id, "error": sentence}

        own = [each for each in requests if each.kind == "result" and each.tool in self._functions]
        if self._blocks:
            for request in own:
                await answer(request)
        else:
            async with anyio.create_task_group() as group:
                for request in own:
                    group.start_soon(answer, request)
        return list(found.values())

    def _call(self, request: InputRequest) -> Any:
        """Call a function with its types: the arguments of the request are JSON."""
        return self._adapters[request.tool].validate_python(ArgsKwargs((), request.arguments))
