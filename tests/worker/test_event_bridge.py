"""The bridge between an agent's thread and the lease of its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smolsessions.worker.event_bridge import LoopEventBridge
from tests.support.stores import DONE, Raw, claim_one, event_names_of, submit

if TYPE_CHECKING:
    from smolsessions.store.store import Store

pytest_plugins = ["tests.support.stores"]


@pytest.mark.parametrize("can_wait", [True, False])
async def test_a_turn_that_is_handed_back_at_once_keeps_the_start_of_its_attempt(
    stores: tuple[Store, Store], raw: Raw, can_wait: bool
) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    bridge = LoopEventBridge(lease)
    bridge.begin(1, can_wait=can_wait)
    bridge.emit(None, effect=("model:1", b"sealed"))
    bridge.request_stop("drained")
    bridge.close()
    await lease.flush()
    await one.scheduler.hand_back(lease)
    again = await claim_one(other)
    assert again.attempt == 2
    await again.load_replay_state()
    await again.commit(DONE)
    assert event_names_of(raw, "c") == ["turn.queued", "turn.started", "turn.finished"]
