"""Lists of tasks: of one context, or of all contexts with an agent."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from pydantic import AwareDatetime, Field

from smolsessions.core.errors import NotFoundError, SealBrokenError
from smolsessions.core.records import AgentName, ConversationQuery, ConversationStatus, Owner, Ref, Turn
from smolsessions.web.cursors import cursor_at, position_of
from smolsessions.web.dialects.a2a.messages import Params
from smolsessions.web.dialects.a2a.tasks import STATES, Json, changed_at, stored_task
from smolsessions.web.dialects.gateway import Gateway
from smolsessions.web.dialects.places import CONVERSATION_ID

MOST_LISTED = 1000  # tasks of the contexts that changed last
AT_ONCE = 50
MOST_MEDIA = 8 << 20  # characters of images and files; GetTask returns the artifacts of later tasks
MICROS = 1_000_000
_PLACE = re.compile(rf"[0-9]{{1,16}} {CONVERSATION_ID.pattern} [0-9]{{1,10}}")
_OPEN: dict[str, ConversationStatus] = {STATES["running"]: "running", STATES["waiting"]: "waiting"}


class ListParams(Params):
    context_id: str = ""
    status: str = ""
    page_size: int = Field(50, ge=1, le=100)
    page_token: str = ""
    history_length: int | None = Field(None, ge=0)
    status_timestamp_after: AwareDatetime | None = None
    include_artifacts: bool = False


async def list_tasks(gateway: Gateway, owner: Owner, agent: AgentName, sent: ListParams) -> Json:
    """Return a page of tasks, the last changed first."""
    since = sent.status_timestamp_after.timestamp() if sent.status_timestamp_after else 0.0
    of = ("tasks", owner, agent, sent.context_id, sent.status, str(since))
    before = None
    if position := position_of(sent.page_token or None, _PLACE, *of):
        micros, context, number = position.split(" ")
        before = (int(micros), context, int(number))
    total, found = 0, dict[tuple[int, str, int], Turn]()
    async for turn in _turns(gateway, owner, agent, sent):
        is_wanted = sent.status in {"", "TASK_STATE_UNSPECIFIED", STATES[turn.status]}
        if is_wanted and turn.agent.name == agent and changed_at(turn) >= since:
            total += 1
            key = (round(changed_at(turn) * MICROS), turn.ref.id, turn.number)
            if before is None or key < before:
                found[key] = turn
                if len(found) > sent.page_size + 1:  # one more says that another page follows
                    del found[min(found)]
    keys = sorted(found, reverse=True)
    tasks: list[Json] = []
    left = MOST_MEDIA if sent.include_artifacts else 0
    for key in keys[: sent.page_size]:
        media = await gateway.media_of(found[key]) if left > 0 else None
        left -= sum(map(len, (media or {}).values()))
        tasks.append(stored_task(found[key], media, sent.history_length))
    more = " ".join(map(str, keys[sent.page_size - 1])) if len(keys) > sent.page_size else None
    page = {"tasks": tasks, "nextPageToken": cursor_at(more, *of) or ""}
    return {**page, "pageSize": sent.page_size, "totalSize": total}


async def _turns(gateway: Gateway, owner: Owner, agent: AgentName, sent: ListParams) -> AsyncGenerator[Turn, None]:
    """Yield the turns of the contexts that changed last, the newest of each first."""
    query, after, count = ConversationQuery(agent=agent, status=_OPEN.get(sent.status)), None, 0
    while True:
        contexts = [sent.context_id]
        if not sent.context_id:
            page = await gateway.conversations.store.conversations(owner, query, after, AT_ONCE)
            contexts, after = [each.ref.id for each in page.items], page.next_cursor
        for context in contexts:
            with suppress(NotFoundError, SealBrokenError):  # of a damaged one, a read alone raises the error
                async with aclosing(gateway.turns_from(Ref(owner, context), None, "desc")) as turns:
                    async for turn in turns:
                        yield turn
                        if (count := count + 1) == MOST_LISTED:
                            return
        if not after:
            return
