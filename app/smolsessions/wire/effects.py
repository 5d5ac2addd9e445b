"""Effects in the journal of a turn that is not over, as answers hold them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from smolsessions.wire.turns import CALL_ID, CURSOR
from smolsessions.wire.words import EffectKind, EffectState


class Effect(BaseModel):
    """Effect in a turn's journal: a call whose result a replay returns. The result itself is not shown."""

    kind: EffectKind
    call_id: str = Field(description=f"{CALL_ID} Of a request and its answer: the call that waits.")
    step_id: str | None = Field(description="Step of the call. Null: it belongs to no step, as that of a summary.")
    name: str | None = Field(description="Name of the tool, or of the fallback model that answered. Null for others.")
    state: EffectState
    attempt: int | None = Field(
        description="Attempt that made the call, or began it last. Null for a request and its answer."
    )
    repeated: bool = Field(description="True if the call was begun again, because a process ended during the first.")
    ok: bool | None = Field(description="True if the call returned. Null until then, and for a request and its answer.")
    error: str | None = Field(description="Class of the exception that the call raised. Null: none.")
    duration_ms: float | None = Field(description="Duration of a call of a tool or code in milliseconds.")
    size_bytes: int | None = Field(description="Size of the stored result. Null: none is stored yet.")


class EffectPage(BaseModel):
    """Page of a turn's effects."""

    items: list[Effect] = Field(description="Effects, by step and call.")
    next_cursor: str | None = Field(description=CURSOR)
    complete: bool = Field(
        description="False: the journal holds more than 10,000 entries, and the pages show some of them."
    )
