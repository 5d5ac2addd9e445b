"""Synchronous client: the coroutines of the asynchronous one. They never wait, as their connections block."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx2

from smolsessions.client.aio.client import TIMEOUT, AsyncClient
from smolsessions.client.aio.connection import BlockingHttp

P = ParamSpec("P")
T = TypeVar("T")
_END: Any = object()


def _run(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a coroutine of the client waits, although its connections block")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(method)
    def run(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", _run(method(self._client, *args, **kwargs)))

    return run


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Client, P], Generator[T]]:
    def items(found: AsyncGenerator[T]) -> Generator[T]:
        try:
            while (item := _run(anext(found, _END))) is not _END:
                yield item
        finally:
            _run(found.aclose())

    @functools.wraps(method)
    def iterate(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        return items(method(self._client, *args, **kwargs))

    signature = inspect.signature(method)
    returned = str(signature.return_annotation).removeprefix("Async")
    iterate.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]  # for `help`
    return iterate


class Client:
    """Client of one service, as `AsyncClient`. Its methods block. All raise `ApiError` and `UnreachableError`."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        patience_s: float = 60,
        http: httpx2.Client | None = None,
    ) -> None:
        """Connect to a service when it is first used. The parameters are those of `AsyncClient`."""
        blocking: Any = BlockingHttp(http or httpx2.Client(timeout=TIMEOUT, limits=httpx2.Limits()))
        self._client = AsyncClient(base_url, api_key=api_key, patience_s=patience_s, http=blocking)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _blocking(AsyncClient.aclose)
    turn = _blocking(AsyncClient.turn)
    submit = _blocking(AsyncClient.submit)
    stream = _iterating(AsyncClient.stream)
    list_turns = _iterating(AsyncClient.list_turns)
    get_turn = _blocking(AsyncClient.get_turn)
    get_turn_events = _iterating(AsyncClient.get_turn_events)
    list_turn_effects = _iterating(AsyncClient.list_turn_effects)
    cancel_turn = _blocking(AsyncClient.cancel_turn)
    run_tools = _blocking(AsyncClient.run_tools)
    answer = _blocking(AsyncClient.answer)
    answer_turn = _blocking(AsyncClient.answer_turn)
    stream_answers = _iterating(AsyncClient.stream_answers)
    create_conversation = _blocking(AsyncClient.create_conversation)
    list_conversations = _iterating(AsyncClient.list_conversations)
    get_conversation = _blocking(AsyncClient.get_conversation)
    update_conversation = _blocking(AsyncClient.update_conversation)
    delete_conversation = _blocking(AsyncClient.delete_conversation)
    list_steps = _iterating(AsyncClient.list_steps)
    get_prompt = _blocking(AsyncClient.get_prompt)
    list_variables = _blocking(AsyncClient.list_variables)
    list_workspace_files = _blocking(AsyncClient.list_workspace_files)
    get_workspace_file = _blocking(AsyncClient.get_workspace_file)
    get_image = _blocking(AsyncClient.get_image)
    get_file = _blocking(AsyncClient.get_file)
    prune_conversation = _blocking(AsyncClient.prune_conversation)
    roll_back_conversation = _blocking(AsyncClient.roll_back_conversation)
    fork_conversation = _blocking(AsyncClient.fork_conversation)
    export_conversation = _blocking(AsyncClient.export_conversation)
    import_conversation = _blocking(AsyncClient.import_conversation)
    list_agents = _blocking(AsyncClient.list_agents)
    get_agent = _blocking(AsyncClient.get_agent)
    get_liveness = _blocking(AsyncClient.get_liveness)
    get_readiness = _blocking(AsyncClient.get_readiness)
    get_metrics = _blocking(AsyncClient.get_metrics)
