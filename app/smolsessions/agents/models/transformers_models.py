"""A model of transformers in this process. It answers one call at a time: it has one streamer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from smolagents import TransformersModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.streams import timeouts_of
from smolsessions.agents.run.model_connections import current_call
from smolsessions.core.errors import StartError

_CHECK_S = 0.1


def make_transformers(table: ModelTable) -> TransformersModel:
    if table.base or table.api_key_env:
        raise StartError("a model in this process has neither base nor api_key_env; remove them")
    options = table.options.model_dump(exclude_none=True)
    if "max_tokens" in options:
        options["max_new_tokens"] = options.pop("max_tokens")
    model = TransformersModel(table.id, trust_remote_code=False, **options)
    queue_calls(model, timeouts_of(table)[1])
    return model


def queue_calls(model: Any, timeout_s: float) -> None:
    """Let a model answer one call at a time. `timeout_s` bounds the wait for each piece of an answer."""
    lock, generate, stream = threading.Lock(), model.generate, model.generate_stream
    model.streamer.timeout = timeout_s  # else a generation that failed would be waited for without end

    def generate_alone(*args: Any, **options: Any) -> Any:
        _acquire(lock)
        try:
            return generate(*args, **options)
        finally:
            lock.release()

    def stream_alone(*args: Any, **options: Any) -> Iterator[Any]:
        _acquire(lock)
        try:
            yield from stream(*args, **options)
        except GeneratorExit:  # the generation goes on, and would mix with the next one's pieces
            threading.Thread(target=_drain, args=(model.streamer, lock), daemon=True).start()
            raise
        except queue.Empty:
            lock.release()
            raise TimeoutError("The model generated nothing for too long.") from None
        except BaseException:  # also a stop: the next call needs the lock
            lock.release()
            raise
        lock.release()

    model.generate, model.generate_stream = generate_alone, stream_alone


def _acquire(lock: threading.Lock) -> None:
    """Wait for the calls before this one. Raises `TurnStopped` if this one is cut meanwhile."""
    while not lock.acquire(timeout=_CHECK_S):
        if call := current_call():
            call.check()


def _drain(streamer: Any, lock: threading.Lock) -> None:
    try:
        for _ in streamer:
            pass
    except queue.Empty:
        pass
    finally:
        lock.release()
