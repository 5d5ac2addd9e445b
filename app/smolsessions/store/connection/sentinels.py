"""Discovery of the primary through several sentinels that may disagree."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import RedisError

State = dict[str, Any]
Masters = dict[str, State] | Exception


class QuorumSentinel(Sentinel):
    """Asks all sentinels at once, and believes the latest decision known to a majority.

    redis-py believes the first reply, so a sentinel that is cut off keeps naming a replaced primary.
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the primary. Raises `MasterNotFoundError` if no sentinel names one."""

        async def masters(sentinel: Redis) -> Masters:
            """Return an error instead of raising it: a task that is not awaited any more may still fail."""
            try:
                found: Any = await sentinel.sentinel_masters()  # redis-py annotates both of its protocols at once
                return dict(found)
            except (RedisError, OSError, TimeoutError) as error:
                return error

        asked, replies = [asyncio.create_task(masters(sentinel)) for sentinel in self.sentinels], list[Masters]()
        try:
            for reply in asyncio.as_completed(asked):  # each has its own timeout
                replies.append(await reply)
                if sum(isinstance(one, dict) for one in replies) > len(asked) // 2:
                    break
        finally:
            for task in asked:
                task.cancel()
        errors = [one for one in replies if isinstance(one, Exception)]
        known = [one.get(service_name) for one in replies if not isinstance(one, Exception)]
        states = [state for state in known if state and self.check_master_state(state, service_name)]
        if not states:
            reasons = ", ".join({str(error) or type(error).__name__: error for error in errors})
            why = f": {reasons}" if reasons else ""
            raise MasterNotFoundError(f"no primary for {service_name!r}{why}") from (errors[0] if errors else None)
        addresses = [_address(state) for state in states]
        return _address(max(states, key=lambda state: (state.get("config-epoch", 0), addresses.count(_address(state)))))


def _address(state: State) -> tuple[str, int]:
    return state["ip"], state["port"]
