"""What the store's parts work with: scripts, seal, log and the names that this process goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.seal import Sealer
    from app.stores.log import Log
    from app.stores.script import Scripts


@dataclass(frozen=True)
class Desk:
    """`channel` is where this process hears of its turns, `wake` where workers hear of work."""

    scripts: Scripts
    sealer: Sealer
    log: Log
    channel: str
    wake: str
    log_ttl_s: int
    lease_s: float
