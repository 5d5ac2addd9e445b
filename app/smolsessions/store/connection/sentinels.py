"""Which server is the primary, where several sentinels may be of different minds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

State = dict[str, Any]
Answer = dict[str, State] | Exception


class Sentinels(Sentinel):
    """Asks all at once and believes the latest decision that a majority of them knows of.

    redis-py's own believes whoever answers first, for ever: a sentinel that is cut off from the others goes on naming
    the primary that they have replaced.
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Give the place of the primary; raise `MasterNotFoundError` where nobody names one."""
        asked = [asyncio.create_task(_masters(sentinel)) for sentinel in self.sentinels]
        try:
            answers = await _most(asked)
        finally:
            for one in asked:
                one.cancel()
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        known = [answer.get(service_name) for answer in answers if not isinstance(answer, Exception)]
        states = [state for state in known if state and self.check_master_state(state, service_name)]
        if not states:
            texts = {str(error) or type(error).__name__: error for error in errors}
            said = f": {', '.join(texts)}" if errors else ""
            raise MasterNotFoundError(f"no primary for {service_name!r}{said}") from (errors[0] if errors else None)
        places = [_place(state) for state in states]
        last = max(states, key=lambda state: (state.get("config-epoch", 0), places.count(_place(state))))
        return _place(last)


async def _masters(sentinel: Redis) -> Answer:
    """Give what it knows, or why it does not say: one that nobody waits for any more may still fail."""
    try:
        found: Any = await sentinel.sentinel_masters()  # redis-py annotates the answers of both its protocols at once
        return dict(found)
    except (RedisError, OSError, TimeoutError) as error:
        return error


async def _most(asked: Sequence[asyncio.Task[Answer]]) -> list[Answer]:
    """Wait until a majority has answered, or all have or could not; each takes a bounded time."""
    answers: list[Answer] = []
    for answer in asyncio.as_completed(asked):
        answers.append(await answer)
        if sum(isinstance(one, dict) for one in answers) > len(asked) // 2:
            break
    return answers


def _place(state: State) -> tuple[str, int]:
    return state["ip"], state["port"]
